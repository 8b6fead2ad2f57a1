//! Experts: the choice, their products, and the sum of their outputs.

use super::linear::{add_vector, multiply};
use super::{Launch, Result, at, bytes_at, sigmoid, vector};
use crate::ops::{Address, CombineExperts, ExpertLinear, MatrixRef, Route};

/// Vectors that a router adds or multiplies, one value for each expert.
struct RouterVectors {
    correction: Option<Vec<f32>>,
    expert_scale: Option<Vec<f32>>,
}

impl Launch<'_> {
    pub(super) fn route(&mut self, op: &Route) -> Result<()> {
        let (count, top_k) = (op.count as usize, op.top_k as usize);
        let access = &mut self.access;
        let fits = top_k <= count;
        access.require(fits, "top_k", "more than there are experts")?;
        let divides = op.groups == 0 || op.count.is_multiple_of(op.groups);
        access.require(divides, "groups", "of different sizes")?;
        access.set_shared();
        let vectors = RouterVectors {
            correction: access.optional_f32s("correction", op.correction, count)?,
            expert_scale: access.optional_f32s("expert_scale", op.expert_scale, count)?,
        };
        for token in self.covered() {
            self.access.set_unit(token);
            let logits = vector(op.logits, token, op.count);
            let mut scores = self.access.f32s_in_place("logits", logits, count)?;
            let chosen = choose(op, &vectors, &mut scores);
            let (experts, weights): (Vec<u32>, Vec<f32>) = chosen.into_iter().unzip();
            self.access.write("logits", logits, &scores)?;
            let to = vector(op.experts, token, op.top_k);
            self.access.write_u32s("experts", to, &experts)?;
            let to = vector(op.weights, token, op.top_k);
            self.access.write("weights", to, &weights)?;
        }
        Ok(())
    }

    pub(super) fn expert_linear(&mut self, op: &ExpertLinear) -> Result<()> {
        let (rows, cols) = (op.matrix.rows as usize, op.matrix.cols as usize);
        let top_k = op.top_k as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let experts = self.token_u32s("experts", op.experts, token, top_k)?;
            let weights = vector(op.weights, token, op.top_k);
            let weights = self.access.optional_f32s("weights", weights, top_k)?;
            for (k, expert) in experts.iter().enumerate() {
                let route = token * top_k + k;
                let from = if op.input_per_route == 0 {
                    token
                } else {
                    route
                };
                let from = vector(op.input, from, op.input_stride);
                let mut input = self.access.f32s("input", from, cols)?;
                if let Some(weights) = &weights {
                    input.iter_mut().for_each(|input| *input *= weights[k]);
                }
                let mut out = self.expert_product(&op.matrix, *expert, &input)?;
                let bias = at(op.bias, *expert as usize * rows);
                let bias = self.access.optional_f32s("bias", bias, rows)?;
                add_vector(&mut out, bias.as_deref());
                self.access.write("out", at(op.out, route * rows), &out)?;
            }
        }
        Ok(())
    }

    fn expert_product(
        &mut self,
        stack: &MatrixRef,
        expert: u32,
        input: &[f32],
    ) -> Result<Vec<f32>> {
        let (rows, cols) = (stack.rows as usize, stack.cols as usize);
        let bytes = (rows * cols * stack.format.bytes()) as u64;
        let values: Address = bytes_at(stack.values, bytes.wrapping_mul(u64::from(expert)));
        let stored = self
            .access
            .stored("matrix", values, rows * cols, stack.format)?;
        let mut out = vec![0.0; rows];
        multiply(stored, stack, input, &mut out);
        Ok(out)
    }

    pub(super) fn combine_experts(&mut self, op: &CombineExperts) -> Result<()> {
        let (len, top_k) = (op.len as usize, op.top_k as usize);
        for token in self.covered() {
            self.access.set_unit(token);
            let weights = vector(op.weights, token, op.top_k);
            let weights = self.access.optional_f32s("weights", weights, top_k)?;
            let mut out = vec![0.0; len];
            for k in 0..top_k {
                let from = vector(op.input, token * top_k + k, op.len);
                let input = self.access.f32s("input", from, len)?;
                let weight = weights.as_ref().map_or(1.0, |weights| weights[k]);
                for (out, input) in out.iter_mut().zip(input) {
                    *out += input * weight;
                }
            }
            let to = vector(op.out, token, op.out_stride);
            self.access.write("out", to, &out)?;
        }
        Ok(())
    }
}

/// Turns a token's logits into scores, and chooses its experts with their weights, ascending.
fn choose(op: &Route, vectors: &RouterVectors, scores: &mut [f32]) -> Vec<(u32, f32)> {
    if op.sigmoid == 0 {
        softmax(scores);
    } else {
        scores.iter_mut().for_each(|score| *score = sigmoid(*score));
    }
    let mut ranking = scores.to_vec();
    add_vector(&mut ranking, vectors.correction.as_deref());
    if op.groups > 0 {
        keep_groups(op, &mut ranking);
    }
    let chosen = best(&ranking, op.top_k as usize);
    let total = if op.normalise == 0 {
        1.0
    } else {
        chosen.iter().map(|expert| scores[*expert]).sum::<f32>() + op.normalise_eps
    };
    let own = |expert: usize| {
        let scale = vectors.expert_scale.as_ref();
        scale.map_or(1.0, |scale| scale[expert])
    };
    let weight = |expert: usize| scores[expert] / total * op.scale * own(expert);
    let mut chosen: Vec<(u32, f32)> = chosen
        .into_iter()
        .map(|expert| (expert as u32, weight(expert)))
        .collect();
    chosen.sort_unstable_by_key(|(expert, _)| *expert);
    chosen
}

/// Excludes experts outside the best groups.
fn keep_groups(op: &Route, ranking: &mut [f32]) {
    let size = (ranking.len() / op.groups as usize).max(1);
    let summed = if op.best_two == 0 { 1 } else { 2 };
    let score = |group: &[f32]| {
        best(group, summed)
            .iter()
            .map(|expert| group[*expert])
            .sum()
    };
    let scores: Vec<f32> = ranking.chunks_exact(size).map(score).collect();
    let kept = best(&scores, op.keep_groups as usize);
    for (index, group) in ranking.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&index) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The indices of the `count` largest values, largest first; the lower index of equal ones. NaN
/// counts as smallest, so that a broken row still has experts.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let key = |index: usize| {
        if values[index].is_nan() {
            f32::NEG_INFINITY
        } else {
            values[index]
        }
    };
    let mut indices: Vec<usize> = (0..values.len()).collect();
    indices.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
    indices.truncate(count);
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
