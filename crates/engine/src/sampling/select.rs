//! Selection of the best tokens.

use std::cmp::Ordering;

use super::logits::{BLOCK, Scale, block_maxima};

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub id: u32,
    pub logit: f32,
    /// Set by [`weigh`].
    pub weight: f32,
}

impl Candidate {
    pub fn new(id: usize, logit: f32) -> Self {
        Self {
            id: id as u32,
            logit,
            weight: 0.0,
        }
    }

    /// Best first; the lowest id wins a tie.
    pub fn rank(&self, other: &Self) -> Ordering {
        let by_logit = other.logit.total_cmp(&self.logit);
        by_logit.then(self.id.cmp(&other.id))
    }
}

/// Weighs each and returns the total.
pub(super) fn weigh(candidates: &mut [Candidate], scale: Scale) -> f64 {
    let mut total = 0.0;
    for candidate in candidates {
        candidate.weight = scale.weight(candidate.logit);
        total += f64::from(candidate.weight);
    }
    total
}

/// The largest logit; `None` without candidates.
pub(super) fn peak(candidates: &[Candidate]) -> Option<f32> {
    let logits = candidates.iter().map(|candidate| candidate.logit);
    logits.reduce(f32::max)
}

/// Fills `kept` with the tokens whose logits are at least `floor`, by id; `maxima` holds the
/// blocks' maxima. Skips minus infinity and NaN. Returns `false` past `limit` tokens.
pub(super) fn gather(
    logits: &[f32],
    maxima: &[f32],
    floor: f32,
    limit: usize,
    kept: &mut Vec<Candidate>,
) -> bool {
    kept.clear();
    let blocks = logits.chunks(BLOCK).zip(maxima).enumerate();
    for (index, (block, &largest)) in blocks {
        if largest < floor || largest == f32::NEG_INFINITY {
            continue;
        }
        if kept.len() > limit {
            return false;
        }
        for (at, &logit) in block.iter().enumerate() {
            if logit >= floor && logit > f32::NEG_INFINITY {
                kept.push(Candidate::new(index * BLOCK + at, logit));
            }
        }
    }
    kept.len() <= limit
}

/// Fills `best` with the `k` best tokens, best first; fewer if fewer have a probability.
pub(super) fn top_k(logits: &[f32], k: usize, maxima: &mut Vec<f32>, best: &mut Vec<Candidate>) {
    best.clear();
    if k == 0 {
        return;
    }
    block_maxima(logits, maxima);
    let mut floor = f32::NEG_INFINITY;
    if k < maxima.len() {
        // That many blocks reach the k-th largest maximum, so that many tokens do.
        best.extend(maxima.iter().map(|&maximum| Candidate::new(0, maximum)));
        let (_, kth, _) = best.select_nth_unstable_by(k - 1, Candidate::rank);
        floor = kth.logit;
    }
    gather(logits, maxima, floor, usize::MAX, best);
    keep_best(best, k);
    best.sort_unstable_by(Candidate::rank);
}

/// Keeps the `k` best, unordered.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, Candidate::rank);
    }
    candidates.truncate(k);
}

/// Keeps the fewest candidates, first by `order`, that together weigh `mass`, in that order; at
/// least one.
pub(super) fn fewest(
    candidates: &mut Vec<Candidate>,
    mass: f64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    // Few are usually enough, so sort in growing runs.
    let (mut sorted, mut run, mut sum) = (0, 64, 0.0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let run_len = run.min(rest.len());
        if run_len < rest.len() {
            rest.select_nth_unstable_by(run_len - 1, &order);
        }
        let first = &mut rest[..run_len];
        first.sort_unstable_by(&order);
        for (at, candidate) in first.iter().enumerate() {
            sum += f64::from(candidate.weight);
            if sum >= mass {
                candidates.truncate(sorted + at + 1);
                return;
            }
        }
        sorted += run_len;
        run *= 4;
    }
}

/// The token at which the running sum of weights passes `target`, which is below their total;
/// `sums` holds the blocks' sums.
pub(super) fn draw(weights: &[f32], sums: &[f64], target: f64) -> Option<u32> {
    let mut before = 0.0;
    for (index, (block, sum)) in weights.chunks(BLOCK).zip(sums).enumerate() {
        let after = before + sum;
        if after > target {
            let at = passing(block.iter().copied(), target - before);
            return at.map(|at| (index * BLOCK + at) as u32);
        }
        before = after;
    }
    weights.iter().rposition(|&w| w > 0.0).map(|id| id as u32)
}

