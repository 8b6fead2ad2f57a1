//! Products with matrices.

use super::builder::Builder;
use super::case::{Case, Operand};
use crate::ops::{CombineExperts, ExpertLinear, Linear};

pub fn linear(mut b: Builder) -> Case {
    let batch = b.pick(&[1, 1, 1, 2, 5]);
    let cols = b.size(batch * b.tokens);
    let rows = b.size(batch * cols * b.tokens.div_ceil(8));
    let matrix = b.matrices(batch, rows, cols);
    let input_step = cols + b.pick(&[0, 1, 64]);
    let out_step = rows + b.pick(&[0, 1, 64]);
    let input = b.vectors(batch * input_step, 1.0);
    let out = b.output_vectors(batch * out_step, 1.0);
    let bias = if batch == 1 {
        b.optional(rows, 1.0)
    } else {
        Operand::NONE
    };
    b.finish(move |placed| {
        let op = Linear {
            matrix: matrix.place(placed),
            input: placed.at(input.at),
            out: placed.at(out.at),
            bias: placed.at(bias),
            input_stride: input.stride,
            out_stride: out.stride,
            batch: batch as u32,
            input_step: input_step as u32,
            out_step: out_step as u32,
            reserved: 0,
        };
        op.into()
    })
}

pub fn expert_linear(mut b: Builder) -> Case {
    let count = b.pick(&[1, 2, 5, 16, 33]);
    let top_k = b.pick(&[1, 2, 3, 8]).min(count);
    let cols = b.size(count.max(b.tokens * top_k));
    let rows = b.size(cols * count.max(b.tokens * top_k / 4));
    let matrix = b.matrices(count, rows, cols);
    let per_route = b.flag();
    let inputs = if per_route {
        b.tokens * top_k
    } else {
        b.tokens
    };
    let input = b.vectors_of(inputs, cols, 1.0);
    let experts = b.routes(count, top_k);
    let weights = b.optional(b.tokens * top_k, 1.0);
    let bias = b.optional(count * rows, 1.0);
    let out = b.outputs(b.tokens * top_k * rows);
    b.finish(move |placed| {
        let op = ExpertLinear {
            matrix: matrix.place(placed),
            input: placed.at(input.at),
            out: placed.at(out),
            bias: placed.at(bias),
            experts: placed.at(experts),
            weights: placed.at(weights),
            input_stride: input.stride,
            top_k: top_k as u32,
            input_per_route: per_route.into(),
            reserved: 0,
        };
        op.into()
    })
}

pub fn combine_experts(mut b: Builder) -> Case {
    let top_k = b.pick(&[1, 2, 3, 8]);
    let len = b.size(b.tokens * top_k);
    let input = b.inputs(b.tokens * top_k * len, 1.0);
    let weights = b.optional(b.tokens * top_k, 1.0);
    let out = b.output_vectors(len, 1.0);
    b.finish(move |placed| {
        let op = CombineExperts {
            input: placed.at(input),
            out: placed.at(out.at),
            weights: placed.at(weights),
            out_stride: out.stride,
            len: len as u32,
            top_k: top_k as u32,
            reserved: 0,
        };
        op.into()
    })
}
