//! Attention between patches of a frame, or of a window of it.

use loquat_session::tower::{BATCH_PATCHES, TowerBatch};
use loquat_spec::{PatchSpan, VisionSpec};

use super::{Rotation, Tower, TowerLayer, concatenate};
use crate::array::{Array, Mask, Ops, Type, slice_axis};
use crate::error::MlxError;
use crate::norm::Norm;

/// Scores that are computed at once, unless those of one query are more: bounds the memory of
/// devices without fused attention.
const MAX_SCORES: usize = 1 << 23;
/// Arrays of as many scores that may be in memory: MLX allocates the results of ten operations
/// before it waits for the first (`MAX_ACTIVE_TASKS` in its `transforms.cpp`).
const SCORES_ALIVE: usize = 12;

/// The tokens of a batch in groups that attend to each other.
pub struct TokenGroups {
    span: PatchSpan,
    /// The token at each place of the groups, and the place of each token. `None` if the groups
    /// are consecutive.
    order: Option<[Array; 2]>,
    /// Adjacent groups of equal size.
    runs: Vec<GroupRun>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GroupRun {
    groups: usize,
    tokens: usize,
}

impl TokenGroups {
    /// The groups of a span, which are made once for a batch.
    pub fn cached<'a>(
        ops: &Ops,
        known: &'a mut Vec<Self>,
        batch: &TowerBatch,
        span: PatchSpan,
    ) -> Result<&'a Self, MlxError> {
        let index = match known.iter().position(|groups| groups.span == span) {
            Some(index) => index,
            None => {
                known.push(Self::new(ops, batch, span)?);
                known.len() - 1
            }
        };
        Ok(&known[index])
    }

    fn new(ops: &Ops, batch: &TowerBatch, span: PatchSpan) -> Result<Self, MlxError> {
        let mut groups = batch.groups(span);
        let consecutive = groups.iter().flatten().copied().eq(0..batch.tokens);
        let order = if consecutive {
            None
        } else {
            // Smaller windows at the edges become one run.
            groups.sort_by_key(Vec::len);
            let tokens: Vec<i32> = groups.iter().flatten().map(|at| *at as i32).collect();
            let mut places = vec![0; tokens.len()];
            for (place, token) in tokens.iter().enumerate() {
                places[*token as usize] = place as i32;
            }
            let dims = [tokens.len() as i32];
            Some([
                ops.upload_i32(&tokens, &dims)?,
                ops.upload_i32(&places, &dims)?,
            ])
        };
        let runs = groups.chunk_by(|a, b| a.len() == b.len());
        let runs = runs.map(|run| GroupRun {
            groups: run.len(),
            tokens: run[0].len(),
        });
        Ok(Self {
            span,
            order,
            runs: runs.collect(),
        })
    }

    /// Each token attends to all of its group. Queries, keys and values are [tokens, heads, dim];
    /// the result is [tokens, heads * dim].
    fn attend(&self, ops: &Ops, inputs: [Array; 3], scale: f32) -> Result<Array, MlxError> {
        let inputs = match &self.order {
            None => inputs,
            Some([tokens, _]) => {
                let [query, key, value] = inputs.each_ref();
                let reordered = |x: &Array| ops.take_rows(x, tokens, 0);
                [reordered(query)?, reordered(key)?, reordered(value)?]
            }
        };
        let mut parts = Vec::with_capacity(self.runs.len());
        let mut first = 0;
        for run in &self.runs {
            let end = first + run.groups * run.tokens;
            let [query, key, value] = inputs.each_ref().map(|x| {
                let dims = [run.groups as i32, run.tokens as i32, x.dim(1), x.dim(2)];
                let own = ops.reshape(&slice_axis(ops, x, 0, first..end)?, &dims)?;
                ops.transpose(&own, &[0, 2, 1, 3])
            });
            let mixed = run.attend(ops, [&query?, &key?, &value?], (scale, MAX_SCORES))?;
            let mixed = ops.transpose(&mixed, &[0, 2, 1, 3])?;
            let width = inputs[2].dim(1) * inputs[2].dim(2);
            parts.push(ops.reshape(&mixed, &[(end - first) as i32, width])?);
            first = end;
        }
        let mixed = concatenate(ops, &parts)?;
        match &self.order {
            None => Ok(mixed),
            Some([_, places]) => ops.take_rows(&mixed, places, 0),
        }
    }
}

impl GroupRun {
    /// Inputs and result: [groups, heads, tokens, dim].
    fn attend(
        &self,
        ops: &Ops,
        inputs: [&Array; 3],
        (scale, max_scores): (f32, usize),
    ) -> Result<Array, MlxError> {
        let heads = inputs[0].dim(1) as usize;
        let [groups, queries] = self.block(heads, max_scores);
        if (groups, queries) == (self.groups, self.tokens) {
            return ops.attention(inputs, scale, Mask::None, None);
        }
        let [query, key, value] = inputs;
        let mut out = ops.full(&query.shape(), 0.0, query.dtype())?;
        // Each update waits for the one before, so that few blocks are in memory at once.
        for group in (0..self.groups).step_by(groups) {
            let of_groups = group..(group + groups).min(self.groups);
            let own = |x: &Array| slice_axis(ops, x, 0, of_groups.clone());
            let (query, key, value) = (own(query)?, own(key)?, own(value)?);
            for token in (0..self.tokens).step_by(queries) {
                let end = (token + queries).min(self.tokens);
                let block = slice_axis(ops, &query, 2, token..end)?;
                let mixed = ops.attention([&block, &key, &value], scale, Mask::None, None)?;
                let start = [of_groups.start as i32, 0, token as i32, 0];
                let stop = [of_groups.end as i32, heads as i32, end as i32, out.dim(3)];
                out = ops.slice_update(&out, &mixed, &start, &stop)?;
            }
        }
        Ok(out)
    }

