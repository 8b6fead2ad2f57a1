//! Experts: each position runs a few of many feed-forwards, grouped so that an expert's matrices
//! are read once for all of its positions.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, KvElement};
use loquat_spec::{ExpertGroups, GroupScore, Scores};

use super::{Forward, add, add_scaled, compute, for_rows, scale};
use crate::adapted::{extend_runs, multiply_adapted};
use crate::buffers::{Buffer, fit};
use crate::linear::{Activations, Linear, Product, Products, for_parts, for_tokens};
use crate::model::{Branch, ExpertsWeights, SharedWeights};
use crate::shared::SharedMut;

/// Buffers of the expert layers.
#[derive(Default)]
pub struct Scratch {
    router_input: Activations,
    logits: Buffer<f32>,
    /// Each token's experts and their weights, ascending: the same number for each token.
    chosen: Buffer<(usize, f32)>,
    /// For each expert, the number of its routes, then the index of its next route.
    next: Vec<usize>,
    /// Token, expert and weight, sorted by expert, then token.
    routes: Buffer<Route>,
    /// Indices of routes by token, then expert: the same number for each token.
    by_token: Buffer<usize>,
    /// The routes' inputs, in their order.
    input: Activations,
    gate: Activations,
    up: Buffer<f32>,
    down: Buffer<f32>,
    /// `[token][hidden]`
    shared: Buffer<f32>,
    shared_gate: Buffer<f32>,
}

/// The cost of choosing experts, for each expert.
const CHOICE: usize = 32;

#[derive(Clone, Copy, Default)]
struct Route {
    expert: usize,
    token: usize,
    weight: f32,
}

impl Scratch {
    /// Fills the routes from each token's choices, in time that grows with their number.
    fn sort_routes(&mut self, experts: usize, top_k: usize) {
        let Self {
            chosen,
            next,
            routes,
            by_token,
            ..
        } = self;
        next.clear();
        next.resize(experts, 0);
        for (expert, _) in chosen.iter() {
            next[*expert] += 1;
        }
        let mut first = 0;
        for next in next.iter_mut() {
            first += std::mem::replace(next, first);
        }
        fit(routes, chosen.len());
        fit(by_token, chosen.len());
        for (index, (expert, weight)) in chosen.iter().enumerate() {
            let at = next[*expert];
            next[*expert] += 1;
            routes[at] = Route {
                expert: *expert,
                token: index / top_k,
                weight: *weight,
            };
            by_token[index] = at;
        }
    }
}

