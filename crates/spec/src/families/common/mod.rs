//! Code shared by several families for configs, headers and tensor names. Each file covers one
//! topic.

mod experts;
mod fields;
mod gguf;
mod gguf_experts;
mod granite;
mod latent;
mod layers;
mod mamba;
mod names;
mod recurrent;
mod sizes;

pub(super) use experts::*;
pub(super) use fields::*;
pub(super) use gguf::*;
pub(super) use gguf_experts::*;
pub(super) use granite::*;
pub(super) use latent::*;
pub(super) use layers::*;
pub(super) use mamba::*;
pub(super) use names::*;
pub(super) use recurrent::*;
pub(super) use sizes::*;
