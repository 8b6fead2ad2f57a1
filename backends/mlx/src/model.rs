//! A model's weights on the device, and one pass through them.

use loquat_session::OpenError;
use loquat_spec::{
    Block as BlockSpec, Branch as BranchSpec, FeedForward, Inner, Layer as LayerSpec, LayerRole,
    Mixer, ModelSpec, Role, norm_roles,
};

use crate::array::{Array, Fused, Ops, Type};
use crate::blocks::{Block, PerLayerInputs};
use crate::error::MlxError;
use crate::linear::{Linear, Table};
use crate::loader::{LayerLoader, Loader};
use crate::norm::Norm;
use crate::step::Step;

pub struct Model {
    pub dtype: Type,
    embedding: Table,
    embedding_scale: f32,
    positions: Option<Table>,
    per_layer_inputs: Option<PerLayerInputs>,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
    head_scale: f32,
    softcap: Option<Array>,
}

struct Layer {
    blocks: Vec<Residual>,
    /// Multiplies the stream after the last block.
    scale: Option<Array>,
}

/// `x += scale * post(sum of branches(x))`
struct Residual {
    branches: Vec<Branch>,
    post_norm: Option<Norm>,
    scale: f32,
}

/// `post(inner(pre(x) * input_scale) * output_scale)`
struct Branch {
    pre_norm: Option<Norm>,
    input_scale: f32,
    inner: Block,
    output_scale: f32,
    post_norm: Option<Norm>,
}

impl Model {
    pub fn load(
        loader: &Loader,
        spec: &ModelSpec,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        // The head counts as one more layer.
        let parts = spec.layers.len() + 1;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (index, layer) in spec.layers.iter().enumerate() {
            progress(index as f32 / parts as f32);
            layers.push(Layer::load(loader.layer(index), layer)?);
        }
        progress(spec.layers.len() as f32 / parts as f32);
        let head_role = if spec.head.tied {
            Role::Embedding
        } else {
            Role::Head
        };
        let model = Self {
            dtype: loader.dtype,
            embedding: loader.table(Role::Embedding)?,
            embedding_scale: spec.embedding.scale,
            positions: match spec.embedding.positions {
                Some(_) => Some(loader.table(Role::Positions)?),
                None => None,
            },
            per_layer_inputs: match &spec.per_layer_inputs {
                Some(inputs) => Some(PerLayerInputs::load(loader, inputs, spec.vocab_size)?),
                None => None,
            },
            layers,
            final_norm: loader.norm(
                &spec.final_norm,
                Role::FinalNorm,
                Some(Role::FinalNormBias),
            )?,
            head: loader.linear(head_role, Some(Role::HeadBias))?,
            head_scale: spec.head.scale,
            softcap: match spec.head.softcap {
                Some(cap) => Some(loader.ops.upload_f32(&[cap], &[1])?),
                None => None,
            },
        };
        progress(1.0);
        Ok(model)
    }

    /// The residual stream after the last layer, [tokens, hidden], of the tokens `ids`.
    pub fn run(&self, step: &mut Step, ids: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let mut x = self.embedding.rows(ops, ids, self.dtype)?;
        x = scaled(ops, x, self.embedding_scale)?;
        if let Some(table) = &self.positions {
            x = ops.add(&x, &table.rows(ops, &step.positions()?, self.dtype)?)?;
        }
        if let Some(inputs) = &self.per_layer_inputs {
            step.per_layer = Some(inputs.make(ops, &x, ids, self.dtype)?);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for block in &layer.blocks {
                x = block.run(step, index, x)?;
            }
            if let Some(scale) = &layer.scale {
                x = ops.multiply(&x, scale)?;
            }
        }
        Ok(x)
    }

    /// What the head reads, of some tokens' stream.
    pub fn read_out(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        self.final_norm.apply(ops, x)
    }

    /// Logits in float32 from what [`Model::read_out`] gave.
    pub fn logits(&self, ops: &Ops, hidden: &Array) -> Result<Array, MlxError> {
        let logits = self.head.apply(ops, hidden)?;
        let logits = ops.astype(&logits, Type::F32)?;
        let logits = scaled(ops, logits, self.head_scale)?;
        match &self.softcap {
            Some(cap) => ops.fused(Fused::Softcap, &[&logits, cap]),
            None => Ok(logits),
        }
    }
}

impl Layer {
    fn load(loader: LayerLoader, spec: &LayerSpec) -> Result<Self, OpenError> {
        let blocks = spec
            .blocks
            .iter()
            .map(|block| Residual::load(loader, block));
        Ok(Self {
            blocks: blocks.collect::<Result<_, _>>()?,
            scale: if spec.scaled {
                Some(loader.vector(LayerRole::LayerScale)?)
            } else {
                None
            },
        })
    }
}

impl Residual {
    fn load(loader: LayerLoader, spec: &BlockSpec) -> Result<Self, OpenError> {
        let branches = spec
            .branches
            .iter()
            .map(|branch| Branch::load(loader, branch));
        Ok(Self {
            branches: branches.collect::<Result<_, _>>()?,
            post_norm: loader.optional_norm(LayerRole::SumPostNorm, spec.post_norm.as_ref())?,
            scale: spec.residual_scale,
        })
    }

    fn run(&self, step: &mut Step, layer: usize, x: Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let mut sum: Option<Array> = None;
        for branch in &self.branches {
            let answer = branch.run(step, layer, &x)?;
            sum = Some(match sum {
                Some(sum) => ops.add(&sum, &answer)?,
                None => answer,
            });
        }
        let Some(mut sum) = sum else {
            return Ok(x);
        };
        if let Some(norm) = &self.post_norm {
            sum = norm.apply(ops, &sum)?;
        }
        ops.add(&x, &scaled(ops, sum, self.scale)?)
    }
}

impl Branch {
    fn load(loader: LayerLoader, spec: &BranchSpec) -> Result<Self, OpenError> {
        let (pre, post) = norm_roles(&spec.inner);
        Ok(Self {
            pre_norm: loader.optional_norm(pre, spec.pre_norm.as_ref())?,
            input_scale: spec.input_scale,
            inner: Block::load(loader, &spec.inner)?,
            output_scale: spec.output_scale,
            post_norm: loader.optional_norm(post, spec.post_norm.as_ref())?,
        })
    }

    fn run(&self, step: &mut Step, layer: usize, stream: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let input = match &self.pre_norm {
            Some(norm) => norm.apply(ops, stream)?,
            None => stream.clone(),
        };
        let input = scaled(ops, input, self.input_scale)?;
        let answer = self.inner.run(step, layer, &input, stream)?;
        let answer = scaled(ops, answer, self.output_scale)?;
        match &self.post_norm {
            Some(norm) => norm.apply(ops, &answer),
            None => Ok(answer),
        }
    }
}

/// About what a step over so many tokens takes while it runs: the widest block's activations, a
/// few of them alive at once, and a row of logits.
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

/// Values that a block makes of each token.
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

/// Times a number that is mostly one.
fn scaled(ops: &Ops, x: Array, factor: f32) -> Result<Array, MlxError> {
    if factor == 1.0 {
        Ok(x)
    } else {
        ops.scale(&x, factor)
    }
}
