//! `loquat completions` and `loquat man`, generated from the flag definitions.

use std::path::Path;

use clap::{Command, CommandFactory};

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::CliError;
use crate::terminal::print;

const PROGRAM: &str = "loquat";

/// The `help` command needs no page of its own.
fn without_help() -> Command {
    Cli::command().disable_help_subcommand(true)
}

pub fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), PROGRAM, &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub fn man(args: &ManArgs) -> Result<(), CliError> {
    match &args.dir {
        Some(dir) => write_pages(dir),
        None => {
            let mut page = Vec::new();
            let written = clap_mangen::Man::new(without_help()).render(&mut page);
            written.map_err(CliError::Output)?;
            print(&String::from_utf8_lossy(&page))
        }
    }
}

fn write_pages(dir: &Path) -> Result<(), CliError> {
    let write = || {
        std::fs::create_dir_all(dir)?;
        clap_mangen::generate_to(without_help(), dir)
    };
    write().map_err(|source| CliError::Write {
        path: dir.to_owned(),
        source,
    })
}
