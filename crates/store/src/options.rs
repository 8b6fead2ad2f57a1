//! Where the cache is, which Python is used and what the user added to the catalog: the one place
//! that reads the environment, but for the hub's own.

use std::env;
use std::path::{PathBuf, absolute};

use etcetera::BaseStrategy;

use crate::catalog::UserFile;
use crate::{HubOptions, StoreError};

/// Names the cache directory where [`StoreOptions::cache_dir`] does not.
pub const CACHE_VARIABLE: &str = "LOQUAT_CACHE";
/// Names the Python interpreter where [`StoreOptions::python`] does not.
pub const PYTHON_VARIABLE: &str = "LOQUAT_PYTHON";
/// Names the user's own catalog where [`StoreOptions::catalog`] does not.
pub const CATALOG_VARIABLE: &str = "LOQUAT_CATALOG";

/// What a caller may decide about a store. A variable that is set but empty counts as not set.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// The cache directory. Else [`CACHE_VARIABLE`]; else `loquat` in the platform's cache
    /// directory (`$XDG_CACHE_HOME` or `~/.cache`; macOS `~/Library/Caches`; Windows
    /// `%LOCALAPPDATA%`).
    pub cache_dir: Option<PathBuf>,
    /// The Python whose pip downloads packages. Else [`PYTHON_VARIABLE`]; else the first of
    /// `python3` and `python` that is on the `PATH`.
    pub python: Option<PathBuf>,
    /// A catalog of the user's own, added to the one this build carries. Else
    /// [`CATALOG_VARIABLE`]; else `loquat/catalog.toml` in the platform's configuration directory
    /// (`$XDG_CONFIG_HOME` or `~/.config`), where that is there.
    pub catalog: Option<PathBuf>,
    pub hub: HubOptions,
}

#[derive(Debug)]
pub(crate) struct Settled {
    pub cache_dir: PathBuf,
    pub python: Python,
    pub catalog: Option<UserFile>,
    pub hub: HubOptions,
}

/// The interpreters to try, in order; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Python(pub Vec<PathBuf>);

impl StoreOptions {
    pub(crate) fn settle(self) -> Result<Settled, StoreError> {
        let cache_dir = match self.cache_dir.or_else(|| variable(CACHE_VARIABLE)) {
            Some(chosen) => chosen,
            None => platform_cache()?,
        };
        let cache_dir = absolute(&cache_dir)
            .map_err(|cause| StoreError::io("find the cache directory", &cache_dir, cause))?;
        let python = python(self.python.or_else(|| variable(PYTHON_VARIABLE)))?;
        let catalog = self.catalog.or_else(|| variable(CATALOG_VARIABLE));
        Ok(Settled {
            cache_dir,
            python,
            catalog: catalog.map(UserFile::named).or_else(platform_catalog),
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

/// An account without a home directory has none, which is no error.
fn platform_catalog() -> Option<UserFile> {
    let strategy = etcetera::base_strategy::choose_base_strategy().ok()?;
    Some(UserFile::in_config(&strategy.config_dir()))
}

/// A chosen interpreter stands alone: falling back to another would ignore the choice.
fn python(chosen: Option<PathBuf>) -> Result<Python, StoreError> {
    let Some(chosen) = chosen else {
        return Ok(Python(vec!["python3".into(), "python".into()]));
    };
    // pip runs in another directory, where a relative path would mean something else; a bare
    // name is looked up on the PATH and stays as it is.
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
    fn an_explicit_cache_wins_and_becomes_absolute() {
        let options = StoreOptions {
            cache_dir: Some("some/cache".into()),
            ..StoreOptions::default()
        };
        let settled = options.settle().unwrap();
        assert!(settled.cache_dir.is_absolute());
        assert!(settled.cache_dir.ends_with("some/cache"));
    }

    #[test]
    fn the_platform_cache_is_a_folder_of_our_own() {
        assert_eq!(platform_cache().unwrap().file_name().unwrap(), "loquat");
    }

    #[test]
    fn a_chosen_python_stands_alone() {
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
