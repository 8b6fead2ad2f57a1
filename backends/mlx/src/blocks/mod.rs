//! The spec's block kinds on MLX: each file has the weights of a kind, their loading and their
//! computation.
//!
//! The input of a block is its branch's input, [tokens, hidden]; the output has the same shape.

mod attention;
mod delta_rule;
mod dense;
mod experts;
mod latent;
mod linear_state;
mod mamba2;
mod per_layer;
mod recurrent;
mod short_conv;

use loquat_session::OpenError;
use loquat_spec::{FeedForward, Inner as InnerSpec, Mixer};

use crate::array::Array;
use crate::error::MlxError;
use crate::loader::LayerLoader;
use crate::step::Step;

use attention::Attention;
use delta_rule::DeltaRule;
use dense::Dense;
pub use dense::Function;
use experts::Experts;
use latent::Latent;
use mamba2::Mamba2;
use per_layer::PerLayerInput;
pub use per_layer::PerLayerInputs;
use short_conv::ShortConv;

pub enum Block {
    Attention(Attention),
    Latent(Latent),
    ShortConv(ShortConv),
    DeltaRule(DeltaRule),
    Mamba2(Mamba2),
    Dense(Dense),
    Experts(Box<Experts>),
    PerLayerInput(PerLayerInput),
}

impl Block {
    pub fn load(loader: LayerLoader, spec: &InnerSpec) -> Result<Self, OpenError> {
        Ok(match spec {
            InnerSpec::Mixer(Mixer::Attention(spec)) => {
                Self::Attention(Attention::load(loader, spec)?)
            }
            InnerSpec::Mixer(Mixer::Latent(spec)) => Self::Latent(Latent::load(loader, spec)?),
            InnerSpec::Mixer(Mixer::ShortConv(spec)) => {
                Self::ShortConv(ShortConv::load(loader, spec)?)
            }
            InnerSpec::Mixer(Mixer::DeltaRule(spec)) => {
                Self::DeltaRule(DeltaRule::load(loader, spec)?)
            }
            InnerSpec::Mixer(Mixer::Mamba2(spec)) => Self::Mamba2(Mamba2::load(loader, spec)?),
            InnerSpec::FeedForward(FeedForward::Dense(spec)) => {
                Self::Dense(Dense::load(loader, spec)?)
            }
            InnerSpec::FeedForward(FeedForward::Experts(spec)) => {
                Self::Experts(Box::new(Experts::load(loader, spec)?))
            }
            InnerSpec::FeedForward(FeedForward::PerLayerInput { dim, activation }) => {
                Self::PerLayerInput(PerLayerInput::load(loader, *dim, *activation)?)
            }
        })
    }

    /// `stream` is the residual stream that `x` was computed from, which some routers read.
    pub fn run(
        &self,
        step: &mut Step,
        layer: usize,
        x: &Array,
        stream: &Array,
    ) -> Result<Array, MlxError> {
        match self {
            Self::Attention(block) => block.run(step, layer, x),
            Self::Latent(block) => block.run(step, layer, x),
            Self::ShortConv(block) => block.run(step, layer, x),
            Self::DeltaRule(block) => block.run(step, layer, x),
            Self::Mamba2(block) => block.run(step, layer, x),
            Self::Dense(block) => block.run(step.ops, x, &step.adapters),
            Self::Experts(block) => block.run(step.ops, x, stream, &step.adapters),
            Self::PerLayerInput(block) => block.run(step, layer, x),
        }
    }
}
