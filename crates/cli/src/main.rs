//! The `loquat` command line.
//!
//! It parses flags and prints streams, progress, tables and errors. The crates below do the work.

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

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};
use error::CliError;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse().with_verbatim_prompt();
    terminal::set_colour(cli.color);
    let has_own_logging = matches!(cli.command, Command::Serve(_));
    let logging = if has_own_logging {
        Ok(())
    } else {
        start_logging(cli.verbose)
    };
    let outcome = logging.and_then(|()| execute_if_fits(&cli));
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_silent() {
                terminal::print_error(&error);
            }
            error.exit_code().into()
        }
    }
}

/// Executes the command unless its model cannot fit. Out-of-memory errors get advice.
fn execute_if_fits(cli: &Cli) -> Result<(), CliError> {
    // If the store cannot be opened, a command that needs it reports that.
    let attempt = load::open_store().ok().and_then(|store| {
        let attempt = fit::OpenAttempt::for_command(&cli.command, &store)?;
        Some((store, attempt))
    });
    let Some((store, attempt)) = attempt else {
        return execute(cli);
    };
    fit::refuse_oversized(&store, &attempt)?;
    execute(cli).map_err(|error| fit::with_advice(&store, &attempt, error))
}

fn execute(cli: &Cli) -> Result<(), CliError> {
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

/// Logs warnings, more with `--verbose`, or as `LOQUAT_LOG` says.
fn start_logging(verbose: bool) -> Result<(), CliError> {
    let level = if verbose { "info" } else { "warn" };
    let filter = match std::env::var("LOQUAT_LOG") {
        Ok(filter) if !filter.is_empty() => {
            EnvFilter::try_new(&filter).map_err(|error| CliError::Usage {
                what: format!("LOQUAT_LOG is {filter:?}, which is invalid ({error}); it"),
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
        // It would report them on stderr, which is what failed.
        .log_internal_errors(false)
        .init();
    Ok(())
}
