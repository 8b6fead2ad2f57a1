//! What is served, and how: a flag for each option of the server's table that has one.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use loquat_server::config::{self, Flag, Scope};

use super::model::NetworkArgs;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Models, as for `run`, or NAME=MODEL to choose what clients call it, or names of the
    /// configuration's models, of which the others are left out then. When left out: all of the
    /// configuration's, or the catalog's default.
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// The configuration's file; see `loquat config reference`.
    #[arg(long, value_name = "FILE", env = "LOQUAT_CONFIG")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub options: OptionFlags,
}

/// Options that were given as flags, with their values.
#[derive(Debug, Clone, Default)]
pub struct OptionFlags(pub Vec<(String, String)>);

impl Args for OptionFlags {
    fn augment_args(command: Command) -> Command {
        let flags = config::flags().into_iter().map(flag);
        flags.fold(command, |command, flag| command.arg(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: Flag| {
            let value = matches.get_one::<String>(flag.name)?;
            Some((flag.name.to_owned(), value.clone()))
        };
        Ok(Self(
            config::flags().into_iter().filter_map(given).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Values are judged together with the file's and the environment's, so that everything that is
/// wrong is told at once.
fn flag(flag: Flag) -> Arg {
    let heading = match flag.section {
        "models" => "Every model",
        _ => "Server",
    };
    Arg::new(flag.name)
        .long(flag.name)
        .value_name("VALUE")
        .help(format!("{} [env: {}]", flag.help, flag.variable))
        .help_heading(heading)
        .allow_negative_numbers(true)
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say all that is wrong with a configuration, each with its line. Exits with 2 if anything
    /// is.
    Check {
        /// The file; what --config or LOQUAT_CONFIG names when left out.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[arg(
            long,
            value_name = "FILE",
            env = "LOQUAT_CONFIG",
            conflicts_with = "file"
        )]
        config: Option<PathBuf>,
    },
    /// Show what would be in force, and who said so. Takes what `serve` takes.
    Show(Box<ServeArgs>),
    /// Make a key: print it, once, and the lines of the configuration that let it in.
    Key {
        /// What the log and the metrics call it.
        name: String,
        /// What it may be used for.
        #[arg(
            long = "scope",
            value_name = "SCOPE",
            value_parser = scope,
            value_delimiter = ',',
            default_value = "inference"
        )]
        scopes: Vec<Scope>,
    },
    /// Print the reference of all options, as Markdown.
    Reference,
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::named(text).ok_or_else(|| "must be inference, metrics or admin".to_owned())
}
