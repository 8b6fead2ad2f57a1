//! Flags of commands about this machine and this program.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::model::ModelArgs;
use super::values::{at_least_one, reference};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// A server configuration to check as well.
    #[arg(long, value_name = "FILE", env = "LOQUAT_CONFIG")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FitArgs {
    /// One model, as for `run`; files are planned exactly [default: the whole catalog].
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// Context length to plan for [default: 8192, or the model's if that is less].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<NonZeroUsize>,
    /// The compute backend, as for `run`.
    #[arg(long, value_name = "NAME", env = "LOQUAT_BACKEND")]
    #[arg(default_value = "auto")]
    pub backend: String,
    /// Measure this machine again instead of using the last measurement.
    #[arg(long)]
    pub measure: bool,
    /// Also list what does not fit.
    #[arg(long)]
    pub all: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// The file to write; `-` is stdout.
    #[arg(long, short, value_name = "FILE", default_value = "loquat.toml")]
    pub output: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for every command into this directory. Without it, the page of `loquat` itself
    /// is printed.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
