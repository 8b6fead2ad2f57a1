//! The MLX backend with its library: a build of its own, since the workspace's has none unless
//! asked for it.

use std::path::Path;

use super::Note;
use crate::command::cargo;
use crate::error::Error;
use crate::tools::require_cxx_compiler;
use crate::{goldens, mlx};

/// Names the MLX that the backend's build uses before any other.
const ROOT: &str = "MLX_ROOT";

/// All of the backend's own, and those of the command line that are about it.
const TESTS: &[&[&str]] = &[
    &["--package", "loquat-mlx"],
    &["--package", "loquat-cli", "--test", "behaviour", "mlx"],
];

/// On the MLX that the caller names, or on the one that runs on any machine of this system. All is
/// tried, even after a failure.
pub fn run(root: &Path) -> Result<Note, Error> {
    require_cxx_compiler(root)?;
    let named = std::env::var_os(ROOT).filter(|value| !value.is_empty());
    let library = match &named {
        Some(library) => library.clone(),
        None => mlx::fetched(root, mlx::DEFAULT)?.into_os_string(),
    };
    let test = |words: &&[&str]| {
        let words = [&["test", "--features", "mlx", "--no-fail-fast"], *words].concat();
        cargo(root, &words).env(ROOT, &library).run()
    };
    let tests: Vec<_> = TESTS.iter().map(test).collect();
    // The stage of that name sees nothing of what the feature brings in.
    let lint = [
        "clippy",
        "--features",
        "mlx",
        "--package",
        "loquat-mlx",
        "--all-targets",
    ];
    let lint = [&lint[..], &["--", "-D", "warnings"]].concat();
    let linted = cargo(root, &lint).env(ROOT, &library).run();
    // Other devices than MLX's CPU differ from the reference by other amounts.
    let is_cpu = named.is_none() && mlx::DEFAULT == "cpu";
    let page: &[&str] = if is_cpu {
        &["--check-matrix", "docs/support.md"]
    } else {
        &[]
    };
    let args = [&["--committed", "--backend", "mlx"], page].concat();
    let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
    let judged = goldens::judge(root, &args).env(ROOT, &library).run();
    let verdicts = tests.into_iter().chain([linted, judged]);
    verdicts.collect::<Result<(), Error>>()?;
    Ok((!is_cpu).then(|| "its part of the support matrix: NOT CHECKED".to_string()))
}
