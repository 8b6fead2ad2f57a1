//! One forward pass, for the tokens of all rows together.

mod attend;
mod attention;
mod convolution;
mod experts;
mod feed_forward;
mod largest;
mod latent;
mod recurrent;

pub use attend::{MAX_PIECE_RESULTS, PieceTask, UNITS_PER_THREAD};

use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{Kernels, KvElement, PAGE, PagePtr};
use loquat_session::recurrent_state::StateLayout;
use loquat_spec::NormKind;

use crate::adapted::{self, StepAdapters, extend_runs, multiply_adapted};
use crate::adapter::Applied;
use crate::buffers::{Buffer, fit};
use crate::kv::MediaFeatures;
use crate::linear::{Activations, Linear, Product, for_parts, for_tokens};
use crate::model::{Block, Branch, Inner, LowRank, Model, Norm, Output};
use crate::page::PageLayout;
use crate::pool::Pool;
use crate::shared::SharedMut;

/// The step's tokens, flattened over its rows, and the slots for their keys and values.
pub struct Plan<T> {
    pub rows: Vec<PlannedRow>,
    pub tokens: Vec<PlannedToken>,
    /// All rows' pages, one run for each row and group of layers.
    pub pages: Vec<PagePtr<T>>,
    /// `[row][group]`
    pub page_runs: Vec<PageRun>,
    /// Groups of layers.
    pub groups: usize,
    /// Features of the media in the rows.
    pub media: Vec<Arc<MediaFeatures>>,
    pub adapters: StepAdapters,
}

/// A sequence's pages of a group of layers. It leaves out pages out of reach, as many as form
/// whole pieces: positions counted from the run's first page are cut into the same pieces.
#[derive(Clone)]
pub struct PageRun {
    /// In [`Plan::pages`]. Pages out of reach have no memory.
    pub pages: Range<usize>,
    /// The position of the run's first token.
    pub first: usize,
}

/// A sequence's tokens in [`Plan::tokens`], and its recurrent state.
pub struct PlannedRow {
    pub first: usize,
    pub tokens: usize,
    pub state: Option<PlannedState>,
}

pub struct PlannedState {
    /// The state before the row; `None`: zeros.
    pub before: Option<PagePtr<f32>>,
    /// The state after the row, exclusive to it.
    pub after: PagePtr<f32>,
    /// Copies to save, each with the number of the row's tokens before it.
    pub snapshots: Vec<(usize, PagePtr<f32>)>,
}

/// A position of encoded media.
#[derive(Clone, Copy)]
pub struct PlannedFeature {
    /// In [`Plan::media`].
    pub media: usize,
    pub position: usize,
}

pub struct PlannedToken {
    pub id: u32,
    /// Takes the place of the token's embedding.
    pub feature: Option<PlannedFeature>,
    pub position: usize,
    /// Rotary position by frame, row and column; equal for text.
    pub rope: [usize; 3],
    /// The first position of the sequence that it does not attend to.
    pub seen_end: usize,
    /// In [`Plan::rows`].
    pub row: usize,
    /// Of its adapters.
    pub group: Option<usize>,
}

impl<T> Default for Plan<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            tokens: Vec::new(),
            pages: Vec::new(),
            page_runs: Vec::new(),
            groups: 0,
            media: Vec::new(),
            adapters: StepAdapters::default(),
        }
    }
}

impl<T> Plan<T> {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.pages.clear();
        self.page_runs.clear();
        self.media.clear();
        self.adapters.clear();
    }

    /// The pages of a token's sequence in a group of layers.
    fn page_run(&self, token: usize, group: usize) -> &PageRun {
        &self.page_runs[self.tokens[token].row * self.groups + group]
    }

    /// The adapters of a token.
    fn applied(&self, token: usize) -> &[Applied] {
        self.adapters.for_group(self.tokens[token].group)
    }

    /// A level of a token's features, if it has that level.
    fn feature(&self, feature: PlannedFeature, level: usize) -> Option<&[f32]> {
        self.media[feature.media].row(level, feature.position)
    }
}

