//! Arithmetic over one row of logits.
//!
//! The order of operations depends on the row alone, and the exponential is our own: equal logits
//! give equal bits on every machine and under any load. NaN and minus infinity have no probability;
//! plus infinity counts as the largest finite logit.

use super::math;
use super::vectorised::vectorised;

/// Independent sums and maxima; fixed, whatever the width of the machine's registers.
const LANES: usize = 32;

/// How many logits are skipped or summed at a time.
pub(super) const BLOCK: usize = 128;

/// Scales logits by the largest one, made finite, and the temperature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub peak: f32,
    inverse: f32,
}

impl Scale {
    pub fn new(peak: f32, temperature: f32) -> Self {
        Self {
            peak: peak.min(f32::MAX),
            // Finite, so that the peak itself, 0 away from itself, is not NaN.
            inverse: (1.0 / temperature).min(f32::MAX),
        }
    }

    /// The logarithm of [`weight`](Self::weight).
    #[inline(always)]
    pub fn log_weight(self, logit: f32) -> f32 {
        (logit - self.peak) * self.inverse
    }

    /// Softmax without the division: 1 for the peak, less for the rest.
    #[inline(always)]
    pub fn weight(self, logit: f32) -> f32 {
        exp(self.log_weight(logit))
    }

    /// A logit below all that weigh at least `weight`.
    pub fn floor(self, weight: f64) -> f32 {
        /// More than the error of [`exp`] and the product before it.
        const SLACK: f64 = 1e-4;
        let log_weight = math::ln(weight) - SLACK;
        let floor = f64::from(self.peak) + log_weight / f64::from(self.inverse);
        (floor as f32).next_down()
    }
}

/// The larger one; if one is NaN, the other.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[inline(always)]
fn largest_of(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, logit);
        }
    }
    let all = lanes.iter().chain(rest);
    all.fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

vectorised! {
    /// The largest logit; minus infinity if no token has a probability.
    fn largest(logits: &[f32]) -> f32 {
        largest_of(logits)
    }
}

vectorised! {
    /// The largest logit of each block.
    fn block_maxima(logits: &[f32], maxima: &mut Vec<f32>) {
        maxima.clear();
        maxima.extend(logits.chunks(BLOCK).map(largest_of));
    }
}

/// The largest logit, made finite; `None` if no token has a probability.
pub(super) fn peak(logits: &[f32]) -> Option<f32> {
    let largest = largest(logits);
    (largest > f32::NEG_INFINITY).then_some(largest.min(f32::MAX))
}

/// Below this the exponential leaves the normal numbers.
const EXP_FLOOR: f32 = -87.0;

/// `e^x`, for x up to 0 and within two units in the last place (the polynomial is Cephes'
/// `expf`): 1 above, and 0 below [`EXP_FLOOR`] and for NaN. Branch-free, so that the compiler
/// vectorises loops over it.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(EXP_FLOOR, 0.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = clamped - power * LN2_HIGH - power * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let mantissa = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(exponent.wrapping_add(127) << 23);
    if x >= EXP_FLOOR {
        mantissa * scale
    } else {
        0.0
    }
}

#[inline(always)]
fn sum_of(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value);
        }
    }
    let tail: f64 = rest.iter().map(|&value| f64::from(value)).sum();
    lanes.iter().sum::<f64>() + tail
}

vectorised! {
    /// Replaces logits by their weights; fills `sums` with each block's and returns the total.
    fn weigh(logits: &mut [f32], scale: Scale, sums: &mut Vec<f64>) -> f64 {
        sums.clear();
        for block in logits.chunks_mut(BLOCK) {
            for logit in block.iter_mut() {
                *logit = scale.weight(*logit);
            }
            sums.push(sum_of(block));
        }
        sums.iter().sum()
    }
}

vectorised! {
    /// Drops tokens that weigh less than `least`.
    fn drop_lighter(logits: &mut [f32], scale: Scale, least: f64) {
        for logit in logits {
            let light = f64::from(scale.weight(*logit)) < least;
            *logit = if light { f32::NEG_INFINITY } else { *logit };
        }
    }
}