impl<T: KvElement> Forward<'_, T> {
    /// Writes the experts' weighted sum to `scratch.branch`.
    pub(super) fn experts(&mut self, branch: &Branch, weights: &ExpertsWeights) {
        let shared = weights.shared.iter();
        let shared = shared.flat_map(|shared| shared.dense.readers().chain(&shared.router));
        let router = weights.router_norm.is_none().then_some(&weights.router);
        self.begin_branch(branch, shared.chain(router));
        self.route(weights);
        self.run_experts(weights);
        if let Some(shared) = &weights.shared {
            self.shared_expert(shared);
        }
        self.combine(weights);
    }

    /// Fills the routes.
    fn route(&mut self, weights: &ExpertsWeights) {
        let tokens = self.tokens();
        let count = weights.spec.count;
        self.prepare_router_input(weights);
        let scratch = &mut *self.scratch;
        let input = match weights.router_norm {
            Some(_) => &scratch.experts.router_input,
            None => &scratch.input,
        };
        fit(&mut scratch.experts.logits, tokens * count);
        let out = &mut scratch.experts.logits;
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(&weights.router, input, out)],
        );
        let Scratch { logits, chosen, .. } = &mut scratch.experts;
        let top_k = weights.spec.top_k;
        fit(chosen, tokens * top_k);
        let chosen = SharedMut::new(chosen);
        for_rows(
            self.pool,
            CHOICE * count,
            (logits, count),
            &|token, logits| {
                add(logits, weights.router_bias.as_deref());
                // SAFETY: each token's task writes its own choices.
                let chosen = unsafe { chosen.slice(token * top_k, top_k) };
                choose(weights, logits, chosen);
            },
        );
        scratch.experts.sort_routes(count, top_k);
    }

    fn prepare_router_input(&mut self, weights: &ExpertsWeights) {
        let (Some(norm), Some(input)) = (&weights.router_norm, &weights.spec.router.input) else {
            return;
        };
        let (tokens, hidden) = (self.tokens(), self.model.hidden_size);
        let scratch = &mut *self.scratch;
        let reads = &mut scratch.experts.router_input;
        reads.resize(tokens, hidden);
        let (kernels, x) = (self.kernels, &scratch.x);
        let buffer = (&mut *reads.values, hidden);
        for_rows(self.pool, 2 * hidden, buffer, &|token, row| {
            row.copy_from_slice(&x[token * hidden..(token + 1) * hidden]);
            norm.apply(kernels, row);
            scale(row, input.scale);
        });
        reads.prepare(self.kernels, self.pool, [&weights.router]);
    }

    /// Gathers the input of each route's expert, in the order of the routes.
    fn gather_routes(&mut self, weights: &ExpertsWeights) {
        let hidden = self.model.hidden_size;
        let scratch = &mut *self.scratch;
        let Scratch { routes, input, .. } = &mut scratch.experts;
        input.resize(routes.len(), hidden);
        let (routes, tokens) = (&*routes, &scratch.input);
        let buffer = (&mut *input.values, hidden);
        for_rows(self.pool, hidden, buffer, &|index, out| {
            let route = &routes[index];
            out.copy_from_slice(tokens.row(route.token));
            if weights.spec.weigh_input {
                scale(out, route.weight);
            }
        });
        let readers = weights.gates.iter().chain(&weights.ups);
        input.prepare(self.kernels, self.pool, readers);
    }

    fn run_experts(&mut self, weights: &ExpertsWeights) {
        self.gather_routes(weights);
        let (kernels, hidden) = (self.kernels, self.model.hidden_size);
        let expert = &weights.spec.expert;
        let size = expert.size;
        let up_len = if expert.gated { size } else { 0 };
        let plan = self.plan;
        let scratch = &mut *self.scratch;
        let experts = &mut scratch.experts;
        let routes = &experts.routes;
        scratch.runs.clear();
        for (row, route) in routes.iter().enumerate() {
            extend_runs(&mut scratch.runs, row, plan.tokens[route.token].group);
        }
        experts.gate.resize(routes.len(), size);
        fit(&mut experts.up, routes.len() * up_len);
        let (input, gate) = (&experts.input, &mut experts.gate.values);
        let mut products = if expert.gated {
            per_expert(routes, &weights.gates, input, gate)
        } else {
            per_expert(routes, &weights.ups, input, gate)
        };
        if expert.gated {
            products.extend(per_expert(routes, &weights.ups, input, &mut experts.up));
        }
        multiply_adapted(compute!(self, scratch), &scratch.runs, products);
        let gate = SharedMut::new(&mut experts.gate.values);
        let up = SharedMut::new(&mut experts.up);
        for_parts(self.pool, (routes.len(), size), 4, &|route, part| {
            let up_part = if up_len == 0 { 0..0 } else { part.clone() };
            // SAFETY: each task touches its own part of a route's rows.
            let (gate, up) = unsafe {
                (
                    gate.slice(route * size + part.start, part.len()),
                    up.slice(route * up_len + up_part.start, up_part.len()),
                )
            };
            weights.activate(kernels, routes[route].expert, part, (gate, up));
        });
        experts.gate.prepare(kernels, self.pool, &weights.downs);
        fit(&mut experts.down, routes.len() * hidden);
        let products = per_expert(routes, &weights.downs, &experts.gate, &mut experts.down);
        multiply_adapted(compute!(self, scratch), &scratch.runs, products);
    }

    /// Writes the shared expert's outputs to `experts.shared`.
    fn shared_expert(&mut self, shared: &SharedWeights) {
        self.dense_inside(&shared.dense);
        let (kernels, tokens) = (self.kernels, self.tokens());
        let hidden = self.model.hidden_size;
        let scratch = &mut *self.scratch;
        scratch.inner.prepare(kernels, self.pool, [&shared.down]);
        fit(&mut scratch.experts.shared, tokens * hidden);
        fit(&mut scratch.experts.shared_gate, tokens);
        let out = &mut scratch.experts.shared;
        let mut products = Products::new();
        products.push(Product::new(&shared.down, &scratch.inner, out));
        if let Some(router) = &shared.router {
            let gate = &mut scratch.experts.shared_gate;
            products.push(Product::new(router, &scratch.input, gate));
        }
        let runs = &self.plan.adapters.runs;
        multiply_adapted(compute!(self, scratch), runs, products);
        if shared.router.is_some() {
            let Scratch {
                shared,
                shared_gate,
                ..
            } = &mut scratch.experts;
            for_rows(self.pool, hidden, (shared, hidden), &|token, output| {
                scale(output, sigmoid(shared_gate[token]));
            });
        }
    }

    fn combine(&mut self, weights: &ExpertsWeights) {
        let (tokens, hidden) = (self.tokens(), self.model.hidden_size);
        let scratch = &mut *self.scratch;
        fit(&mut scratch.branch, tokens * hidden);
        let experts = &scratch.experts;
        let out = SharedMut::new(&mut scratch.branch);
        let cost = hidden * (weights.spec.top_k + 1);
        for_tokens(self.pool, tokens, cost, &|token| {
            // SAFETY: each token's task writes its own row.
            let out = unsafe { out.slice(token * hidden, hidden) };
            out.fill(0.0);
            let top_k = weights.spec.top_k;
            for index in &experts.by_token[token * top_k..(token + 1) * top_k] {
                let route = &experts.routes[*index];
                let output = &experts.down[index * hidden..(index + 1) * hidden];
                let weight = if weights.spec.weigh_input {
                    1.0
                } else {
                    route.weight
                };
                add_scaled(out, output, weight);
                if let Some(bias) = &weights.down_bias {
                    let of_expert = route.expert * hidden..(route.expert + 1) * hidden;
                    add_scaled(out, &bias[of_expert], weight);
                }
            }
            if weights.shared.is_some() {
                add(
                    out,
                    Some(&experts.shared[token * hidden..(token + 1) * hidden]),
                );
            }
        });
    }
}

