//! Flags of the server: one for each option in its table that has one.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use loquat_server::config::{self, Flag, Scope};
use loquat_store::path_reference;

use super::model::NetworkArgs;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Models to serve, as for `run`; NAME=MODEL sets the name for clients. A name from the
    /// configuration serves only the named models [default: all models of the configuration, or
    /// the catalog's default model].
    #[arg(value_name = "MODEL", value_parser = served())]
    pub models: Vec<String>,
    /// The configuration file; see `loquat config reference`.
    #[arg(long, value_name = "FILE", env = "LOQUAT_CONFIG")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub options: OptionFlags,
}

/// A model reference, with or without `NAME=`, which a path may also contain.
fn served() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|text| match named_path(&text) {
        Some((name, path)) if !Path::new(&text).exists() => {
            format!("{name}={}", path_reference(path))
        }
        _ => path_reference(Path::new(&text)),
    })
}

/// A name and a path that is not valid UTF-8.
#[cfg(unix)]
fn named_path(text: &OsStr) -> Option<(&str, &Path)> {
    use std::os::unix::ffi::OsStrExt;

    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let name = str::from_utf8(&bytes[..at]).ok()?;
    let path = Path::new(OsStr::from_bytes(&bytes[at + 1..]));
    path.to_str().is_none().then_some((name, path))
}

#[cfg(not(unix))]
fn named_path(_: &OsStr) -> Option<(&str, &Path)> {
    None
}

/// Options set by flags, with their values.
#[derive(Debug, Clone, Default)]
pub struct OptionFlags(pub Vec<(String, OsString)>);

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
            let value = matches.get_one::<OsString>(flag.name)?;
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

/// Values are validated together with those of the file and the environment, so that all errors
/// are reported at once.
fn flag(flag: Flag) -> Arg {
    let heading = match flag.section {
        "models" => "Every model",
        _ => "Server",
    };
    Arg::new(flag.name)
        .long(flag.name)
        .value_name("VALUE")
        .value_parser(OsStringValueParser::new())
        .help(format!("{} [env: {}]", flag.help, flag.variable))
        .help_heading(heading)
        .allow_negative_numbers(true)
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report all errors of a configuration with their lines. Exits with 2 if there are any.
    Check {
        /// The configuration file [default: the value of --config or LOQUAT_CONFIG].
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
    /// Show the effective configuration and where each value comes from. Takes the flags of
    /// `serve`.
    Show(Box<ServeArgs>),
    /// Create an API key: print it once, with its entry for the configuration.
    Key {
        /// Its name in logs and metrics.
        name: String,
        /// What it allows.
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
    Scope::named(text).ok_or_else(|| "must be inference, metrics, manage or admin".to_owned())
}
