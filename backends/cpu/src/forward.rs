//! One step through the layers, for the tokens of all rows together.

use loquat_spec::Activation;

use crate::kernels::{AttendArgs, HeadPages, Kernels, KvElement, PAGE};
use crate::kv::PageLayout;
use crate::linear::{Activations, Linear, Product, for_tokens, multiply};
use crate::model::{AttentionWeights, GatedWeights, Layer, Model, NormWeights};
use crate::pool::Pool;
use crate::shared::{PagePtr, SharedMut};

/// The step's tokens, flattened over its rows, and where their keys and values go.
pub struct Plan<T> {
    pub tokens: Vec<PlannedToken<T>>,
    /// All rows' pages, one run per sequence.
    pub pages: Vec<PagePtr<T>>,
}

pub struct PlannedToken<T> {
    pub id: u32,
    pub position: usize,
    pub page: PagePtr<T>,
    /// The sequence's run in [`Plan::pages`].
    pub pages: (usize, usize),
}

impl<T> Default for Plan<T> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            pages: Vec::new(),
        }
    }
}

/// Buffers that live from step to step.
#[derive(Default)]
pub struct Scratch {
    /// The residual stream, `[token][hidden]`.
    x: Vec<f32>,
    input: Activations,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    mixed: Activations,
    gate: Activations,
    up: Vec<f32>,
    branch: Vec<f32>,
    /// Per rope: cosines and sines, `[token][pair]`.
    angles: Vec<(Vec<f32>, Vec<f32>)>,
}

/// Everything a step works with, so that its parts need not pass it around.
pub struct Forward<'a, T> {
    pub model: &'a Model,
    pub kernels: &'static Kernels,
    pub pool: &'a mut Pool,
    pub layout: &'a PageLayout,
    pub plan: &'a Plan<T>,
    pub scratch: &'a mut Scratch,
}

