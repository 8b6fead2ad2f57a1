//! The models that are served: opened when they are needed, closed when they are not.
//!
//! Every model of the configuration has a [`slot`], which goes from unloaded through opening,
//! ready, draining and closing back to unloaded. One lock guards all of them, since they share
//! memory ([`room`]). An [`opening`] is a task of its own, which many askers wait for; the
//! [`keeper`] is the one task that closes.

mod keeper;
mod lease;
mod loaded;
mod opening;
mod reconfigure;
mod registry;
mod room;
mod slot;
mod status;
#[cfg(test)]
mod tests;

use crate::config::Model;

pub use lease::Lease;
pub use loaded::Loaded;
pub use registry::{Models, model_not_found};
pub use slot::KeepAlive;
pub use status::{ModelState, ModelStatus};

/// Finds and opens models. Whoever implements it names backends and knows files; both calls may
/// take long and are made where that blocks nobody.
pub trait Opener: Send + Sync + 'static {
    /// What the model would take, without loading it.
    fn plan(&self, model: &Model) -> Result<Planned, OpenFailure>;

    fn open(&self, model: &Model) -> Result<Opened, OpenFailure>;
}

/// What a model will be like once it is open.
#[derive(Debug, Clone)]
pub struct Planned {
    pub info: ModelInfo,
    /// All memory it will come to take.
    pub resident_bytes: u64,
}

/// What an [`Opener`] returns.
pub struct Opened {
    pub model: loquat::Model,
    pub info: ModelInfo,
    pub resident_bytes: u64,
}

/// Why a model cannot be opened: for the log and for operators.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct OpenFailure(pub String);

/// What clients and people are told about a model.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// As the checkpoint's `model_type`: `llama`.
    pub family: String,
    /// `gguf`, `safetensors`, `mlx`.
    pub format: String,
    /// `Q4_1`, `bf16`…
    pub quantization: String,
    pub parameters: u64,
    /// Of its files.
    pub size_bytes: u64,
    /// Its files' time, in seconds since 1970.
    pub modified: u64,
    pub backend: String,
    pub device: String,
    /// Its weights are in a GPU's memory.
    pub on_gpu: bool,
    /// Longest context as it is (or will be) opened.
    pub context: usize,
    pub has_template: bool,
    pub tools: bool,
    pub thinking: bool,
    pub embeddings: bool,
    /// The template's text, for Ollama's `show`.
    pub template: Option<String>,
}
