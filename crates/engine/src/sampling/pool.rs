//! The candidates for a draw, narrowed step by step.
//!
//! At first they are the whole row; the first truncation makes a list, which later steps scan.
//! Every step leaves at least one token.

use std::cmp::Ordering;

use super::SamplerScratch;
use super::buckets;
use super::logits::{self, Scale, Spread};
use super::math;
use super::select::{self, Candidate};
use crate::{TokenInfo, TokenMask};

/// Above this many candidates, scanning the row is faster than a list.
const MANY: usize = 1024;

pub(super) struct CandidatePool<'a> {
    /// All tokens, until `narrowed`. Minus infinity is no candidate.
    row: &'a mut [f32],
    scratch: &'a mut SamplerScratch,
    /// Whether `scratch.candidates` holds the candidates.
    narrowed: bool,
    /// Applied when logits are read; the stored logits stay unscaled.
    temperature: f32,
    /// Total weight, after a draw.
    total: f64,
}

impl<'a> CandidatePool<'a> {
    pub fn new(row: &'a mut [f32], scratch: &'a mut SamplerScratch) -> Self {
        Self {
            row,
            scratch,
            narrowed: false,
            temperature: 1.0,
            total: 0.0,
        }
    }

    /// Changes the logits of some tokens; `changes` are sorted by their `id`. A change is given
    /// the logit and the temperature that what it adds has to be multiplied by.
    pub fn adjust<T>(
        &mut self,
        changes: &[T],
        id: impl Fn(&T) -> u32,
        change: impl Fn(&T, f32, f32) -> f32,
    ) {
        let temperature = self.temperature;
        if self.narrowed {
            for candidate in &mut self.scratch.candidates {
                if let Ok(at) = changes.binary_search_by_key(&candidate.id, &id) {
                    candidate.logit = change(&changes[at], candidate.logit, temperature);
                }
            }
            return;
        }
        for item in changes {
            if let Some(logit) = self.row.get_mut(id(item) as usize) {
                *logit = change(item, *logit, temperature);
            }
        }
    }

    /// Adds to a token's logit; only before a step narrows the pool.
    pub fn push(&mut self, id: u32, bias: f32) {
        if let Some(logit) = self.row.get_mut(id as usize) {
            *logit += bias;
        }
    }

    /// Removes a token; only before a step narrows the pool.
    pub fn forbid(&mut self, id: u32) {
        if let Some(logit) = self.row.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }

    /// Removes all tokens that `mask` forbids; only before a step narrows the pool.
    pub fn forbid_all_but(&mut self, mask: &TokenMask) {
        mask.apply(self.row);
    }

    pub fn temperature(&mut self, temperature: f32) {
        if temperature > 0.0 {
            self.temperature = temperature
        } else {
            self.top_k(1)
        }
    }

    /// Sets a temperature between `min` and `max` by the distribution's entropy.
    pub fn dynamic_temperature(&mut self, min: f32, max: f32, exponent: f32) {
        let Some(spread) = self.spread() else {
            return;
        };
        if spread.count > 1.0 {
            let unsure = math::pow(spread.normalised_entropy(), f64::from(exponent));
            let span = f64::from(max) - f64::from(min);
            self.temperature((f64::from(min) + span * unsure) as f32);
        }
    }

    pub fn top_k(&mut self, k: usize) {
        let SamplerScratch {
            candidates, maxima, ..
        } = self.scratch;
        if self.narrowed {
            select::keep_best(candidates, k);
        } else if k < self.row.len() {
            select::top_k(self.row, k, maxima, candidates);
            self.narrowed = true;
        }
    }

    pub fn top_p(&mut self, share: f32) {
        let Some(scale) = self.scale() else {
            return;
        };
        let share = f64::from(share);
        if self.narrowed {
            let candidates = &mut self.scratch.candidates;
            let mass = share * select::weigh(candidates, scale);
            select::fewest(candidates, mass, Candidate::rank);
        } else if !self.nucleus(share, scale) {
            self.keep_nearest(share, scale, 0.0);
        }
    }

    /// Narrows the row to the fewest best tokens with this share of the weight, if they are few.
    fn nucleus(&mut self, share: f64, scale: Scale) -> bool {
        /// Logarithms of the least weights to try: a sure model's nucleus is found in a few
        /// tokens, and hardly any lies below the last.
        const DEPTHS: [f64; 3] = [-4.0, -8.0, -12.0];
        let SamplerScratch {
            candidates, maxima, ..
        } = &mut *self.scratch;
        logits::block_maxima(self.row, maxima);
        let mut mass = None;
        for depth in DEPTHS {
            let floor = scale.floor(math::exp(depth));
            if !select::gather(self.row, maxima, floor, MANY, candidates) {
                return false;
            }
            let weighed = select::weigh(candidates, scale);
            let mass = mass.get_or_insert_with(|| share * logits::total_weight(self.row, scale));
            if weighed >= *mass {
                select::fewest(candidates, *mass, Candidate::rank);
                self.narrowed = true;
                return true;
            }
        }
        false
    }

