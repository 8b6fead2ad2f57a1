//! Finds, downloads and verifies models: turns what a user typed into a file on this machine.
//!
//! It leaves reading the files to `weights`, drawing progress to the caller ([`Progress`]), and
//! the fetching itself to the package client the machine already has, so it links no network code.
//! Model hubs are not a source yet; a hub reference is refused by name.
//!
//! On disk, below the cache directory ([`StoreOptions`] says where that is):
//!
//! ```text
//! models/<name>-<tag>/<file>          a verified model
//! models/<name>-<tag>/<file>.sha256   the record that it was verified, as `sha256sum -c` reads it
//! locks/<name>-<tag>.lock             held by whoever is fetching that entry
//! tmp/<name>-<tag>.XXXXXX/            that fetch's work, gone when it ends
//! ```

mod catalog;
mod contents;
mod error;
mod fetch;
mod hub;
mod local;
mod locate;
mod options;
mod packaged;
mod pip;
mod progress;
mod reference;
mod resolve;
mod staging;
mod wanted;
mod wheel;

use std::path::{Path, PathBuf};

pub use catalog::{Catalog, Entry, Form, Kind, Kv, Part, Size, Source};
pub use error::{Candidate, Candidates, StoreError};
pub use hub::HubOptions;
pub use local::LocalModel;
pub use options::{CACHE_VARIABLE, CATALOG_VARIABLE, PYTHON_VARIABLE, StoreOptions};
pub use progress::{NoProgress, Progress};
pub use reference::{HubReference, Reference, RepoPart};
pub use resolve::Resolved;
pub use wanted::{FileKind, Located, Wanted};

use options::Python;

/// The models on this machine and the ones it knows how to get.
///
/// Holds no open files and no locks between calls; any number may share one cache directory,
/// in one process or several.
#[derive(Debug)]
pub struct Store {
    cache_dir: PathBuf,
    python: Python,
    catalog: Catalog,
    prefer: FileKind,
}

impl Store {
    /// Settles where the cache is and which Python fetches, and reads the catalogs; touches no
    /// other file.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let options::Settled {
            cache_dir,
            python,
            catalog,
            hub: _,
            prefer,
        } = options.settle()?;
        Ok(Self {
            cache_dir,
            python,
            catalog: Catalog::load(catalog.as_ref())?,
            prefer,
        })
    }

    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The entry to use when the user names no model.
    pub fn default_model(&self) -> &Entry {
        self.catalog.default_model()
    }
}
