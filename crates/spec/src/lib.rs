//! Model families as data: a checkpoint's config becomes one block-level [`ModelSpec`].
//!
//! A family is a function from a config (Hugging Face `config.json` or a GGUF header) to a
//! spec, plus the names its tensors go by. This crate reads no tensor, knows no backend and
//! multiplies nothing; it says *what* a model computes, and leaves *how* to the backends.

mod config;
mod error;
pub mod families;
mod model;
mod naming;
mod rope;
mod validate;

pub use config::{Config, GgufHeader};
pub use error::SpecError;
pub use model::{
    Activation, Attention, Block, FeedForward, Head, Layer, Mixer, ModelSpec, Norm, NormKind,
};
pub use naming::{Kind, LayerRole, Naming, Role, Slot, Transform};
pub use rope::{Rope, RopeScaling};
