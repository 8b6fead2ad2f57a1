//! Sets options and records where each value comes from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{ConfigError, FileLocation, Location};
use super::options::Setting;
use super::raw_value::{InvalidValue, RawValue};
use super::suggestion::did_you_mean;

/// The options that were set, each with its location; the last one wins.
#[derive(Debug, Clone, Default)]
pub struct Provenance(Vec<(&'static str, Location)>);

impl Provenance {
    pub fn push(&mut self, name: &'static str, location: Location) {
        self.0.push((name, location));
    }

    pub fn location(&self, name: &str) -> Option<&Location> {
        let mut provenance = self.0.iter().rev();
        provenance
            .find(|(known, _)| *known == name)
            .map(|(_, location)| location)
    }
}

/// The provenance of a whole configuration. Options not listed have their default.
#[derive(Debug, Default)]
pub struct ConfigProvenance {
    /// By section.
    pub sections: BTreeMap<&'static str, Provenance>,
    /// In the configuration's order.
    pub keys: Vec<Provenance>,
    /// In the configuration's order.
    pub models: Vec<Provenance>,
}

/// A key or a model with its provenance.
#[derive(Debug, Clone)]
pub struct Entry<T> {
    pub value: T,
    pub location: Location,
    pub provenance: Provenance,
}

impl<T> Entry<T> {
    /// Where the option was set, or else the entry's own location.
    pub fn location(&self, name: &str) -> Location {
        self.provenance
            .location(name)
            .unwrap_or(&self.location)
            .clone()
    }
}

/// A configuration file.
#[derive(Clone, Copy)]
pub struct SourceFile<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl SourceFile<'_> {
    pub fn location(&self, span: std::ops::Range<usize>) -> Location {
        Location::File(FileLocation::from_span(
            self.path.to_owned(),
            self.text,
            span,
        ))
    }
}

/// The section whose options are set.
pub struct Target<'a, T> {
    /// The section, or `models`, or `keys`.
    pub section: &'a str,
    pub holder: &'a mut T,
    pub provenance: &'a mut Provenance,
}

impl<T> Target<'_, T> {
    /// Sets the options of a file's table, and returns the errors.
    pub fn fill(
        &mut self,
        file: SourceFile<'_>,
        table: &DeTable<'_>,
        settings: &[Setting<T>],
    ) -> Vec<ConfigError> {
        let entries = table.iter();
        entries
            .flat_map(|(name, value)| {
                self.entry(file, name.get_ref(), name.span(), value, settings)
            })
            .collect()
    }

    fn entry(
        &mut self,
        file: SourceFile<'_>,
        name: &str,
        span: std::ops::Range<usize>,
        value: &Spanned<DeValue<'_>>,
        settings: &[Setting<T>],
    ) -> Vec<ConfigError> {
        let Some(setting) = settings.iter().find(|setting| setting.name == name) else {
            let guess = did_you_mean(name, settings.iter().map(|setting| setting.name));
            let message = format!("[{}] has no option `{name}`{guess}", self.section);
            let location = file.location(span);
            return vec![ConfigError { location, message }];
        };
        self.set(setting, RawValue::Toml(value), |span| {
            file.location(span.unwrap_or_default())
        })
    }

    /// Sets an option from the text of a variable or a flag.
    pub fn set_text(
        &mut self,
        setting: &Setting<T>,
        text: &OsStr,
        location: &Location,
    ) -> Vec<ConfigError> {
        self.set(setting, RawValue::Text(text), |_| location.clone())
    }

    fn set(
        &mut self,
        setting: &Setting<T>,
        raw: RawValue<'_>,
        location: impl Fn(Option<std::ops::Range<usize>>) -> Location,
    ) -> Vec<ConfigError> {
        let slot = (setting.slot)(self.holder);
        match slot.set(raw, &setting.bounds) {
            Ok(()) => {
                self.provenance.push(setting.name, location(raw.span()));
                Vec::new()
            }
            Err(invalid) => {
                let must = slot.expected(&setting.bounds);
                let name = format!("{}.{}", self.section, setting.name);
                let error = |InvalidValue { span, message }| ConfigError {
                    message: message.unwrap_or_else(|| format!("`{name}` must be {must}")),
                    location: location(span),
                };
                invalid.into_iter().map(error).collect()
            }
        }
    }
}
