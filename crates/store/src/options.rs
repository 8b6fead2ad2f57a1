//! Cache directory, Python and user catalog. Reads the environment; so does the hub for its own
//! options.

use std::env;
use std::path::{PathBuf, absolute};

use etcetera::BaseStrategy;

use crate::catalog::UserCatalog;
use crate::{HubOptions, StoreError};

/// Environment variable for [`StoreOptions::cache_dir`].
pub const CACHE_VARIABLE: &str = "LOQUAT_CACHE";
/// Environment variable for [`StoreOptions::python`].
pub const PYTHON_VARIABLE: &str = "LOQUAT_PYTHON";
/// Environment variable for [`StoreOptions::catalog`].
pub const CATALOG_VARIABLE: &str = "LOQUAT_CATALOG";

/// Options of a store. An empty environment variable counts as unset.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// The cache directory. Default: [`CACHE_VARIABLE`], then `loquat` in the platform's cache
    /// directory (`$XDG_CACHE_HOME` or `~/.cache`; macOS `~/Library/Caches`; Windows
    /// `%LOCALAPPDATA%`).
    pub cache_dir: Option<PathBuf>,
    /// The Python whose pip downloads packages. Default: [`PYTHON_VARIABLE`], then the first of
    /// `python3` and `python` on the `PATH`.
    pub python: Option<PathBuf>,
    /// The user's own catalog, which extends the embedded one. Default: [`CATALOG_VARIABLE`], then
    /// `loquat/catalog.toml` in the platform's configuration directory (`$XDG_CONFIG_HOME` or
    /// `~/.config`) if it exists.
    pub catalog: Option<PathBuf>,
    /// The model hub: its address, token and cache.
    pub hub: HubOptions,
}

#[derive(Debug)]
pub(crate) struct ResolvedOptions {
    pub cache_dir: PathBuf,
    pub python: Python,
    pub catalog: Option<UserCatalog>,
    pub hub: HubOptions,
}

/// The interpreters to try, in order; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Python(pub Vec<PathBuf>);

impl StoreOptions {
    pub(crate) fn resolve(self) -> Result<ResolvedOptions, StoreError> {
        let cache_dir = match self.cache_dir.or_else(|| variable(CACHE_VARIABLE)) {
            Some(chosen) => chosen,
            None => platform_cache()?,
        };
        let cache_dir = absolute(&cache_dir)
            .map_err(|cause| StoreError::io("find the cache directory", &cache_dir, cause))?;
        let python = python(self.python.or_else(|| variable(PYTHON_VARIABLE)))?;
        let catalog = self.catalog.or_else(|| variable(CATALOG_VARIABLE));
        Ok(ResolvedOptions {
            cache_dir,
            python,
            catalog: catalog.map(UserCatalog::named).or_else(platform_catalog),
            hub: self.hub,
        })
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn platform_cache() -> Result<PathBuf, StoreError> {
    let strategy =
        etcetera::base_strategy::choose_native_strategy().map_err(|_| StoreError::NoCacheDir)?;
    Ok(strategy.cache_dir().join("loquat"))
}

/// `None` for an account without a home directory.
fn platform_catalog() -> Option<UserCatalog> {
    let strategy = etcetera::base_strategy::choose_base_strategy().ok()?;
    Some(UserCatalog::in_config(&strategy.config_dir()))
}

/// A chosen interpreter has no fallback: another one would ignore the choice.
fn python(chosen: Option<PathBuf>) -> Result<Python, StoreError> {
    let Some(chosen) = chosen else {
        return Ok(Python(vec!["python3".into(), "python".into()]));
    };
    // pip runs in another directory, so a relative path becomes absolute. A bare name is looked up
    // on the PATH.
    if chosen.components().count() < 2 {
        return Ok(Python(vec![chosen]));
    }
    match absolute(&chosen) {
        Ok(found) => Ok(Python(vec![found])),
        Err(cause) => Err(StoreError::PythonUnusable {
            python: chosen,
            cause,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn explicit_cache_wins_and_becomes_absolute() {
        let options = StoreOptions {
            cache_dir: Some("some/cache".into()),
            ..StoreOptions::default()
        };
        let settled = options.resolve().unwrap();
        assert!(settled.cache_dir.is_absolute());
        assert!(settled.cache_dir.ends_with("some/cache"));
    }

    #[test]
    fn platform_cache_has_its_own_folder() {
        assert_eq!(platform_cache().unwrap().file_name().unwrap(), "loquat");
    }

    #[test]
    fn chosen_python_has_no_fallback() {
        assert_eq!(
            python(Some("pypy3".into())).unwrap().0,
            [Path::new("pypy3")]
        );
        let relative = python(Some("venv/bin/python".into())).unwrap().0;
        assert!(relative[0].is_absolute() && relative[0].ends_with("venv/bin/python"));
        assert_eq!(relative.len(), 1);
        assert_eq!(
            python(None).unwrap().0,
            [Path::new("python3"), Path::new("python")]
        );
    }
}
