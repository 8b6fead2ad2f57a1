//! Softmax attention before and after the kernel.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, KvElement, PAGE};
use loquat_spec::{KvSource, QkNorm, QkSpan, RopePairs};

use super::{Forward, NormWeights, PlannedRow, PlannedToken, Scratch, add, compute, scale};
use crate::adapted::multiply_adapted;
use crate::adapter::Applied;
use crate::buffers::{Buffer, fit};
use crate::linear::{Product, Products, for_parts, for_tokens};
use crate::model::{AttentionWeights, Branch, Model, Vector};
use crate::page::LayerLayout;
use crate::shared::SharedMut;

impl<T: KvElement> Forward<'_, T> {
    pub(super) fn attention(&mut self, layer: usize, branch: &Branch, weights: &AttentionWeights) {
        let spec = &weights.spec;
        let linears = [
            Some(&weights.query),
            weights.key.as_ref(),
            weights.value.as_ref(),
            weights.gate.as_ref(),
        ];
        self.begin_branch(branch, linears.into_iter().flatten());
        let tokens = self.tokens();
        let scratch = &mut *self.scratch;
        let buffers = [
            &mut scratch.query,
            &mut scratch.key,
            &mut scratch.value,
            &mut scratch.gate,
        ];
        let mut products = Products::new();
        for (linear, buffer) in linears.into_iter().zip(buffers) {
            if let Some(linear) = linear {
                fit(buffer, tokens * linear.rows());
                products.push(Product::new(linear, &scratch.input, buffer));
            }
        }
        let runs = &self.plan.adapters.runs;
        multiply_adapted(compute!(self, scratch), runs, products);
        let kv_layer = match spec.kv {
            KvSource::Layer(source) => source,
            KvSource::Own | KvSource::KeyIsValue => layer,
        };
        self.write_kv(layer, kv_layer, weights);
        self.attend(kv_layer, weights);
        self.unrotate_output(kv_layer, weights);
        if weights.gate.is_some() {
            self.gate_output(spec.mixed_len(), weights.gate_bias.as_ref());
        }
    }

    /// Applies biases, norms and RoPE to queries and keys, and writes keys and values to their
    /// pages.
    fn write_kv(&mut self, layer: usize, kv_layer: usize, weights: &AttentionWeights) {
        let (kernels, plan) = (self.kernels, self.plan);
        let layout = self.layout.layer(layer);
        let rotated = self.layout.layer(kv_layer).is_rotated();
        let spec = &weights.spec;
        let tokens = plan.tokens.len();
        let query_len = spec.query_len();
        let (key_len, value_len) = match weights.key {
            Some(_) => (spec.key_len(), spec.value_len()),
            None => (0, 0),
        };
        fit(&mut self.scratch.value, tokens * value_len);
        let angles = AllAngles::new(self.model, &self.scratch.angles, weights.rope);
        let query = SharedMut::new(&mut self.scratch.query);
        let key = SharedMut::new(&mut self.scratch.key);
        let value = SharedMut::new(&mut self.scratch.value);
        let cost = query_len + 4 * (key_len + value_len);
        for_tokens(self.pool, tokens, cost, &|token| {
            // SAFETY: each token's task touches its own rows.
            let (query, key, value) = unsafe {
                (
                    query.slice(token * query_len, query_len),
                    key.slice(token * key_len, key_len),
                    value.slice(token * value_len, value_len),
                )
            };
            let planned = &plan.tokens[token];
            let rotate = |head: &mut [f32]| {
                if let Some(angles) = &angles {
                    angles.rotate(kernels, token, head);
                }
            };
            let applied = plan.applied(token);
            weights.prepare_query((kernels, applied), query, planned.position, rotate);
            if rotated {
                rotate_codes(kernels, query, spec.head_dim);
            }
            if weights.key.is_some() {
                weights.prepare_key((kernels, applied), key, value, rotate);
                if rotated {
                    rotate_codes(kernels, key, spec.head_dim);
                    rotate_codes(kernels, value, spec.value_dim);
                }
                if T::SHARED {
                    return;
                }
                let page = plan.page(token, layout.group());
                let slot = planned.position % PAGE;
                // SAFETY: no two tokens share a slot, the session has made the page this
                // sequence's own, and reading waits for the pool.
                unsafe { layout.write_token(page, slot, key, value) };
            }
        });
        if T::SHARED && weights.key.is_some() {
            self.write_codes(layout, weights);
        }
    }

    /// Writes keys and values to pages whose tokens share bytes: a page's tokens by one thread.
    fn write_codes(&mut self, layout: LayerLayout, weights: &AttentionWeights) {
        let (plan, spec) = (self.plan, &weights.spec);
        let Scratch {
            key,
            value,
            page_runs: runs,
            ..
        } = &mut *self.scratch;
        lay_out_pages(&plan.rows, &plan.tokens, runs);
        let (key, value) = (&**key, &**value);
        let (heads, head_dim, value_dim) = (layout.kv_heads(), spec.head_dim, spec.value_dim);
        self.pool.run(runs.len() * heads, &|task| {
            let (run, head) = (runs[task / heads].clone(), task % heads);
            let head_layout = layout.head_layout(head);
            for token in run {
                let page = plan.page(token, layout.group());
                let slot = plan.tokens[token].position % PAGE;
                let pair = token * heads + head;
                let key = &key[pair * head_dim..(pair + 1) * head_dim];
                let value = &value[pair * value_dim..(pair + 1) * value_dim];
                // SAFETY: a page's tokens are in one run, the session has made the page this
                // sequence's own, and reading waits for the pool.
                unsafe { T::write_head(page, &head_layout, slot, key, value) };
            }
        });
    }

    /// Attention over codes mixes rotated values.
    fn unrotate_output(&mut self, kv_layer: usize, weights: &AttentionWeights) {
        if !self.layout.layer(kv_layer).is_rotated() {
            return;
        }
        let (kernels, tokens) = (self.kernels, self.tokens());
        let (len, value_dim) = (weights.spec.mixed_len(), weights.spec.value_dim);
        let mixed = SharedMut::new(&mut self.scratch.inner.values);
        for_tokens(self.pool, tokens, 8 * len, &|token| {
            // SAFETY: each token's task touches its own row, and the table was chosen for this
            // machine.
            unsafe {
                for head in mixed.slice(token * len, len).chunks_exact_mut(value_dim) {
                    (kernels.unrotate_codes)(head);
                }
            }
        });
    }

    fn gate_output(&mut self, len: usize, bias: Option<&Vector>) {
        let (kernels, plan) = (self.kernels, self.plan);
        let gate = SharedMut::new(&mut self.scratch.gate);
        let mixed = SharedMut::new(&mut self.scratch.inner.values);
        for_parts(
            self.pool,
            (self.plan.tokens.len(), len),
            4,
            &|token, part| {
                let at = token * len + part.start;
                // SAFETY: each task touches its own part of a token's rows, and the table was chosen
                // for this machine.
                unsafe {
                    let gate = gate.slice(at, part.len());
                    let mixed = mixed.slice(at, part.len());
                    let bias = bias.map(|bias| bias.adapted(plan.applied(token)));
                    add(gate, bias.map(|bias| &bias[part]));
                    (kernels.sigmoid_gate)(mixed, gate);
                }
            },
        );
    }
}

