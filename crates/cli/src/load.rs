//! From what a person typed to a model that answers.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use loquat_engine::{Engine, EngineOptions};
use loquat_session::{Backend, ModelSource, Session, SessionOptions};
use loquat_store::{Resolved, Store, StoreOptions};
use loquat_text::{ChatTemplate, GenerationConfig, TextError, Tokenizer};
use loquat_weights::{Checkpoint, Format};

use crate::args::SessionArgs;
use crate::backends;
use crate::error::CliError;
use crate::progress::{DownloadBar, ShareBar};

pub fn open_store() -> Result<Store, CliError> {
    Ok(Store::open(StoreOptions::default())?)
}

/// The files of a model, downloaded if they are not here yet.
pub fn locate(store: &Store, reference: Option<&str>) -> Result<PathBuf, CliError> {
    let entry = match reference {
        None => store.default_model(),
        Some(reference) => match store.resolve(reference)? {
            Resolved::Local(path) => return Ok(path),
            Resolved::Catalog(entry) => entry,
        },
    };
    Ok(store.fetch(entry, &mut DownloadBar::default())?)
}

/// A checkpoint with its weights bound: enough to open sessions and to describe it.
pub struct Model {
    pub name: String,
    pub checkpoint: Checkpoint,
    pub source: ModelSource,
}

impl Model {
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Self::of(name.to_string_lossy().into_owned(), Checkpoint::open(path)?)
    }

    pub fn of(name: String, checkpoint: Checkpoint) -> Result<Self, CliError> {
        let source = ModelSource {
            spec: Arc::new(checkpoint.spec.clone()),
            weights: Arc::new(checkpoint.bind()?),
            paths: checkpoint.paths.clone(),
        };
        Ok(Self {
            name,
            checkpoint,
            source,
        })
    }

    /// In matrices, which are all but all of them.
    pub fn parameters(&self) -> usize {
        let matrices = self.source.weights.matrices();
        matrices
            .map(|(_, matrix)| matrix.rows() * matrix.cols())
            .sum()
    }

    pub fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => Tokenizer::from_gguf(metadata)?,
            None => Tokenizer::from_huggingface(self.checkpoint.directory())?,
        })
    }

    /// `None` where the model brings no template; a broken one is an error.
    pub fn template(&self) -> Result<Option<ChatTemplate>, CliError> {
        let template = match (self.checkpoint.format, self.checkpoint.gguf_metadata()) {
            (Format::Gguf, Some(metadata)) => ChatTemplate::from_gguf(metadata),
            _ => ChatTemplate::from_huggingface(self.checkpoint.directory()),
        };
        match template {
            Ok(template) => Ok(Some(template)),
            Err(TextError::NoChatTemplate) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How the checkpoint's authors want it sampled.
    pub fn generation_config(&self) -> Result<GenerationConfig, CliError> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => GenerationConfig::from_gguf(metadata)?,
            None => GenerationConfig::from_huggingface(self.checkpoint.directory())?,
        })
    }

    pub fn session(
        &self,
        backend: &dyn Backend,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, CliError> {
        backends::introduce(backend);
        for note in backend.plan(&self.source, options)?.notes {
            tracing::info!("{note}");
        }
        let started = Instant::now();
        let bar = ShareBar::start(&format!("loading {}", self.name));
        let session = backend.open(self.source.clone(), options, &mut |share| bar.set(share))?;
        drop(bar);
        tracing::info!(
            "loaded {} on {} in {:.2} s",
            self.name,
            session.capabilities().device,
            started.elapsed().as_secs_f64()
        );
        Ok(session)
    }
}

/// A model ready to generate for one person.
pub struct Speaker {
    pub engine: Engine,
    pub tokenizer: Tokenizer,
}

impl Speaker {
    pub fn load(
        model: &Model,
        tokenizer: Tokenizer,
        backend: &dyn Backend,
        args: &SessionArgs,
    ) -> Result<Self, CliError> {
        let session = model.session(backend, &args.options(1))?;
        let engine = Engine::start(session, Some(tokenizer.clone()), EngineOptions::default())?;
        Ok(Self { engine, tokenizer })
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn room(&self) -> usize {
        let context = self.engine.capabilities().max_context;
        context.min(self.engine.memory().kv_capacity)
    }

    /// What to ask for when nobody said: [`DEFAULT_MAX_TOKENS`], or what the context and the
    /// KV memory have room for.
    pub fn max_tokens(&self, asked: Option<NonZeroUsize>, prompt: usize) -> usize {
        asked.map(NonZeroUsize::get).unwrap_or_else(|| {
            let room = self.room().saturating_sub(prompt);
            DEFAULT_MAX_TOKENS.min(room.max(1))
        })
    }
}

const DEFAULT_MAX_TOKENS: usize = 1024;
