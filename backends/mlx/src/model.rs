//! A model's weights on the device, and one pass through them.

use std::collections::BTreeMap;

use loquat_session::loading::{
    LoadedBlock, LoadedBranch, LoadedLayer, head_role, load_final_norm, load_layers,
};
use loquat_session::{AdapterId, AdapterLimits, OpenError};
use loquat_spec::{FeedForward, Inner, MediaAttention, Mixer, ModelSpec, Role};

use crate::adapted::StepAdapters;
use crate::adapter::{self, LoadedAdapter};
use crate::array::{Array, Fused, Ops, Type};
use crate::blocks::{Block, PerLayerInputs};
use crate::error::MlxError;
use crate::linear::{Linear, Table};
use crate::loader::{Adaptable, Loader};
use crate::norm::StreamNorm;
use crate::step::Step;
use crate::tower::Tower;

pub struct Model {
    pub dtype: Type,
    /// What positions of media attend to.
    pub media_attention: MediaAttention,
    /// The token id that embedding lookup uses as a placeholder at positions of media.
    pub media_token: u32,
    /// `None` if the model has none, or the session takes no pictures.
    pub tower: Option<Tower>,
    /// The session's adapters.
    pub adapters: BTreeMap<AdapterId, LoadedAdapter>,
    pub adaptable: Adaptable,
    embedding: Table,
    embedding_scale: f32,
    positions: Option<Table>,
    per_layer_inputs: Option<PerLayerInputs>,
    layers: Vec<LoadedLayer<StreamNorm, Block, Array>>,
    final_norm: StreamNorm,
    head: Linear,
    head_scale: f32,
    softcap: Option<Array>,
}

impl Model {
    /// `runs_tower`: with the tower, if the model has one.
    pub fn load(
        loader: Loader,
        spec: &ModelSpec,
        runs_tower: bool,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        let mut parts = &loader;
        let layers = load_layers(&mut parts, spec, loader.weights, progress)?;
        let vision = spec.vision.as_ref().filter(|_| runs_tower);
        let per_layer = spec.per_layer_inputs.as_ref();
        let mut model = Self {
            dtype: loader.dtype,
            media_attention: spec.media_attention(),
            media_token: per_layer.map_or(0, |inputs| inputs.media_token),
            tower: vision
                .map(|vision| Tower::load(&loader, vision))
                .transpose()?,
            adapters: BTreeMap::new(),
            adaptable: Adaptable::default(),
            embedding: loader.table(Role::Embedding)?,
            embedding_scale: spec.embedding.scale,
            positions: match spec.embedding.positions {
                Some(_) => Some(loader.table(Role::Positions)?),
                None => None,
            },
            per_layer_inputs: match &spec.per_layer_inputs {
                Some(inputs) => Some(PerLayerInputs::load(&loader, inputs, spec.vocab_size)?),
                None => None,
            },
            layers,
            final_norm: load_final_norm(&mut parts, spec, loader.weights)?,
            head: loader.head(head_role(spec))?,
            head_scale: spec.head.scale,
            softcap: match spec.head.softcap {
                Some(cap) => Some(loader.ops.upload_f32(&[cap], &[1])?),
                None => None,
            },
        };
        model.adaptable = loader.into_adaptable();
        progress(1.0);
        Ok(model)
    }

