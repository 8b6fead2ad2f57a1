//! A histogram of a row's weight by distance from a middle, for cuts that keep too many tokens to
//! list.

use super::logits::{BLOCK, Scale};
use super::vectorised::vectorised;

/// Buckets per factor of e in weight. Tokens go to buckets by the distance of their log-weights
/// from a middle; the last bucket takes the rest.
const BUCKETS_TO_E: f32 = 64.0;
const BUCKETS: usize = 88 * BUCKETS_TO_E as usize;

#[inline(always)]
fn bucket(logit: f32, scale: Scale, middle: f32) -> u32 {
    // Adding 2^23 leaves the nearest integer in the low bits of the sum, which vectorises where
    // a checked conversion does not.
    const ROUND: f32 = 8_388_608.0;
    let distance = (scale.log_weight(logit) - middle).abs();
    let place = (distance * BUCKETS_TO_E).min((BUCKETS - 1) as f32);
    (place + ROUND).to_bits() - ROUND.to_bits()
}

vectorised! {
    /// Sums the weights of the tokens by bucket, in four sums each.
    fn weights_by_bucket(logits: &[f32], scale: Scale, middle: f32, buckets: &mut Vec<[f64; 4]>) {
        buckets.clear();
        buckets.resize(BUCKETS, [0.0; 4]);
        for block in logits.chunks(BLOCK) {
            let mut weights = [0.0f32; BLOCK];
            let mut places = [0u32; BLOCK];
            for (weight, &logit) in weights.iter_mut().zip(block) {
                *weight = scale.weight(logit);
            }
            for (place, &logit) in places.iter_mut().zip(block) {
                *place = bucket(logit, scale, middle);
            }
            // Neighbours often share a bucket; separate sums avoid the dependency.
            for (at, (place, weight)) in places.into_iter().zip(weights).enumerate() {
                buckets[place as usize][at % 4] += f64::from(weight);
            }
        }
    }
}

vectorised! {
    /// Removes the tokens of all buckets past `last`, and lists those in `last`.
    fn cut_at_bucket(
        logits: &mut [f32],
        scale: Scale,
        middle: f32,
        last: u32,
        inside: &mut Vec<u32>
    ) {
        inside.clear();
        for (index, block) in logits.chunks_mut(BLOCK).enumerate() {
            let mut places = [0u32; BLOCK];
            let mut hit = false;
            for (place, logit) in places.iter_mut().zip(block.iter_mut()) {
                *place = bucket(*logit, scale, middle);
                *logit = if *place > last { f32::NEG_INFINITY } else { *logit };
                hit |= *place == last;
            }
            if hit {
                let places = places[..block.len()].iter().enumerate();
                let here = places.filter(|(_, place)| **place == last);
                inside.extend(here.map(|(at, _)| (index * BLOCK + at) as u32));
            }
        }
    }
}
