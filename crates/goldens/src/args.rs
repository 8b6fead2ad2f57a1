//! The command-line arguments.

use std::path::PathBuf;

use clap::Parser;

use crate::backends::{self, JudgedBackend};

/// Compares tiny checkpoints with logits that other implementations computed.
///
/// Each checkpoint is opened with fp32 activations and compared with its reference: two prompts
/// in one step, a greedy continuation token by token, and one prompt in chunks of 1, 7 and 16
/// against the same prompt in one step. If a checkpoint has both config.json and
/// config.hub_style.json, they must describe the same model; both are judged and the table shows
/// the larger differences.
///
/// The committed set of crates/testkit comes first, then ../shared/goldens and
/// ../shared/goldens-mlx if they exist, then PATHS. The exit status is 1 if any checkpoint fails;
/// a family of ../shared that is not supported yet is listed instead.
#[derive(Parser)]
#[command(name = "cargo xtask goldens", bin_name = "cargo xtask goldens")]
pub struct Args {
    /// More checkpoints: a folder with golden.safetensors, a .gguf file, or a folder of either.
    pub paths: Vec<PathBuf>,
    /// The backend to judge.
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = backends::named)]
    pub backend: &'static JudgedBackend,
    /// Folder with the references of .gguf files in PATHS: DIR/STEM/golden.safetensors.
    /// Without a reference, a file is only loaded.
    #[arg(long, value_name = "DIR", requires = "paths")]
    pub logits: Option<PathBuf>,
    /// Judge only checkpoints whose name contains this.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Judge only the committed set.
    #[arg(long, conflicts_with = "paths")]
    pub committed: bool,
    /// If a golden has references from transformers and from MLX, use those from transformers.
    #[arg(long)]
    pub prefer_hf: bool,
    /// Print one JSON array instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Write the support matrix from the results of the committed set.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "prefer_hf", "check_matrix"])]
    pub write_matrix: Option<PathBuf>,
    /// Fail unless FILE equals the support matrix from the results of the committed set.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "prefer_hf"])]
    pub check_matrix: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn matrix_of_partial_run_is_refused() {
        let refused = [
            "--only llama --check-matrix x",
            "--only llama --write-matrix x",
            "--prefer-hf --write-matrix x",
            "--check-matrix x --write-matrix x",
            "--committed folder",
            "--logits folder",
            "--backend abacus",
        ];
        for line in refused {
            let words = std::iter::once("goldens").chain(line.split_whitespace());
            assert!(Args::try_parse_from(words).is_err(), "{line}");
        }
    }
}
