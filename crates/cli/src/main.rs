//! The `loquat` command line.
//!
//! It decides what a person sees (streams, progress, tables, exit codes) and leaves everything
//! computed to the crates below.

mod args;
mod backends;
mod bench;
mod chat;
mod chat_setup;
mod config;
mod convert;
mod describe;
mod doctor;
mod error;
mod files;
mod fit;
mod generate;
mod inspect;
mod interrupts;
mod load;
mod models;
mod progress;
mod prompt;
mod quickstart;
mod render;
mod request;
mod run;
mod sampling;
mod serve;
mod shell;
mod show;
mod terminal;
mod wire;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};
use error::CliError;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    terminal::choose_colour(cli.color);
    let logs_itself = matches!(cli.command, Command::Serve(_));
    let logging = if logs_itself {
        Ok(())
    } else {
        start_logging(cli.verbose)
    };
    let outcome = logging.and_then(|()| fitting(&cli));
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_silent() {
                terminal::complain(&error);
            }
            error.exit_code().into()
        }
    }
}

/// Performs the command, unless its model cannot fit; what is refused for want of memory is refused
/// with advice.
fn fitting(cli: &Cli) -> Result<(), CliError> {
    // A store that cannot be opened is the command's to complain of, if it needs one.
    let attempt = load::open_store().ok().and_then(|store| {
        let attempt = fit::Attempt::of(&cli.command, &store)?;
        Some((store, attempt))
    });
    let Some((store, attempt)) = attempt else {
        return perform(cli);
    };
    fit::refuse_hopeless(&store, &attempt)?;
    perform(cli).map_err(|error| fit::advised(&store, &attempt, error))
}

fn perform(cli: &Cli) -> Result<(), CliError> {
    match &cli.command {
        Command::Run(args) => run::run(args, cli.verbose),
        Command::Serve(args) => serve::run(args, cli.verbose),
        Command::Config(command) => config::run(command, cli.verbose),
        Command::Generate(args) => generate::run(args, cli.verbose),
        Command::Render(args) => render::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Backends => backends::list(),
        Command::Models(args) => models::list(args),
        Command::Search(args) => models::search(args),
        Command::Pull(args) => models::pull(args),
        Command::Show(args) => models::show(args),
        Command::Verify(args) => models::verify(args),
        Command::Rm(args) => models::remove(args),
        Command::Prune(args) => models::prune(args),
        Command::Fit(args) => fit::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Quickstart(args) => quickstart::run(args),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
    }
}

/// Warnings always, more with `--verbose`, anything by `LOQUAT_LOG`.
fn start_logging(verbose: bool) -> Result<(), CliError> {
    let level = if verbose { "info" } else { "warn" };
    let filter = match std::env::var("LOQUAT_LOG") {
        Ok(filter) if !filter.is_empty() => {
            EnvFilter::try_new(&filter).map_err(|error| CliError::Usage {
                what: format!("LOQUAT_LOG is {filter:?}, which does not read ({error}); it"),
                expected: "a level or a list such as info,loquat_engine=debug".to_owned(),
            })?
        }
        _ => EnvFilter::new(level),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal::stderr_is_fancy())
        .with_target(false)
        .without_time()
        // It would complain on stderr, which is what cannot be written.
        .log_internal_errors(false)
        .init();
    Ok(())
}
