//! Attention with grouped heads.
//!
//! Queries and keys go through norm and RoPE as heads of one array, because the cost of decoding
//! depends on the number of operations more than on their size. The rows of a batch are processed
//! together too, with a mask if they differ in length.

mod heads;
#[cfg(test)]
pub mod plain;
#[cfg(test)]
mod tests;

use std::ops::Range;

use loquat_session::OpenError;
use loquat_spec::{Attention as Spec, KvSource, LayerRole, Reach};

use crate::array::{Array, Fused, Mask, Ops, slice_axis};
use crate::error::MlxError;
use crate::linear::{JoinedLinear, Linear};
use crate::loader::LayerLoader;
use crate::norm::{Norm, Rope};
use crate::step::{Group, Step};

use heads::{HeadNorm, QkNorms};
pub use heads::{from_heads, to_heads};

pub struct Attention {
    spec: Spec,
    /// Queries, then keys, values and the gate if the layer has them.
    inputs: JoinedLinear,
    /// `inputs` gives queries and keys as one array.
    paired: bool,
    qk_norm: Option<HeadNorm>,
    /// The norms that `qk_norm` is made of, for adapters.
    adaptable_norm: Option<QkNorms>,
    value_norm: Option<Norm>,
    rope: Option<Rope>,
    softcap: Option<Array>,
    sinks: Option<Array>,
    output: Linear,
}

/// The outputs of the input matrices, each [tokens, width].
struct Inputs {
    /// Queries, then keys if the layer has its own.
    queries_keys: Array,
    values: Option<Array>,
    gate: Option<Array>,
}

/// A group's heads, each [rows, heads, tokens, dim].
struct Heads {
    queries: Array,
    keys_values: Option<(Array, Array)>,
}