impl<T: KvElement> Forward<'_, T> {
    /// Fills the residual stream with the last layer's output for every token.
    pub fn run(&mut self) {
        self.embed();
        self.turn_angles();
        for (index, layer) in self.model.layers.iter().enumerate() {
            self.attention_block(index, layer);
            self.feed_forward_block(layer);
        }
    }

    /// Logits of the given tokens, `[token][vocab]`.
    pub fn logits(&mut self, tokens: &[usize], out: &mut [f32]) {
        let model = self.model;
        let hidden = model.hidden_size;
        self.scratch.input.resize(tokens.len(), hidden);
        for (row, token) in tokens.iter().enumerate() {
            let x = &self.scratch.x[token * hidden..(token + 1) * hidden];
            let out = &mut self.scratch.input.values[row * hidden..(row + 1) * hidden];
            out.copy_from_slice(x);
            model.final_norm.apply(self.kernels, out);
        }
        self.scratch
            .input
            .prepare(self.kernels, self.pool, &[&model.head]);
        let mut products = [Product {
            linear: &model.head,
            out,
        }];
        multiply(self.kernels, self.pool, &self.scratch.input, &mut products);
        if let Some(cap) = model.softcap {
            // SAFETY: the table was chosen for this machine.
            unsafe { (self.kernels.softcap)(out, cap) };
        }
    }

    fn embed(&mut self) {
        let (model, plan) = (self.model, self.plan);
        let hidden = model.hidden_size;
        self.scratch.x.resize(plan.tokens.len() * hidden, 0.0);
        let x = SharedMut::new(&mut self.scratch.x);
        for_tokens(self.pool, plan.tokens.len(), hidden, &|token| {
            // SAFETY: each token's task writes its own row.
            let row = unsafe { x.slice(token * hidden, hidden) };
            let id = plan.tokens[token].id as usize;
            // The session has checked the id, and binding the row's length.
            if model.embedding.decode_row(id, row).is_err() {
                row.fill(f32::NAN);
            }
            row.iter_mut()
                .for_each(|value| *value *= model.embedding_scale);
        });
    }

    fn turn_angles(&mut self) {
        self.scratch
            .angles
            .resize_with(self.model.ropes.len(), Default::default);
        for (table, (cos, sin)) in self.model.ropes.iter().zip(&mut self.scratch.angles) {
            cos.clear();
            sin.clear();
            for token in &self.plan.tokens {
                let position = token.position as f32;
                let angles = table
                    .frequencies
                    .iter()
                    .map(|frequency| position * frequency);
                for angle in angles {
                    let (s, c) = angle.sin_cos();
                    cos.push(c);
                    sin.push(s);
                }
            }
        }
    }

    fn attention_block(&mut self, index: usize, layer: &Layer) {
        let attention = &layer.attention;
        let readers = [&attention.query, &attention.key, &attention.value];
        self.enter(layer.mixer_pre.as_ref(), &readers);
        let tokens = self.plan.tokens.len();
        let scratch = &mut *self.scratch;
        scratch.query.resize(tokens * attention.spec.q_dim(), 0.0);
        scratch.key.resize(tokens * attention.spec.kv_dim(), 0.0);
        scratch.value.resize(tokens * attention.spec.kv_dim(), 0.0);
        let mut products = [
            Product {
                linear: &attention.query,
                out: &mut scratch.query,
            },
            Product {
                linear: &attention.key,
                out: &mut scratch.key,
            },
            Product {
                linear: &attention.value,
                out: &mut scratch.value,
            },
        ];
        multiply(self.kernels, self.pool, &scratch.input, &mut products);
        self.place_tokens(index, attention);
        self.attend(index, attention);
        let mixed = std::mem::take(&mut self.scratch.mixed);
        let bias = attention.output_bias.as_deref();
        let norm = layer.mixer_post.as_ref();
        self.scratch.mixed = self.leave(mixed, &attention.output, bias, norm);
    }

    /// Biases, head norms and rope, then keys and values into their pages.
    fn place_tokens(&mut self, index: usize, attention: &AttentionWeights) {
        let (kernels, plan) = (self.kernels, self.plan);
        let layout = self.layout.layer(index);
        let spec = &attention.spec;
        let angles = attention.rope.map(|rope| &self.scratch.angles[rope]);
        let query = SharedMut::new(&mut self.scratch.query);
        let key = SharedMut::new(&mut self.scratch.key);
        let value = SharedMut::new(&mut self.scratch.value);
        let cost = spec.q_dim() + 4 * spec.kv_dim();
        for_tokens(self.pool, plan.tokens.len(), cost, &|token| {
            // SAFETY: each token's task touches its own rows.
            let (query, key, value) = unsafe {
                (
                    query.slice(token * spec.q_dim(), spec.q_dim()),
                    key.slice(token * spec.kv_dim(), spec.kv_dim()),
                    value.slice(token * spec.kv_dim(), spec.kv_dim()),
                )
            };
            add(query, attention.query_bias.as_deref());
            add(key, attention.key_bias.as_deref());
            add(value, attention.value_bias.as_deref());
            let norms = [&attention.query_norm, &attention.key_norm];
            for (rows, norm) in [&mut *query, &mut *key].into_iter().zip(norms) {
                for head in rows.chunks_exact_mut(spec.head_dim) {
                    if let Some(norm) = norm {
                        norm.apply(kernels, head);
                    }
                    if let Some((cos, sin)) = angles {
                        let pairs = cos.len() / plan.tokens.len();
                        let turn = token * pairs..(token + 1) * pairs;
                        // SAFETY: the table was chosen for this machine.
                        unsafe { (kernels.rotate)(head, &cos[turn.clone()], &sin[turn]) };
                    }
                }
            }
            let planned = &plan.tokens[token];
            layout.write_token(planned.position % PAGE, key, value, |at, value| {
                // SAFETY: no two tokens share a slot, the session has made the page this
                // sequence's own, and reading waits for the pool.
                unsafe { planned.page.write(at, T::store(value)) };
            });
        });
    }

    fn attend(&mut self, index: usize, attention: &AttentionWeights) {
        let (kernels, plan) = (self.kernels, self.plan);
        let layout = self.layout.layer(index);
        let spec = &attention.spec;
        let (heads, head_dim) = (spec.heads, spec.head_dim);
        let tokens = plan.tokens.len();
        self.scratch.mixed.resize(tokens, spec.q_dim());
        let query = &self.scratch.query;
        let out = SharedMut::new(&mut self.scratch.mixed.values);
        let pairs = tokens * heads;
        let per_task = (pairs / (self.pool.threads() * 8)).clamp(1, 16);
        self.pool.run(pairs.div_ceil(per_task), &|task| {
            for pair in task * per_task..((task + 1) * per_task).min(pairs) {
                let (token, head) = (&plan.tokens[pair / heads], pair % heads);
                let kv_head = head / (heads / spec.kv_heads);
                let end = token.position + 1;
                let args = AttendArgs {
                    query: &query[pair * head_dim..(pair + 1) * head_dim],
                    scale: spec.scale,
                    pages: HeadPages {
                        pages: &plan.pages[token.pages.0..token.pages.1],
                        key_offset: layout.key_offset(kv_head),
                        value_offset: layout.value_offset(kv_head),
                    },
                    start: spec.window.map_or(0, |window| end.saturating_sub(window)),
                    end,
                };
                // SAFETY: each pair writes its own head, and the table was chosen for this
                // machine.
                unsafe { T::attend(kernels)(&args, out.slice(pair * head_dim, head_dim)) };
            }
        });
    }

    fn feed_forward_block(&mut self, layer: &Layer) {
        let weights = &layer.feed_forward;
        self.enter(
            layer.feed_forward_pre.as_ref(),
            &[&weights.gate, &weights.up],
        );
        let tokens = self.plan.tokens.len();
        let scratch = &mut *self.scratch;
        scratch.gate.resize(tokens, weights.size);
        scratch.up.resize(tokens * weights.size, 0.0);
        let mut products = [
            Product {
                linear: &weights.gate,
                out: &mut scratch.gate.values,
            },
            Product {
                linear: &weights.up,
                out: &mut scratch.up,
            },
        ];
        multiply(self.kernels, self.pool, &scratch.input, &mut products);
        self.activate(weights);
        let gate = std::mem::take(&mut self.scratch.gate);
        let bias = weights.down_bias.as_deref();
        let norm = layer.feed_forward_post.as_ref();
        self.scratch.gate = self.leave(gate, &weights.down, bias, norm);
    }

    fn activate(&mut self, weights: &GatedWeights) {
        let (kernels, size) = (self.kernels, weights.size);
        let gate = SharedMut::new(&mut self.scratch.gate.values);
        let up = SharedMut::new(&mut self.scratch.up);
        for_tokens(self.pool, self.plan.tokens.len(), size, &|token| {
            // SAFETY: each token's task touches its own rows, and the table was chosen for this
            // machine.
            unsafe {
                let (gate, up) = (gate.slice(token * size, size), up.slice(token * size, size));
                add(gate, weights.gate_bias.as_deref());
                add(up, weights.up_bias.as_deref());
                match weights.activation {
                    Activation::Silu => (kernels.silu_gate)(gate, up),
                    Activation::GeluTanh => (kernels.gelu_gate)(gate, up),
                }
            }
        });
    }

    /// Opens a residual branch: the stream through its norm, ready for `readers`.
    fn enter(&mut self, norm: Option<&NormWeights>, readers: &[&Linear]) {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let tokens = self.plan.tokens.len();
        self.scratch.input.resize(tokens, hidden);
        let x = &self.scratch.x;
        let out = SharedMut::new(&mut self.scratch.input.values);
        for_tokens(self.pool, tokens, hidden, &|token| {
            // SAFETY: each token's task writes its own row.
            let out = unsafe { out.slice(token * hidden, hidden) };
            let x = &x[token * hidden..(token + 1) * hidden];
            out.copy_from_slice(x);
            if let Some(norm) = norm {
                norm.apply(kernels, out);
            }
        });
        self.scratch.input.prepare(kernels, self.pool, readers);
    }

    /// Closes a residual branch: `input` through `linear`, its bias and norm, onto the stream.
    /// Gives the input's buffers back.
    fn leave(
        &mut self,
        mut input: Activations,
        linear: &Linear,
        bias: Option<&[f32]>,
        norm: Option<&NormWeights>,
    ) -> Activations {
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        input.prepare(kernels, self.pool, &[linear]);
        let tokens = self.plan.tokens.len();
        self.scratch.branch.resize(tokens * hidden, 0.0);
        let mut products = [Product {
            linear,
            out: &mut self.scratch.branch,
        }];
        multiply(kernels, self.pool, &input, &mut products);
        let x = SharedMut::new(&mut self.scratch.x);
        let branch = SharedMut::new(&mut self.scratch.branch);
        for_tokens(self.pool, tokens, hidden, &|token| {
            // SAFETY: each token's task touches its own rows.
            let (x, branch) = unsafe {
                (
                    x.slice(token * hidden, hidden),
                    branch.slice(token * hidden, hidden),
                )
            };
            add(branch, bias);
            if let Some(norm) = norm {
                norm.apply(kernels, branch);
            }
            add(x, Some(branch));
        });
        input
    }
}

impl NormWeights {
    fn apply(&self, kernels: &Kernels, values: &mut [f32]) {
        // SAFETY: the table was chosen for this machine.
        unsafe { (kernels.rms_norm)(values, &self.weight, self.eps) };
    }
}

fn add(values: &mut [f32], others: Option<&[f32]>) {
    for (value, other) in values.iter_mut().zip(others.unwrap_or_default()) {
        *value += other;
    }
}
