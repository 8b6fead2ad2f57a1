//! A checksum that is fast on every machine: blocks are megabytes.
//!
//! It detects damage and is no protection: who can forge a file in the user's own folder controls
//! the process already.

const LANES: usize = 4;
const PRIMES: [u64; LANES] = [
    0x9e37_79b1_85eb_ca87,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
];

/// Each word enters a lane through a bijection of the lane, so that one changed word always changes
/// the result.
pub fn checksum(parts: &[&[u8]]) -> u64 {
    let mut result = 0;
    for part in parts {
        result = fold(result, part);
    }
    result
}

fn fold(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = PRIMES.map(|prime| prime ^ seed);
    let (groups, rest) = bytes.as_chunks::<{ 8 * LANES }>();
    for group in groups {
        let words = group.as_chunks::<8>().0;
        for ((lane, word), prime) in lanes.iter_mut().zip(words).zip(PRIMES) {
            *lane = mix(*lane, u64::from_le_bytes(*word), prime);
        }
    }
    let mut last = [0; 8 * LANES];
    last[..rest.len()].copy_from_slice(rest);
    let words = last.as_chunks::<8>().0;
    for ((lane, word), prime) in lanes.iter_mut().zip(words).zip(PRIMES) {
        *lane = mix(*lane, u64::from_le_bytes(*word), prime);
    }
    let length = mix(seed, bytes.len() as u64, PRIMES[0]);
    lanes
        .iter()
        .fold(length, |sum, lane| mix(sum, *lane, PRIMES[1]))
}

/// A bijection of `lane` for every `word`, and of `word` for every `lane`.
fn mix(lane: u64, word: u64, prime: u64) -> u64 {
    (lane ^ word).wrapping_mul(prime).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_changes_it() {
        for len in [1, 7, 8, 31, 32, 33, 100] {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at * 37) as u8).collect();
            let whole = checksum(&[&bytes]);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    bytes[at] ^= 1 << bit;
                    assert_ne!(
                        checksum(&[&bytes]),
                        whole,
                        "bit {bit} of byte {at} of {len}"
                    );
                    bytes[at] ^= 1 << bit;
                }
            }
            assert_ne!(checksum(&[&bytes[..bytes.len() - 1]]), whole, "shorter");
            bytes.push(0);
            assert_ne!(checksum(&[&bytes]), whole, "longer");
        }
    }
}
