//! The vision tower: from the patches of a picture to features of the text model's size.
//!
//! It is a prefill without a past: views are computed in batches, through the matrix kernels and
//! the attention kernel of the text model. Every result depends on its own view alone.

mod arrange;
mod attend;
mod buffers;
mod load;
mod project;
mod rope;

use loquat_cpu_kernels::Kernels;
use loquat_session::media::patches;
use loquat_session::tower::{BATCH_PATCHES, TowerBatch, batches};
use loquat_session::{Media, Picture, View};
use loquat_spec::VisionSpec;

use crate::linear::{Linear, Product, Products, for_tokens, multiply};
use crate::model::Norm;
use crate::pool::Pool;
use crate::shared::SharedMut;
use buffers::Buffers;
use project::LoadedStep;

/// Rows that a matrix reads at a time: bounds their rounded copies.
const BLOCK_ROWS: usize = 1024;

/// A loaded tower.
pub struct Tower {
    spec: VisionSpec,
    patch: Linear,
    patch_bias: Option<Vec<f32>>,
    class_token: Option<Vec<f32>>,
    /// `[row][hidden]`
    positions: Vec<f32>,
    patch_norm: Option<Norm>,
    embedding_norm: Option<Norm>,
    layers: Vec<TowerLayer>,
    final_norm: Option<Norm>,
    projector: Vec<LoadedStep>,
    /// Of the spec's deepstack.
    deepstack: Vec<Vec<LoadedStep>>,
    row_end: Option<Vec<f32>>,
}

/// `x += post(attention(pre(x))); x += post(mlp(pre(x)))`
struct TowerLayer {
    attention_norm: Norm,
    /// Query, key, value.
    qkv: [Matrix; 3],
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    value_norm: Option<Norm>,
    output: Matrix,
    attention_post_norm: Option<Norm>,
    attention_gain: Option<Vec<f32>>,
    mlp_norm: Norm,
    gate: Option<Matrix>,
    up: Matrix,
    down: Matrix,
    mlp_post_norm: Option<Norm>,
    mlp_gain: Option<Vec<f32>>,
}

/// A matrix with its bias and the bounds of its input and output.
struct Matrix {
    linear: Linear,
    bias: Option<Vec<f32>>,
    clamp: Option<Clamp>,
}

#[derive(Clone, Copy)]
struct Clamp {
    input: [f32; 2],
    output: [f32; 2],
}

/// What a tower computes with.
pub struct Compute<'a> {
    kernels: &'static Kernels,
    pool: &'a mut Pool,
    buffers: Buffers,
}

impl<'a> Compute<'a> {
    pub fn new(kernels: &'static Kernels, pool: &'a mut Pool) -> Self {
        Self {
            kernels,
            pool,
            buffers: Buffers::default(),
        }
    }
}

impl Tower {
    /// Features of media whose layout has been checked, `[level][position][hidden]`.
    pub fn encode(&self, compute: &mut Compute<'_>, media: &Media) -> Vec<f32> {
        let (picture, is_video) = match media {
            Media::Image(picture) => (picture, false),
            Media::Video(picture) => (picture, true),
            Media::Embeddings(values) => return values.clone(),
        };
        let mut levels = vec![Vec::new(); 1 + self.deepstack.len()];
        for views in batches(&picture.views) {
            let found = self.encode_views(compute, views);
            for (level, found) in levels.iter_mut().zip(found) {
                level.extend(found);
            }
        }
        let arranged = levels
            .into_iter()
            .map(|level| self.arrange(picture, is_video, level));
        arranged.collect::<Vec<_>>().concat()
    }

    fn arrange(&self, picture: &Picture, is_video: bool, level: Vec<f32>) -> Vec<f32> {
        match &self.row_end {
            None => level,
            Some(end) => arrange::tiled(&self.spec, picture, is_video, &level, end),
        }
    }