/// Rotates one token's heads for attention over codes.
fn rotate_codes(kernels: &Kernels, heads: &mut [f32], head_dim: usize) {
    for head in heads.chunks_exact_mut(head_dim) {
        // SAFETY: the table was chosen for this machine.
        unsafe { (kernels.rotate_codes)(head) };
    }
}

/// Divides the tokens into runs that are in one page.
fn lay_out_pages(rows: &[PlannedRow], tokens: &[PlannedToken], runs: &mut Vec<Range<usize>>) {
    runs.clear();
    runs.reserve_exact(tokens.len());
    for row in rows {
        let (mut first, end) = (row.first, row.first + row.tokens);
        while first < end {
            let left = PAGE - tokens[first].position % PAGE;
            let next = (first + left).min(end);
            runs.push(first..next);
            first = next;
        }
    }
}

impl AttentionWeights {
    fn prepare_query(
        &self,
        (kernels, applied): (&Kernels, &[Applied]),
        query: &mut [f32],
        position: usize,
        rotate: impl Fn(&mut [f32]),
    ) {
        let spec = &self.spec;
        add(
            query,
            self.query_bias.as_ref().map(|bias| bias.adapted(applied)),
        );
        let norm = self.query_norm.as_ref().map(|norm| norm.adapted(applied));
        let norm = spec.qk_norm.as_ref().zip(norm);
        prepare_heads(kernels, query, spec.head_dim, norm, rotate);
        if let Some(temperature) = &spec.temperature {
            scale(query, temperature.factor(position));
        }
    }