/// The same over candidates.
pub(super) fn draw_candidate(candidates: &[Candidate], target: f64) -> Option<Candidate> {
    let at = passing(candidates.iter().map(|c| c.weight), target)?;
    candidates.get(at).copied()
}

/// Where the running sum passes `target`. A sum in another order may have rounded higher; then the
/// last token with weight is used.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn best(logits: &[f32], k: usize) -> Vec<Candidate> {
        let (mut maxima, mut best) = (Vec::new(), Vec::new());
        top_k(logits, k, &mut maxima, &mut best);
        best
    }

    #[test]
    fn top_k_ranks_by_logit_then_id() {
        let cases: [(&[f32], usize, &[u32]); 5] = [
            (&[1.0, 3.0, 2.0], 2, &[1, 2]),
            (&[5.0, 5.0, 5.0, 5.0], 3, &[0, 1, 2]),
            (&[NAN, 1.0, -INF, INF], 9, &[3, 1]),
            (&[1.0], 0, &[]),
            (&[-INF, NAN], 2, &[]),
        ];
        for (logits, k, expected) in cases {
            let ids: Vec<u32> = best(logits, k).iter().map(|c| c.id).collect();
            assert_eq!(ids, expected, "{logits:?}");
        }
    }

    /// Ten thousand logits of few distinct values: ties everywhere.
    fn crowd() -> Vec<f32> {
        (0..10_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 16.0)
            .collect()
    }

    fn sorted(logits: &[f32]) -> Vec<Candidate> {
        let all = logits.iter().enumerate();
        let mut all: Vec<_> = all.map(|(id, &logit)| Candidate::new(id, logit)).collect();
        all.sort_by(Candidate::rank);
        all
    }

    #[test]
    fn selection_agrees_with_a_full_sort() {
        let logits = crowd();
        let mut sorted = sorted(&logits);
        for k in [1, 31, 32, 33, 78, 79, 80, 1000, 9_000, 10_000] {
            assert_eq!(best(&logits, k), sorted[..k], "k = {k}");
        }

        let total = weigh(&mut sorted, Scale::new(16.0, 1.0));
        for share in [0.0, 0.01, 0.5, 0.999, 1.0] {
            let mass = share * total;
            let mut sum = 0.0;
            let reached = sorted.iter().position(|c| {
                sum += f64::from(c.weight);
                sum >= mass
            });
            let expected = &sorted[..reached.map_or(sorted.len(), |at| at + 1)];
            let mut kept = sorted.clone();
            kept.reverse();
            fewest(&mut kept, mass, Candidate::rank);
            assert_eq!(kept, expected, "share {share}");
        }
    }

    #[test]
    fn gather_stops_past_its_limit() {
        let logits = crowd();
        let (mut maxima, mut kept) = (Vec::new(), Vec::new());
        block_maxima(&logits, &mut maxima);
        let expected = logits.iter().filter(|logit| **logit >= 15.0).count();
        for (limit, whole) in [(expected - 1, false), (expected, true), (usize::MAX, true)] {
            assert_eq!(gather(&logits, &maxima, 15.0, limit, &mut kept), whole);
            assert!(!whole || kept.len() == expected, "{}", kept.len());
        }
    }

    #[test]
    fn drawing_by_blocks_matches_linear_draw() {
        let mut weights = crowd();
        weights[0] = 0.0;
        let sums = weights.chunks(BLOCK);
        let sums: Vec<f64> = sums
            .map(|b| b.iter().map(|&w| f64::from(w)).sum())
            .collect();
        let total: f64 = sums.iter().sum();
        for share in [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999_999] {
            let one_by_one = passing(weights.iter().copied(), share * total);
            let drawn = draw(&weights, &sums, share * total).map(|id| id as usize);
            assert_eq!(drawn, one_by_one, "share {share}");
        }
        let end = draw(&[0.0, 1.0, 0.0], &[1.0], 1.0);
        assert_eq!(end, Some(1), "never past the end");
        assert_eq!(draw(&[0.0], &[0.0], 0.0), None);
    }
}