    /// The projected features of some views, for each level.
    fn encode_views(&self, compute: &mut Compute<'_>, views: &[View]) -> Vec<Vec<f32>> {
        let batch = TowerBatch::new(&self.spec, views);
        let mut x = self.embed(compute, views, &batch);
        let angles = self
            .spec
            .block
            .rope
            .map(|rope| rope::Angles::new(rope, self.spec.block.head_dim, &batch));
        let mut levels = vec![Vec::new(); 1 + self.deepstack.len()];
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(compute, &mut x, layer, (index, &batch, angles.as_ref()));
            self.feed_forward(compute, &mut x, layer);
            let stacked = self.spec.deepstack.iter().zip(&self.deepstack).enumerate();
            for (level, (spec, projector)) in stacked {
                if spec.after == index {
                    levels[1 + level] = self.project(compute, &x, &batch, projector);
                }
            }
        }
        let hidden = self.spec.hidden_size;
        if let Some(norm) = &self.final_norm {
            apply(compute, norm, &mut x, hidden);
        }
        levels[0] = self.project(compute, &x, &batch, &self.projector);
        levels
    }

    /// Embedded patches and class tokens with their positions.
    fn embed(&self, compute: &mut Compute<'_>, views: &[View], batch: &TowerBatch) -> Vec<f32> {
        let hidden = self.spec.hidden_size;
        let mut x = vec![0.0; batch.tokens * hidden];
        for (view, placed) in views.iter().zip(&batch.views) {
            let mut values = patches(&self.spec, view);
            let (scale, offset) = (self.spec.patch.scale, self.spec.patch.offset);
            if (scale, offset) != (1.0, 0.0) {
                values
                    .iter_mut()
                    .for_each(|value| *value = *value * scale + offset);
            }
            let range = placed.patches();
            let out = &mut x[range.start * hidden..range.end * hidden];
            let width = self.spec.patch.values();
            run(compute, &self.patch, (&values, width), out);
            add_bias(compute, out, self.patch_bias.as_deref());
            if let Some(norm) = &self.patch_norm {
                apply(compute, norm, out, hidden);
            }
            if let (Some(class), Some(values)) = (placed.class, &self.class_token) {
                x[class * hidden..(class + 1) * hidden].copy_from_slice(values);
            }
        }
        self.add_positions(batch, &mut x);
        if let Some(norm) = &self.embedding_norm {
            apply(compute, norm, &mut x, hidden);
        }
        x
    }

    fn add_positions(&self, batch: &TowerBatch, x: &mut [f32]) {
        let hidden = self.spec.hidden_size;
        let positions = batch.positions(&self.spec);
        let mut position = vec![0.0; hidden];
        for (rows, out) in positions.iter().zip(x.chunks_exact_mut(hidden)) {
            // Summed apart, as a reference samples the table before it adds.
            position.fill(0.0);
            for (row, weight) in rows {
                let row = &self.positions[row * hidden..(row + 1) * hidden];
                add_scaled(&mut position, row, *weight);
            }
            add_scaled(out, &position, 1.0);
        }
    }

    fn feed_forward(&self, compute: &mut Compute<'_>, x: &mut [f32], layer: &TowerLayer) {
        let hidden = self.spec.hidden_size;
        let mlp = &self.spec.block.mlp;
        // In blocks, since the inner values are the widest of all.
        for x in x.chunks_mut(BLOCK_ROWS * hidden) {
            let mut input = compute.buffers.copy(x);
            apply(compute, &layer.mlp_norm, &mut input, hidden);
            let rows = input.len() / hidden;
            let mut inner = compute.buffers.take(rows * mlp.size);
            let gated = if layer.gate.is_some() { inner.len() } else { 0 };
            let mut up = compute.buffers.take(gated);
            match &layer.gate {
                Some(gate) => {
                    let outs = [&mut inner[..], &mut up[..]];
                    run_together(compute, [gate, &layer.up], (&input, hidden), outs);
                }
                None => layer.up.run(compute, (&input, hidden), &mut inner),
            }
            activate(compute, mlp.activation, (&mut inner, mlp.size), &mut up);
            layer.down.run(compute, (&inner, mlp.size), &mut input);
            let (norm, gain) = (layer.mlp_post_norm.as_ref(), layer.mlp_gain.as_deref());
            add_branch(compute, (x, hidden), &mut input, norm, gain);
            compute.buffers.give([input, inner, up]);
        }
    }
}

impl Matrix {
    /// Writes `[row][output]`.
    fn run(&self, compute: &mut Compute<'_>, (input, width): (&[f32], usize), out: &mut [f32]) {
        match self.clamp {
            None => run(compute, &self.linear, (input, width), out),
            Some(bounds) => {
                let mut input = compute.buffers.copy(input);
                clamp(&mut input, bounds.input);
                run(compute, &self.linear, (&input, width), out);
                compute.buffers.give([input]);
            }
        }
        self.finish(compute, out);
    }

    /// Everything after the product.
    fn finish(&self, compute: &mut Compute<'_>, out: &mut [f32]) {
        add_bias(compute, out, self.bias.as_deref());
        if let Some(bounds) = self.clamp {
            clamp(out, bounds.output);
        }
    }
}

/// Several matrices of one input, which is rounded once unless each clamps it.
fn run_together<const N: usize>(
    compute: &mut Compute<'_>,
    matrices: [&Matrix; N],
    (input, width): (&[f32], usize),
    mut outs: [&mut [f32]; N],
) {
    if matrices.iter().any(|matrix| matrix.clamp.is_some()) {
        for (matrix, out) in matrices.iter().zip(outs) {
            matrix.run(compute, (input, width), out);
        }
        return;
    }
    let linears = matrices.map(|matrix| &matrix.linear);
    multiply_blocks(compute, linears, (input, width), &mut outs);
    for (matrix, out) in matrices.iter().zip(outs) {
        matrix.finish(compute, out);
    }
}

fn clamp(values: &mut [f32], [min, max]: [f32; 2]) {
    // Written so that NaN stays NaN.
    for value in values {
        if *value < min {
            *value = min;
        }
        if *value > max {
            *value = max;
        }
    }
}

