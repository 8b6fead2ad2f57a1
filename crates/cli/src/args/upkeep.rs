//! Commands about this machine and this program rather than a model's words.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::model::ModelArgs;
use super::values::at_least_one;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// A configuration to look at too.
    #[arg(long, value_name = "FILE", env = "LOQUAT_CONFIG")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FitArgs {
    /// One model, as for `run`: of the catalog, or a file, which is planned exactly. All of the
    /// catalog when left out.
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// Tokens of context to plan for; 8192, or the model's own where that is less, when left out.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<NonZeroUsize>,
    /// Which backend is to compute, as for `run`.
    #[arg(
        long,
        value_name = "NAME",
        env = "LOQUAT_BACKEND",
        default_value = "auto"
    )]
    pub backend: String,
    /// Measure this machine again, instead of taking what was found the last time.
    #[arg(long)]
    pub measure: bool,
    /// List what does not fit, too.
    #[arg(long)]
    pub all: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Where to write it; `-` prints it.
    #[arg(long, short, value_name = "FILE", default_value = "loquat.toml")]
    pub output: PathBuf,
    /// Replace a file that is there.
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to write them for.
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for every command into this directory, which is made if it is missing;
    /// without it, the page of `loquat` itself goes to stdout.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
