//! What adapters add to products and embeddings.

use super::builder::Builder;
use super::case::{Case, Operand};
use super::positions::set_ids;
use crate::ops::{EmbedLowRank, LowRank, MAX_ADAPTERS, ScaleRows};

/// The matrices of a token's parts.
struct AdaptedParts {
    count: usize,
    matrices: usize,
    experts: Operand,
}

fn parts(b: &mut Builder) -> AdaptedParts {
    let count = b.pick(&[1, 1, 1, 2, 5]);
    if b.flag() {
        return AdaptedParts {
            count,
            matrices: count,
            experts: Operand::NONE,
        };
    }
    let matrices = count + b.pick(&[0, 1, 7]);
    AdaptedParts {
        count,
        matrices,
        experts: b.routes(matrices, count),
    }
}

/// Lengths `[matrix][4][count]` whose squares are positive.
fn lengths(b: &mut Builder, matrices: usize, count: usize) -> Operand {
    let mut values = Vec::new();
    for _ in 0..matrices {
        for (low, high) in [(0.5, 1.5), (1.0, 2.0), (-0.2, 0.2), (0.2, 0.8)] {
            values.extend((0..count).map(|_| b.between(low, high)));
        }
    }
    b.input(&values)
}

fn optional_lengths(b: &mut Builder, matrices: usize, count: usize) -> Operand {
    if b.flag() {
        return Operand::NONE;
    }
    lengths(b, matrices, count)
}

pub fn low_rank(mut b: Builder) -> Case {
    let parts = parts(&mut b);
    let rank = b.pick(&[1, 3, 8, 16, 33, 64, 129]);
    let others = rank * parts.matrices.max(b.tokens * parts.count / 8);
    let (cols, rows) = (b.size(others), b.size(others));
    let a = b.inputs(parts.matrices * rank * cols, 1.0);
    let up = b.inputs(parts.matrices * rows * rank, 1.0);
    let lengths = optional_lengths(&mut b, parts.matrices, rows);
    let weights = b.optional(b.tokens * parts.count, 1.0);
    // Experts may read the token's one input.
    let input_step = b.pick(&[0, cols, cols + 1]);
    let out_step = rows + b.pick(&[0, 1, 64]);
    let input = b.vectors(cols + (parts.count - 1) * input_step, 1.0);
    let out = b.output_vectors(parts.count * out_step, 1.0);
    let scale = b.pick(&[1.0, 0.05]);
    b.finish(move |placed| {
        let op = LowRank {
            a: placed.at(a),
            b: placed.at(up),
            lengths: placed.at(lengths),
            input: placed.at(input.at),
            out: placed.at(out.at),
            experts: placed.at(parts.experts),
            weights: placed.at(weights),
            rows: rows as u32,
            cols: cols as u32,
            rank: rank as u32,
            parts: parts.count as u32,
            input_stride: input.stride,
            input_step: input_step as u32,
            out_stride: out.stride,
            out_step: out_step as u32,
            scale,
            reserved: 0,
        };
        op.into()
    })
}

pub fn scale_rows(mut b: Builder) -> Case {
    let parts = parts(&mut b);
    let adapters = b.pick(&[1, 1, 2, MAX_ADAPTERS]);
    let rows = b.size(parts.matrices * b.tokens * adapters);
    let mut all_lengths = [Operand::NONE; MAX_ADAPTERS];
    let mut scales = [0.0; MAX_ADAPTERS];
    for index in 0..adapters {
        all_lengths[index] = lengths(&mut b, parts.matrices, rows);
        scales[index] = b.pick(&[1.0, 0.05, -0.5]);
    }
    let bias = b.optional(parts.matrices * rows, 1.0);
    let out_step = rows + b.pick(&[0, 1, 64]);
    let out = b.output_vectors(parts.count * out_step, 1.0);
    b.finish(move |placed| {
        let op = ScaleRows {
            out: placed.at(out.at),
            bias: placed.at(bias),
            experts: placed.at(parts.experts),
            lengths: all_lengths.map(|lengths| placed.at(lengths)),
            scales,
            rows: rows as u32,
            parts: parts.count as u32,
            out_stride: out.stride,
            out_step: out_step as u32,
        };
        op.into()
    })
}

pub fn embed_low_rank(mut b: Builder) -> Case {
    let rows = b.pick(&[1, 3, 64, 251]);
    let rank = b.pick(&[1, 3, 8, 64]);
    let width = b.size(rows.max(b.tokens) * rank);
    let table = b.matrix(rows, width);
    set_ids(&mut b, rows, width, 1);
    let (a, up) = (b.inputs(rank * width, 1.0), b.inputs(rows * rank, 1.0));
    let lengths = optional_lengths(&mut b, 1, width);
    let out = b.outputs(b.tokens * width);
    let (scale, factor) = (b.pick(&[1.0, 0.05]), b.pick(&[1.0, 22.5]));
    b.finish(move |placed| {
        let op = EmbedLowRank {
            out: placed.at(out),
            table: table.place(placed),
            a: placed.at(a),
            b: placed.at(up),
            lengths: placed.at(lengths),
            rank: rank as u32,
            scale,
            factor,
            reserved: 0,
        };
        op.into()
    })
}
