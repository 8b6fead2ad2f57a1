//! Operations that depend on ids and positions.

use super::builder::Builder;
use super::case::{Case, Matrix, Operand};
use crate::ops::{
    AddEmbedding, AddFeatures, Angles, Embed, Gather, MEDIA_ID, Rope, SumRows, Temperature,
};

/// Ids below `rows`, of which some are media; features of `levels` for those, but not at every
/// level above the first.
pub fn set_ids(b: &mut Builder, rows: usize, width: usize, levels: usize) {
    let has_media = b.flag();
    let ids: Vec<u32> = (0..b.tokens)
        .map(|_| {
            if has_media && b.below(3) == 0 {
                MEDIA_ID
            } else {
                b.below(rows) as u32
            }
        })
        .collect();
    b.tables.ids = b.words(&ids);
    if !has_media {
        return;
    }
    let media = ids.iter().filter(|id| **id == MEDIA_ID).count();
    let features = b.inputs(media * levels * width, 1.0);
    let stride = b.tokens + b.below(3);
    let (mut pointers, mut next) = (Vec::new(), 0);
    for level in 0..levels {
        for (token, id) in ids.iter().enumerate() {
            if *id == MEDIA_ID && (level == 0 || b.flag()) {
                pointers.push((8 * (level * stride + token), features.values(next * width)));
                next += 1;
            }
        }
    }
    b.tables.features = b.table(&vec![0; 2 * levels * stride], pointers);
    b.tables.feature_stride = stride as u64;
}

pub fn embed(mut b: Builder) -> Case {
    let rows = b.pick(&[1, 3, 64, 251]);
    let width = b.size(rows.max(b.tokens));
    let table = b.matrix(rows, width);
    set_ids(&mut b, rows, width, 1);
    let most = b.pick(&[1, 5, 130]);
    b.set_positions(most);
    let learned = b.matrix(most, width);
    let positions = Matrix {
        at: if b.flag() { learned.at } else { Operand::NONE },
        ..learned
    };
    let out = b.outputs(b.tokens * width);
    let scale = b.pick(&[1.0, 22.5]);
    b.finish(move |placed| {
        let op = Embed {
            out: placed.at(out),
            table: table.place(placed),
            positions: positions.place(placed),
            scale,
            reserved: 0,
        };
        op.into()
    })
}

pub fn add_embedding(mut b: Builder) -> Case {
    let rows = b.pick(&[1, 3, 64, 251]);
    let width = b.size(rows.max(b.tokens));
    let table = b.matrix(rows, width);
    set_ids(&mut b, rows, width, 1);
    let out = b.outputs(b.tokens * width);
    let media_id = b.below(rows) as u32;
    b.finish(move |placed| {
        let op = AddEmbedding {
            out: placed.at(out),
            table: table.place(placed),
            media_id,
            scale: 16.0,
            factor: std::f32::consts::FRAC_1_SQRT_2,
            reserved: 0,
        };
        op.into()
    })
}

pub fn add_features(mut b: Builder) -> Case {
    let width = b.size(3 * b.tokens);
    set_ids(&mut b, 7, width, 3);
    let out = b.outputs(b.tokens * width);
    let level = b.below(3) as u32;
    b.finish(move |placed| {
        let op = AddFeatures {
            out: placed.at(out),
            width: width as u32,
            level,
        };
        op.into()
    })
}

pub fn gather(mut b: Builder) -> Case {
    let from = b.pick(&[1, 3, 40]);
    let len = b.size(from.max(b.tokens));
    let input = b.vectors_of(from, len, 1.0);
    let out = b.output_vectors(len, 1.0);
    let index: Vec<u32> = (0..b.tokens).map(|_| b.below(from) as u32).collect();
    let index = b.words(&index);
    let is_emitted = b.flag();
    if is_emitted {
        b.tables.emitted = index;
    }
    b.finish(move |placed| {
        let op = Gather {
            input: placed.at(input.at),
            out: placed.at(out.at),
            index: placed.at(if is_emitted { Operand::NONE } else { index }),
            input_stride: input.stride,
            out_stride: out.stride,
            len: len as u32,
            reserved: 0,
        };
        op.into()
    })
}

