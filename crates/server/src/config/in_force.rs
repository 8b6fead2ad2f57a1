//! A configuration as it is in force, for people and for programs.

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::mistakes::Place;
use super::options::{KEYS, MODELS, SECTIONS, Setting};
use super::said::Said;
use super::sources::Settled;
use super::{Config, Key, KeyHash};

/// As TOML, each value with who said it. Hashes of keys are shortened.
pub fn show(settled: &Settled) -> String {
    let Settled { config, origins } = settled;
    let silent = Said::default();
    let mut shown = String::new();
    for section in SECTIONS {
        let said = origins.sections.get(section.name).unwrap_or(&silent);
        let lines = lines(section.settings, &mut config.clone(), said, None);
        shown += &format!("[{}]\n{lines}\n", section.name);
    }
    for (key, said) in config.keys.iter().zip(&origins.keys) {
        let lines = lines(KEYS, &mut key.clone(), said, Some(&key.hash));
        shown += &format!("[[keys]]\n{lines}\n");
    }
    for (model, said) in config.models.iter().zip(&origins.models) {
        let lines = lines(MODELS, &mut model.clone(), said, None);
        shown += &format!("[[models]]\n{lines}\n");
    }
    shown.trim_end().to_owned() + "\n"
}

fn lines<T>(settings: &[Setting<T>], of: &mut T, said: &Said, hash: Option<&KeyHash>) -> String {
    let mut lines = String::new();
    for setting in settings {
        let origin = said
            .of(setting.name)
            .map_or_else(|| "default".to_owned(), told);
        let line = match (setting.written(of), hash) {
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

fn told(place: &Place) -> String {
    match place {
        Place::File(spot) => format!("{}:{}", spot.path.display(), spot.line),
        Place::WholeFile(path) => path.display().to_string(),
        Place::Variable(name) => name.clone(),
        Place::Flag(name) => format!("--{name}"),
        Place::Argument(_) => "command line".to_owned(),
    }
}

/// As JSON: what the file would have to say, and `null` for what is not set. Hashes of keys are
/// shortened.
pub fn in_force(config: &Config) -> Value {
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

fn fields<T>(settings: &[Setting<T>], of: &mut T) -> Map<String, Value> {
    let fields = settings.iter().map(|setting| {
        let written = setting.written(of);
        let value = written.and_then(|text| value(&text));
        (setting.name.to_owned(), value.unwrap_or_default())
    });
    fields.collect()
}

/// What an option's value is, as it is written.
fn value(written: &str) -> Option<Value> {
    let text = format!("v = {written}");
    let table = DeTable::parse(&text).ok()?;
    table
        .get_ref()
        .get("v")
        .map(|value| json_of(value.get_ref()))
}

fn json_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => number_of(&number.to_string()),
        DeValue::Float(number) => number_of(number.as_str()),
        DeValue::Boolean(value) => json!(value),
        DeValue::Datetime(time) => json!(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| json_of(item.get_ref())).collect(),
        DeValue::Table(fields) => fields
            .iter()
            .map(|(name, value)| (name.get_ref().to_string(), json_of(value.get_ref())))
            .collect::<Map<_, _>>()
            .into(),
    }
}

/// What JSON has no number for (infinity) stays a text.
fn number_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}
