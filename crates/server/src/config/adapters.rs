//! `adapters` of a model: their names, and where they are.

use std::collections::BTreeMap;

use super::ModelConfig;
use super::option_value::{Bounds, OptionValue, quoted};
use super::raw_value::{InvalidValue, RawValue};
use super::suggestion::did_you_mean;

/// An adapter of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// A path or a hub's `owner/name`.
    pub source: String,
    /// Multiplies its strength; 1 is as trained.
    pub scale: f32,
    /// Loaded with the model, and never unloaded for another.
    pub pinned: bool,
}

impl AdapterConfig {
    /// One with default options.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            scale: 1.0,
            pinned: false,
        }
    }
}

impl ModelConfig {
    /// Whether it has, or may get, adapters.
    pub fn takes_adapters(&self) -> bool {
        !self.adapters.is_empty() || self.loads_adapters()
    }

    /// Whether requests may load further adapters.
    pub fn loads_adapters(&self) -> bool {
        !self.adapter_folders.is_empty() || !self.adapter_repos.is_empty()
    }
}

/// Why a name cannot be an adapter's. `base:name` names both, and lists are separated by commas.
pub fn name_fault(name: &str) -> Option<&'static str> {
    let odd = |letter: char| {
        letter.is_whitespace() || letter.is_control() || matches!(letter, ',' | ':' | '"' | '\\')
    };
    (name.is_empty() || name.contains(odd))
        .then_some("must be a name without spaces, commas, colons, quotes or backslashes")
}

const FIELDS: [&str; 3] = ["source", "scale", "pinned"];

impl OptionValue for BTreeMap<String, AdapterConfig> {
    fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        let table = raw.table().ok_or_else(|| raw.invalid())?;
        let (mut adapters, mut invalid) = (Self::new(), Vec::new());
        for (name, value) in table {
            let text = name.get_ref().to_string();
            if let Some(fault) = name_fault(&text) {
                invalid.push(InvalidValue {
                    span: Some(name.span()),
                    message: Some(format!("the adapter `{text}` {fault}")),
                });
            }
            match adapter(&text, RawValue::Toml(value)) {
                Ok(adapter) => _ = adapters.insert(text, adapter),
                Err(more) => invalid.extend(more),
            }
        }
        if invalid.is_empty() {
            Ok(adapters)
        } else {
            Err(invalid)
        }
    }

    fn to_toml(&self, _: &Bounds) -> Option<String> {
        let entry = |(name, adapter): (&String, &AdapterConfig)| {
            let AdapterConfig {
                source,
                scale,
                pinned,
            } = adapter;
            let source = quoted(source);
            let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
            let name = if name.chars().all(is_bare) {
                name.clone()
            } else {
                quoted(name)
            };
            if *adapter == AdapterConfig::new(&adapter.source) {
                format!("{name} = {source}")
            } else {
                format!("{name} = {{ source = {source}, scale = {scale:?}, pinned = {pinned} }}")
            }
        };
        let entries: Vec<_> = self.iter().map(entry).collect();
        (!entries.is_empty()).then(|| format!("{{ {} }}", entries.join(", ")))
    }

    fn expected(_: &Bounds) -> String {
        "a table from names to sources, each a path or a table with `source`, `scale` and `pinned`"
            .to_owned()
    }
}

fn adapter(name: &str, raw: RawValue<'_>) -> Result<AdapterConfig, Vec<InvalidValue>> {
    let fault = |raw: RawValue<'_>, message: String| {
        vec![InvalidValue {
            span: raw.span(),
            message: Some(message),
        }]
    };
    let source = |raw: RawValue<'_>| {
        raw.text()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    if let Some(source) = source(raw) {
        return Ok(AdapterConfig::new(source));
    }
    let Some(table) = raw.table() else {
        let what = format!("`adapters.{name}` must be a path, or a table with a `source`");
        return Err(fault(raw, what));
    };
    let mut adapter = AdapterConfig::new("");
    let mut invalid = Vec::new();
    for (field, value) in table {
        let value = RawValue::Toml(value);
        let expected = match &**field.get_ref() {
            "source" => match source(value) {
                Some(source) => {
                    adapter.source = source;
                    continue;
                }
                None => "a path or a hub's `owner/name`",
            },
            "scale" => match value.real().map(|scale| scale as f32) {
                Some(scale) if scale.is_finite() => {
                    adapter.scale = scale;
                    continue;
                }
                _ => "a finite number",
            },
            "pinned" => match value.bool() {
                Some(pinned) => {
                    adapter.pinned = pinned;
                    continue;
                }
                None => "true or false",
            },
            other => {
                let guess = did_you_mean(other, FIELDS);
                invalid.push(InvalidValue {
                    span: Some(field.span()),
                    message: Some(format!("`{other}` is not an option of an adapter{guess}")),
                });
                continue;
            }
        };
        let what = format!("`adapters.{name}.{}` must be {expected}", field.get_ref());
        invalid.extend(fault(value, what));
    }
    if adapter.source.is_empty() && invalid.is_empty() {
        let what = format!("`adapters.{name}` needs a `source`: a path or a hub's `owner/name`");
        invalid.extend(fault(raw, what));
    }
    if invalid.is_empty() {
        Ok(adapter)
    } else {
        Err(invalid)
    }
}