pub fn sum_rows(mut b: Builder) -> Case {
    let from = b.pick(&[1, 3, 40]);
    let len = b.size(from.max(4 * b.tokens));
    let matrix = b.matrix(from, len);
    let mut terms = vec![0];
    for _ in 0..b.tokens {
        let count = b.pick(&[0, 1, 1, 4, 16]);
        terms.push(terms[terms.len() - 1] + count);
    }
    let count = terms[b.tokens] as usize;
    let rows: Vec<u32> = (0..count).map(|_| b.below(from) as u32).collect();
    // Empty buffers have no address.
    let (rows, weights) = (
        b.words(&[&rows[..], &[0]].concat()),
        b.inputs(count + 1, 1.0),
    );
    let terms = b.words(&terms);
    let out = b.output_vectors(len, 1.0);
    let adds = b.flag().into();
    b.finish(move |placed| {
        let op = SumRows {
            matrix: matrix.place(placed),
            out: placed.at(out.at),
            terms: placed.at(terms),
            rows: placed.at(rows),
            weights: placed.at(weights),
            out_stride: out.stride,
            adds,
        };
        op.into()
    })
}

pub fn angles(mut b: Builder) -> Case {
    let pairs = b.small();
    let base = b.pick(&[1e4_f32, 1e6]);
    let frequencies: Vec<f32> = (0..pairs)
        .map(|pair| base.powf(-(pair as f32) / pairs as f32))
        .collect();
    let frequencies = b.input(&frequencies);
    let axes: Vec<u32> = (0..pairs).map(|_| b.below(3) as u32).collect();
    let axes = if b.flag() {
        b.words(&axes)
    } else {
        Operand::NONE
    };
    let most = b.pick(&[100, 5000, 1_000_000]);
    b.set_positions(most);
    let rope: Vec<u32> = (0..3 * b.tokens).map(|_| b.below(most) as u32).collect();
    b.tables.rope = b.words(&rope);
    let (cos, sin) = (b.outputs(b.tokens * pairs), b.outputs(b.tokens * pairs));
    let factor = b.pick(&[1.0, 1.3]);
    b.finish(move |placed| {
        let op = Angles {
            cos: placed.at(cos),
            sin: placed.at(sin),
            frequencies: placed.at(frequencies),
            axes: placed.at(axes),
            pairs: pairs as u32,
            factor,
        };
        op.into()
    })
}

pub fn rope(mut b: Builder) -> Case {
    let (pairs, heads) = (b.small(), b.pick(&[1, 2, 7, 32, 33]));
    let head_step = 2 * pairs + b.pick(&[0, 0, 1, 64]);
    let values = b.output_vectors(heads * head_step, 1.0);
    let angles = b.random_values(b.tokens * pairs, 3.0);
    let [cos, sin] = [f32::cos, f32::sin].map(|function| {
        let values: Vec<f32> = angles.iter().map(|angle| function(*angle)).collect();
        b.input(&values)
    });
    let interleaved = b.flag().into();
    b.finish(move |placed| {
        let op = Rope {
            values: placed.at(values.at),
            cos: placed.at(cos),
            sin: placed.at(sin),
            stride: values.stride,
            heads: heads as u32,
            head_step: head_step as u32,
            pairs: pairs as u32,
            interleaved,
            reserved: 0,
        };
        op.into()
    })
}

pub fn temperature(mut b: Builder) -> Case {
    let len = b.size(b.tokens);
    b.set_positions(100_000);
    let values = b.output_vectors(len, 1.0);
    let (span, offset) = (b.pick(&[1, 100, 8192]), b.pick(&[0, 1]));
    b.finish(move |placed| {
        let op = Temperature {
            values: placed.at(values.at),
            stride: values.stride,
            len: len as u32,
            beta: 0.1,
            span,
            offset,
            reserved: 0,
        };
        op.into()
    })
}
