//! The models that are served: opened when they are needed, closed when they are not.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use loquat_chat::Chat;
use loquat_engine::{Engine, SamplingParams};

use crate::config::{Config, Model, Pooling};
use crate::error::{ApiError, ErrorKind};

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

/// A model at work.
pub struct Opened {
    pub engine: Engine,
    pub chat: Chat,
    /// How to sample where neither a request nor the configuration says.
    pub sampling: SamplingParams,
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
    /// Longest context as it is (or will be) opened.
    pub context: usize,
    pub has_template: bool,
    pub tools: bool,
    pub thinking: bool,
    pub embeddings: bool,
    /// The template's text, for Ollama's `show`.
    pub template: Option<String>,
}

/// An open model under its name.
pub struct Loaded {
    /// The configuration's name for it.
    pub id: String,
    pub engine: Engine,
    pub chat: Chat,
    /// In force where a request does not say otherwise.
    pub sampling: SamplingParams,
    pub info: ModelInfo,
    pub pooling: Pooling,
    pub resident_bytes: u64,
    default_max_tokens: usize,
}

impl Loaded {
    /// The most tokens that a prompt and its reply can have together.
    pub fn room(&self) -> usize {
        let context = self.engine.capabilities().max_context;
        context.min(self.engine.memory().kv_capacity)
    }

    /// What a request asks for, which the engine refuses where it does not fit; otherwise what the
    /// configuration says, or what there is room for.
    pub fn max_tokens(&self, asked: Option<usize>, prompt: usize) -> usize {
        asked.unwrap_or_else(|| {
            let room = self.room().saturating_sub(prompt);
            self.default_max_tokens.min(room.max(1))
        })
    }
}

/// A model in use: while any lease is held it is not unloaded.
#[derive(Clone)]
pub struct Lease(Arc<Loaded>);

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.0
    }
}

/// All models of the configuration.
pub struct Models {
    opener: Arc<dyn Opener>,
    configured: Vec<Model>,
    open: RwLock<HashMap<String, Arc<Loaded>>>,
}

impl Models {
    pub fn new(config: &Config, opener: Arc<dyn Opener>) -> Self {
        Self {
            opener,
            configured: config.models.clone(),
            open: RwLock::default(),
        }
    }

    /// The model of that name or alias, opened if it is not yet. It stays open while the lease is
    /// held.
    pub async fn lease(&self, name: &str) -> Result<Lease, ApiError> {
        let model = self.find(name)?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = open.get(&model.name) {
            return Ok(Lease(Arc::clone(loaded)));
        }
        drop(open);
        let opened = self.opener.open(model);
        let Opened {
            engine,
            chat,
            sampling,
            info,
            resident_bytes,
        } = opened.map_err(|error| ApiError::internal(&error))?;
        let loaded = Arc::new(Loaded {
            id: model.name.clone(),
            engine,
            chat,
            sampling,
            info,
            pooling: model.pooling,
            resident_bytes,
            default_max_tokens: model.max_tokens,
        });
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let loaded = open.entry(model.name.clone()).or_insert(loaded);
        Ok(Lease(Arc::clone(loaded)))
    }

    fn find(&self, name: &str) -> Result<&Model, ApiError> {
        let is = |model: &&Model| model.name == name || model.aliases.iter().any(|a| a == name);
        self.configured
            .iter()
            .find(is)
            .ok_or_else(|| unknown(name, &self.configured))
    }
}

fn unknown(name: &str, known: &[Model]) -> ApiError {
    let known: Vec<_> = known.iter().map(|model| model.name.as_str()).collect();
    let what = format!(
        "the model `{name}` is not served here; served: {}",
        known.join(", ")
    );
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::new(ErrorKind::NotFound, what)
    }
    .code("model_not_found")
}
