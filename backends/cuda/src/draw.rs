//! Tokens drawn on the device: what `kernels/general/draw.cuh` computes, in plain Rust.
//!
//! Tokens are ordered by their logits, the likeliest first and the lowest of equal ones; what a draw
//! keeps is always a beginning of that order. A token's weight is a whole number, a function of
//! its logit's distance from the largest one in arithmetic that every device has, so that sums do
//! not depend on their order and all devices draw the same token. It differs from
//! [`Draw::choose`] if `unit`, or where `top_p` cuts, is closer than 1e-5 to an edge between two
//! tokens.

use bytemuck::{Pod, Zeroable};
use loquat_session::{Draw, Emit};

use crate::ops::NOT_A_NUMBER;

/// How a position's token is chosen.
#[repr(C)]
#[derive(Pod, Zeroable, Debug, Clone, Copy, PartialEq, Default)]
pub struct DrawTable {
    /// `log2(e) / temperature`; 0: the token is the most likely one.
    pub scale: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In parts of 2^32; 0 keeps all.
    pub top_p: u32,
    /// In parts of 2^32.
    pub unit: u32,
    /// The least weight that is kept.
    pub min_weight: u64,
}

/// The largest logit's weight is two to the power of this. Sums of two million fit a word.
pub const WEIGHT_BITS: i32 = 42;

/// 2^x for x from -0.5 to 0.5: powers of ln 2 over factorials, the highest first.
pub const EXP2: [f32; 8] = [
    1.525_273_4e-5,
    1.540_353e-4,
    1.333_355_8e-3,
    9.618_129e-3,
    5.550_411e-2,
    2.402_265e-1,
    6.931_472e-1,
    1.0,
];

impl DrawTable {
    /// The most likely token.
    pub const GREEDY: Self = Self {
        scale: 0.0,
        top_k: 0,
        top_p: 0,
        unit: 0,
        min_weight: 0,
    };

    /// How a row's tokens are chosen.
    pub fn for_row(emit: Emit) -> Self {
        match emit {
            Emit::Drawn(draw) => Self::new(&draw),
            _ => Self::GREEDY,
        }
    }

    /// For numbers within their [ranges](Draw::check).
    pub fn new(draw: &Draw) -> Self {
        let parts = |share: f32| (f64::from(share) * 2f64.powi(32)) as u32;
        let scale = std::f64::consts::LOG2_E / f64::from(draw.temperature);
        Self {
            // Neither 0 nor infinite.
            scale: (scale as f32).clamp(f32::MIN_POSITIVE, f32::MAX),
            top_k: u32::try_from(draw.top_k).unwrap_or(0),
            top_p: if draw.top_p < 1.0 {
                parts(draw.top_p).max(1)
            } else {
                0
            },
            unit: parts(draw.unit),
            min_weight: (f64::from(draw.min_p) * 2f64.powi(WEIGHT_BITS)).ceil() as u64,
        }
    }

