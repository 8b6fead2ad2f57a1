//! The 4- and 8-bit floats of the OCP microscaling specification.

/// Magnitude of a 4-bit float (1 sign, 2 exponent, 1 mantissa bit) by its low
/// three bits.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The 4-bit float in the low bits of `code`.
pub(super) fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// 4 exponent bits, 3 mantissa bits, no infinities; all ones is not a number.
pub(super) fn e4m3(code: u8) -> f32 {
    let exponent = u32::from(code >> 3 & 0xF);
    let mantissa = u32::from(code & 7);
    let magnitude = match (exponent, mantissa) {
        (0xF, 7) => f32::NAN,
        // Subnormal: steps of 2^-9.
        (0, _) => mantissa as f32 / 512.0,
        // Rebias the exponent from 7 to 127.
        _ => f32::from_bits(((exponent + 120) << 23) | (mantissa << 20)),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// A power of two, 2^(code - 127); all ones is not a number.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        0xFF => f32::NAN,
        // 2^-127 is subnormal in `f32`.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_specification() {
        type Case = (fn(u8) -> f32, u8, f32);
        let table: [Case; 16] = [
            (e2m1, 0b0000, 0.0),
            (e2m1, 0b0001, 0.5),
            (e2m1, 0b0111, 6.0),
            (e2m1, 0b1010, -1.0),
            (e2m1, 0b1111, -6.0),
            (e4m3, 0x00, 0.0),
            (e4m3, 0x01, 1.0 / 512.0),
            (e4m3, 0x07, 7.0 / 512.0),
            (e4m3, 0x08, 1.0 / 64.0),
            (e4m3, 0x38, 1.0),
            (e4m3, 0xBC, -1.5),
            (e4m3, 0x7E, 448.0),
            (e8m0, 127, 1.0),
            (e8m0, 130, 8.0),
            (e8m0, 254, 1.7014118e38),
            (e8m0, 0, 5.877472e-39),
        ];
        for (decode, code, expected) in table {
            assert_eq!(decode(code), expected, "{code:#x}");
        }
        assert!(e4m3(0x7F).is_nan() && e4m3(0xFF).is_nan() && e8m0(0xFF).is_nan());
    }
}
