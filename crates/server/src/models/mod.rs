//! The models that are served: opened on demand, closed when idle.
//!
//! Every model of the configuration has a [`slot`], which goes from unloaded through opening,
//! ready, draining and closing back to unloaded. One lock guards all slots, since they share
//! memory ([`room`]). Each [`opening`] is a task that many requests may wait for; the [`keeper`]
//! is the only task that closes models.

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

use std::sync::Arc;

use crate::config::Model;

pub use lease::Lease;
pub use loaded::Loaded;
pub use registry::{Models, model_not_found};
pub use slot::KeepAlive;
pub use status::{ModelState, ModelStatus};

/// Finds and opens models. The implementation knows files and backends. Both methods may block;
/// they run on blocking threads.
pub trait Opener: Send + Sync + 'static {
    /// What the model would need, without loading it.
    fn plan(&self, model: &Model) -> Result<Planned, OpenFailure>;

    /// Loads the model.
    fn open(&self, model: &Model) -> Result<Opened, OpenFailure>;
}

/// A model before it is opened.
#[derive(Debug, Clone)]
pub struct Planned {
    pub info: ModelInfo,
    /// All memory it will take.
    pub resident_bytes: u64,
}

/// What an [`Opener`] returns.
pub struct Opened {
    pub model: loquat::Model,
    pub info: ModelInfo,
    pub resident_bytes: u64,
}

/// Why a model cannot be opened. Goes to the log and to operators, not to clients.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenFailure {
    /// The [`Opener`] failed.
    #[error("{0}")]
    Opener(Arc<dyn std::error::Error + Send + Sync>),
    #[error("its sampling parameters are invalid: {0}")]
    Sampling(String),
    #[error("opening it panicked: {0}")]
    Panicked(String),
    #[error("it was not planned")]
    NotPlanned,
}

impl OpenFailure {
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Opener(error.into().into())
    }
}

/// What clients and operators see of a model.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// The checkpoint's `model_type`, such as `llama`.
    pub family: String,
    /// `gguf`, `safetensors`, `mlx`.
    pub format: String,
    /// `Q4_1`, `bf16`…
    pub quantization: String,
    pub parameters: u64,
    /// Of its files.
    pub size_bytes: u64,
    /// When its files changed, in seconds since 1970.
    pub modified: u64,
    pub backend: String,
    pub device: String,
    /// Its weights are in a GPU's memory.
    pub on_gpu: bool,
    /// Longest context it is opened with.
    pub context: usize,
    pub has_template: bool,
    pub tools: bool,
    pub thinking: bool,
    pub embeddings: bool,
    /// The template's text, for Ollama's `show`.
    pub template: Option<String>,
}