    /// How many groups, and queries of each, are computed at once.
    fn block(&self, heads: usize, max_scores: usize) -> [usize; 2] {
        let of_query = heads * self.tokens;
        let of_group = of_query * self.tokens;
        if of_group > max_scores {
            [1, (max_scores / of_query).max(1)]
        } else {
            [(max_scores / of_group.max(1)).min(self.groups), self.tokens]
        }
    }
}

impl Tower {
    /// The stream after attention.
    pub(super) fn attention(
        &self,
        ops: &Ops,
        x: Array,
        layer: &TowerLayer,
        (groups, rotation): (&TokenGroups, Option<&Rotation>),
    ) -> Result<Array, MlxError> {
        let block = &self.spec.block;
        let input = layer.attention_norm.apply(ops, &x)?;
        let dims = [x.dim(0), block.heads as i32, block.head_dim as i32];
        let heads = |index: usize, norm: &Option<Norm>, rotation: Option<&Rotation>| {
            let flat = layer.qkv[index].apply(ops, &input)?;
            let mut heads = ops.reshape(&flat, &dims)?;
            if let Some(norm) = norm {
                heads = norm.apply(ops, &heads)?;
            }
            match rotation {
                Some(Rotation { layout, cos, sin }) => layout.rotate(ops, &heads, [cos, sin]),
                None => Ok(heads),
            }
        };
        let inputs = [
            heads(0, &layer.query_norm, rotation)?,
            heads(1, &layer.key_norm, rotation)?,
            heads(2, &layer.value_norm, None)?,
        ];
        let mixed = groups.attend(ops, inputs, block.scale)?;
        let output = layer.output.apply(ops, &mixed)?;
        layer.attention_end.add(ops, x, output)
    }
}

/// Bytes of the largest batch's buffers.
pub fn buffer_bytes(spec: &VisionSpec, max_patches: usize, dtype: Type) -> u64 {
    let tokens = max_patches.max(BATCH_PATCHES) as u64;
    let block = &spec.block;
    let width = block.heads * block.head_dim;
    let widest = |projector: &loquat_spec::Projector| {
        let lens = projector.sized(spec.hidden_size).into_iter();
        lens.map(|(_, input, output)| input + output)
            .max()
            .unwrap_or(0)
    };
    // The stream, a branch's input and output; queries, keys, values and their copies; both
    // inputs of a feed-forward's last matrix; the patches' own values in two types.
    let per_token = 4 * spec.hidden_size
        + (8 * width).max(3 * block.mlp.size)
        + 2 * spec.patch.values()
        + widest(&spec.projector)
        + spec.deepstack.len() * 2 * spec.hidden_size;
    // Angles and positions are float32 in any case.
    let exact = (width + 2 * spec.hidden_size) as u64 * Type::F32.bytes() as u64;
    let scores = (block.heads as u64 * tokens * tokens).min(MAX_SCORES as u64);
    let of_token = per_token as u64 * dtype.bytes() as u64 + exact;
    tokens * of_token + scores * (SCORES_ALIVE * dtype.bytes()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, noise, read};

    #[test]
    fn blocks_of_scores_are_bounded() {
        let block = |groups, tokens, heads| {
            let run = GroupRun { groups, tokens };
            run.block(heads, MAX_SCORES)
        };
        assert_eq!(block(3, 64, 4), [3, 64]);
        // Many frames: some at once.
        assert_eq!(block(100, 256, 16), [8, 256]);
        // One large picture: some queries at once.
        let [groups, queries] = block(1, 16384, 16);
        assert!(groups == 1 && queries * 16384 * 16 <= MAX_SCORES && queries > 0);
        assert_eq!(block(1, MAX_SCORES, 2), [1, 1]);
    }

    #[test]
    fn blocks_equal_attention_as_a_whole() {
        let Some(ops) = testing::ops() else { return };
        let run = GroupRun {
            groups: 5,
            tokens: 7,
        };
        let (heads, dim) = (2, 4);
        let inputs = [1, 2, 3].map(|seed| {
            let values = noise(run.groups * heads * run.tokens * dim, seed);
            let dims = [run.groups, heads, run.tokens, dim].map(|dim| dim as i32);
            ops.upload_f32(&values, &dims).unwrap()
        });
        let attend = |max_scores| {
            let mixed = run.attend(&ops, inputs.each_ref(), (0.5, max_scores));
            read(&ops, &mixed.unwrap())
        };
        let whole = attend(MAX_SCORES);
        // Some groups, one group, some queries and one query at a time.
        for max_scores in [2 * 2 * 49, 2 * 49, 3 * 2 * 7, 1] {
            let found = attend(max_scores);
            let differs = found.iter().zip(&whole).any(|(a, b)| (a - b).abs() > 1e-6);
            assert!(!differs && found.len() == whole.len(), "{max_scores}");
        }
    }
}