/// One product for each chosen expert.
fn per_expert<'a>(
    routes: &[Route],
    linears: &'a [Linear],
    input: &'a Activations,
    mut out: &'a mut [f32],
) -> Products<'a> {
    let mut products = Products::new();
    let mut first = 0;
    for run in routes.chunk_by(|a, b| a.expert == b.expert) {
        let linear = &linears[run[0].expert];
        let (own, rest) = out.split_at_mut(run.len() * linear.rows());
        let rows = first..first + run.len();
        products.push(Product::for_rows(linear, input, rows, own));
        out = rest;
        first += run.len();
    }
    products
}

impl ExpertsWeights {
    /// Applies the activation of one route to a part of its gate and up, or of the only input if
    /// there is no gate.
    fn activate(
        &self,
        kernels: &Kernels,
        expert: usize,
        part: Range<usize>,
        (gate, up): (&mut [f32], &mut [f32]),
    ) {
        let spec = &self.spec.expert;
        let first = expert * spec.size;
        let of_expert = first + part.start..first + part.end;
        let bias = |bias: &'_ Option<Vec<f32>>, values: &mut [f32]| {
            add(values, bias.as_ref().map(|all| &all[of_expert.clone()]));
        };
        if spec.gated {
            bias(&self.gate_bias, gate);
            bias(&self.up_bias, up);
            scale(gate, spec.gate_scale);
        } else {
            bias(&self.up_bias, gate);
        }
        // SAFETY: the table was chosen for this machine.
        unsafe { (kernels.activate)(spec.activation, gate, up) };
    }
}

/// Chooses a token's experts from the router's logits, with their weights. Ascending experts also
/// fix the order in which their outputs are added.
fn choose(weights: &ExpertsWeights, logits: &mut [f32], out: &mut [(usize, f32)]) {
    let router = &weights.spec.router;
    match router.scores {
        Scores::Softmax => softmax(logits),
        Scores::Sigmoid => logits.iter_mut().for_each(|score| *score = sigmoid(*score)),
    }
    let scores = &*logits;
    let mut ranking = scores.to_vec();
    add(&mut ranking, weights.correction.as_deref());
    if let Some(groups) = router.groups {
        keep_groups(&mut ranking, groups);
    }
    let chosen = best(&ranking, weights.spec.top_k);
    let total = match router.normalise {
        Some(eps) => chosen.iter().map(|expert| scores[*expert]).sum::<f32>() + eps,
        None => 1.0,
    };
    for (out, expert) in out.iter_mut().zip(chosen) {
        let own = weights
            .expert_scale
            .as_ref()
            .map_or(1.0, |scale| scale[expert]);
        *out = (expert, scores[expert] / total * router.scale * own);
    }
    out.sort_unstable_by_key(|(expert, _)| *expert);
}

/// Excludes experts outside the best groups.
fn keep_groups(ranking: &mut [f32], groups: ExpertGroups) {
    let size = ranking.len() / groups.count;
    let scores: Vec<f32> = ranking
        .chunks_exact(size)
        .map(|group| match groups.score {
            GroupScore::Best => best(group, 1).iter().map(|expert| group[*expert]).sum(),
            GroupScore::BestTwo => best(group, 2).iter().map(|expert| group[*expert]).sum(),
        })
        .collect();
    let kept = best(&scores, groups.keep);
    for (index, group) in ranking.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&index) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The indices of the `count` largest values, largest first; ties go to the lower index. NaN counts
/// as smallest, so that a broken row still has experts.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..values.len()).collect();
    let count = count.min(indices.len());
    let key = |index: &usize| {
        let value = values[*index];
        if value.is_nan() {
            f32::NEG_INFINITY
        } else {
            value
        }
    };
    let order = |a: &usize, b: &usize| key(b).total_cmp(&key(a)).then(a.cmp(b));
    if (1..indices.len()).contains(&count) {
        indices.select_nth_unstable_by(count - 1, order);
    }
    indices.truncate(count);
    indices.sort_unstable_by(order);
    indices
}

fn softmax(values: &mut [f32]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for value in values.iter_mut() {
        *value = (*value - max).exp();
        total += *value;
    }
    values.iter_mut().for_each(|value| *value /= total);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