vectorised! {
    /// Drops logits below `floor`.
    fn drop_lower(logits: &mut [f32], floor: f32) {
        for logit in logits {
            *logit = if *logit < floor { f32::NEG_INFINITY } else { *logit };
        }
    }
}

vectorised! {
    /// The total weight.
    fn total_weight(logits: &[f32], scale: Scale) -> f64 {
        let mut total = 0.0;
        let mut weights = [0.0f32; BLOCK];
        for block in logits.chunks(BLOCK) {
            let weights = &mut weights[..block.len()];
            for (weight, &logit) in weights.iter_mut().zip(block) {
                *weight = scale.weight(logit);
            }
            total += sum_of(weights);
        }
        total
    }
}

/// The row in groups of lanes; the last one is padded with minus infinity.
#[inline(always)]
fn groups(logits: &[f32]) -> impl Iterator<Item = [f32; LANES]> {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    chunks.iter().copied().chain(std::iter::once(last))
}

vectorised! {
    /// The standard deviation of the logits that have a probability.
    fn deviation(logits: &[f32], peak: f32) -> f64 {
        let mut counts = [0.0f64; LANES];
        let mut sums = [0.0f64; LANES];
        let mut squares = [0.0f64; LANES];
        for group in groups(logits) {
            for (lane, logit) in group.into_iter().enumerate() {
                let counted = logit > f32::NEG_INFINITY;
                let distance = f64::from(peak) - f64::from(logit.min(f32::MAX));
                let distance = if counted { distance } else { 0.0 };
                counts[lane] += if counted { 1.0 } else { 0.0 };
                sums[lane] += distance;
                squares[lane] += distance * distance;
            }
        }
        let total = |lanes: [f64; LANES]| lanes.iter().sum::<f64>();
        let (count, mean) = (total(counts), total(sums) / total(counts));
        (total(squares) / count - mean * mean).max(0.0).sqrt()
    }
}

/// How a row's probability is spread over its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    /// Tokens that have a probability.
    pub count: f64,
    pub total_weight: f64,
    /// Mean log-weight, weighted by probability.
    pub mean_log_weight: f64,
}

impl Spread {
    /// From 0 (one token has all the probability) to 1 (all are equal).
    pub fn normalised_entropy(&self) -> f64 {
        let entropy = math::ln(self.total_weight) - self.mean_log_weight;
        (entropy / math::ln(self.count)).clamp(0.0, 1.0)
    }
}

vectorised! {
    fn spread(logits: &[f32], scale: Scale) -> Spread {
        let mut counts = [0.0f64; LANES];
        let mut weights = [0.0f64; LANES];
        let mut moments = [0.0f64; LANES];
        for group in groups(logits) {
            for (lane, logit) in group.into_iter().enumerate() {
                let weight = scale.weight(logit);
                let log_weight = scale.log_weight(logit.min(f32::MAX));
                let moment = f64::from(weight) * f64::from(log_weight);
                counts[lane] += if logit > f32::NEG_INFINITY { 1.0 } else { 0.0 };
                weights[lane] += f64::from(weight);
                moments[lane] += if weight > 0.0 { moment } else { 0.0 };
            }
        }
        let total = |lanes: [f64; LANES]| lanes.iter().sum::<f64>();
        Spread {
            count: total(counts),
            total_weight: total(weights),
            mean_log_weight: total(moments) / total(weights),
        }
    }
}

/// Turns logits of one row into log-probabilities.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogSoftmax {
    log_total: f64,
}

impl LogSoftmax {
    /// `None` if no token has a probability.
    pub fn from_logits(logits: &[f32]) -> Option<Self> {
        let scale = Scale::new(peak(logits)?, 1.0);
        let total = total_weight(logits, scale);
        Some(Self {
            log_total: f64::from(scale.peak) + math::ln(total),
        })
    }

