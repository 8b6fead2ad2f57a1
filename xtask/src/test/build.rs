//! The one build that the stages from `test` on share: every workspace crate with the MLX backend,
//! so that no stage compiles again what another has compiled with other features.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::command::Run;
use crate::error::Error;
use crate::mlx;
use crate::tools::require_cxx_compiler;

pub const FEATURES: &str = "mlx";

/// Names the MLX that the backend's build uses before any other.
const MLX_ROOT: &str = "MLX_ROOT";
/// Read by `judges/` and `clients/` when they build the programs they run.
const FEATURES_VARIABLE: &str = "LOQUAT_FEATURES";

pub struct Build {
    root: PathBuf,
    mlx: OnceLock<OsString>,
}

impl Build {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            mlx: OnceLock::new(),
        }
    }

    /// Whether MLX computes on its CPU device. Other devices differ from the references by other
    /// amounts.
    pub fn is_mlx_cpu(&self) -> bool {
        named_mlx().is_none() && mlx::DEFAULT == "cpu"
    }

    /// Sets the variables that make a build of `run` the shared one.
    pub fn environment(&self, run: Run) -> Result<Run, Error> {
        let run = run.env(MLX_ROOT, self.mlx()?);
        Ok(run.env(FEATURES_VARIABLE, FEATURES))
    }

    /// The MLX that the caller names, or the one that runs on any machine of this system.
    fn mlx(&self) -> Result<&OsString, Error> {
        if let Some(library) = self.mlx.get() {
            return Ok(library);
        }
        require_cxx_compiler(&self.root)?;
        let library = match named_mlx() {
            Some(library) => library,
            None => mlx::fetched(&self.root, mlx::DEFAULT)?.into_os_string(),
        };
        Ok(self.mlx.get_or_init(|| library))
    }
}

fn named_mlx() -> Option<OsString> {
    std::env::var_os(MLX_ROOT).filter(|value| !value.is_empty())
}
