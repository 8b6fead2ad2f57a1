//! The configuration, read from file, environment and flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use loquat_server::config::{
    ConfigError, ConfigErrors, EffectiveConfig, Location, ModelConfig, Sources,
};
use loquat_session::OpenError;
use loquat_store::Store;

use super::model_names;
use super::opener::LocalModels;
use crate::args::ServeArgs;
use crate::error::CliError;
use crate::files;

/// Reads the configuration, again on every reload. Flags and typed models stay the same.
pub struct ConfigReader {
    file: Option<PathBuf>,
    flags: Vec<(String, OsString)>,
    models: Vec<ModelConfig>,
    default_model: ModelConfig,
}

impl ConfigReader {
    pub fn new(args: &ServeArgs, verbose: bool, store: &Store) -> Self {
        let mut flags = args.options.0.clone();
        if verbose && flags.iter().all(|(name, _)| name != "log-level") {
            flags.push(("log-level".to_owned(), "debug".into()));
        }
        Self {
            flags,
            models: model_names::typed(&args.models, store),
            ..Self::for_file(args.config.as_deref(), store)
        }
    }

    /// For a file without flags.
    pub fn for_file(file: Option<&Path>, store: &Store) -> Self {
        Self {
            // An environment variable that is set but empty counts as not set.
            file: file
                .filter(|path| !path.as_os_str().is_empty())
                .map(Path::to_owned),
            flags: Vec::new(),
            models: Vec::new(),
            default_model: model_names::default(store),
        }
    }

    pub fn read(&self) -> Result<EffectiveConfig, CliError> {
        let file = self.file.as_ref().map(|path| {
            let text = files::text("--config", path)?;
            Ok::<_, CliError>((path.clone(), text))
        });
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            Some((name, value))
        });
        let sources = Sources {
            file: file.transpose()?,
            environment: variables.collect(),
            flags: self.flags.clone(),
            models: self.models.clone(),
            default_model: Some(self.default_model.clone()),
        };
        Ok(sources.read()?)
    }

    /// Reads the configuration and refuses models that this machine cannot serve. A model that is
    /// not downloaded yet is checked after the download.
    pub fn read_servable(&self, models: &LocalModels) -> Result<EffectiveConfig, CliError> {
        let settled = self.read()?;
        let models_by_index = settled.config.models.iter().enumerate();
        let unfit = models_by_index.filter_map(|(index, model)| {
            let error = models.check_here(model).err()?;
            Some(model_error(&settled, index, &error))
        });
        let unfit: Vec<ConfigError> = unfit.collect();
        if unfit.is_empty() {
            Ok(settled)
        } else {
            Err(ConfigErrors(unfit).into())
        }
    }
}

/// The error at the option that causes the error.
fn model_error(settled: &EffectiveConfig, index: usize, error: &CliError) -> ConfigError {
    let option = match error {
        CliError::Library(
            loquat::Error::UnknownBackend(_) | loquat::Error::UnavailableBackend { .. },
        ) => "backend",
        CliError::Template { option, .. } | CliError::File { flag: option, .. } => option,
        CliError::Library(loquat::Error::Open(OpenError::Option { option, .. })) => option,
        _ => "source",
    };
    let said = settled.provenance.models.get(index);
    let place = said.and_then(|said| said.location(option).or_else(|| said.location("source")));
    let place = place.cloned();
    ConfigError {
        location: place.unwrap_or_else(|| Location::Argument(option.to_owned())),
        message: error.to_string(),
    }
}