impl Attention {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let own = own_keys(spec);
        let optional = [
            (true, LayerRole::Query),
            (own, LayerRole::Key),
            (spec.kv == KvSource::Own, LayerRole::Value),
            (spec.output_gate, LayerRole::OutputGate),
        ];
        let roles: Vec<LayerRole> = optional
            .into_iter()
            .filter_map(|(present, role)| present.then_some(role))
            .collect();
        let mut inputs = loader.joined(&roles)?;
        let (ops, dtype) = (loader.loader().ops, loader.loader().dtype);
        let adaptable_norm = QkNorms::load(loader, spec)?;
        let qk_norm = adaptable_norm.as_ref();
        let qk_norm = qk_norm.map(|norms| norms.of_heads(ops, spec, None));
        Ok(Self {
            spec: spec.clone(),
            paired: own && inputs.pair_first(),
            inputs,
            qk_norm: qk_norm.transpose()?,
            adaptable_norm,
            // It never has a weight, so the role does not matter.
            value_norm: loader.optional_norm(LayerRole::KeyNorm, spec.value_norm.as_ref())?,
            rope: match &spec.rope {
                Some(rope) => Some(loader.loader().rope(rope, spec.head_dim)?),
                None => None,
            },
            softcap: match spec.softcap {
                Some(cap) => Some(ops.full(&[1], cap, dtype)?),
                None => None,
            },
            sinks: loader.optional(LayerRole::Sinks)?,
            output: loader.linear(LayerRole::Output)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let (ops, groups) = (step.ops, step.groups);
        let inputs = self.project(step, x)?;
        let mut mixed = Vec::with_capacity(groups.len());
        for group in groups {
            let heads = self.norm_and_rotate(step, group, &inputs)?;
            mixed.push(self.attend_group(step, layer, group, &heads)?);
        }
        let mixed = step.gather(mixed)?;
        match &inputs.gate {
            Some(gate) => {
                let gated = ops.fused(Fused::TimesSigmoid, &[&mixed, gate])?;
                self.output.adapted(ops, &gated, &step.adapters)
            }
            None => self.output.adapted(ops, &mixed, &step.adapters),
        }
    }

    fn project(&self, step: &Step, x: &Array) -> Result<Inputs, MlxError> {
        let ops = step.ops;
        let mut answers = self.inputs.apply(ops, x, &step.adapters)?.into_iter();
        let mut next = || {
            let missing = || MlxError("attention has too few inputs".to_owned());
            answers.next().ok_or_else(missing)
        };
        let mut queries_keys = next()?;
        if own_keys(&self.spec) && !self.paired {
            queries_keys = ops.concatenate(&[&queries_keys, &next()?], 1)?;
        }
        let values = match self.spec.kv {
            KvSource::Own => Some(next()?),
            KvSource::KeyIsValue => {
                let start = self.spec.query_len();
                Some(slice_axis(
                    ops,
                    &queries_keys,
                    1,
                    start..start + self.spec.key_len(),
                )?)
            }
            KvSource::Layer(_) => None,
        };
        Ok(Inputs {
            queries_keys,
            values,
            gate: if self.spec.output_gate {
                Some(next()?)
            } else {
                None
            },
        })
    }

    /// Norms and rope.
    fn norm_and_rotate(
        &self,
        step: &mut Step,
        group: &Group,
        inputs: &Inputs,
    ) -> Result<Heads, MlxError> {
        let (ops, spec) = (step.ops, &self.spec);
        let mut heads = step.group_part(group, &inputs.queries_keys)?;
        heads = to_heads(ops, group, &heads, spec.head_dim)?;
        let after_rope = spec.qk_norm.is_some_and(|norm| norm.after_rope);
        let (before, after) = if after_rope {
            (None, self.qk_norm.as_ref())
        } else {
            (self.qk_norm.as_ref(), None)
        };
        if let Some(norm) = before {
            heads = self.norm_heads(step, group, norm, &heads)?;
        }
        if let Some(rope) = &self.rope {
            heads = step.rotate(group, rope, &heads)?;
        }
        if let Some(norm) = after {
            heads = self.norm_heads(step, group, norm, &heads)?;
        }
        let mut queries = slice_axis(ops, &heads, 1, 0..spec.heads)?;
        if let Some(temperature) = &spec.temperature
            && let Some(query_scale) = step.query_scale(group, temperature)?
        {
            queries = ops.multiply(&queries, &query_scale)?;
        }
        let keys_values = match &inputs.values {
            Some(values) => {
                let keys = slice_axis(ops, &heads, 1, spec.heads..spec.heads + spec.kv_heads)?;
                Some((keys, self.norm_values(step, group, values)?))
            }
            None => None,
        };
        Ok(Heads {
            queries,
            keys_values,
        })
    }

    /// Queries and keys, [rows, heads, tokens, dim], normed by `norm` or by the adapters' norms.
    fn norm_heads(
        &self,
        step: &Step,
        group: &Group,
        norm: &HeadNorm,
        heads: &Array,
    ) -> Result<Array, MlxError> {
        let (ops, queries) = (step.ops, self.spec.heads);
        let adapters = step.adapters.within(group.token_range());
        let norms = self.adaptable_norm.as_ref();
        let norms = norms.filter(|norms| adapters.change_vectors(norms.roles()));
        let Some(norms) = norms else {
            return norm.apply(ops, group.tokens, heads, queries);
        };
        adapters.of_rows(group.tokens).each_segment(ops, 0, |rows| {
            let norm = norms.of_heads(ops, &self.spec, Some(rows))?;
            norm.apply(ops, group.tokens, &rows.part(ops, heads, 0)?, queries)
        })
    }

    fn norm_values(&self, step: &Step, group: &Group, values: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let values = step.group_part(group, values)?;
        let mut heads = to_heads(ops, group, &values, self.spec.value_dim)?;
        if let Some(norm) = &self.value_norm {
            heads = norm.apply(ops, &heads)?;
        }
        if self.spec.value_scale == 1.0 {
            Ok(heads)
        } else {
            ops.scale(&heads, self.spec.value_scale)
        }
    }

    /// The attention output of the group's tokens, [tokens, heads * value_dim].
    fn attend_group(
        &self,
        step: &mut Step,
        layer: usize,
        group: &Group,
        heads: &Heads,
    ) -> Result<Array, MlxError> {
        let ops = step.ops;
        let mut mixed = Vec::with_capacity(group.rows.len());
        for kv_batch in group.kv_batches.clone() {
            let rows = step.kv_batches[kv_batch].rows.clone();
            let of_group = rows.start - group.rows.start..rows.end - group.rows.start;
            let queries = slice_axis(ops, &heads.queries, 0, of_group.clone())?;
            if let Some((keys, values)) = &heads.keys_values {
                let keys = slice_axis(ops, keys, 0, of_group.clone())?;
                let values = slice_axis(ops, values, 0, of_group)?;
                step.append(kv_batch, layer, &keys, Some(&values))?;
            }
            mixed.push(if step.kv_batches[kv_batch].is_aligned() {
                self.attend(step, layer, kv_batch, &queries)?
            } else {
                self.attend_masked(step, layer, kv_batch, &queries)?
            });
        }
        from_heads(ops, &step.gather(mixed)?)
    }

    /// The rows of a batch of unequal lengths, each with one token: all attend to what any of them
    /// does, with a mask.
    fn attend_masked(
        &self,
        step: &mut Step,
        layer: usize,
        kv_batch: usize,
        queries: &Array,
    ) -> Result<Array, MlxError> {
        let ops = step.ops;
        let (seen, mask) = step.kv_batch_mask(kv_batch, self.spec.reach)?;
        let [keys, values] = self.visible(step, layer, kv_batch, seen)?;
        let inputs = [queries, &keys, &values];
        match &self.softcap {
            Some(cap) => self.attend_capped(ops, inputs, cap, Some(&mask)),
            None => ops.attention(
                inputs,
                self.spec.scale,
                Mask::Array(&mask),
                self.sinks.as_ref(),
            ),
        }
    }

    /// A batch's keys and values at some positions.
    fn visible(
        &self,
        step: &Step,
        layer: usize,
        kv_batch: usize,
        positions: Range<usize>,
    ) -> Result<[Array; 2], MlxError> {
        let layer = match self.spec.kv {
            KvSource::Layer(source) => source,
            KvSource::Own | KvSource::KeyIsValue => layer,
        };
        let kv = step.kv_batches[kv_batch].kv_batch.layers[layer].get()?;
        Ok([
            kv.keys_at(step.ops, positions.clone())?,
            kv.values_at(step.ops, positions)?,
        ])
    }

    /// The rows of a batch that are equally long.
    fn attend(
        &self,
        step: &mut Step,
        layer: usize,
        kv_batch: usize,
        queries: &Array,
    ) -> Result<Array, MlxError> {
        let ops = step.ops;
        let start = step.rows[step.kv_batches[kv_batch].rows.start].start;
        let positions = start..start + queries.dim(2) as usize;
        let (seen, view) = visible_keys(self.spec.reach, positions.clone());
        let ahead = step.mask_ahead(kv_batch, seen.clone(), self.spec.reach)?;
        let mask = match view {
            _ if ahead.is_some() => ahead,
            View::Everything => None,
            // MLX's causal mask works only in its own attention.
            View::Causal if self.softcap.is_none() => None,
            View::Causal => Some(step.mask(positions.len(), seen.len(), seen.start, Reach::All)?),
            View::Within(reach) => {
                Some(step.mask(positions.len(), seen.len(), seen.start, reach)?)
            }
        };
        let [keys, values] = self.visible(step, layer, kv_batch, seen)?;
        let inputs = [queries, &keys, &values];
        if let Some(cap) = &self.softcap {
            return self.attend_capped(ops, inputs, cap, mask.as_ref());
        }
        let mask = match (&mask, view) {
            (Some(mask), _) => Mask::Array(mask),
            (None, View::Causal) => Mask::Causal,
            (None, _) => Mask::None,
        };
        ops.attention(inputs, self.spec.scale, mask, self.sinks.as_ref())
    }

    /// Computed in separate operations, because MLX's attention has no cap.
    fn attend_capped(
        &self,
        ops: &Ops,
        [queries, keys, values]: [&Array; 3],
        cap: &Array,
        mask: Option<&Array>,
    ) -> Result<Array, MlxError> {
        let (batch, heads, tokens) = (queries.dim(0), queries.dim(1), queries.dim(2));
        let (kv_heads, seen) = (keys.dim(1), keys.dim(2));
        // The queries of heads that share keys are rows of one matrix.
        let rows = heads / kv_heads * tokens;
        let queries = ops.reshape(queries, &[batch, kv_heads, rows, queries.dim(3)])?;
        let queries = ops.scale(&queries, self.spec.scale)?;
        let scores = ops.matmul(&queries, &ops.transpose(keys, &[0, 1, 3, 2])?)?;
        let mut scores = ops.fused(Fused::Softcap, &[&scores, cap])?;
        scores = ops.reshape(&scores, &[batch, heads, tokens, seen])?;
        if let Some(mask) = mask {
            let never = ops.full(&[1], f32::NEG_INFINITY, scores.dtype())?;
            scores = ops.select(mask, &scores, &never)?;
        }
        if let Some(sinks) = &self.sinks {
            let sinks = ops.reshape(sinks, &[1, heads, 1, 1])?;
            let sinks = ops.broadcast_to(&sinks, &[batch, heads, tokens, 1])?;
            scores = ops.concatenate(&[&scores, &sinks], 3)?;
        }
        let weights = ops.softmax(&scores, 3)?;
        let weights = slice_axis(ops, &weights, 3, 0..seen as usize)?;
        let weights = ops.reshape(&weights, &[batch, kv_heads, rows, seen])?;
        let mixed = ops.matmul(&weights, values)?;
        ops.reshape(&mixed, &[batch, heads, tokens, values.dim(3)])
    }
}

fn own_keys(spec: &Spec) -> bool {
    !matches!(spec.kv, KvSource::Layer(_))
}

/// Which keys of a range each query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Everything,
    /// The keys up to its own position.
    Causal,
    /// Not all keys up to its own position.
    Within(Reach),
}

/// The range of keys for queries at `positions`, and which of them each query attends to.
fn visible_keys(reach: Reach, positions: Range<usize>) -> (Range<usize>, View) {
    let (start, last) = (positions.start, positions.end - 1);
    let first = reach.first_seen(start);
    let view = match positions.len() {
        1 => View::Everything,
        _ if first == reach.first_seen(last) => View::Causal,
        _ => View::Within(reach),
    };
    (first..positions.end, view)
}