    /// Keeps the fewest tokens with log-weights nearest to `middle` that have this share of the
    /// weight. For many tokens: lists only those at the edge.
    fn keep_nearest(&mut self, share: f64, scale: Scale, middle: f32) {
        let SamplerScratch {
            candidates,
            weights,
            positions,
            ..
        } = &mut *self.scratch;
        buckets::weights_by_bucket(self.row, scale, middle, weights);
        let weights = weights.iter().map(|sums| sums.iter().sum::<f64>());
        let mass = share * weights.clone().sum::<f64>();
        let (mut last, mut sum) = (0, 0.0);
        for (bucket, weight) in weights.enumerate() {
            last = bucket;
            if sum + weight >= mass && weight > 0.0 {
                break;
            }
            sum += weight;
        }
        buckets::cut_at_bucket(self.row, scale, middle, last as u32, positions);
        candidates.clear();
        let edge = positions.iter().map(|&id| id as usize);
        candidates.extend(edge.map(|id| Candidate::new(id, self.row[id])));
        select::weigh(candidates, scale);
        candidates.sort_unstable_by(|a, b| nearer(a, b, scale, middle));
        for candidate in candidates.iter() {
            if sum >= mass && sum > 0.0 {
                self.row[candidate.id as usize] = f32::NEG_INFINITY;
            }
            sum += f64::from(candidate.weight);
        }
    }

    pub fn min_p(&mut self, share: f32) {
        if let Some(scale) = self.scale() {
            self.keep_weighing(f64::from(share), scale);
        }
    }

    /// Drops tokens that weigh less than `least`, which is at most 1.
    fn keep_weighing(&mut self, least: f64, scale: Scale) {
        if !self.narrow(scale.floor(least)) {
            return logits::drop_lighter(self.row, scale, least);
        }
        let candidates = &mut self.scratch.candidates;
        select::weigh(candidates, scale);
        candidates.retain(|candidate| f64::from(candidate.weight) >= least);
    }

    /// Keeps the fewest tokens whose surprise is nearest to the average one and that together
    /// have this share of the probability.
    pub fn typical_p(&mut self, share: f32) {
        let (Some(scale), Some(spread)) = (self.scale(), self.spread()) else {
            return;
        };
        let share = f64::from(share);
        let middle = spread.mean_log_weight as f32;
        if !self.narrowed {
            return self.keep_nearest(share, scale, middle);
        }
        let candidates = &mut self.scratch.candidates;
        let mass = share * select::weigh(candidates, scale);
        // Tokens without weight are infinitely surprising.
        candidates.retain(|candidate| candidate.weight > 0.0);
        select::fewest(candidates, mass, |a, b| nearer(a, b, scale, middle));
    }

    pub fn top_n_sigma(&mut self, n: f32) {
        let Some(scale) = self.scale() else {
            return;
        };
        let deviation = logits::deviation(self.values(), scale.peak);
        let floor = (f64::from(scale.peak) - f64::from(n) * deviation) as f32;
        if !self.narrow(floor) {
            logits::drop_lower(self.row, floor);
        }
    }

    /// Drops all tokens of at least this share of the probability but the least likely of them.
    pub fn exclude_top(&mut self, threshold: f32) {
        let Some(scale) = self.scale() else {
            return;
        };
        let total = self.total_weight(scale);
        let mut likely = std::mem::take(&mut self.scratch.likely);
        self.list_weighing(f64::from(threshold) * total, scale, &mut likely);
        likely.sort_unstable_by(Candidate::rank);
        likely.pop();
        if self.narrowed {
            likely.sort_unstable_by_key(|candidate| candidate.id);
            let dropped = |id| likely.binary_search_by_key(&id, |c| c.id).is_ok();
            self.scratch.candidates.retain(|left| !dropped(left.id));
        } else {
            for candidate in &likely {
                self.row[candidate.id as usize] = f32::NEG_INFINITY;
            }
        }
        self.scratch.likely = likely;
    }

    fn list_weighing(&mut self, least: f64, scale: Scale, list: &mut Vec<Candidate>) {
        if self.narrowed {
            list.clone_from(&self.scratch.candidates);
        } else {
            logits::block_maxima(self.row, &mut self.scratch.maxima);
            let floor = scale.floor(least);
            select::gather(self.row, &self.scratch.maxima, floor, usize::MAX, list);
            select::weigh(list, scale);
        }
        list.retain(|c| c.weight > 0.0 && f64::from(c.weight) >= least);
    }

