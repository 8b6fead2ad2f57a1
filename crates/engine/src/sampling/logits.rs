//! Arithmetic over one row of logits.
//!
//! Everything here runs in an order fixed by the row alone, over an exponential of our own: the
//! same logits give the same bits on every machine and under any load. NaN and minus infinity
//! have no probability; plus infinity counts as the largest finite logit.

use std::cmp::Ordering;

/// A token and how it ranks: its logit, or its weight once [`weigh`]ed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub id: u32,
    pub score: f32,
}

impl Candidate {
    /// Best first; the lowest id wins a tie.
    fn rank(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score.then(self.id.cmp(&other.id))
    }
}

/// The likeliest token; the lowest id wins a tie. `None` where no token has a probability.
pub(crate) fn argmax(logits: &[f32]) -> Option<u32> {
    let largest = largest(logits)?;
    let at = logits.iter().position(|&logit| logit == largest);
    at.map(|id| id as u32)
}

/// The largest logit, made finite. `None` where no token has a probability.
pub(crate) fn peak(logits: &[f32]) -> Option<f32> {
    largest(logits).map(|logit| logit.min(f32::MAX))
}

fn largest(logits: &[f32]) -> Option<f32> {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, logit);
        }
    }
    let all = lanes.iter().chain(rest);
    let largest = all.fold(f32::NEG_INFINITY, |a, &b| larger(a, b));
    (largest > f32::NEG_INFINITY).then_some(largest)
}

/// Softmax without the division: 1 for the peak, less for the rest.
#[inline]
pub(crate) fn weight(logit: f32, peak: f32, temperature: f32) -> f32 {
    exp((logit - peak) / temperature)
}

/// Replaces logits by their weights.
pub(crate) fn weigh(logits: &mut [f32], peak: f32, temperature: f32) {
    for logit in logits {
        *logit = weight(*logit, peak, temperature);
    }
}

/// Below this the exponential leaves the normal numbers.
const EXP_FLOOR: f32 = -87.0;

/// `e^x`, for x up to 0 and within two units in the last place (the polynomial is Cephes'
/// `expf`): 1 above, and 0 below [`EXP_FLOOR`] and for NaN. Branch-free, so that the compiler
/// vectorises loops over it.
#[inline]
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

const LANES: usize = 8;

/// How many weights [`draw`] skips at a time.
const BLOCK: usize = 1024;

/// The sum of weights, block by block.
pub(crate) fn total(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(block_sum).sum()
}

fn block_sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (chunks, rest) = weights.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(weight);
        }
    }
    let tail: f64 = rest.iter().map(|&weight| f64::from(weight)).sum();
    lanes.iter().sum::<f64>() + tail
}

/// The token at which the running sum of weights passes `target`, which is below their
/// [`total`].
pub(crate) fn draw(weights: &[f32], target: f64) -> Option<u32> {
    let mut before = 0.0;
    for (index, block) in weights.chunks(BLOCK).enumerate() {
        let after = before + block_sum(block);
        if after > target {
            let scores = block.iter().copied();
            return passing(scores, target - before).map(|at| (index * BLOCK + at) as u32);
        }
        before = after;
    }
    weights.iter().rposition(|&w| w > 0.0).map(|id| id as u32)
}

/// The same over candidates.
pub(crate) fn draw_candidate(candidates: &[Candidate], target: f64) -> Option<u32> {
    let at = passing(candidates.iter().map(|c| c.score), target)?;
    candidates.get(at).map(|candidate| candidate.id)
}

/// Where the running sum passes `target`. A sum in another order may have rounded a little
/// higher; the last possible place stands in then.
fn passing(weights: impl Iterator<Item = f32>, target: f64) -> Option<usize> {
    let (mut sum, mut last) = (0.0, None);
    for (at, weight) in weights.enumerate() {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = Some(at);
            if sum > target {
                break;
            }
        }
    }
    last
}

/// Fills `best` with the `k` best-scored tokens, best first; fewer where fewer have a
/// probability.
pub(crate) fn top_k(logits: &[f32], k: usize, best: &mut Vec<Candidate>) {
    best.clear();
    if k == 0 {
        return;
    }
    // Twice k is kept before the worse half is thrown out, so that most tokens cost one
    // comparison. Ids ascend: a later token with the threshold's own score ranks behind it.
    let limit = k.saturating_mul(2).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &score) in logits.iter().enumerate() {
        if score > threshold {
            best.push(Candidate {
                id: id as u32,
                score,
            });
            if best.len() == limit {
                let (_, kth, _) = best.select_nth_unstable_by(k - 1, Candidate::rank);
                threshold = kth.score;
                best.truncate(k);
            }
        }
    }
    best.sort_unstable_by(Candidate::rank);
    best.truncate(k);
}

/// Fills `kept` with the tokens of at least the weight `floor`, by id.
pub(crate) fn at_least(weights: &[f32], floor: f32, kept: &mut Vec<Candidate>) {
    kept.clear();
    for (id, &score) in weights.iter().enumerate() {
        if score >= floor && score > 0.0 {
            kept.push(Candidate {
                id: id as u32,
                score,
            });
        }
    }
}

