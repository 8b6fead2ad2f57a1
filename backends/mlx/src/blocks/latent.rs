//! Attention over one latent vector per token, all heads sharing it.
//!
//! In absorbed form: a head's key matrix is applied to its query and its value matrix to the
//! attention output, so that only the latent and the RoPE key of a token are cached.

#[cfg(test)]
mod tests;

use loquat_session::OpenError;
use loquat_spec::{LatentAttention as Spec, LayerRole, Reach};

use super::attention::{from_heads, to_heads};
use crate::array::{Array, Mask, Ops, slice_axis};
use crate::error::MlxError;
use crate::linear::{JoinedLinear, Linear, Stack};
use crate::loader::LayerLoader;
use crate::norm::{Norm, Rope};
use crate::step::{Group, Step};

pub struct Latent {
    spec: Spec,
    /// Queries or their low-rank form, the latent, and the RoPE key.
    inputs: JoinedLinear,
    query_up: Option<QueryUp>,
    latent_norm: Norm,
    rope: Option<Rope>,
    key_absorb: Stack,
    value_up: Stack,
    output: Linear,
}

/// Computes queries from their low-rank form.
struct QueryUp {
    norm: Norm,
    linear: Linear,
}

impl Latent {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let (query, query_up) = match spec.query_rank {
            Some(_) => {
                let up = QueryUp {
                    norm: loader.norm(LayerRole::QueryDownNorm, &spec.norm)?,
                    linear: loader.linear(LayerRole::QueryUp)?,
                };
                (LayerRole::QueryDown, Some(up))
            }
            None => (LayerRole::Query, None),
        };
        Ok(Self {
            spec: spec.clone(),
            inputs: loader.joined(&[query, LayerRole::Latent, LayerRole::RopeKey])?,
            query_up,
            latent_norm: loader.norm(LayerRole::LatentNorm, &spec.norm)?,
            rope: match &spec.rope {
                Some(rope) => Some(loader.loader().rope(rope, spec.rope_dim)?),
                None => None,
            },
            key_absorb: loader.stack(LayerRole::KeyAbsorb)?,
            value_up: loader.stack(LayerRole::ValueUp)?,
            output: loader.linear(LayerRole::Output)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let (ops, groups) = (step.ops, step.groups);
        let answers = self.inputs.apply(ops, x, &step.adapters)?;
        let [query, latent, rope_key] = <[Array; 3]>::try_from(answers)
            .map_err(|_| MlxError("latent attention needs three inputs".to_owned()))?;
        let query = match &self.query_up {
            Some(up) => {
                let query = up.norm.apply(ops, &query)?;
                up.linear.adapted(ops, &query, &step.adapters)?
            }
            None => query,
        };
        let latent = self.latent_norm.apply(ops, &latent)?;
        let mut mixed = Vec::with_capacity(groups.len());
        for group in groups {
            let queries = self.absorb(step, group, &query)?;
            let latents = self.cache_entries(step, group, &latent, &rope_key)?;
            let of_group = self.attend(step, layer, group, [&queries, &latents])?;
            mixed.push(self.project_values(step, group, &of_group)?);
        }
        self.output
            .adapted(ops, &step.gather(mixed)?, &step.adapters)
    }

    /// Each head's query in the space of the latents: [rows, heads, tokens, latent + rope].
    fn absorb(&self, step: &mut Step, group: &Group, query: &Array) -> Result<Array, MlxError> {
        let (ops, spec) = (step.ops, &self.spec);
        let query_dim = spec.nope_dim + spec.rope_dim;
        let query = to_heads(ops, group, &step.group_part(group, query)?, query_dim)?;
        let plain = slice_axis(ops, &query, 3, 0..spec.nope_dim)?;
        let adapters = step.adapters.within(group.token_range());
        let absorbed = by_head(ops, &plain)?;
        let absorbed = self.key_absorb.apply_each(ops, &absorbed, &adapters)?;
        let absorbed = by_row(ops, group, &absorbed)?;
        let turned = slice_axis(ops, &query, 3, spec.nope_dim..query_dim)?;
        ops.concatenate(&[&absorbed, &self.rotate(step, group, turned)?], 3)
    }

    /// The cache entry of each token, [rows, 1, tokens, latent + rope].
    fn cache_entries(
        &self,
        step: &mut Step,
        group: &Group,
        latent: &Array,
        rope_key: &Array,
    ) -> Result<Array, MlxError> {
        let (ops, spec) = (step.ops, &self.spec);
        let latent = to_heads(
            ops,
            group,
            &step.group_part(group, latent)?,
            spec.latent_dim,
        )?;
        let rope_key = to_heads(
            ops,
            group,
            &step.group_part(group, rope_key)?,
            spec.rope_dim,
        )?;
        ops.concatenate(&[&latent, &self.rotate(step, group, rope_key)?], 3)
    }

    fn rotate(&self, step: &mut Step, group: &Group, heads: Array) -> Result<Array, MlxError> {
        match &self.rope {
            Some(rope) => step.rotate(group, rope, &heads),
            None => Ok(heads),
        }
    }

    /// The attention output in latent space, [rows, heads, tokens, latent].
    fn attend(
        &self,
        step: &mut Step,
        layer: usize,
        group: &Group,
        [queries, latents]: [&Array; 2],
    ) -> Result<Array, MlxError> {
        let ops = step.ops;
        let mask = match group.tokens {
            1 => Mask::None,
            _ => Mask::Causal,
        };
        let mut mixed = Vec::with_capacity(group.rows.len());
        for kv_batch in group.kv_batches.clone() {
            let rows = step.kv_batches[kv_batch].rows.clone();
            let of_group = rows.start - group.rows.start..rows.end - group.rows.start;
            let latents = slice_axis(ops, latents, 0, of_group.clone())?;
            step.append(kv_batch, layer, &latents, None)?;
            let (seen, row_mask) = if step.kv_batches[kv_batch].is_aligned() {
                let seen = 0..step.rows[rows.start].start + group.tokens;
                let mask = step.mask_ahead(kv_batch, seen.clone(), Reach::All)?;
                (seen, mask)
            } else {
                let (seen, mask) = step.kv_batch_mask(kv_batch, Reach::All)?;
                (seen, Some(mask))
            };
            let mask = row_mask.as_ref().map_or(mask, Mask::Array);
            let cached = step.kv_batches[kv_batch].kv_batch.layers[layer].get()?;
            let keys = cached.keys_at(ops, seen)?;
            let values = slice_axis(ops, &keys, 3, 0..self.spec.latent_dim)?;
            let queries = slice_axis(ops, queries, 0, of_group)?;
            let inputs = [&queries, &keys, &values];
            mixed.push(ops.attention(inputs, self.spec.scale, mask, None)?);
        }
        step.gather(mixed)
    }

    /// Applies each head's value matrix, [tokens, heads * value_dim].
    fn project_values(&self, step: &Step, group: &Group, mixed: &Array) -> Result<Array, MlxError> {
        let (ops, adapters) = (step.ops, step.adapters.within(group.token_range()));
        let values = self
            .value_up
            .apply_each(ops, &by_head(ops, mixed)?, &adapters)?;
        from_heads(ops, &by_row(ops, group, &values)?)
    }
}

/// [rows, heads, tokens, dim] to [heads, rows * tokens, dim], each head's own matrix for one.
fn by_head(ops: &Ops, x: &Array) -> Result<Array, MlxError> {
    let (heads, dim) = (x.dim(1), x.dim(3));
    let dims = [heads, x.dim(0) * x.dim(2), dim];
    match x.dim(0) {
        1 => ops.reshape(x, &dims),
        _ => ops.reshape(&ops.transpose(x, &[1, 0, 2, 3])?, &dims),
    }
}

/// The inverse of [`by_head`].
fn by_row(ops: &Ops, group: &Group, x: &Array) -> Result<Array, MlxError> {
    let (rows, tokens) = (group.rows.len() as i32, group.tokens as i32);
    let (heads, dim) = (x.dim(0), x.dim(2));
    match rows {
        1 => ops.reshape(x, &[1, heads, tokens, dim]),
        _ => {
            let heads = ops.reshape(x, &[heads, rows, tokens, dim])?;
            ops.transpose(&heads, &[1, 0, 2, 3])
        }
    }
}
