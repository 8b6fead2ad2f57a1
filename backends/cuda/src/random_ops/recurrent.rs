//! Operations that carry a state.

use super::builder::Builder;
use super::case::{Case, Operand};
use crate::ops::{Convolve, DeltaGates, DeltaUpdate, MambaUpdate};

/// Divides tokens into rows with states of `state_len`, and lets the launch cover some of the rows.
fn set_rows(b: &mut Builder, state_len: usize) {
    let lens = [1, 1, 2, 3, 5, 17, 40];
    let count = b.pick(&[1, 2, 3, 5]);
    let (mut rows, mut row_pointers) = (Vec::new(), Vec::new());
    let (mut copies, mut copy_pointers) = (Vec::new(), Vec::new());
    b.tokens = 0;
    for row in 0..count {
        let tokens = b.pick(&lens);
        let start = b.random_values(state_len, 1.0);
        let after = b.output(&start);
        // Zeros, a state of its own, or the state that it replaces.
        let before = match b.below(3) {
            0 => Operand::NONE,
            1 => b.input(&start),
            _ => after,
        };
        let first_copy = copies.len() / 4;
        for after in 1..=tokens {
            if b.below(3) == 0 {
                let to = b.outputs(state_len);
                copy_pointers.push((4 * copies.len() + 8, to));
                copies.extend([after as u32, 0, 0, 0]);
            }
        }
        let own = copies.len() / 4 - first_copy;
        row_pointers.extend([(32 * row + 16, before), (32 * row + 24, after)]);
        let words = [b.tokens, tokens, first_copy, own].map(|word| word as u32);
        rows.extend(words);
        rows.extend([0; 4]);
        b.tokens += tokens;
    }
    b.tables.rows = b.table(&rows, row_pointers);
    b.tables.snapshots = b.table(&copies, copy_pointers);
    b.rows = count;
    b.first = b.below(count);
    b.count = 1 + b.below(count - b.first);
}

/// Values of other layers before and after a layer's part of the state.
fn place_state(b: &mut Builder, len: usize) -> u32 {
    let (before, after) = (b.pick(&[0, 0, 3, 64]), b.pick(&[0, 5]));
    set_rows(b, before + len + after);
    before as u32
}

pub fn convolve(mut b: Builder) -> Case {
    let channels = b.size(64);
    let kernel = b.pick(&[1, 2, 3, 4, 4, 7]);
    let state = place_state(&mut b, (kernel - 1) * channels);
    let values = b.output_vectors(channels, 1.0);
    let weights = b.inputs(channels * kernel, 0.7);
    let bias = b.optional(channels, 1.0);
    let silu = b.flag().into();
    b.finish(move |placed| {
        let op = Convolve {
            values: placed.at(values.at),
            weights: placed.at(weights),
            bias: placed.at(bias),
            stride: values.stride,
            channels: channels as u32,
            kernel: kernel as u32,
            state,
            silu,
            reserved: 0,
        };
        op.into()
    })
}

pub fn delta_gates(mut b: Builder) -> Case {
    let heads = b.small();
    let per_head = b.pick(&[1, 1, 3, 64, 128]);
    let decay = b.random_values(b.tokens * heads * per_head, 30.0);
    let decay = b.output(&decay);
    let beta = b.random_values(b.tokens * heads, 5.0);
    let beta = b.output(&beta);
    let bias = b.inputs(heads * per_head, 1.0);
    let rate: Vec<f32> = (0..heads).map(|_| b.between(-2.0, 0.0)).collect();
    let rate = b.input(&rate);
    b.finish(move |placed| {
        let op = DeltaGates {
            decay: placed.at(decay),
            beta: placed.at(beta),
            bias: placed.at(bias),
            rate: placed.at(rate),
            heads: heads as u32,
            per_head: per_head as u32,
        };
        op.into()
    })
}

pub fn delta_update(mut b: Builder) -> Case {
    let dims = [1, 3, 16, 31, 64, 100, 128];
    let (key_dim, value_dim) = (b.pick(&dims), b.pick(&dims));
    let key_heads = b.pick(&[1, 2, 3]);
    let heads = key_heads * b.pick(&[1, 2, 3]);
    let per_head = if b.flag() { 1 } else { key_dim };
    let state = place_state(&mut b, heads * key_dim * value_dim);
    let tokens = b.tokens;
    // Of length below one, so that the memory stays bounded.
    let size = 1.0 / (key_dim as f32).sqrt();
    let query = b.inputs(tokens * key_heads * key_dim, size);
    let key = b.inputs(tokens * key_heads * key_dim, size);
    let value = b.inputs(tokens * heads * value_dim, 1.0);
    let out = b.outputs(tokens * heads * value_dim);
    let [decay, beta] = [per_head, 1].map(|each| {
        let len = tokens * heads * each;
        let values: Vec<f32> = (0..len).map(|_| b.between(0.0, 1.0)).collect();
        b.input(&values)
    });
    let strided = b.flag().into();
    b.finish(move |placed| {
        let op = DeltaUpdate {
            query: placed.at(query),
            key: placed.at(key),
            value: placed.at(value),
            out: placed.at(out),
            decay: placed.at(decay),
            beta: placed.at(beta),
            key_heads: key_heads as u32,
            value_heads: heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            per_head: per_head as u32,
            state,
            strided,
            reserved: 0,
        };
        op.into()
    })
}

pub fn mamba_update(mut b: Builder) -> Case {
    let groups = b.pick(&[1, 2, 4]);
    let heads = groups * b.pick(&[1, 2, 3]);
    let head_dim = b.pick(&[1, 7, 32, 64, 80]);
    let state_len = b.pick(&[1, 16, 31, 64, 128, 256]);
    let width = 2 * (heads * head_dim + groups * state_len) + heads;
    let state = place_state(&mut b, heads * head_dim * state_len);
    let projected = b.inputs(b.tokens * width, 1.0);
    let out = b.outputs(b.tokens * heads * head_dim);
    let (step_bias, skip) = (b.inputs(heads, 3.0), b.inputs(heads, 1.0));
    let rate: Vec<f32> = (0..heads).map(|_| b.between(-4.0, 0.0)).collect();
    let rate = b.input(&rate);
    let (min_step, max_step) = b.pick(&[(0.0, f32::INFINITY), (0.1, 0.5)]);
    b.finish(move |placed| {
        let op = MambaUpdate {
            projected: placed.at(projected),
            out: placed.at(out),
            step_bias: placed.at(step_bias),
            rate: placed.at(rate),
            skip: placed.at(skip),
            width: width as u32,
            heads: heads as u32,
            head_dim: head_dim as u32,
            groups: groups as u32,
            state_len: state_len as u32,
            state,
            min_step,
            max_step,
        };
        op.into()
    })
}
