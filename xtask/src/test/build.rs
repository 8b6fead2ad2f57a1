//! The build that the stages from `test` on share: every workspace crate with the MLX backend, so
//! that no stage compiles a crate again with other features.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::command::{Cmd, cargo};
use crate::error::Error;
use crate::mlx;
use crate::tools::require_cxx_compiler;

pub const FEATURES: &str = "mlx";

/// The folder of the MLX that the backend's build prefers.
const MLX_ROOT: &str = "MLX_ROOT";

pub struct Build {
    root: PathBuf,
    mlx: OnceLock<OsString>,
    programs: OnceLock<PathBuf>,
}

impl Build {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            mlx: OnceLock::new(),
            programs: OnceLock::new(),
        }
    }

    /// Whether MLX computes on its CPU device. Other devices differ from the references by other
    /// amounts.
    pub fn is_mlx_cpu(&self) -> bool {
        mlx_from_environment().is_none() && mlx::DEFAULT == "cpu"
    }

    /// `cargo test` of the whole workspace, with `args`.
    pub fn cargo_test(&self, args: &[&str]) -> Result<Cmd, Error> {
        let all = ["test", "--workspace", "--features", FEATURES];
        self.environment(cargo(&self.root, &[&all, args].concat()))
    }

    /// Makes a build with [`FEATURES`] that `cmd` starts use the same MLX as the others.
    pub fn environment(&self, cmd: Cmd) -> Result<Cmd, Error> {
        Ok(cmd.env(MLX_ROOT, self.mlx()?))
    }

    /// The folder of the programs that `cargo test` builds; examples are in its `examples`. Plain
    /// `cargo build` would compile many crates again, without the features that only tests enable.
    pub fn programs(&self) -> Result<&Path, Error> {
        if let Some(folder) = self.programs.get() {
            return Ok(folder);
        }
        self.cargo_test(&["--no-run", "--quiet"])?.run()?;
        let folder = target_directory(&self.root)?.join("debug");
        Ok(self.programs.get_or_init(|| folder))
    }

    /// The MLX in `MLX_ROOT`, or else the default variant.
    fn mlx(&self) -> Result<&OsString, Error> {
        if let Some(library) = self.mlx.get() {
            return Ok(library);
        }
        require_cxx_compiler(&self.root)?;
        let library = match mlx_from_environment() {
            Some(library) => library,
            None => mlx::find_or_download(&self.root, mlx::DEFAULT)?.into_os_string(),
        };
        Ok(self.mlx.get_or_init(|| library))
    }
}

fn target_directory(root: &Path) -> Result<PathBuf, Error> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = cargo(root, &metadata).output()?;
    let metadata: Option<serde_json::Value> = serde_json::from_str(&metadata).ok();
    let directory = metadata
        .as_ref()
        .and_then(|metadata| metadata["target_directory"].as_str());
    directory.map(PathBuf::from).ok_or_else(|| Error::Missing {
        what: "`target_directory` in the output of `cargo metadata`".to_string(),
        remedy: "run it in the repository and check its output".to_string(),
    })
}

fn mlx_from_environment() -> Option<OsString> {
    std::env::var_os(MLX_ROOT).filter(|value| !value.is_empty())
}
