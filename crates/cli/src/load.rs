//! Finding and loading models, with progress bars.

use std::path::Path;

use loquat::{AdapterFile, ModelFiles, OpenAdapters};
use loquat_chat::ChatContext;
use loquat_engine::{DiskOptions, EngineOptions};
use loquat_session::{Backend, Session, SessionOptions};
use loquat_store::{ModelQuery, ResolvedModel, Store, StoreOptions};

use crate::args::{ModelChoice, NetworkArgs};
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

/// The files of a model, downloaded if they are not on this machine.
pub fn locate(store: &Store, chosen: &ModelChoice) -> Result<ResolvedModel, CliError> {
    let reference = match &chosen.reference {
        Some(reference) => reference.clone(),
        None => store.default_model().to_string(),
    };
    let wanted = ModelQuery {
        reference: &reference,
        kind: chosen.kind,
        mmproj: chosen.mmproj.query(),
    };
    Ok(store.locate(&wanted, &mut DownloadBar::default())?)
}

/// The adapters of a model, downloaded if they are not on this machine.
pub fn adapters(
    store: &Store,
    files: &ModelFiles,
    wanted: &[AdapterFile],
) -> Result<OpenAdapters, CliError> {
    Ok(files.open_adapters(wanted, store, &mut DownloadBar::default())?)
}

/// Loads a model's weights.
pub fn session(
    files: &ModelFiles,
    backend: &dyn Backend,
    options: &SessionOptions,
) -> Result<Box<dyn Session>, CliError> {
    if let Ok(store) = open_store() {
        backends::warn_if_experimental(backend, store.cache_dir());
    }
    let bar = ShareBar::start(&format!("loading {}", files.name));
    Ok(files.session(backend, options, &mut |share| bar.set(share))?)
}

/// Where cached prefixes are stored.
pub fn kv_blocks(cache_dir: &Path, max_bytes: u64) -> DiskOptions {
    DiskOptions {
        folder: cache_dir.join("kv-blocks"),
        max_bytes,
        required: true,
    }
}

/// What to load a model with.
pub struct LoadOptions<'a> {
    pub backend: &'a dyn Backend,
    pub session: SessionOptions,
    pub engine: EngineOptions,
    pub adapters: OpenAdapters,
}

/// Loads a model's weights and starts its engine.
pub fn model(
    files: &ModelFiles,
    chat_context: ChatContext,
    options: LoadOptions<'_>,
) -> Result<loquat::Model, CliError> {
    let adapters = options.adapters;
    let room = adapters.make_room(&options.session);
    let session = session(files, options.backend, &room)?;
    let model = files.start(session, chat_context, options.engine)?;
    let applied = adapters.load(&model)?;
    Ok(model.with_adapters(&applied))
}
