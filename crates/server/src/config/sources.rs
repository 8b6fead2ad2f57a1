//! Reading the configuration: the file, over it the environment, over that the flags.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use toml::de::DeTable;

use super::check;
use super::errors::{ConfigError, ConfigErrors, Location};
use super::options::{KEYS, MODELS, SECTIONS, Section, Setting, model_variable};
use super::provenance::{ConfigProvenance, Entry, Provenance, SourceFile, Target};
use super::raw_value::RawValue;
use super::suggestion::did_you_mean;
use super::{Config, Key, ModelConfig};

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A file's path and its text.
    pub file: Option<(PathBuf, String)>,
    /// Variables and their values; unrelated variables are ignored.
    pub environment: Vec<(String, OsString)>,
    /// Flags, without their dashes, and their values.
    pub flags: Vec<(String, OsString)>,
    /// Models named on the command line. One with the name of a model of the file selects that
    /// model; the file's other models are then not served.
    pub models: Vec<ModelConfig>,
    /// The model to serve if none is named.
    pub default_model: Option<ModelConfig>,
}

/// A configuration with its provenance.
#[derive(Debug)]
pub struct EffectiveConfig {
    pub config: Config,
    pub provenance: ConfigProvenance,
}

impl Sources {
    /// The effective configuration, or all its errors.
    pub fn read(&self) -> Result<EffectiveConfig, ConfigErrors> {
        let mut reading = Reading::default();
        if let Some((path, text)) = &self.file {
            reading.file(SourceFile { path, text });
        }
        reading.unknown_variables(&self.environment);
        reading.sections(self);
        let in_file: Vec<_> = reading
            .models
            .iter()
            .map(|m| m.value.name.clone())
            .collect();
        reading.models = self.chosen(std::mem::take(&mut reading.models));
        reading.all_models(self);
        reading.finish(&in_file)
    }

    fn chosen(&self, mut in_file: Vec<Entry<ModelConfig>>) -> Vec<Entry<ModelConfig>> {
        if self.models.is_empty() {
            if in_file.is_empty() {
                in_file.extend(self.default_model.clone().map(typed));
            }
            return in_file;
        }
        let choose = |wanted: &ModelConfig| {
            let index = in_file.iter().position(|entry| {
                let ModelConfig { name, aliases, .. } = &entry.value;
                *name == wanted.source || aliases.contains(&wanted.source)
            });
            match index {
                Some(index) => preloaded(in_file.swap_remove(index), &wanted.source),
                None => typed(wanted.clone()),
            }
        };
        self.models.iter().map(choose).collect()
    }

    /// The values of the variable and the flag, in this order. An empty variable is not set.
    fn overrides(&self, variable: Option<&str>, flag: Option<&str>) -> Vec<(Location, &OsStr)> {
        let variable = variable.and_then(|name| {
            let value = value_of(&self.environment, name).filter(|value| !value.is_empty());
            Some((Location::Variable(name.to_owned()), value?))
        });
        let flag = flag.and_then(|name| {
            let value = value_of(&self.flags, name);
            Some((Location::Flag(name.to_owned()), value?))
        });
        variable.into_iter().chain(flag).collect()
    }
}

fn value_of<'a>(raw: &'a [(String, OsString)], name: &str) -> Option<&'a OsStr> {
    let mut raw = raw.iter().rev();
    let found = raw.find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_os_str())
}

/// A model named on the command line that no file describes.
fn typed(model: ModelConfig) -> Entry<ModelConfig> {
    let location = Location::Argument(model.source.clone());
    let mut provenance = Provenance::default();
    for name in ["name", "source"] {
        provenance.push(name, location.clone());
    }
    let source = model.source.clone();
    let value = model;
    preloaded(
        Entry {
            value,
            location,
            provenance,
        },
        &source,
    )
}

fn preloaded(mut entry: Entry<ModelConfig>, typed: &str) -> Entry<ModelConfig> {
    entry.value.preload = true;
    entry
        .provenance
        .push("preload", Location::Argument(typed.to_owned()));
    entry
}

/// The configuration so far.
#[derive(Default)]
struct Reading {
    /// Without keys and models.
    config: Config,
    keys: Vec<Entry<Key>>,
    models: Vec<Entry<ModelConfig>>,
    provenance: ConfigProvenance,
    errors: Vec<ConfigError>,
}

impl Reading {
    fn file(&mut self, file: SourceFile<'_>) {
        let (root, errors) = DeTable::parse_recoverable(file.text);
        for error in &errors {
            let location = file.location(error.span().unwrap_or_default());
            let message = error.message().to_owned();
            self.errors.push(ConfigError { location, message });
        }
        // After a syntax error, further errors would mislead.
        if !errors.is_empty() {
            return;
        }
        for (name, value) in root.get_ref() {
            let raw = RawValue::Toml(value);
            match name.get_ref().as_ref() {
                "keys" => {
                    let (keys, errors) = entries(file, "keys", raw, KEYS, Key::blank);
                    self.keys = keys;
                    self.errors.extend(errors);
                }
                "models" => {
                    let (models, errors) = entries(file, "models", raw, MODELS, ModelConfig::blank);
                    self.models = models;
                    self.errors.extend(errors);
                }
                section => {
                    let location = file.location(name.span());
                    self.section(file, section, location, raw);
                }
            }
        }
    }