impl<T: Copy> Plan<T> {
    /// The page of a group that receives a token's keys and values.
    fn page(&self, token: usize, group: usize) -> PagePtr<T> {
        let run = self.page_run(token, group);
        let page = (self.tokens[token].position - run.first) / PAGE;
        self.pages[run.pages.start + page]
    }
}

/// Buffers that are reused between steps. Each mixer uses those it needs; a branch writes its
/// output to `inner` for the output matrix, or to `branch` if it has none.
#[derive(Default)]
pub struct Scratch {
    /// The residual stream, `[token][hidden]`.
    x: Buffer<f32>,
    /// The input of a branch: the stream after its norm.
    input: Activations,
    query: Buffer<f32>,
    /// Tokens whose queries attend together.
    attended: Vec<Range<usize>>,
    /// Tokens in one page.
    page_runs: Vec<Range<usize>>,
    pieces: attend::Pieces,
    key: Buffer<f32>,
    value: Buffer<f32>,
    gate: Buffer<f32>,
    /// A delta rule's decays and write strengths.
    decay: Buffer<f32>,
    beta: Buffer<f32>,
    narrow: Activations,
    inner: Activations,
    branch: Buffer<f32>,
    /// The sum of a block's branches, if it has several.
    sum: Buffer<f32>,
    /// Every token's inputs for every layer, `[token][layer][dim]`.
    per_layer: Buffer<f32>,
    /// Per rope: cosines and sines, `[token][pair]`.
    angles: Vec<(Buffer<f32>, Buffer<f32>)>,
    experts: experts::Scratch,
    adapted: adapted::Scratch,
    /// Runs of rows that are not the step's tokens.
    runs: Vec<adapted::Run>,
}

/// What computes products, apart from the buffers they read and write.
macro_rules! compute {
    ($forward:expr, $scratch:expr) => {
        $crate::adapted::Compute {
            kernels: $forward.kernels,
            pool: &mut *$forward.pool,
            scratch: &mut $scratch.adapted,
            adapters: &$forward.plan.adapters,
        }
    };
}
use compute;

/// The context of a step.
pub struct Forward<'a, T> {
    pub model: &'a Model,
    pub kernels: &'static Kernels,
    pub pool: &'a mut Pool,
    pub layout: &'a PageLayout,
    pub states: &'a StateLayout,
    pub plan: &'a Plan<T>,
    pub scratch: &'a mut Scratch,
}