/// Cuts `candidates` down to the fewest best that together weigh `mass`, best first; at least
/// one.
pub(crate) fn nucleus(candidates: &mut Vec<Candidate>, mass: f64) {
    // A nucleus is small more often than not, so it is sorted out in growing runs.
    let (mut sorted, mut run, mut sum) = (0, 64, 0.0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let run_len = run.min(rest.len());
        if run_len < rest.len() {
            rest.select_nth_unstable_by(run_len - 1, Candidate::rank);
        }
        let best = &mut rest[..run_len];
        best.sort_unstable_by(Candidate::rank);
        for (at, candidate) in best.iter().enumerate() {
            sum += f64::from(candidate.score);
            if sum >= mass {
                candidates.truncate(sorted + at + 1);
                return;
            }
        }
        sorted += run_len;
        run *= 4;
    }
}

/// Turns logits of one row into log-probabilities.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSoftmax {
    log_total: f64,
}

impl LogSoftmax {
    /// `None` where no token has a probability.
    pub fn of(logits: &[f32]) -> Option<Self> {
        let peak = peak(logits)?;
        let mut weights = [0.0; BLOCK];
        let mut sum = 0.0;
        for block in logits.chunks(BLOCK) {
            let weights = &mut weights[..block.len()];
            weights.copy_from_slice(block);
            weigh(weights, peak, 1.0);
            sum += block_sum(weights);
        }
        Some(Self {
            log_total: f64::from(peak) + sum.ln(),
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
    fn exp_is_exact_enough_over_its_whole_domain() {
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
    fn the_peak_survives_hostile_rows() {
        let cases: [(&[f32], Option<u32>, Option<f32>); 7] = [
            (&[1.0, 3.0, 2.0], Some(1), Some(3.0)),
            (&[2.0, 2.0, 2.0], Some(0), Some(2.0)),
            (&[NAN, -5.0, NAN], Some(1), Some(-5.0)),
            (&[1.0, INF, INF], Some(1), Some(f32::MAX)),
            (&[-INF, -INF], None, None),
            (&[NAN], None, None),
            (&[], None, None),
        ];
        for (logits, best, largest) in cases {
            assert_eq!(argmax(logits), best, "{logits:?}");
            assert_eq!(peak(logits), largest, "{logits:?}");
        }
    }

    #[test]
    fn top_k_ranks_by_logit_then_id() {
        let mut best = Vec::new();
        let cases: [(&[f32], usize, &[u32]); 5] = [
            (&[1.0, 3.0, 2.0], 2, &[1, 2]),
            (&[5.0, 5.0, 5.0, 5.0], 3, &[0, 1, 2]),
            (&[NAN, 1.0, -INF, INF], 9, &[3, 1]),
            (&[1.0], 0, &[]),
            (&[-INF, NAN], 2, &[]),
        ];
        for (logits, k, expected) in cases {
            top_k(logits, k, &mut best);
            let ids: Vec<u32> = best.iter().map(|c| c.id).collect();
            assert_eq!(ids, expected, "{logits:?}");
        }
    }

    /// Ten thousand logits of few distinct values: ties everywhere.
    fn crowd() -> Vec<f32> {
        (0..10_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 16.0)
            .collect()
    }

    #[test]
    fn selection_agrees_with_a_full_sort() {
        let mut logits = crowd();
        let mut sorted: Vec<Candidate> = Vec::new();
        at_least(&logits, 0.0, &mut sorted);
        sorted.sort_by(Candidate::rank);
        let mut best = Vec::new();
        for k in [1, 31, 32, 33, 1000, 9_000] {
            top_k(&logits, k, &mut best);
            assert_eq!(best, sorted[..k], "k = {k}");
        }

        weigh(&mut logits, 256.0 / 16.0, 1.0);
        let mut all = Vec::new();
        at_least(&logits, 0.0, &mut all);
        let mut sorted = all.clone();
        sorted.sort_by(Candidate::rank);
        for share in [0.0, 0.01, 0.5, 0.999, 1.0] {
            let mass = share * total(&logits);
            let mut sum = 0.0;
            let reached = sorted.iter().position(|c| {
                sum += f64::from(c.score);
                sum >= mass
            });
            let expected = &sorted[..reached.map_or(sorted.len(), |at| at + 1)];
            let mut kept = all.clone();
            nucleus(&mut kept, mass);
            assert_eq!(kept, expected, "share {share}");
        }
    }

    #[test]
    fn drawing_by_blocks_is_drawing_one_by_one() {
        let mut weights = crowd();
        weigh(&mut weights, 16.0, 2.0);
        weights[0] = 0.0;
        let sum = total(&weights);
        for share in [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999_999] {
            let one_by_one = passing(weights.iter().copied(), share * sum);
            let drawn = draw(&weights, share * sum).map(|id| id as usize);
            assert_eq!(drawn, one_by_one, "share {share}");
        }
        assert_eq!(draw(&[0.0, 1.0, 0.0], 1.0), Some(1), "never past the end");
        assert_eq!(draw(&[0.0], 0.0), None);
    }

    #[test]
    fn logprobs_sum_to_one() {
        for logits in [crowd(), vec![-3.0; 7], vec![0.5, NAN, -INF, 4.0]] {
            let softmax = LogSoftmax::of(&logits).expect("a finite logit");
            let sum: f64 = logits
                .iter()
                .map(|&logit| f64::from(softmax.logprob(logit)).exp())
                .sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
        let one = LogSoftmax::of(&[INF, 1.0]).expect("a finite logit");
        assert_eq!(one.logprob(INF), 0.0);
        assert!(LogSoftmax::of(&[NAN, -INF]).is_none());
    }
}