/// Multiplies rows by a matrix.
fn run(compute: &mut Compute<'_>, linear: &Linear, input: (&[f32], usize), out: &mut [f32]) {
    multiply_blocks(compute, [linear], input, &mut [out]);
}

/// Multiplies rows by matrices, some rows at a time.
fn multiply_blocks<const N: usize>(
    compute: &mut Compute<'_>,
    linears: [&Linear; N],
    (input, width): (&[f32], usize),
    outs: &mut [&mut [f32]; N],
) {
    let Compute {
        kernels,
        pool,
        buffers,
    } = compute;
    let activations = &mut buffers.activations;
    let mut first = 0;
    for input in input.chunks(BLOCK_ROWS * width) {
        let rows = input.len() / width;
        activations.resize(rows, width);
        activations.values.copy_from_slice(input);
        activations.prepare(kernels, pool, linears);
        let rounded = &*activations;
        let products = linears.iter().zip(outs.iter_mut()).map(|(linear, out)| {
            let outputs = linear.rows();
            let out = &mut out[first * outputs..(first + rows) * outputs];
            Product::new(linear, rounded, out)
        });
        multiply(kernels, pool, products.collect::<Products<'_>>());
        first += rows;
    }
}

/// Applies a norm to each row of `width`.
fn apply(compute: &mut Compute<'_>, norm: &Norm, values: &mut [f32], width: usize) {
    let (kernels, rows) = (compute.kernels, values.len() / width);
    let values = SharedMut::new(values);
    for_tokens(compute.pool, rows, width, &|row| {
        // SAFETY: each row's task touches its own values.
        norm.apply(kernels, unsafe { values.slice(row * width, width) });
    });
}

/// `values = activation(values) * up`; no `up` counts as ones.
fn activate(
    compute: &mut Compute<'_>,
    activation: loquat_spec::Activation,
    (values, width): (&mut [f32], usize),
    up: &mut [f32],
) {
    let (kernels, rows) = (compute.kernels, values.len() / width);
    let up_width = if up.is_empty() { 0 } else { width };
    let (values, up) = (SharedMut::new(values), SharedMut::new(up));
    for_tokens(compute.pool, rows, 4 * width, &|row| {
        // SAFETY: each row's task touches its own values, and the table was chosen for this
        // machine.
        unsafe {
            let values = values.slice(row * width, width);
            (kernels.activate)(activation, values, up.slice(row * up_width, up_width));
        }
    });
}

/// `x += gain * norm(output)`
fn add_branch(
    compute: &mut Compute<'_>,
    (x, width): (&mut [f32], usize),
    output: &mut [f32],
    norm: Option<&Norm>,
    gain: Option<&[f32]>,
) {
    if let Some(norm) = norm {
        apply(compute, norm, output, width);
    }
    let rows = x.len() / width;
    let (x, output) = (SharedMut::new(x), &*output);
    for_tokens(compute.pool, rows, width, &|row| {
        // SAFETY: each row's task touches its own values.
        let x = unsafe { x.slice(row * width, width) };
        let output = &output[row * width..(row + 1) * width];
        match gain {
            None => add_scaled(x, output, 1.0),
            Some(gain) => {
                for ((x, output), gain) in x.iter_mut().zip(output).zip(gain) {
                    *x += output * gain;
                }
            }
        }
    });
}

fn add_bias(compute: &mut Compute<'_>, values: &mut [f32], bias: Option<&[f32]>) {
    let Some(bias) = bias else {
        return;
    };
    let (width, rows) = (bias.len(), values.len() / bias.len().max(1));
    let values = SharedMut::new(values);
    for_tokens(compute.pool, rows, width, &|row| {
        // SAFETY: each row's task touches its own values.
        add_scaled(unsafe { values.slice(row * width, width) }, bias, 1.0);
    });
}

fn add_scaled(values: &mut [f32], others: &[f32], scale: f32) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += other * scale;
    }
}

/// Bytes of the largest batch's buffers.
pub fn predict_buffer_bytes(spec: &VisionSpec, max_patches: usize) -> u64 {
    let heads = spec.block.heads * spec.block.head_dim;
    let stacked = 1 + spec.deepstack.len();
    // The stream, a branch's input and output; queries, keys and values, the latter two as they are
    // multiplied; the patches' own values, and rotations.
    let stored = spec.block.heads * attend::head_words(spec.block.head_dim);
    let per_patch = 4 * spec.hidden_size + 5 * heads + spec.patch.values() + stored;
    let widest = spec.projector.sized(spec.hidden_size);
    let widest = widest.iter().map(|(_, _, len)| *len).max().unwrap_or(0);
    let block = BLOCK_ROWS * (4 * spec.block.mlp.size + 4 * spec.hidden_size);
    let values = max_patches.max(BATCH_PATCHES) * (per_patch + 3 * stacked * spec.hidden_size);
    ((values + block + BLOCK_ROWS * 4 * widest) * size_of::<f32>()) as u64
}