impl<T: KvElement> Forward<'_, T> {
    /// Fills the residual stream with the last layer's output for every token.
    pub fn run(&mut self) {
        let model = self.model;
        self.embed();
        self.per_layer_inputs();
        self.compute_angles();
        for (index, layer) in model.layers.iter().enumerate() {
            for block in &layer.blocks {
                self.block(index, block);
            }
            if let Some(factor) = layer.scale {
                let hidden = model.hidden_size;
                let x = &mut self.scratch.x;
                for_rows(self.pool, hidden, (x, hidden), &|_, x| scale(x, factor));
            }
            self.add_features(1 + index);
        }
    }

    /// Adds a level of the media's features to the stream.
    fn add_features(&mut self, level: usize) {
        let hidden = self.model.hidden_size;
        if self.plan.media.is_empty() {
            return;
        }
        let rows = self.scratch.x.chunks_exact_mut(hidden);
        for (token, row) in self.plan.tokens.iter().zip(rows) {
            let values = token
                .feature
                .and_then(|feature| self.plan.feature(feature, level));
            add(row, values);
        }
    }

    /// Logits of these tokens, `[token][vocab]`.
    pub fn logits(&mut self, tokens: &[usize], out: &mut [f32]) {
        let model = self.model;
        let kernels = self.kernels;
        let plan = self.plan;
        let scratch = &mut *self.scratch;
        let input = &mut scratch.input;
        input.resize(tokens.len(), model.hidden_size);
        let compute = (kernels, &mut *self.pool);
        model.read_out(compute, plan, &scratch.x, tokens, &mut input.values);
        input.prepare(self.kernels, self.pool, [&model.head]);
        let runs = &mut scratch.runs;
        runs.clear();
        for (row, token) in tokens.iter().enumerate() {
            extend_runs(runs, row, plan.tokens[*token].group);
        }
        multiply_adapted(
            compute!(self, scratch),
            &scratch.runs,
            [Product::new(&model.head, &scratch.input, out)],
        );
        if model.head_bias.is_none() && model.head_scale == 1.0 && model.softcap.is_none() {
            return;
        }
        let vocab = model.vocab_size;
        let out = SharedMut::new(out);
        for_parts(self.pool, (tokens.len(), vocab), 4, &|token, part| {
            // SAFETY: each task writes its own part of a token's logits.
            let logits = unsafe { out.slice(token * vocab + part.start, part.len()) };
            let applied = plan.applied(tokens[token]);
            let bias = model.head_bias.as_ref().map(|bias| bias.adapted(applied));
            add(logits, bias.map(|bias| &bias[part]));
            scale(logits, model.head_scale);
            if let Some(cap) = model.softcap {
                // SAFETY: the table was chosen for this machine.
                unsafe { (kernels.softcap)(logits, cap) };
            }
        });
    }

    /// The head's input for these tokens, `[token][hidden]`.
    pub fn hidden(&mut self, tokens: &[usize], out: &mut [f32]) {
        let compute = (self.kernels, &mut *self.pool);
        self.model
            .read_out(compute, self.plan, &self.scratch.x, tokens, out);
    }

    fn tokens(&self) -> usize {
        self.plan.tokens.len()
    }

    fn embed(&mut self) {
        let (model, plan) = (self.model, self.plan);
        let hidden = model.hidden_size;
        fit(&mut self.scratch.x, plan.tokens.len() * hidden);
        let x = SharedMut::new(&mut self.scratch.x);
        // No branch has written here yet.
        fit(&mut self.scratch.branch, plan.tokens.len() * hidden);
        let learned = SharedMut::new(&mut self.scratch.branch);
        for_tokens(self.pool, plan.tokens.len(), hidden, &|token| {
            // SAFETY: each token's task writes its own rows.
            let (row, position) = unsafe {
                (
                    x.slice(token * hidden, hidden),
                    learned.slice(token * hidden, hidden),
                )
            };
            let planned = &plan.tokens[token];
            match planned.feature {
                None => {
                    model.embed(planned.id as usize, plan.applied(token), row);
                    scale(row, model.embedding_scale);
                }
                Some(feature) => match plan.feature(feature, 0) {
                    Some(values) => row.copy_from_slice(values),
                    None => row.fill(f32::NAN),
                },
            }
            if let Some(positions) = &model.positions {
                if positions.decode_row(planned.position, position).is_err() {
                    position.fill(f32::NAN);
                }
                add(row, Some(position));
            }
        });
    }

    fn per_layer_inputs(&mut self) {
        let (model, plan, kernels) = (self.model, self.plan, self.kernels);
        let Some(weights) = &model.per_layer_inputs else {
            return;
        };
        let spec = &weights.spec;
        let all = spec.dim * model.layers.len();
        let tokens = plan.tokens.len();
        let scratch = &mut *self.scratch;
        let hidden = model.hidden_size;
        scratch.input.resize(tokens, hidden);
        let (x, values) = (&scratch.x, &mut scratch.input.values);
        for_rows(self.pool, hidden, (values, hidden), &|token, out| {
            out.copy_from_slice(&x[token * hidden..(token + 1) * hidden]);
        });
        let projection = &weights.projection;
        scratch.input.prepare(kernels, self.pool, [projection]);
        fit(&mut scratch.per_layer, tokens * all);
        let out = &mut scratch.per_layer;
        multiply_adapted(
            compute!(self, scratch),
            &plan.adapters.runs,
            [Product::new(projection, &scratch.input, out)],
        );
        let out = SharedMut::new(&mut scratch.per_layer);
        for_tokens(self.pool, tokens, all, &|token| {
            // SAFETY: each token's task writes its own row.
            let out = unsafe { out.slice(token * all, all) };
            let planned = &plan.tokens[token];
            let id = match planned.feature {
                None => planned.id,
                Some(_) => spec.media_token,
            } as usize;
            let mut embedded = vec![0.0; all];
            if weights.embedding.decode_row(id, &mut embedded).is_err() {
                embedded.fill(f32::NAN);
            }
            scale(&mut embedded, spec.embedding_scale);
            scale(out, spec.projection_scale);
            for part in out.chunks_exact_mut(spec.dim) {
                weights.norm.apply(kernels, part);
            }
            add(out, Some(&embedded));
            scale(out, spec.combined_scale);
        });
    }

    fn compute_angles(&mut self) {
        /// The cost of a sine and a cosine.
        const ANGLE: usize = 16;
        let plan = self.plan;
        self.scratch
            .angles
            .resize_with(self.model.ropes.len(), Default::default);
        for (table, (cos, sin)) in self.model.ropes.iter().zip(&mut self.scratch.angles) {
            let factor = table.rope.attention_factor();
            let pairs = table.frequencies.len();
            let len = plan.tokens.len() * pairs;
            fit(cos, len);
            fit(sin, len);
            let (cos, sin) = (SharedMut::new(cos), SharedMut::new(sin));
            for_tokens(self.pool, plan.tokens.len(), ANGLE * pairs, &|token| {
                // SAFETY: each token's task writes its own rows.
                let rows = unsafe {
                    let cos = cos.slice(token * pairs, pairs).iter_mut();
                    cos.zip(sin.slice(token * pairs, pairs))
                };
                let token = &plan.tokens[token];
                let position = token.position as f32;
                for (pair, ((cos, sin), frequency)) in rows.zip(&table.frequencies).enumerate() {
                    let position = match table.rope.sections {
                        Some(sections) => token.rope[sections.axis(pair)] as f32,
                        None => position,
                    };
                    let (s, c) = (position * frequency).sin_cos();
                    (*cos, *sin) = (c * factor, s * factor);
                }
            });
        }
    }

    fn block(&mut self, layer: usize, block: &Block) {
        let alone = block.branches.len() == 1 && block.post_norm.is_none();
        for (index, branch) in block.branches.iter().enumerate() {
            self.branch(layer, branch);
            if alone {
                self.add_to_stream(branch, block.residual_scale);
            } else {
                self.add_to_block_sum(branch, index == 0);
            }
        }
        if !alone {
            self.add_sum(block);
        }
    }

    /// Writes the branch's output, before its scale and norm, to `scratch.branch`.
    fn branch(&mut self, layer: usize, branch: &Branch) {
        match &branch.inner.kind {
            Inner::Attention(weights) => self.attention(layer, branch, weights),
            Inner::Latent(weights) => self.latent(layer, branch, weights),
            Inner::ShortConv(weights) => self.short_conv(layer, branch, weights),
            Inner::DeltaRule(weights) => self.delta_rule(layer, branch, weights),
            Inner::Mamba2(weights) => self.mamba2(layer, branch, weights),
            Inner::Dense(weights) => self.dense(branch, weights),
            Inner::Experts(weights) => self.experts(branch, weights),
            Inner::PerLayerInput {
                dim,
                activation,
                gate,
            } => self.per_layer_input(layer, branch, *dim, *activation, gate),
        }
        let Some(Output { linear, .. }) = &branch.inner.output else {
            return;
        };
        let tokens = self.tokens();
        let scratch = &mut *self.scratch;
        scratch.inner.prepare(self.kernels, self.pool, [linear]);
        let len = tokens * self.model.hidden_size;
        fit(&mut scratch.branch, len);
        let out = &mut scratch.branch;
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(linear, &scratch.inner, out)],
        );
    }

    /// Begins a branch: applies its norm to the stream and prepares the result for `readers`.
    fn begin_branch<'l>(&mut self, branch: &Branch, readers: impl IntoIterator<Item = &'l Linear>) {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let (tokens, plan) = (self.tokens(), self.plan);
        self.scratch.input.resize(tokens, hidden);
        let x = &self.scratch.x;
        let out = SharedMut::new(&mut self.scratch.input.values);
        for_tokens(self.pool, tokens, hidden, &|token| {
            // SAFETY: each token's task writes its own row.
            let out = unsafe { out.slice(token * hidden, hidden) };
            out.copy_from_slice(&x[token * hidden..(token + 1) * hidden]);
            if let Some(norm) = &branch.pre_norm {
                norm.adapted(plan.applied(token)).apply(kernels, out);
            }
            scale(out, branch.input_scale);
        });
        self.scratch.input.prepare(kernels, self.pool, readers);
    }

    /// Adds a block's only branch to the stream.
    fn add_to_stream(&mut self, branch: &Branch, residual_scale: f32) {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let tokens = self.tokens();
        let buffers = [&mut self.scratch.x, &mut self.scratch.branch];
        let plan = self.plan;
        for_row_pairs(self.pool, (tokens, hidden), buffers, &|token, x, output| {
            finish(branch, kernels, plan.applied(token), output);
            add_scaled(x, output, residual_scale);
        });
    }

    /// Adds a branch to its block's sum.
    fn add_to_block_sum(&mut self, branch: &Branch, first: bool) {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let tokens = self.tokens();
        fit(&mut self.scratch.sum, tokens * hidden);
        let buffers = [&mut self.scratch.sum, &mut self.scratch.branch];
        let plan = self.plan;
        for_row_pairs(
            self.pool,
            (tokens, hidden),
            buffers,
            &|token, sum, output| {
                finish(branch, kernels, plan.applied(token), output);
                if first {
                    sum.copy_from_slice(output);
                } else {
                    add(sum, Some(output));
                }
            },
        );
    }

    fn add_sum(&mut self, block: &Block) {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let tokens = self.tokens();
        let buffers = [&mut self.scratch.x, &mut self.scratch.sum];
        let plan = self.plan;
        for_row_pairs(self.pool, (tokens, hidden), buffers, &|token, x, sum| {
            if let Some(norm) = &block.post_norm {
                norm.adapted(plan.applied(token)).apply(kernels, sum);
            }
            add_scaled(x, sum, block.residual_scale);
        });
    }

    /// `scratch.input` through one matrix or two, `[token][row]` into `out`.
    fn low_rank(&mut self, weights: &LowRank, out: &mut Buffer<f32>) {
        let tokens = self.tokens();
        fit(out, tokens * weights.up.rows());
        let scratch = &mut *self.scratch;
        let input = match &weights.down {
            None => &scratch.input,
            Some(down) => {
                scratch.narrow.resize(tokens, down.rows());
                let narrow = &mut scratch.narrow.values;
                multiply_adapted(
                    compute!(self, scratch),
                    &self.plan.adapters.runs,
                    [Product::new(down, &scratch.input, narrow)],
                );
                scratch
                    .narrow
                    .prepare(self.kernels, self.pool, [&weights.up]);
                &scratch.narrow
            }
        };
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(&weights.up, input, out)],
        );
    }
}