    fn prepare_key(
        &self,
        (kernels, applied): (&Kernels, &[Applied]),
        key: &mut [f32],
        value: &mut [f32],
        rotate: impl Fn(&mut [f32]),
    ) {
        let spec = &self.spec;
        add(
            key,
            self.key_bias.as_ref().map(|bias| bias.adapted(applied)),
        );
        if spec.kv == KvSource::KeyIsValue {
            value.copy_from_slice(key);
        } else {
            add(
                value,
                self.value_bias.as_ref().map(|bias| bias.adapted(applied)),
            );
        }
        let norm = self.key_norm.as_ref().map(|norm| norm.adapted(applied));
        let norm = spec.qk_norm.as_ref().zip(norm);
        prepare_heads(kernels, key, spec.head_dim, norm, rotate);
        if let Some(norm) = &self.value_norm {
            for head in value.chunks_exact_mut(spec.value_dim) {
                norm.apply(kernels, head);
            }
        }
        scale(value, spec.value_scale);
    }
}

/// The angles of every token for one of the model's RoPE variants.
pub(super) struct AllAngles<'a> {
    pairs: RopePairs,
    per_token: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl<'a> AllAngles<'a> {
    pub fn new(
        model: &Model,
        angles: &'a [(Buffer<f32>, Buffer<f32>)],
        rope: Option<usize>,
    ) -> Option<Self> {
        let rope = rope?;
        let (cos, sin) = &angles[rope];
        let table = &model.ropes[rope];
        Some(Self {
            pairs: table.rope.pairs,
            per_token: table.frequencies.len(),
            cos,
            sin,
        })
    }

    /// Rotates a head of `token`.
    pub fn rotate(&self, kernels: &Kernels, token: usize, head: &mut [f32]) {
        let of_token = token * self.per_token..(token + 1) * self.per_token;
        let (cos, sin) = (&self.cos[of_token.clone()], &self.sin[of_token]);
        // SAFETY: the table was chosen for this machine.
        unsafe {
            match self.pairs {
                RopePairs::Halves => (kernels.rotate)(head, cos, sin),
                RopePairs::Interleaved => (kernels.rotate_interleaved)(head, cos, sin),
            }
        }
    }
}

/// Applies norm and RoPE to one token's heads, in the order the norm requires.
fn prepare_heads(
    kernels: &Kernels,
    heads: &mut [f32],
    head_dim: usize,
    norm: Option<(&QkNorm, NormWeights)>,
    rotate: impl Fn(&mut [f32]),
) {
    let (before, after) = match norm {
        Some((qk, _)) if qk.after_rope => (None, norm),
        norm => (norm, None),
    };
    apply_norm(kernels, heads, head_dim, before);
    heads.chunks_exact_mut(head_dim).for_each(rotate);
    apply_norm(kernels, heads, head_dim, after);
}

fn apply_norm(
    kernels: &Kernels,
    heads: &mut [f32],
    head_dim: usize,
    norm: Option<(&QkNorm, NormWeights)>,
) {
    let Some((qk, norm)) = norm else {
        return;
    };
    match qk.span {
        QkSpan::AllHeads => norm.apply(kernels, heads),
        QkSpan::Head => {
            for head in heads.chunks_exact_mut(head_dim) {
                norm.apply(kernels, head);
            }
        }
        QkSpan::HeadWeights => {
            for (index, head) in heads.chunks_exact_mut(head_dim).enumerate() {
                norm.apply_part(kernels, head, index * head_dim);
            }
        }
    }
}
