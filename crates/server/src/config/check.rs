//! Checks that involve several options.

use std::collections::HashMap;

use super::errors::ConfigError;
use super::provenance::{ConfigProvenance, Entry};
use super::{Config, Key, ModelConfig, Scope};

/// All errors. `in_file` names the file's models, whether or not they are served.
pub fn all(
    config: &Config,
    provenance: &ConfigProvenance,
    keys: &[Entry<Key>],
    models: &[Entry<ModelConfig>],
    in_file: &[String],
) -> Vec<ConfigError> {
    let mut errors: Vec<_> = tls(config, provenance).into_iter().collect();
    errors.extend(names(models));
    errors.extend(adapter_names(models));
    errors.extend(models.iter().filter_map(pinned_adapters));
    errors.extend(key_names(keys));
    errors.extend(keys.iter().filter_map(scopes));
    errors.extend(
        keys.iter()
            .flat_map(|key| unknown_models(key, models, in_file)),
    );
    errors
}

/// TLS needs both files.
fn tls(config: &Config, provenance: &ConfigProvenance) -> Option<ConfigError> {
    let tls = config.tls.as_ref()?;
    let provenance = provenance.sections.get("tls")?;
    let names = ["certificate", "private_key"];
    let paths = [&tls.certificate, &tls.private_key];
    let missing = paths.map(|path| path.as_os_str().is_empty());
    let missing = missing.iter().position(|missing| *missing)?;
    let (missing, set) = (names[missing], names[1 - missing]);
    Some(ConfigError {
        location: provenance.location(set)?.clone(),
        message: format!("`tls.{set}` needs `tls.{missing}` as well"),
    })
}

/// Names and aliases of models must be unique.
fn names(models: &[Entry<ModelConfig>]) -> Vec<ConfigError> {
    let mut taken: HashMap<&str, &str> = HashMap::new();
    let mut errors = Vec::new();
    let named = models.iter().filter(|model| !model.value.name.is_empty());
    for model in named.clone() {
        let name = &model.value.name;
        if taken.insert(name, name).is_some() {
            errors.push(ConfigError {
                location: model.location("name"),
                message: format!("another model is already named `{name}`"),
            });
        }
    }
    for model in named {
        for alias in &model.value.aliases {
            if let Some(owner) = taken.insert(alias, &model.value.name) {
                errors.push(ConfigError {
                    location: model.location("aliases"),
                    message: format!("the alias `{alias}` already belongs to the model `{owner}`"),
                });
            }
        }
    }
    errors
}

/// No model may have the name by which another's adapter is chosen.
fn adapter_names(models: &[Entry<ModelConfig>]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for model in models {
        for adapter in model.value.adapters.keys() {
            let full = format!("{}:{adapter}", model.value.name);
            let is_taken = |other: &&Entry<ModelConfig>| {
                other.value.name == full || other.value.aliases.contains(&full)
            };
            if let Some(other) = models.iter().find(is_taken) {
                let other = &other.value.name;
                errors.push(ConfigError {
                    location: model.location("adapters"),
                    message: format!(
                        "the adapter `{adapter}` cannot be chosen: `{full}` names the model `{other}`"
                    ),
                });
            }
        }
    }
    errors
}

/// Pinned adapters must leave room for the others.
fn pinned_adapters(model: &Entry<ModelConfig>) -> Option<ConfigError> {
    let ModelConfig {
        adapters,
        max_adapters,
        ..
    } = &model.value;
    let pinned = adapters.values().filter(|adapter| adapter.pinned).count();
    let others = pinned < adapters.len() || model.value.loads_adapters();
    let least = pinned + usize::from(others);
    (least > *max_adapters).then(|| ConfigError {
        location: model.location("adapters"),
        message: format!(
            "`max_adapters` is {max_adapters}; with {pinned} pinned adapters it must be at least \
             {least}"
        ),
    })
}

fn key_names(keys: &[Entry<Key>]) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let before = &keys[..index];
        let name = &key.value.name;
        let same_name = before.iter().any(|other| other.value.name == *name);
        if same_name && !name.is_empty() {
            errors.push(ConfigError {
                location: key.location("name"),
                message: format!("another key is already named `{name}`"),
            });
        }
        let same_hash = before.iter().find(|other| {
            other.value.hash == key.value.hash && key.provenance.location("hash").is_some()
        });
        if let Some(other) = same_hash {
            errors.push(ConfigError {
                location: key.location("hash"),
                message: format!("the key `{}` has the same hash", other.value.name),
            });
        }
    }
    errors
}

fn scopes(key: &Entry<Key>) -> Option<ConfigError> {
    key.value.scopes.is_empty().then(|| ConfigError {
        location: key.location("scopes"),
        message: "a key without scopes allows nothing; list some, or remove `scopes`".to_owned(),
    })
}

fn unknown_models(
    key: &Entry<Key>,
    models: &[Entry<ModelConfig>],
    in_file: &[String],
) -> Vec<ConfigError> {
    let is_known = |name: &&String| {
        in_file.contains(name) || models.iter().any(|model| model.value.name == **name)
    };
    let named = key.value.models.iter().flatten();
    let unknown = named.filter(|name| !is_known(name));
    unknown
        .map(|name| ConfigError {
            location: key.location("models"),
            message: format!("there is no model named `{name}`"),
        })
        .collect()
}

impl Config {
    /// Valid settings that are probably not intended.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_open = self.keys.is_empty();
        if is_open && !self.server.host.is_loopback() {
            warnings.push(format!(
                "anyone who can reach {} may use this server, because there are no [[keys]]",
                self.server.host
            ));
        }
        let is_admin = |key: &Key| key.scopes.contains(&Scope::Admin);
        if !is_open && !self.keys.iter().any(is_admin) {
            warnings
                .push("no key has the scope \"admin\", so the admin API is unusable".to_owned());
        }
        if self.tls.is_none() && !is_open && !self.server.host.is_loopback() {
            warnings.push("keys are sent unencrypted, because there is no [tls]".to_owned());
        }
        warnings
    }
}