    /// The token for these logits; [`NOT_A_NUMBER`] if one is NaN, or none can be drawn.
    pub fn choose(&self, logits: &[f32]) -> u32 {
        if logits.iter().any(|logit| logit.is_nan()) {
            return NOT_A_NUMBER;
        }
        if self.scale == 0.0 {
            let mut best = 0;
            for (token, logit) in logits.iter().enumerate() {
                if *logit > logits[best] {
                    best = token;
                }
            }
            return best as u32;
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let Some(peak) = order.first().map(|token| logits[*token as usize]) else {
            return NOT_A_NUMBER;
        };
        if !peak.is_finite() {
            return NOT_A_NUMBER;
        }
        if self.top_k > 0 {
            order.truncate(self.top_k as usize);
        }
        let weight = |token: &u32| self.weight(logits[*token as usize], peak);
        if self.top_p > 0 {
            let total: u64 = order.iter().map(weight).sum();
            let mass = (u128::from(total) * u128::from(self.top_p)).div_ceil(1 << 32) as u64;
            let last = first_above(order.iter().map(weight), mass - 1);
            order.truncate(last + 1);
        }
        let kept = |token: &u32| Some(weight(token)).filter(|weight| *weight >= self.min_weight);
        let weights = order.iter().map(|token| kept(token).unwrap_or(0));
        let total: u64 = weights.clone().sum();
        let target = (u128::from(total) * u128::from(self.unit)) >> 32;
        order[first_above(weights, target as u64)]
    }

    /// A logit's weight beside the largest one.
    fn weight(&self, logit: f32, peak: f32) -> u64 {
        let x = (logit - peak) * self.scale;
        if x < -(WEIGHT_BITS as f32) {
            return 0;
        }
        let whole = x.round_ties_even();
        let part = x - whole;
        let mut power = 0.0_f32;
        for factor in EXP2 {
            power = power.mul_add(part, factor);
        }
        // From 0.7 to 1.42, so this is exact.
        let bits = (power * 16_777_216.0) as u64;
        let shift = WEIGHT_BITS - 24 + whole as i32;
        if shift >= 0 {
            bits << shift
        } else {
            bits >> -shift
        }
    }
}

/// The first place up to which the sum is larger.
fn first_above(weights: impl Iterator<Item = u64>, target: u64) -> usize {
    let mut sum = 0;
    let mut places = weights.take_while(|weight| {
        sum += weight;
        sum <= target
    });
    places.by_ref().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between -1 and 1.
    fn noise(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn draws() -> Vec<Draw> {
        let mut draws = Vec::new();
        for temperature in [0.01, 0.7, 1.0, 3.0] {
            for top_k in [0, 1, 7, 5000] {
                for (top_p, min_p) in [(1.0, 0.0), (0.9, 0.0), (0.3, 0.1), (1.0, 0.5), (1e-9, 1.0)]
                {
                    for unit in [0.0, 1e-9, 0.123, 0.5, 0.987, 1.0 - f32::EPSILON] {
                        draws.push(Draw {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            unit,
                        });
                    }
                }
            }
        }
        draws
    }

    /// [`Draw::choose`] for numbers that differ by as little as both arithmetics do.
    fn near(draw: &Draw, logits: &[f32]) -> Vec<Option<u32>> {
        const EDGE: f32 = 1e-5;
        let by = [-EDGE, 0.0, EDGE];
        let near = |value: f32, most: f32| by.map(|by| (value * (1.0 + by)).clamp(0.0, most));
        let mut found = Vec::new();
        for unit in by.map(|by| (draw.unit + by).clamp(0.0, 1.0 - f32::EPSILON)) {
            for top_p in near(draw.top_p, 1.0) {
                for min_p in near(draw.min_p, 1.0) {
                    let draw = Draw {
                        unit,
                        top_p,
                        min_p,
                        ..*draw
                    };
                    found.push(draw.choose(logits));
                }
            }
        }
        found
    }

    #[test]
    fn draws_are_those_of_the_contract() {
        let mut exact = 0;
        let mut all = 0;
        for (seed, vocab) in [(1, 1), (2, 5), (3, 300), (4, 4099)] {
            let mut logits = noise(seed, vocab);
            logits.iter_mut().for_each(|logit| *logit *= 6.0);
            if seed == 3 {
                // Many equal ones, and some that cannot be drawn.
                logits.iter_mut().for_each(|logit| *logit = logit.round());
                logits[7..40].fill(f32::NEG_INFINITY);
            }
            for draw in draws() {
                let found = Some(DrawTable::new(&draw).choose(&logits));
                all += 1;
                exact += usize::from(found == draw.choose(&logits));
                let near = near(&draw, &logits);
                assert!(
                    near.contains(&found),
                    "{vocab}: {draw:?}: {found:?}, {near:?}"
                );
            }
        }
        assert!(exact * 1000 > all * 995, "{exact} of {all}");
    }

    #[test]
    fn what_cannot_be_drawn_is_not_a_number() {
        let table = DrawTable::new(&draws()[0]);
        for logits in [
            &[][..],
            &[1.0, f32::NAN],
            &[f32::NEG_INFINITY; 3],
            &[1.0, f32::INFINITY],
        ] {
            assert_eq!(table.choose(logits), NOT_A_NUMBER, "{logits:?}");
        }
        assert_eq!(DrawTable::GREEDY.choose(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(DrawTable::GREEDY.choose(&[f32::NAN, 3.0]), NOT_A_NUMBER);
    }

    #[test]
    fn weights_are_powers() {
        let table = DrawTable {
            scale: 1.0,
            ..DrawTable::default()
        };
        for x in noise(9, 5000).iter().map(|x| -21.0 + 21.0 * x) {
            let expected = f64::from(x).exp2() * 2f64.powi(WEIGHT_BITS);
            let found = table.weight(x, 0.0) as f64;
            assert!((found - expected).abs() <= 1.0 + 4e-7 * expected, "{x}");
        }
        assert_eq!(table.weight(f32::NEG_INFINITY, 0.0), 0);
        assert_eq!(table.weight(0.0, 0.0), 1 << WEIGHT_BITS);
    }
}
