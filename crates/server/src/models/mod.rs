//! The served models: loaded on demand, unloaded when idle.
//!
//! Every model of the configuration has a [`slot`], which goes from unloaded through opening,
//! ready, draining and closing back to unloaded. One lock guards all slots, since they share a
//! [`memory_budget`]. An [`opening`] is a task that many requests wait for; the [`unloader`] is the
//! one task that closes models, and the [`watchdog`] restarts those that hang.

mod adapters;
mod lease;
mod loaded;
mod memory_budget;
mod opening;
mod reconfigure;
mod registry;
mod slot;
mod status;
#[cfg(test)]
mod tests;
mod unloader;
mod watchdog;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::ModelConfig;
use crate::error::ApiError;

pub use adapters::{AdapterStatus, ChosenModel, NewAdapter, adapter_gone, adapter_not_found};
pub use lease::Lease;
pub use loaded::Loaded;
pub use registry::{Models, model_not_found};
pub use slot::{KeepAlive, matches_pattern};
pub use status::{ModelState, ModelStatus};

/// Finds and opens models. Implementations know backends and files. Both methods may block; they
/// are called off the async threads.
pub trait Opener: Send + Sync + 'static {
    /// Inspects the model without loading it.
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure>;

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure>;

    /// The file or folder of an adapter by its configured source.
    fn locate_adapter(&self, source: &str) -> Result<PathBuf, OpenFailure> {
        Ok(PathBuf::from(source))
    }
}

/// What a model needs, before it is loaded.
#[derive(Debug, Clone)]
pub struct Planned {
    pub info: ModelInfo,
    /// All memory it will use.
    pub resident_bytes: u64,
}

/// What an [`Opener`] returns.
pub struct Opened {
    pub model: loquat::Model,
    pub info: ModelInfo,
    pub resident_bytes: u64,
}

/// Why a model cannot be opened. For the log and operators only: it may name paths.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenFailure {
    /// The opener's own error.
    #[error("{0}")]
    Opener(Arc<dyn Error + Send + Sync>),
    /// The configured sampling parameters are invalid for this model.
    #[error("invalid sampling parameters: {}", .0.message)]
    Sampling(Box<ApiError>),
    /// The opener panicked.
    #[error("{0}")]
    Panicked(Arc<tokio::task::JoinError>),
    /// The model was not inspected.
    #[error("its memory needs are unknown")]
    NotInspected,
}

impl OpenFailure {
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Opener(error.into().into())
    }
}

impl From<tokio::task::JoinError> for OpenFailure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Panicked(Arc::new(error))
    }
}

/// Details of a model for clients and operators.
#[derive(Debug, Clone, Default)]
pub struct ModelInfo {
    /// As the checkpoint's `model_type`: `llama`.
    pub family: String,
    /// `gguf`, `safetensors`, `mlx`.
    pub format: String,
    /// `Q4_1`, `bf16`…
    pub quantization: String,
    pub parameters: u64,
    /// The size of its files.
    pub size_bytes: u64,
    /// The modification time of its files, in seconds since 1970.
    pub modified: u64,
    pub backend: String,
    pub device: String,
    /// Its weights are in a GPU's memory.
    pub on_gpu: bool,
    /// The longest context it is, or will be, opened with.
    pub context: usize,
    pub has_template: bool,
    pub tools: bool,
    pub thinking: bool,
    pub embeddings: bool,
    /// Reads images.
    pub images: bool,
    /// Reads videos.
    pub videos: bool,
    /// The template's text, for Ollama's `show`.
    pub template: Option<String>,
}

impl ModelInfo {
    /// What the model reads, by OpenAI's names.
    pub fn input_modalities(&self) -> Vec<&'static str> {
        let all = [
            ("text", true),
            ("image", self.images),
            ("video", self.videos),
        ];
        let read = all.into_iter().filter(|(_, reads)| *reads);
        read.map(|(name, _)| name).collect()
    }
}
