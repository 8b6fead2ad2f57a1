//! From what a person typed to a model that answers.

use std::num::NonZeroUsize;

pub use loquat::ModelFiles as Model;
use loquat_engine::{Engine, EngineOptions};
use loquat_session::{Backend, Session, SessionOptions};
use loquat_store::{ModelQuery, ResolvedModel, Store, StoreOptions};
use loquat_text::Tokenizer;

use crate::args::{Chosen, NetworkArgs, SessionArgs};
use crate::backends;
use crate::error::CliError;
use crate::progress::{DownloadBar, ShareBar};

pub fn open_store() -> Result<Store, CliError> {
    open_store_on(NetworkArgs::default())
}

pub fn open_store_on(network: NetworkArgs) -> Result<Store, CliError> {
    let mut options = StoreOptions::default();
    options.hub.offline = network.offline;
    Ok(Store::open(options)?)
}

/// The files of a model, downloaded if they are not here yet.
pub fn locate(store: &Store, chosen: &Chosen) -> Result<ResolvedModel, CliError> {
    let reference = match &chosen.reference {
        Some(reference) => reference.clone(),
        None => store.default_model().to_string(),
    };
    let wanted = ModelQuery {
        reference: &reference,
        kind: chosen.kind,
    };
    Ok(store.locate(&wanted, &mut DownloadBar::default())?)
}

/// Loads a model's weights, showing how far it is.
pub fn session(
    model: &Model,
    backend: &dyn Backend,
    options: &SessionOptions,
) -> Result<Box<dyn Session>, CliError> {
    if let Ok(store) = open_store() {
        backends::introduce(backend, store.cache_dir());
    }
    let bar = ShareBar::start(&format!("loading {}", model.name));
    Ok(model.session(backend, options, &mut |share| bar.set(share))?)
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
        let session = session(model, backend, &args.options(1))?;
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
