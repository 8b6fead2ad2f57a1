//! Attention over one latent vector per token, all heads sharing it.

use loquat_cpu_kernels::{AttendArgs, AttendQuery, KvElement, PAGE};

use super::attention::AllAngles;
use super::{Forward, add, compute, for_rows};
use crate::adapted::{Run, StepAdapters, multiply_adapted};
use crate::buffers::fit;
use crate::linear::{Activations, Linear, Product, Products, for_tokens};
use crate::model::{Branch, LatentWeights, QueryDown};
use crate::shared::SharedMut;

impl<T: KvElement> Forward<'_, T> {
    pub(super) fn latent(&mut self, layer: usize, branch: &Branch, weights: &LatentWeights) {
        let queries = match &weights.query_down {
            Some(down) => &down.linear,
            None => &weights.query,
        };
        self.begin_branch(branch, [queries, &weights.latent, &weights.rope_key]);
        let tokens = self.tokens();
        let spec = &weights.spec;
        let scratch = &mut *self.scratch;
        fit(&mut scratch.key, tokens * spec.latent_dim);
        fit(&mut scratch.value, tokens * spec.rope_dim);
        let query = match &weights.query_down {
            Some(down) => {
                scratch.narrow.resize(tokens, down.linear.rows());
                let narrow = &mut scratch.narrow.values;
                Product::new(&down.linear, &scratch.input, narrow)
            }
            None => {
                fit(&mut scratch.query, tokens * spec.query_len());
                let query = &mut scratch.query;
                Product::new(&weights.query, &scratch.input, query)
            }
        };
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [
                Product::new(&weights.latent, &scratch.input, &mut scratch.key),
                Product::new(&weights.rope_key, &scratch.input, &mut scratch.value),
                query,
            ],
        );
        if let Some(down) = &weights.query_down {
            self.project_queries_up(down, &weights.query);
        }
        self.write_latents(layer, weights);
        self.absorb_queries(weights);
        self.attend_latent(layer, weights);
        self.project_values_up(weights);
    }

    fn project_queries_up(&mut self, down: &QueryDown, up: &Linear) {
        let kernels = self.kernels;
        let tokens = self.tokens();
        let rank = down.linear.rows();
        let narrow = SharedMut::new(&mut self.scratch.narrow.values);
        for_tokens(self.pool, tokens, rank, &|token| {
            // SAFETY: each token's task touches its own row.
            let narrow = unsafe { narrow.slice(token * rank, rank) };
            add(narrow, down.bias.as_deref());
            down.norm.apply(kernels, narrow);
        });
        let scratch = &mut *self.scratch;
        scratch.narrow.prepare(kernels, self.pool, [up]);
        fit(&mut scratch.query, tokens * up.rows());
        let query = &mut scratch.query;
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(up, &scratch.narrow, query)],
        );
    }

    /// Writes the normalized latent and the rotated RoPE key to the token's page, as one long key.
    fn write_latents(&mut self, layer: usize, weights: &LatentWeights) {
        let (kernels, plan) = (self.kernels, self.plan);
        let layout = self.layout.layer(layer);
        let spec = &weights.spec;
        let angles = AllAngles::new(self.model, &self.scratch.angles, weights.rope);
        let latent = SharedMut::new(&mut self.scratch.key);
        let rope_key = SharedMut::new(&mut self.scratch.value);
        let cost = 4 * spec.cached_len();
        for_tokens(self.pool, plan.tokens.len(), cost, &|token| {
            // SAFETY: each token's task touches its own rows.
            let (latent, rope_key) = unsafe {
                (
                    latent.slice(token * spec.latent_dim, spec.latent_dim),
                    rope_key.slice(token * spec.rope_dim, spec.rope_dim),
                )
            };
            add(latent, weights.latent_bias.as_deref());
            add(rope_key, weights.rope_key_bias.as_deref());
            weights.latent_norm.apply(kernels, latent);
            if let Some(angles) = &angles {
                angles.rotate(kernels, token, rope_key);
            }
            let planned = &plan.tokens[token];
            let page = plan.page(token, layout.group());
            let slot = planned.position % PAGE;
            // SAFETY: no two tokens share a slot, the session has made the page this sequence's
            // own, and reading waits for the pool.
            unsafe {
                layout.write_key(page, slot, 0, latent);
                layout.write_key(page, slot, spec.latent_dim, rope_key);
            }
        });
    }

    /// Each head's query in the latent space: `[head][token][latent, rope]` into `scratch.key`.
    fn absorb_queries(&mut self, weights: &LatentWeights) {
        let (kernels, tokens) = (self.kernels, self.tokens());
        let spec = &weights.spec;
        let (nope, query_dim) = (spec.nope_dim, spec.nope_dim + spec.rope_dim);
        let scratch = &mut *self.scratch;
        // Heads' queries without their rope parts, `[head][token]`, so that a head's are rows of
        // their own.
        scratch.inner.resize(spec.heads * tokens, nope);
        let query = &scratch.query;
        let buffer = (&mut *scratch.inner.values, nope);
        for_rows(self.pool, nope, buffer, &|row, out| {
            let (head, token) = (row / tokens, row % tokens);
            let from = (token * spec.heads + head) * query_dim;
            out.copy_from_slice(&query[from..from + nope]);
        });
        let readers = &weights.key_absorb;
        scratch.inner.prepare(kernels, self.pool, readers);
        fit(&mut scratch.gate, spec.heads * tokens * spec.latent_dim);
        let products = per_head(
            &weights.key_absorb,
            &scratch.inner,
            tokens,
            &mut scratch.gate,
        );
        head_runs(&self.plan.adapters, spec.heads, tokens, &mut scratch.runs);
        multiply_adapted(compute!(self, scratch), &scratch.runs, products);
        let angles = AllAngles::new(self.model, &scratch.angles, weights.rope);
        let cached = spec.cached_len();
        fit(&mut scratch.key, spec.heads * tokens * cached);
        let (query, all_absorbed) = (&scratch.query, &scratch.gate);
        let buffer = (&mut *scratch.key, cached);
        for_rows(self.pool, 2 * cached, buffer, &|row, out| {
            let (head, token) = (row / tokens, row % tokens);
            let (latent, rope) = out.split_at_mut(spec.latent_dim);
            let absorbed = row * spec.latent_dim..(row + 1) * spec.latent_dim;
            latent.copy_from_slice(&all_absorbed[absorbed]);
            let from = (token * spec.heads + head) * query_dim + nope;
            rope.copy_from_slice(&query[from..from + spec.rope_dim]);
            if let Some(angles) = &angles {
                angles.rotate(kernels, token, rope);
            }
        });
    }

    /// Mixed latents, `[head][token]`, into `scratch.inner`.
    fn attend_latent(&mut self, layer: usize, weights: &LatentWeights) {
        let (kernels, plan) = (self.kernels, self.plan);
        let layout = self.layout.layer(layer);
        let spec = &weights.spec;
        let (tokens, cached) = (plan.tokens.len(), spec.cached_len());
        let latent_dim = spec.latent_dim;
        self.scratch.inner.resize(spec.heads * tokens, latent_dim);
        let query = &self.scratch.key;
        let out = SharedMut::new(&mut self.scratch.inner.values);
        let pairs = tokens * spec.heads;
        let per_task = (pairs / (self.pool.threads() * 8)).clamp(1, 16);
        self.pool.run(pairs.div_ceil(per_task), &|task| {
            for pair in task * per_task..((task + 1) * per_task).min(pairs) {
                let run = plan.page_run(pair % tokens, layout.group());
                let token = &plan.tokens[pair % tokens];
                let args = AttendArgs {
                    scale: spec.scale,
                    softcap: None,
                    value_dim: latent_dim,
                    pages: layout.head(&plan.pages[run.pages.clone()], 0),
                    piece: None,
                };
                // SAFETY: each pair writes its own row, and the table was chosen for this
                // machine.
                unsafe {
                    let queries = &mut [AttendQuery {
                        query: &query[pair * cached..(pair + 1) * cached],
                        sink: None,
                        seen: 0..token.seen_end,
                        out: out.slice(pair * latent_dim, latent_dim),
                    }];
                    T::attend(kernels)(&args, queries)
                };
            }
        });
    }

    /// Each head's mixed latent to its value, `[token][head]`, into `scratch.inner`.
    fn project_values_up(&mut self, weights: &LatentWeights) {
        let (kernels, tokens) = (self.kernels, self.tokens());
        let spec = &weights.spec;
        let value_dim = spec.value_dim;
        let scratch = &mut *self.scratch;
        let readers = &weights.value_up;
        scratch.inner.prepare(kernels, self.pool, readers);
        fit(&mut scratch.gate, spec.heads * tokens * value_dim);
        let products = per_head(&weights.value_up, &scratch.inner, tokens, &mut scratch.gate);
        head_runs(&self.plan.adapters, spec.heads, tokens, &mut scratch.runs);
        multiply_adapted(compute!(self, scratch), &scratch.runs, products);
        scratch.inner.resize(tokens, spec.mixed_len());
        let values = &scratch.gate;
        let buffer = (&mut *scratch.inner.values, value_dim);
        for_rows(self.pool, value_dim, buffer, &|row, out| {
            let (token, head) = (row / spec.heads, row % spec.heads);
            let from = (head * tokens + token) * value_dim;
            out.copy_from_slice(&values[from..from + value_dim]);
        });
    }
}

/// The adapted tokens among the rows `[head][token]`.
fn head_runs(adapters: &StepAdapters, heads: usize, tokens: usize, out: &mut Vec<Run>) {
    out.clear();
    for head in 0..heads {
        out.extend(adapters.runs.iter().map(|run| Run {
            rows: head * tokens + run.rows.start..head * tokens + run.rows.end,
            group: run.group,
        }));
    }
}

/// Each head's matrix times its own rows of `input`, `[head][token]`.
fn per_head<'a>(
    linears: &'a [Linear],
    input: &'a Activations,
    tokens: usize,
    out: &'a mut [f32],
) -> Products<'a> {
    let rows = linears.first().map_or(1, Linear::rows);
    let heads = linears.iter().zip(out.chunks_exact_mut(tokens * rows));
    heads
        .enumerate()
        .map(|(head, (linear, out))| {
            let rows = head * tokens..(head + 1) * tokens;
            Product::for_rows(linear, input, rows, out)
        })
        .collect()
}
