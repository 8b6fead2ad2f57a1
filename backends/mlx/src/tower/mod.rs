//! The vision tower: from the patches of a picture to features of the text model's size.
//!
//! Views are computed in batches, whose graphs are evaluated one after another, so that memory
//! follows from the largest batch. Within a batch, attention is computed for all equally large
//! frames or windows together.

mod attend;
mod load;
mod project;

use loquat_session::media::{TiledFeatures, patches};
use loquat_session::tower::{TowerBatch, batches};
use loquat_session::{Picture, View};
use loquat_spec::{ClassToken, PatchRopeLayout, VisionSpec};

use crate::array::{Array, Binary, Ops, Type, slice_axis};
use crate::blocks::Function;
use crate::error::MlxError;
use crate::linear::{Linear, Table};
use crate::norm::{Norm, PairLayout};

use attend::TokenGroups;
pub use attend::buffer_bytes;
use project::LoadedStep;

/// A loaded tower.
pub struct Tower {
    spec: VisionSpec,
    dtype: Type,
    patch: Linear,
    /// [1, hidden]
    class_token: Option<Array>,
    /// Of all axes, one after another.
    positions: Option<Table>,
    patch_norm: Option<Norm>,
    embedding_norm: Option<Norm>,
    layers: Vec<TowerLayer>,
    final_norm: Option<Norm>,
    projector: Vec<LoadedStep>,
    /// Of the spec's deepstack.
    deepstack: Vec<Vec<LoadedStep>>,
    /// [1, hidden of the text model]
    row_end: Option<Array>,
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
    attention_end: BranchEnd,
    mlp_norm: Norm,
    gate: Option<Matrix>,
    up: Matrix,
    activation: Function,
    down: Matrix,
    mlp_end: BranchEnd,
}

/// What a branch goes through before it is added to the stream.
struct BranchEnd {
    norm: Option<Norm>,
    gain: Option<Array>,
}

/// A matrix with its bias and the bounds of its input and output.
struct Matrix {
    linear: Linear,
    clamp: Option<Clamp>,
}

/// Lower and upper bounds, [1].
struct Clamp {
    input: [Array; 2],
    output: [Array; 2],
}

/// How the tokens of a batch rotate.
struct Rotation {
    layout: PairLayout,
    /// Each [tokens, 1, pairs], float32.
    cos: Array,
    sin: Array,
}

impl Tower {
    /// The features of a picture or video whose layout has been checked: for each level
    /// [positions, hidden].
    pub fn encode(
        &self,
        ops: &Ops,
        picture: &Picture,
        is_video: bool,
    ) -> Result<Vec<Array>, MlxError> {
        let mut levels: Vec<Vec<Array>> = vec![Vec::new(); 1 + self.deepstack.len()];
        for views in batches(&picture.views) {
            // Two graphs evaluated at once would need the memory of both.
            let before: Vec<&Array> = levels.iter().flatten().collect();
            if !before.is_empty() {
                ops.eval(&before)?;
            }
            let found = self.encode_views(ops, views)?;
            for (level, found) in levels.iter_mut().zip(found) {
                level.push(found);
            }
        }
        let levels = levels.iter().map(|parts| {
            let level = concatenate(ops, parts)?;
            match &self.row_end {
                None => Ok(level),
                Some(end) => self.arrange(ops, (picture, is_video), &level, end),
            }
        });
        levels.collect()
    }

    /// Puts the features of a tiled picture together.
    fn arrange(
        &self,
        ops: &Ops,
        (picture, is_video): (&Picture, bool),
        features: &Array,
        end: &Array,
    ) -> Result<Array, MlxError> {
        let tiled = TiledFeatures::new(&self.spec, picture, is_video);
        let tiled = tiled.map_err(|error| MlxError(error.to_string()))?;
        let rows = ops.concatenate(&[features, end], 0)?;
        let sources = tiled.sources(features.dim(0) as usize);
        let arranged = weighted_rows(ops, &sources, |ids| ops.take_rows(&rows, ids, 0))?;
        ops.astype(&arranged, self.dtype)
    }

    /// The projected features of some views, for each level.
    fn encode_views(&self, ops: &Ops, views: &[View]) -> Result<Vec<Array>, MlxError> {
        let batch = TowerBatch::new(&self.spec, views);
        let mut x = self.embed(ops, views, &batch)?;
        let rotation = self.rotation(ops, &batch)?;
        let mut groups = Vec::new();
        let mut deeper = vec![None; self.deepstack.len()];
        for (index, layer) in self.layers.iter().enumerate() {
            let groups = TokenGroups::cached(ops, &mut groups, &batch, self.spec.layers[index])?;
            x = self.attention(ops, x, layer, (groups, rotation.as_ref()))?;
            x = layer.feed_forward(ops, x)?;
            let stacked = self.spec.deepstack.iter().zip(&self.deepstack);
            for ((spec, projector), level) in stacked.zip(&mut deeper) {
                if spec.after == index {
                    *level = Some(project::run(ops, projector, &x, &batch)?);
                }
            }
        }
        if let Some(norm) = &self.final_norm {
            x = norm.apply(ops, &x)?;
        }
        let first = project::run(ops, &self.projector, &x, &batch)?;
        Ok(std::iter::once(first)
            .chain(deeper.into_iter().flatten())
            .collect())
    }

