//! `loquat config`: the server's configuration, without starting the server.

use std::path::Path;

use loquat_server::config::{self, EffectiveConfig, KeyHash, Scope};

use crate::args::ConfigCommand;
use crate::error::CliError;
use crate::load::open_store;
use crate::serve::{ConfigReader, LocalModels};
use crate::terminal::{print, remark};

pub fn run(command: &ConfigCommand, verbose: bool) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check { file, config } => check(file.as_deref().or(config.as_deref())),
        ConfigCommand::Show(args) => {
            let wanted = ConfigReader::new(args, verbose, &open_store()?);
            print(&config::effective_toml(&wanted.read()?))
        }
        ConfigCommand::Key { name, scopes } => key(name, scopes),
        ConfigCommand::Reference => print(&config::reference()),
    }
}

fn check(file: Option<&Path>) -> Result<(), CliError> {
    let store = open_store()?;
    let wanted = ConfigReader::for_file(file, &store);
    let settled = wanted.read_servable(&LocalModels::new(store))?;
    for warning in settled.config.warnings() {
        remark(&format!("note: {warning}"));
    }
    print(&summary(file, &settled))
}

fn summary(file: Option<&Path>, settled: &EffectiveConfig) -> String {
    let config = &settled.config;
    let what = file.map_or_else(
        || "the configuration without a file".to_owned(),
        |path| path.display().to_string(),
    );
    let models: Vec<_> = config.models.iter().map(|m| m.name.as_str()).collect();
    let keys = match config.keys.len() {
        0 => "no keys".to_owned(),
        1 => "1 key".to_owned(),
        count => format!("{count} keys"),
    };
    format!("{what} is valid: {keys}, models {}\n", models.join(", "))
}

/// The key is for its owner, the hash for the file. The key is not stored.
fn key(name: &str, scopes: &[Scope]) -> Result<(), CliError> {
    if name.trim().is_empty() {
        return Err(CliError::Usage {
            what: "the name of the key".to_owned(),
            expected: "not empty".to_owned(),
        });
    }
    let key = config::generate_key();
    remark("API key (shown only once, not stored):");
    print(&format!("{key}\n"))?;
    remark("entry for the configuration:");
    let entry = config::key_entry(name, &KeyHash::digest(&key), scopes);
    print(&format!("\n{entry}"))
}