impl Model {
    /// These tokens of the residual stream `x` after the final norm.
    fn read_out<T: KvElement>(
        &self,
        (kernels, pool): (&Kernels, &mut Pool),
        plan: &Plan<T>,
        x: &[f32],
        tokens: &[usize],
        out: &mut [f32],
    ) {
        let hidden = self.hidden_size;
        for_rows(pool, 2 * hidden, (out, hidden), &|row, out| {
            let token = tokens[row];
            out.copy_from_slice(&x[token * hidden..(token + 1) * hidden]);
            let norm = self.final_norm.adapted(plan.applied(token));
            norm.apply(kernels, out);
        });
    }
}

/// Calls `body` with the index of each row of a buffer and the row, in parallel if the work is
/// worth it; `cost` is for each row.
fn for_rows(
    pool: &mut Pool,
    cost: usize,
    (buffer, width): (&mut [f32], usize),
    body: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let rows = buffer.len() / width.max(1);
    let buffer = SharedMut::new(buffer);
    for_tokens(pool, rows, cost, &|row| {
        // SAFETY: each row's task touches its own values.
        body(row, unsafe { buffer.slice(row * width, width) });
    });
}

/// Merges a token's row of one buffer with its row of another.
type MergeRows<'a> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'a;

/// Calls `merge` with each token and its row of the two buffers, in parallel.
fn for_row_pairs(
    pool: &mut Pool,
    (tokens, width): (usize, usize),
    [into, from]: [&mut Buffer<f32>; 2],
    merge: &MergeRows<'_>,
) {
    let (into, from) = (SharedMut::new(into), SharedMut::new(from));
    for_tokens(pool, tokens, width, &|token| {
        // SAFETY: each token's task touches its own rows.
        let rows = unsafe {
            (
                into.slice(token * width, width),
                from.slice(token * width, width),
            )
        };
        merge(token, rows.0, rows.1);
    });
}

