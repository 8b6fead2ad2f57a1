//! Prints the effective configuration.

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::errors::Location;
use super::options::{KEYS, MODELS, SECTIONS, Setting};
use super::provenance::Provenance;
use super::sources::EffectiveConfig;
use super::{Config, Key, KeyHash};

/// As TOML, each value with its provenance. Key hashes are shortened.
pub fn effective_toml(effective: &EffectiveConfig) -> String {
    let EffectiveConfig { config, provenance } = effective;
    let unset = Provenance::default();
    let mut shown = String::new();
    for section in SECTIONS {
        let provenance = provenance.sections.get(section.name).unwrap_or(&unset);
        let lines = lines(section.settings, &mut config.clone(), provenance, None);
        shown += &format!("[{}]\n{lines}\n", section.name);
    }
    for (key, provenance) in config.keys.iter().zip(&provenance.keys) {
        let lines = lines(KEYS, &mut key.clone(), provenance, Some(&key.hash));
        shown += &format!("[[keys]]\n{lines}\n");
    }
    for (model, provenance) in config.models.iter().zip(&provenance.models) {
        let lines = lines(MODELS, &mut model.clone(), provenance, None);
        shown += &format!("[[models]]\n{lines}\n");
    }
    shown.trim_end().to_owned() + "\n"
}

fn lines<T>(
    settings: &[Setting<T>],
    holder: &mut T,
    provenance: &Provenance,
    hash: Option<&KeyHash>,
) -> String {
    let mut lines = String::new();
    for setting in settings {
        let origin = provenance
            .location(setting.name)
            .map_or_else(|| "default".to_owned(), describe);
        let line = match (setting.to_toml(holder), hash) {
            (Some(_), Some(hash)) if setting.name == "hash" => {
                format!("hash = {:?}", hash.shortened())
            }
            (Some(value), _) => format!("{} = {value}", setting.name),
            (None, _) => format!("# {} is not set", setting.name),
        };
        lines += &format!("{line:<40} # {origin}\n");
    }
    lines
}

fn describe(location: &Location) -> String {
    match location {
        Location::File(file) => format!("{}:{}", file.path.display(), file.line),
        Location::WholeFile(path) => path.display().to_string(),
        Location::Variable(name) => name.clone(),
        Location::Flag(name) => format!("--{name}"),
        Location::Argument(_) => "command line".to_owned(),
    }
}

/// As JSON, with `null` for unset options. Key hashes are shortened.
pub fn effective_json(config: &Config) -> Value {
    let mut shown = Map::new();
    for section in SECTIONS {
        let fields = fields(section.settings, &mut config.clone());
        shown.insert(section.name.to_owned(), Value::Object(fields));
    }
    let keys = config.keys.iter().map(key);
    shown.insert("keys".to_owned(), keys.collect());
    let models = config.models.iter();
    let models = models.map(|model| Value::Object(fields(MODELS, &mut model.clone())));
    shown.insert("models".to_owned(), models.collect());
    Value::Object(shown)
}

fn key(key: &Key) -> Value {
    let mut fields = fields(KEYS, &mut key.clone());
    fields.insert("hash".to_owned(), json!(key.hash.shortened()));
    Value::Object(fields)
}

fn fields<T>(settings: &[Setting<T>], holder: &mut T) -> Map<String, Value> {
    let fields = settings.iter().map(|setting| {
        let toml = setting.to_toml(holder);
        let value = toml.and_then(|text| value(&text));
        (setting.name.to_owned(), value.unwrap_or_default())
    });
    fields.collect()
}

/// Parses a TOML value.
fn value(toml: &str) -> Option<Value> {
    let text = format!("v = {toml}");
    let table = DeTable::parse(&text).ok()?;
    table
        .get_ref()
        .get("v")
        .map(|value| to_json(value.get_ref()))
}

fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => to_json_number(&number.to_string()),
        DeValue::Float(number) => to_json_number(number.as_str()),
        DeValue::Boolean(value) => json!(value),
        DeValue::Datetime(time) => json!(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| to_json(item.get_ref())).collect(),
        DeValue::Table(fields) => fields
            .iter()
            .map(|(name, value)| (name.get_ref().to_string(), to_json(value.get_ref())))
            .collect::<Map<_, _>>()
            .into(),
    }
}

/// A number that JSON does not have (infinity) stays text.
fn to_json_number(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}
