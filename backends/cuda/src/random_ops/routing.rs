//! The choice of experts.

use super::builder::Builder;
use super::case::{Case, Operand};
use crate::ops::Route;

/// What the logits of a case are like.
#[derive(Clone, Copy, PartialEq)]
enum Logits {
    Distinct,
    /// Many equal ones.
    Tied,
    Broken,
}

pub fn route(mut b: Builder) -> Case {
    let groups = b.pick(&[0, 0, 1, 2, 4, 8]);
    let size = b.pick(&[1, 2, 3, 16, 31, 32]);
    let count = if groups == 0 {
        b.pick(&[1, 2, 7, 32, 60, 128, 257, 512])
    } else {
        groups * size
    };
    let top_k = b.pick(&[1, 2, 4, 8, 10]).min(count);
    let kind = b.pick(&[Logits::Distinct, Logits::Tied, Logits::Broken]);
    let mut values = b.random_values(b.tokens * count, 3.0);
    if kind == Logits::Tied {
        values.iter_mut().for_each(|value| *value = value.round());
    }
    if kind == Logits::Broken {
        for _ in 0..3 {
            let at = b.below(values.len());
            values[at] = b.pick(&[f32::NAN, f32::NEG_INFINITY]);
        }
    }
    let logits = b.output(&values);
    // Sums that are equal but for rounding would make the choice a matter of the last bit.
    let correction = if kind == Logits::Tied {
        Operand::NONE
    } else {
        b.optional(count, 0.5)
    };
    let expert_scale = b.optional(count, 2.0);
    let experts = b.output_words(b.tokens * top_k);
    let weights = b.outputs(b.tokens * top_k);
    let keep_groups = 1 + b.below(groups);
    let [sigmoid, best_two, normalise] = [(); 3].map(|()| b.flag().into());
    let scale = b.pick(&[1.0, 2.5]);
    b.finish(move |placed| {
        let op = Route {
            logits: placed.at(logits),
            correction: placed.at(correction),
            expert_scale: placed.at(expert_scale),
            experts: placed.at(experts),
            weights: placed.at(weights),
            count: count as u32,
            top_k: top_k as u32,
            sigmoid,
            groups: groups as u32,
            keep_groups: keep_groups as u32,
            best_two,
            normalise,
            normalise_eps: 1e-20,
            scale,
            reserved: 0,
        };
        op.into()
    })
}