/// Applies bias, scale and norm to a branch's output.
fn finish(branch: &Branch, kernels: &Kernels, applied: &[Applied], output: &mut [f32]) {
    if let Some(Output { bias, .. }) = &branch.inner.output {
        add(output, bias.as_ref().map(|bias| bias.adapted(applied)));
    }
    scale(output, branch.output_scale);
    if let Some(norm) = &branch.post_norm {
        norm.adapted(applied).apply(kernels, output);
    }
}

/// A norm with the weights of one token.
#[derive(Clone, Copy)]
pub struct NormWeights<'a> {
    norm: &'a Norm,
    weight: &'a [f32],
    bias: &'a [f32],
}

impl Norm {
    /// The norm for a token with these adapters.
    pub fn adapted<'a>(&'a self, applied: &'a [Applied]) -> NormWeights<'a> {
        let replaced = |slot: Option<usize>| {
            let mut applied = applied.iter();
            applied.find_map(|applied| applied.adapter.vector(slot?))
        };
        let [weight, bias] = self.slots.map(replaced);
        NormWeights {
            norm: self,
            weight: weight.unwrap_or(&self.weight),
            bias: bias.unwrap_or(&self.bias),
        }
    }

    pub fn apply(&self, kernels: &Kernels, values: &mut [f32]) {
        self.adapted(&[]).apply(kernels, values);
    }