    /// Drops tokens with more surprise than `bits`, except the most likely one.
    pub fn truncate_surprise(&mut self, bits: f64) {
        let Some(scale) = self.scale() else {
            return;
        };
        let total = self.total_weight(scale);
        let least = total * math::exp((-bits * std::f64::consts::LN_2).min(0.0));
        if bits > 0.0 && least <= 1.0 {
            self.keep_weighing(least, scale)
        } else {
            self.top_k(1)
        }
    }

    /// Draws a token; `unit` is in [0, 1). `None` if no token is left.
    pub fn draw(&mut self, unit: f64) -> Option<u32> {
        let scale = self.scale()?;
        let SamplerScratch {
            candidates, sums, ..
        } = &mut *self.scratch;
        if self.narrowed {
            self.total = select::weigh(candidates, scale);
            let drawn = select::draw_candidate(candidates, unit * self.total);
            return drawn.map(|candidate| candidate.id);
        }
        self.total = logits::weigh(self.row, scale, sums);
        select::draw(self.row, sums, unit * self.total)
    }

    /// How likely a token was, after a [`draw`](Self::draw).
    pub fn probability(&self, id: u32) -> f64 {
        let weight = if self.narrowed {
            let mut left = self.scratch.candidates.iter();
            left.find(|candidate| candidate.id == id).map(|c| c.weight)
        } else {
            self.row.get(id as usize).copied()
        };
        f64::from(weight.unwrap_or(0.0)) / self.total
    }

    /// The drawn token with the log-probabilities of it and the `count` most likely candidates.
    pub fn top_logprobs(mut self, id: u32, count: usize) -> TokenInfo {
        let logprob = |probability: f64| math::ln(probability).min(0.0) as f32;
        let of_drawn = logprob(self.probability(id));
        self.list_by_weight();
        let total = self.total;
        let candidates = &mut self.scratch.candidates;
        select::keep_best(candidates, count);
        candidates.sort_unstable_by(Candidate::rank);
        let top = candidates.iter();
        TokenInfo {
            id,
            logprob: Some(of_drawn),
            top: top
                .map(|c| (c.id, logprob(f64::from(c.weight) / total)))
                .collect(),
        }
    }

    /// Lists the candidates. The row holds weights after a draw.
    fn list_by_weight(&mut self) {
        let SamplerScratch {
            candidates, maxima, ..
        } = &mut *self.scratch;
        if !self.narrowed {
            logits::block_maxima(self.row, maxima);
            select::gather(self.row, maxima, f32::MIN_POSITIVE, usize::MAX, candidates);
            for candidate in candidates.iter_mut() {
                candidate.weight = candidate.logit;
            }
        }
        candidates.retain(|candidate| candidate.weight > 0.0);
    }

    /// Narrows to logits of at least `floor`; `false` and unchanged if there are too many.
    fn narrow(&mut self, floor: f32) -> bool {
        let SamplerScratch {
            candidates, maxima, ..
        } = &mut *self.scratch;
        if self.narrowed {
            candidates.retain(|candidate| candidate.logit >= floor);
        } else {
            logits::block_maxima(self.row, maxima);
            self.narrowed = select::gather(self.row, maxima, floor, MANY, candidates);
        }
        self.narrowed
    }

    /// Also stores the weight of each listed candidate.
    fn total_weight(&mut self, scale: Scale) -> f64 {
        if self.narrowed {
            select::weigh(&mut self.scratch.candidates, scale)
        } else {
            logits::total_weight(self.row, scale)
        }
    }

    /// `None` if no token is left.
    fn scale(&self) -> Option<Scale> {
        let peak = if self.narrowed {
            select::peak(&self.scratch.candidates)
        } else {
            logits::peak(self.row)
        };
        Some(Scale::new(peak?, self.temperature))
    }

    fn spread(&mut self) -> Option<Spread> {
        let scale = self.scale()?;
        Some(logits::spread(self.values(), scale))
    }

    /// The logits of all candidates.
    fn values(&mut self) -> &[f32] {
        if !self.narrowed {
            return self.row;
        }
        let SamplerScratch {
            candidates, values, ..
        } = &mut *self.scratch;
        values.clear();
        values.extend(candidates.iter().map(|candidate| candidate.logit));
        values
    }
}

/// Orders by the distance of log-weights from `middle`, then by rank.
fn nearer(a: &Candidate, b: &Candidate, scale: Scale, middle: f32) -> Ordering {
    let distance = |c: &Candidate| (scale.log_weight(c.logit) - middle).abs();
    let by_distance = distance(a).total_cmp(&distance(b));
    by_distance.then(a.rank(b))
}