    /// The residual stream after the last layer, [tokens, hidden], of the tokens `ids`.
    pub fn run(&self, step: &mut Step, ids: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let mut x = self.embed(ops, ids, &step.adapters)?;
        x = scaled(ops, x, self.embedding_scale)?;
        x = step.media.embed(ops, x)?;
        if let Some(table) = &self.positions {
            x = ops.add(&x, &table.rows(ops, &step.positions()?, self.dtype)?)?;
        }
        if let Some(inputs) = &self.per_layer_inputs {
            step.per_layer = Some(inputs.compute(step, &x, ids)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for block in &layer.blocks {
                x = run_block(block, step, index, x)?;
            }
            if let Some(scale) = &layer.scale {
                x = ops.multiply(&x, scale)?;
            }
            x = step.media.add(ops, x, 1 + index)?;
        }
        Ok(x)
    }

    /// The tokens' rows of the table.
    fn embed(&self, ops: &Ops, ids: &Array, adapters: &StepAdapters) -> Result<Array, MlxError> {
        let changes =
            |adapter: &LoadedAdapter| adapter.embedding().is_some() || adapter.table().is_some();
        if !adapters.any(changes) {
            return self.embedding.rows(ops, ids, self.dtype);
        }
        adapters.each_segment(ops, 0, |segment| {
            let ids = segment.part(ops, ids, 0)?;
            let mut applied = segment.applied.iter();
            let replaced = applied.find_map(|applied| applied.adapter.table());
            let table = replaced.unwrap_or(&self.embedding);
            let base = table.rows(ops, &ids, self.dtype)?;
            let mut x = base.clone();
            for applied in &segment.applied {
                if let Some(change) = applied.adapter.embedding() {
                    x = change.add(ops, [&x, &base], &ids, applied.scale)?;
                }
            }
            Ok(x)
        })
    }

    /// Rows of the table without adapters, [ids, hidden] of type `to`.
    pub fn table_rows(&self, ops: &Ops, ids: &Array, to: Type) -> Result<Array, MlxError> {
        self.embedding.rows(ops, ids, to)
    }

    /// The input of the head for some tokens' stream.
    pub fn read_out(
        &self,
        ops: &Ops,
        x: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        self.final_norm.adapted(ops, x, adapters)
    }

    /// Logits in float32 from the result of [`Model::read_out`].
    pub fn logits(
        &self,
        ops: &Ops,
        hidden: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        let logits = self.head.adapted(ops, hidden, adapters)?;
        let logits = ops.astype(&logits, Type::F32)?;
        let logits = scaled(ops, logits, self.head_scale)?;
        match &self.softcap {
            Some(cap) => ops.fused(Fused::Softcap, &[&logits, cap]),
            None => Ok(logits),
        }
    }
}

fn run_block(
    block: &LoadedBlock<StreamNorm, Block>,
    step: &mut Step,
    layer: usize,
    x: Array,
) -> Result<Array, MlxError> {
    let ops = step.ops;
    let mut sum: Option<Array> = None;
    for branch in &block.branches {
        let answer = run_branch(branch, step, layer, &x)?;
        sum = Some(match sum {
            Some(sum) => ops.add(&sum, &answer)?,
            None => answer,
        });
    }
    let Some(mut sum) = sum else {
        return Ok(x);
    };
    if let Some(norm) = &block.post_norm {
        sum = norm.adapted(ops, &sum, &step.adapters)?;
    }
    ops.add(&x, &scaled(ops, sum, block.residual_scale)?)
}

fn run_branch(
    branch: &LoadedBranch<StreamNorm, Block>,
    step: &mut Step,
    layer: usize,
    stream: &Array,
) -> Result<Array, MlxError> {
    let ops = step.ops;
    let input = match &branch.pre_norm {
        Some(norm) => norm.adapted(ops, stream, &step.adapters)?,
        None => stream.clone(),
    };
    let input = scaled(ops, input, branch.input_scale)?;
    let answer = branch.inner.run(step, layer, &input, stream)?;
    let answer = scaled(ops, answer, branch.output_scale)?;
    match &branch.post_norm {
        Some(norm) => norm.adapted(ops, &answer, &step.adapters),
        None => Ok(answer),
    }
}

/// Estimates the memory of a step over `tokens` tokens: a few of the widest block's activations,
/// and a row of logits.
pub fn buffer_bytes(spec: &ModelSpec, tokens: usize, dtype: Type) -> u64 {
    const ALIVE: u64 = 4;
    let widest = spec.branches().map(|(_, branch)| width(&branch.inner));
    let widest = widest.max().unwrap_or(0).max(spec.hidden_size);
    let values = (tokens as u64).saturating_mul(widest as u64);
    let logits = spec.vocab_size as u64 * 2 * Type::F32.bytes() as u64;
    values
        .saturating_mul(ALIVE * dtype.bytes() as u64)
        .saturating_add(logits)
}

/// Estimates what adapters add to that: the widest block's outputs before and after their changes,
/// the first factors' products, and what loading decodes.
pub fn adapter_bytes(spec: &ModelSpec, tokens: usize, dtype: Type, limits: &AdapterLimits) -> u64 {
    if !limits.any() {
        return 0;
    }
    let widest = spec.branches().map(|(_, branch)| width(&branch.inner));
    let values = 2 * widest.max().unwrap_or(0).max(spec.hidden_size) + limits.rank;
    let per_token = (values * dtype.bytes()) as u64;
    let step = per_token.saturating_mul(tokens as u64);
    step.saturating_add(adapter::LOAD_BYTES)
}

/// Values that a block computes per token.
fn width(inner: &Inner) -> usize {
    match inner {
        Inner::Mixer(Mixer::Attention(a)) => a.query_len() + a.key_len() + a.value_len(),
        Inner::Mixer(Mixer::Latent(latent)) => latent.heads * latent.cached_len(),
        Inner::Mixer(Mixer::ShortConv(conv)) => 3 * conv.channels,
        Inner::Mixer(Mixer::DeltaRule(delta)) => 2 * delta.conv_len(),
        Inner::Mixer(Mixer::Mamba2(mamba)) => 2 * mamba.projected_len(),
        Inner::FeedForward(FeedForward::Dense(dense)) => 2 * dense.size,
        Inner::FeedForward(FeedForward::Experts(experts)) => {
            2 * experts.top_k * experts.expert.size
        }
        Inner::FeedForward(FeedForward::PerLayerInput { dim, .. }) => *dim,
    }
}

/// Multiplies by a factor that is usually one.
fn scaled(ops: &Ops, x: Array, factor: f32) -> Result<Array, MlxError> {
    if factor == 1.0 {
        Ok(x)
    } else {
        ops.scale(&x, factor)
    }
}