    pub fn logprob(&self, logit: f32) -> f32 {
        if logit.is_nan() {
            return f32::NEG_INFINITY;
        }
        (f64::from(logit.min(f32::MAX)) - self.log_total).min(0.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    #[test]
    fn exp_is_accurate_over_its_domain() {
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(
                (found / expected - 1.0).abs() < 2.5e-7,
                "exp({x}) = {found}"
            );
        }
        let cases = [
            (0.0, 1.0),
            (3.0, 1.0),
            (INF, 1.0),
            (-88.0, 0.0),
            (-INF, 0.0),
            (NAN, 0.0),
        ];
        for (x, expected) in cases {
            assert_eq!(exp(x), expected, "exp({x})");
        }
    }

    #[test]
    fn peak_survives_hostile_rows() {
        let cases: [(&[f32], Option<f32>); 7] = [
            (&[1.0, 3.0, 2.0], Some(3.0)),
            (&[2.0, 2.0, 2.0], Some(2.0)),
            (&[NAN, -5.0, NAN], Some(-5.0)),
            (&[1.0, INF, INF], Some(f32::MAX)),
            (&[-INF, -INF], None),
            (&[NAN], None),
            (&[], None),
        ];
        for (logits, largest) in cases {
            assert_eq!(peak(logits), largest, "{logits:?}");
        }
    }

    /// Logits of few distinct values, some of them odd, in rows that fill no block.
    fn crowd(count: u32) -> Vec<f32> {
        let value = |i: u32| match i % 97 {
            13 => NAN,
            29 => -INF,
            _ => (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 16.0 - 9.0,
        };
        (0..count).map(value).collect()
    }

    #[test]
    fn row_sums_equal_sums_of_parts() {
        for count in [1, 31, 32, 33, 127, 128, 129, 1000] {
            let logits = crowd(count);
            let scale = Scale::new(peak(&logits).expect("finite"), 2.0);
            let known: Vec<f64> = logits
                .iter()
                .filter(|logit| **logit > -INF)
                .map(|&logit| f64::from(logit))
                .collect();
            let weights = known.iter().map(|x| (x - f64::from(scale.peak)) / 2.0);
            let expected: f64 = weights.clone().map(f64::exp).sum();
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1e-3);

            assert!(close(total_weight(&logits, scale), expected));
            let (mut row, mut sums) = (logits.clone(), Vec::new());
            assert!(close(weigh(&mut row, scale, &mut sums), expected));
            assert_eq!(sums.len(), logits.len().div_ceil(BLOCK));

            let spread = spread(&logits, scale);
            let moment: f64 = weights.map(|x| x * x.exp()).sum();
            assert_eq!(spread.count, known.len() as f64);
            assert!(close(spread.mean_log_weight, moment / expected));

            let mean = known.iter().sum::<f64>() / known.len() as f64;
            let variance = known.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            let expected = (variance / known.len() as f64).sqrt();
            assert!(close(deviation(&logits, scale.peak), expected));
        }
    }

    #[test]
    fn floor_is_below_sufficient_weights() {
        for peak in [-3e5, -20.0, 0.0, 7.5, 1e6] {
            for temperature in [0.01, 0.8, 30.0] {
                let scale = Scale::new(peak, temperature);
                for least in [1e-6, 0.02, 0.5, 1.0] {
                    let floor = scale.floor(least);
                    let below = f64::from(scale.weight(floor));
                    assert!(below < least, "{peak} {temperature} {least}: {below}");
                    // Close as well, as far as logits of this size can be.
                    let step = (peak - peak.next_down()) / temperature;
                    let slack = 2e-4 + 4.0 * f64::from(step);
                    assert!(below >= least * (-slack).exp(), "{peak} {least}: {below}");
                }
            }
        }
    }

    #[test]
    fn logprobs_sum_to_one() {
        for logits in [crowd(3000), vec![-3.0; 7], vec![0.5, NAN, -INF, 4.0]] {
            let softmax = LogSoftmax::from_logits(&logits).expect("a finite logit");
            let sum: f64 = logits
                .iter()
                .map(|&logit| f64::from(softmax.logprob(logit)).exp())
                .sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
        let one = LogSoftmax::from_logits(&[INF, 1.0]).expect("a finite logit");
        assert_eq!(one.logprob(INF), 0.0);
        assert!(LogSoftmax::from_logits(&[NAN, -INF]).is_none());
    }
}
