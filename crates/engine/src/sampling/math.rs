//! Portable logarithm and power: the standard library's differ in their last bits between
//! platforms.

use std::f64::consts::{LN_2, SQRT_2};

const FRACTION_BITS: u32 = 52;
const BIAS: i64 = 1023;

/// The natural logarithm; minus infinity for what is not a positive normal number.
pub(super) fn ln(x: f64) -> f64 {
    if x.is_nan() || x < f64::MIN_POSITIVE {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    let bits = x.to_bits();
    let mut exponent = (bits >> FRACTION_BITS) as i64 - BIAS;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let mut mantissa = f64::from_bits(fraction | (BIAS as u64) << FRACTION_BITS);
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh s; the thirteenth term of the series is below a rounding error.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let terms = (0..13).rev().map(|k| 1.0 / f64::from(2 * k + 1));
    let series = terms.fold(0.0, |sum, term| sum * square + term);
    2.0 * s * series + exponent as f64 * LN_2
}

/// `base` to the power of `exponent`, for a base in [0, 1] and an exponent of at least 0.
pub(super) fn pow(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        return 1.0;
    }
    exp(exponent * ln(base))
}

/// `e^x`, for x up to 0.
pub(super) fn exp(x: f64) -> f64 {
    /// Below this the exponential leaves the normal numbers.
    const FLOOR: f64 = -700.0;
    if x < FLOOR || x.is_nan() {
        return 0.0;
    }
    let power = (x / LN_2).round();
    let r = x - power * LN_2;
    let terms = (1..=16).rev().map(f64::from);
    let series = terms.fold(1.0, |sum, k| 1.0 + sum * r / k);
    let scale = f64::from_bits(((power as i64 + BIAS) as u64) << FRACTION_BITS);
    series * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn math_agrees_with_platform() {
        for step in 1..100_000u32 {
            let x = f64::from(step) * 1e-3;
            for x in [x, 1.0 / x, x * 1e30, x * 1e-45] {
                let error = (ln(x) - x.ln()).abs();
                assert!(error <= 4e-15 * x.ln().abs().max(0.1), "ln({x}): {error}");
            }
            let error = (exp(-x) / (-x).exp() - 1.0).abs();
            assert!(error < 1e-13, "exp(-{x}): {error}");
            let (base, exponent) = (f64::from(step) * 1e-5, f64::from(step % 97) * 0.1);
            let (found, expected) = (pow(base, exponent), base.powf(exponent));
            assert!((found - expected).abs() < 1e-12, "{base}^{exponent}");
        }
    }

    #[test]
    fn math_handles_domain_ends() {
        let cases = [
            (ln(1.0), 0.0),
            (ln(0.0), f64::NEG_INFINITY),
            (ln(-1.0), f64::NEG_INFINITY),
            (ln(f64::NAN), f64::NEG_INFINITY),
            (ln(f64::INFINITY), f64::INFINITY),
            (exp(0.0), 1.0),
            (exp(f64::NEG_INFINITY), 0.0),
            (exp(f64::NAN), 0.0),
            (pow(0.0, 0.0), 1.0),
            (pow(0.0, 2.0), 0.0),
            (pow(1.0, 99.0), 1.0),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }
}