    /// Embedded patches and class tokens with their positions, [tokens, hidden].
    fn embed(&self, ops: &Ops, views: &[View], batch: &TowerBatch) -> Result<Array, MlxError> {
        let patch = &self.spec.patch;
        let mut values: Vec<f32> = Vec::new();
        for view in views {
            let own = patches(&self.spec, view).into_iter();
            values.extend(own.map(|value| value * patch.scale + patch.offset));
        }
        let width = patch.values();
        let dims = [(values.len() / width) as i32, width as i32];
        let pixels = ops.astype(&ops.upload_f32(&values, &dims)?, self.dtype)?;
        let mut x = self.patch.apply(ops, &pixels)?;
        if let Some(norm) = &self.patch_norm {
            x = norm.apply(ops, &x)?;
        }
        if let (Some(class), Some(token)) = (self.spec.class_token, &self.class_token) {
            x = insert_class(ops, &x, batch, (class, token))?;
        }
        if let Some(table) = &self.positions {
            let sources = batch.positions(&self.spec);
            let positions = weighted_rows(ops, &sources, |ids| table.rows(ops, ids, Type::F32))?;
            x = ops.add(&x, &ops.astype(&positions, self.dtype)?)?;
        }
        match &self.embedding_norm {
            Some(norm) => norm.apply(ops, &x),
            None => Ok(x),
        }
    }

    fn rotation(&self, ops: &Ops, batch: &TowerBatch) -> Result<Option<Rotation>, MlxError> {
        let Some(rope) = self.spec.block.rope else {
            return Ok(None);
        };
        let angles = batch.angles(rope, self.spec.block.head_dim);
        let pairs = angles.pairs as i32;
        let (outer, inner) = match rope.layout {
            PatchRopeLayout::Halves | PatchRopeLayout::HalvesAlternate => (1, pairs),
            PatchRopeLayout::Parts => (2, pairs / 2),
            PatchRopeLayout::Interleaved => (pairs, 1),
        };
        let dims = [batch.tokens as i32, 1, pairs];
        Ok(Some(Rotation {
            layout: PairLayout { outer, inner },
            cos: ops.upload_f32(&angles.cos, &dims)?,
            sin: ops.upload_f32(&angles.sin, &dims)?,
        }))
    }
}

/// The views' patches with the class token before or after those of each view.
fn insert_class(
    ops: &Ops,
    patches: &Array,
    batch: &TowerBatch,
    (class, token): (ClassToken, &Array),
) -> Result<Array, MlxError> {
    let mut parts = Vec::with_capacity(2 * batch.views.len());
    let mut first = 0;
    for view in &batch.views {
        let end = first + view.patches().len();
        let own = slice_axis(ops, patches, 0, first..end)?;
        match class {
            ClassToken::First => parts.extend([token.clone(), own]),
            ClassToken::Last => parts.extend([own, token.clone()]),
        }
        first = end;
    }
    concatenate(ops, &parts)
}

/// Arrays one after another, in the first dimension.
fn concatenate(ops: &Ops, parts: &[Array]) -> Result<Array, MlxError> {
    match parts {
        [alone] => Ok(alone.clone()),
        parts => ops.concatenate(&parts.iter().collect::<Vec<_>>(), 0),
    }
}

/// For each source the weighted sum of the rows that it names, which `rows` looks up.
fn weighted_rows(
    ops: &Ops,
    sources: &[Vec<(usize, f32)>],
    rows: impl Fn(&Array) -> Result<Array, MlxError>,
) -> Result<Array, MlxError> {
    let count = sources.len() as i32;
    let terms = sources.iter().map(Vec::len).max().unwrap_or(0);
    let mut sum: Option<Array> = None;
    for term in 0..terms {
        let terms = sources.iter().map(|source| source.get(term).copied());
        let (ids, weights): (Vec<i32>, Vec<f32>) = terms
            .map(|term| term.map_or((0, 0.0), |(row, weight)| (row as i32, weight)))
            .unzip();
        let mut own = rows(&ops.upload_i32(&ids, &[count])?)?;
        if weights.iter().any(|weight| *weight != 1.0) {
            own = ops.multiply(&own, &ops.upload_f32(&weights, &[count, 1])?)?;
        }
        sum = Some(match sum {
            Some(sum) => ops.add(&sum, &own)?,
            None => own,
        });
    }
    sum.ok_or_else(|| MlxError("rows without a source".to_owned()))
}

impl TowerLayer {
    /// The stream after the feed-forward.
    fn feed_forward(&self, ops: &Ops, x: Array) -> Result<Array, MlxError> {
        let input = self.mlp_norm.apply(ops, &x)?;
        let up = self.up.apply(ops, &input)?;
        let inner = match &self.gate {
            Some(gate) => self.activation.times(ops, &gate.apply(ops, &input)?, &up)?,
            None => self.activation.alone(ops, &up)?,
        };
        let output = self.down.apply(ops, &inner)?;
        self.mlp_end.add(ops, x, output)
    }
}

impl BranchEnd {
    /// `x += gain * norm(output)`
    fn add(&self, ops: &Ops, x: Array, mut output: Array) -> Result<Array, MlxError> {
        if let Some(norm) = &self.norm {
            output = norm.apply(ops, &output)?;
        }
        if let Some(gain) = &self.gain {
            output = ops.multiply(&output, gain)?;
        }
        ops.add(&x, &output)
    }
}

impl Matrix {
    fn apply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        let Some(Clamp { input, output }) = &self.clamp else {
            return self.linear.apply(ops, x);
        };
        clamp(
            ops,
            &self.linear.apply(ops, &clamp(ops, x, input)?)?,
            output,
        )
    }
}

fn clamp(ops: &Ops, x: &Array, [min, max]: &[Array; 2]) -> Result<Array, MlxError> {
    ops.binary(Binary::Minimum, &ops.binary(Binary::Maximum, x, min)?, max)
}
