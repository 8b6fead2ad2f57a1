//! The `loquat` command line: wires store, backends, engine and chat together.
//!
//! The only crate that names concrete backends. It decides what a person sees (streams,
//! progress, tables, exit codes) and leaves everything computed to the crates below.

mod args;
mod backends;
mod bench;
mod converse;
mod error;
mod generate;
mod inspect;
mod load;
mod progress;
mod prompt;
mod stream;
mod terminal;
mod wait;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    start_logging(cli.verbose);
    let outcome = match &cli.command {
        Command::Run(args) => converse::run(args, cli.verbose),
        Command::Generate(args) => generate::run(args, cli.verbose),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Backends => backends::list(),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_silent() {
                eprintln!("error: {error}");
            }
            error.exit_code().into()
        }
    }
}

/// Warnings always, more with `--verbose`, anything by `LOQUAT_LOG`.
fn start_logging(verbose: bool) {
    let level = if verbose { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("LOQUAT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal::stderr_is_fancy())
        .without_time()
        .init();
}
