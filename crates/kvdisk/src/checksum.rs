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
        let mut sum = Checksum::after(result);
        sum.add(part);
        result = sum.finish();
    }
    result
}

/// Bytes that are summed together.
pub const GROUP: usize = 8 * LANES;

/// The checksum of a part, piece by piece.
pub struct Checksum {
    lanes: [u64; LANES],
    /// The checksum of the parts before.
    seed: u64,
    len: usize,
    /// The bytes after the last group.
    rest: [u8; GROUP],
}

impl Checksum {
    /// Of the part that follows parts with this checksum; 0 before the first.
    pub fn after(seed: u64) -> Self {
        Self {
            lanes: PRIMES.map(|prime| prime ^ seed),
            seed,
            len: 0,
            rest: [0; GROUP],
        }
    }

    /// Adds a piece. Only the last one may end within a group.
    pub fn add(&mut self, bytes: &[u8]) {
        debug_assert!(self.len.is_multiple_of(GROUP), "a piece ended in a group");
        let (groups, rest) = bytes.as_chunks::<GROUP>();
        for group in groups {
            self.add_group(group);
        }
        self.rest[..rest.len()].copy_from_slice(rest);
        self.len += bytes.len();
    }

    fn add_group(&mut self, group: &[u8; GROUP]) {
        let words = group.as_chunks::<8>().0;
        for ((lane, word), prime) in self.lanes.iter_mut().zip(words).zip(PRIMES) {
            *lane = mix(*lane, u64::from_le_bytes(*word), prime);
        }
    }

    pub fn finish(mut self) -> u64 {
        let rest = self.rest;
        self.add_group(&rest);
        let length = mix(self.seed, self.len as u64, PRIMES[0]);
        let lanes = self.lanes.iter();
        lanes.fold(length, |sum, lane| mix(sum, *lane, PRIMES[1]))
    }
}

/// A bijection of `lane` for every `word`, and of `word` for every `lane`.
fn mix(lane: u64, word: u64, prime: u64) -> u64 {
    (lane ^ word).wrapping_mul(prime).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_the_whole() {
        let bytes: Vec<u8> = (0..200).map(|at| (at * 37) as u8).collect();
        let mut sum = Checksum::after(checksum(&[b"before"]));
        for piece in bytes.chunks(3 * GROUP) {
            sum.add(piece);
        }
        assert_eq!(sum.finish(), checksum(&[b"before", &bytes]));
        // Files that were written before have this one.
        assert_eq!(checksum(&[&bytes[..100], &bytes]), 0x336e_03da_707f_78e5);
    }

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