    fn apply_part(&self, kernels: &Kernels, values: &mut [f32], at: usize) {
        self.adapted(&[]).apply_part(kernels, values, at);
    }
}

impl NormWeights<'_> {
    pub fn apply(&self, kernels: &Kernels, values: &mut [f32]) {
        self.apply_part(kernels, values, 0);
    }

    /// Applies the norm to values that the weights from `at` on belong to.
    fn apply_part(&self, kernels: &Kernels, values: &mut [f32], at: usize) {
        let part = |weights: &'_ [f32]| -> std::ops::Range<usize> {
            if weights.is_empty() {
                0..0
            } else {
                at..at + values.len()
            }
        };
        let weight = &self.weight[part(self.weight)];
        let bias = &self.bias[part(self.bias)];
        // SAFETY: the table was chosen for this machine.
        unsafe {
            match self.norm.kind {
                NormKind::Rms => (kernels.rms_norm)(values, weight, self.norm.eps),
                NormKind::Layer => (kernels.layer_norm)(values, weight, bias, self.norm.eps),
            }
        }
    }
}

fn add(values: &mut [f32], others: Option<&[f32]>) {
    for (value, other) in values.iter_mut().zip(others.unwrap_or_default()) {
        *value += other;
    }
}

fn add_scaled(values: &mut [f32], others: &[f32], scale: f32) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += other * scale;
    }
}

fn scale(values: &mut [f32], scale: f32) {
    if scale != 1.0 {
        values.iter_mut().for_each(|value| *value *= scale);
    }
}