    fn section(&mut self, file: SourceFile<'_>, name: &str, location: Location, raw: RawValue<'_>) {
        let known = SECTIONS.iter().find(|section| section.name == name);
        let message = match (known, raw.table()) {
            (Some(section), Some(table)) => {
                let errors = self.target(section).fill(file, table, section.settings);
                return self.errors.extend(errors);
            }
            (Some(_), None) => format!("`{name}` must be a table: [{name}]"),
            (None, _) => {
                let known = SECTIONS.iter().map(|section| section.name);
                let guess = did_you_mean(name, known.chain(["keys", "models"]));
                format!("there is no section `{name}`{guess}")
            }
        };
        self.errors.push(ConfigError { location, message });
    }

    fn target(&mut self, section: &Section) -> Target<'_, Config> {
        Target {
            section: section.name,
            holder: &mut self.config,
            provenance: self.provenance.sections.entry(section.name).or_default(),
        }
    }

    /// Applies environment and flags to every section.
    fn sections(&mut self, sources: &Sources) {
        for section in SECTIONS {
            for setting in section.settings {
                let variable = section.variable(setting);
                for (location, text) in sources.overrides(Some(&variable), setting.flag) {
                    let errors = self.target(section).set_text(setting, text, &location);
                    self.errors.extend(errors);
                }
            }
        }
    }

    /// Applies environment and flags to every model.
    fn all_models(&mut self, sources: &Sources) {
        for setting in MODELS {
            let variable = model_variable(setting);
            for (location, text) in sources.overrides(variable.as_deref(), setting.flag) {
                self.every_model(setting, text, &location);
            }
        }
    }

    fn every_model(&mut self, setting: &Setting<ModelConfig>, text: &OsStr, location: &Location) {
        // Reports an error once, and also if there is no model.
        let (mut probe, mut unused) = (ModelConfig::blank(), Provenance::default());
        let errors = model_target(&mut probe, &mut unused).set_text(setting, text, location);
        if errors.is_empty() {
            for Entry {
                value, provenance, ..
            } in &mut self.models
            {
                model_target(value, provenance).set_text(setting, text, location);
            }
        }
        self.errors.extend(errors);
    }

    /// Reports variables with a section's prefix that name no option.
    fn unknown_variables(&mut self, environment: &[(String, OsString)]) {
        for (name, _) in environment {
            let belongs = |section: &&Section| {
                let beginning = format!("LOQUAT_{}_", section.name.to_uppercase());
                name.starts_with(&beginning)
            };
            let Some(section) = SECTIONS.iter().find(belongs) else {
                continue;
            };
            let known: Vec<_> = section
                .settings
                .iter()
                .map(|s| section.variable(s))
                .collect();
            if !known.contains(name) {
                let location = Location::Variable(name.clone());
                let known = known.join(", ");
                let message = format!("no option has this variable; use one of: {known}");
                self.errors.push(ConfigError { location, message });
            }
        }
    }

    fn finish(mut self, in_file: &[String]) -> Result<EffectiveConfig, ConfigErrors> {
        let found = check::all(
            &self.config,
            &self.provenance,
            &self.keys,
            &self.models,
            in_file,
        );
        self.errors.extend(found);
        if !self.errors.is_empty() {
            return Err(ConfigErrors::sorted(self.errors));
        }
        let Self {
            mut config,
            keys,
            models,
            mut provenance,
            ..
        } = self;
        (config.keys, provenance.keys) = keys
            .into_iter()
            .map(|key| (key.value, key.provenance))
            .unzip();
        (config.models, provenance.models) = models
            .into_iter()
            .map(|model| (model.value, model.provenance))
            .unzip();
        Ok(EffectiveConfig { config, provenance })
    }
}

fn model_target<'a>(
    holder: &'a mut ModelConfig,
    provenance: &'a mut Provenance,
) -> Target<'a, ModelConfig> {
    let section = "models";
    Target {
        section,
        holder,
        provenance,
    }
}

/// The tables of `[[keys]]` or `[[models]]`.
fn entries<T>(
    file: SourceFile<'_>,
    section: &'static str,
    raw: RawValue<'_>,
    settings: &[Setting<T>],
    blank: fn() -> T,
) -> (Vec<Entry<T>>, Vec<ConfigError>) {
    let location = |raw: RawValue<'_>| file.location(raw.span().unwrap_or_default());
    let not_tables = |raw| ConfigError {
        location: location(raw),
        message: format!("`{section}` must be tables: [[{section}]]"),
    };
    let Some(items) = raw.list() else {
        return (Vec::new(), vec![not_tables(raw)]);
    };
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    for item in items {
        let Some(table) = item.table() else {
            errors.push(not_tables(item));
            continue;
        };
        let (mut value, mut provenance) = (blank(), Provenance::default());
        let mut target = Target {
            section,
            holder: &mut value,
            provenance: &mut provenance,
        };
        errors.extend(target.fill(file, table, settings));
        let missing = settings.iter().filter(|setting| setting.required);
        let missing = missing.filter(|setting| !table.contains_key(setting.name));
        errors.extend(missing.map(|setting| ConfigError {
            location: location(item),
            message: format!("[[{section}]] needs `{}`: {}", setting.name, setting.help),
        }));
        let location = location(item);
        entries.push(Entry {
            value,
            location,
            provenance,
        });
    }
    (entries, errors)
}
