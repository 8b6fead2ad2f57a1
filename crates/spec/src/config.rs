use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use crate::error::SpecError;

/// A JSON object with its path, so that errors name the full field.
/// `null` counts as absent, as transformers writes it.
#[derive(Debug, Clone)]
pub struct Config {
    prefix: String,
    fields: Map<String, Value>,
}

impl Config {
    /// `source_name` is the file the text came from, for the error.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, SpecError> {
        match serde_json::from_str(&spell_floats(text)) {
            Ok(Value::Object(fields)) => Ok(Self {
                prefix: String::new(),
                fields,
            }),
            Ok(_) => Err(SpecError::NotJson {
                source_name: source_name.into(),
                reason: "the top level is not an object".into(),
            }),
            Err(error) => Err(SpecError::NotJson {
                source_name: source_name.into(),
                reason: error.to_string(),
            }),
        }
    }

    /// Adds `defaults`, an object, for absent fields; `null` counts as present.
    pub(crate) fn with_defaults(&self, defaults: Value) -> Self {
        let mut config = self.clone();
        if let Value::Object(defaults) = defaults {
            for (field, value) in defaults {
                config.fields.entry(field).or_insert(value);
            }
        }
        config
    }

    /// Without these fields.
    pub(crate) fn without(&self, fields: &[&str]) -> Self {
        let mut config = self.clone();
        config
            .fields
            .retain(|field, _| !fields.contains(&field.as_str()));
        config
    }

    /// The field's full path for error messages.
    pub fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field exists, even as `null`.
    pub fn mentions(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// Renames the first field of each pair, if present, to the second.
    pub fn renamed(&self, pairs: &[(&str, &str)]) -> Config {
        let mut renamed = self.clone();
        for (from, to) in pairs {
            if let Some(value) = self.get(from) {
                renamed.fields.insert((*to).to_owned(), value.clone());
            }
        }
        renamed
    }

    pub fn object(&self, field: &str) -> Result<Option<Config>, SpecError> {
        self.typed(field, "an object", |value| match value {
            Value::Object(fields) => Some(Config {
                prefix: format!("{}.", self.path(field)),
                fields: fields.clone(),
            }),
            _ => None,
        })
    }

    pub fn str(&self, field: &str) -> Result<Option<&str>, SpecError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub fn bool_or(&self, field: &str, default: bool) -> Result<bool, SpecError> {
        Ok(self
            .typed(field, "true or false", Value::as_bool)?
            .unwrap_or(default))
    }

    pub fn usize(&self, field: &str) -> Result<usize, SpecError> {
        self.usize_opt(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn usize_or(&self, field: &str, default: usize) -> Result<usize, SpecError> {
        Ok(self.usize_opt(field)?.unwrap_or(default))
    }

    /// Counts are below 2³²: no model needs more, and products of two cannot overflow.
    pub fn usize_opt(&self, field: &str) -> Result<Option<usize>, SpecError> {
        self.typed(field, "a whole number below 4294967296", count)
    }

    pub fn f64(&self, field: &str) -> Result<f64, SpecError> {
        self.f64_opt(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn f64_or(&self, field: &str, default: f64) -> Result<f64, SpecError> {
        Ok(self.f64_opt(field)?.unwrap_or(default))
    }

    pub fn f64_opt(&self, field: &str) -> Result<Option<f64>, SpecError> {
        self.typed(field, "a number", number)
    }

    /// A list of `len` numbers.
    pub fn f64s(&self, field: &str, len: usize) -> Result<Option<Vec<f64>>, SpecError> {
        let expected = format!("a list of {len} numbers");
        self.typed(field, &expected, |value| {
            let list = value.as_array().filter(|list| list.len() == len)?;
            list.iter().map(number).collect()
        })
    }

    pub fn array(&self, field: &str) -> Result<Option<&[Value]>, SpecError> {
        self.typed(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    fn missing(&self, field: &str) -> SpecError {
        SpecError::Missing {
            field: self.path(field),
        }
    }

    fn typed<'a, T>(
        &'a self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| SpecError::invalid(self.path(field), Short(value), expected)),
        }
    }
}

fn count(value: &Value) -> Option<usize> {
    u32::try_from(value.as_u64()?).ok().map(|n| n as usize)
}

/// JSON has no infinity; transformers writes it as `{"__float__": "Infinity"}`.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Object(fields) => fields.get("__float__")?.as_str()?.parse().ok(),
        value => value.as_f64(),
    }
}

/// Older configs contain Python's bare `Infinity` and `NaN`.
fn spell_floats(text: &str) -> Cow<'_, str> {
    const BARE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !BARE.iter().any(|word| text.contains(word)) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(next) = rest.chars().next() {
        let word = BARE.iter().find(|word| !quoted && rest.starts_with(**word));
        let taken = match (word, next) {
            (Some(word), _) => word.len(),
            // An escaped quote does not end the string.
            (None, '\\') if quoted => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, next) => next.len_utf8(),
        };
        quoted ^= next == '"';
        match word {
            Some(word) => spelled.push_str(&format!("{{\"__float__\": \"{word}\"}}")),
            None => spelled.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(spelled)
}

/// A value for error messages, shortened.
struct Short<'a>(&'a Value);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.char_indices().nth(60) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

/// Read access to a GGUF header; the parser is in `weights`. A typed getter returns `None` for a
/// value of another type.
pub trait GgufHeader {
    /// Whether the key exists, with any type.
    fn contains(&self, key: &str) -> bool;
    fn str(&self, key: &str) -> Option<&str>;
    fn bool(&self, key: &str) -> Option<bool>;
    fn u64(&self, key: &str) -> Option<u64>;
    fn f64(&self, key: &str) -> Option<f64>;
    /// A list of whole numbers, or of truth values as 0 and 1.
    fn u64s(&self, key: &str) -> Option<Vec<u64>>;
    fn f64s(&self, key: &str) -> Option<Vec<f64>>;
    /// The shape of a tensor in the file, outermost dimension first.
    fn tensor_shape(&self, name: &str) -> Option<&[usize]>;
}

/// A header under its architecture's prefix: `block_count` is `llama.block_count`.
pub(crate) struct GgufConfig<'a> {
    pub header: &'a dyn GgufHeader,
    pub architecture: &'a str,
}

impl GgufConfig<'_> {
    pub fn key(&self, field: &str) -> String {
        format!("{}.{field}", self.architecture)
    }

    pub fn usize(&self, field: &str) -> Result<usize, SpecError> {
        self.usize_opt(field)?.ok_or_else(|| SpecError::Missing {
            field: self.key(field),
        })
    }

    pub fn usize_opt(&self, field: &str) -> Result<Option<usize>, SpecError> {
        let expected = "one whole number below 4294967296";
        match self.typed(field, expected, |key| self.header.u64(key))? {
            None => Ok(None),
            Some(n) => u32::try_from(n)
                .map(|n| Some(n as usize))
                .map_err(|_| SpecError::invalid(self.key(field), n, expected)),
        }
    }

    pub fn f64(&self, field: &str) -> Result<f64, SpecError> {
        self.f64_opt(field)?.ok_or_else(|| SpecError::Missing {
            field: self.key(field),
        })
    }

    pub fn f64_opt(&self, field: &str) -> Result<Option<f64>, SpecError> {
        self.typed(field, "a float", |key| self.header.f64(key))
    }

    pub fn bool_or(&self, field: &str, default: bool) -> Result<bool, SpecError> {
        let found = self.typed(field, "true or false", |key| self.header.bool(key))?;
        Ok(found.unwrap_or(default))
    }

    pub fn str_opt(&self, field: &str) -> Result<Option<&str>, SpecError> {
        self.typed(field, "a string", |key| self.header.str(key))
    }

    /// A number that the file has once, or the same for every layer.
    pub fn uniform_opt(&self, field: &str) -> Result<Option<usize>, SpecError> {
        let key = self.key(field);
        match self.header.u64s(&key).as_deref() {
            None => self.usize_opt(field),
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => {
                match u32::try_from(*first) {
                    Ok(number) => Ok(Some(number as usize)),
                    Err(_) => Err(SpecError::invalid(key, first, "below 4294967296")),
                }
            }
            Some(_) => Err(SpecError::invalid(
                key,
                "a list",
                "the same number for every layer",
            )),
        }
    }

    /// A number for each of `layers` layers, which the file has once for all or as a list.
    pub fn per_layer(&self, field: &str, layers: usize) -> Result<Option<Vec<usize>>, SpecError> {
        let key = self.key(field);
        let Some(list) = self.header.u64s(&key) else {
            let one = self.usize_opt(field)?;
            return Ok(one.map(|one| vec![one; layers]));
        };
        let expected = || format!("whole numbers below 4294967296 for each of {layers} layers");
        if list.len() < layers {
            let found = format!("a list of {}", list.len());
            return Err(SpecError::invalid(key, found, expected()));
        }
        let list = list[..layers].iter().map(|n| u32::try_from(*n));
        match list.collect::<Result<Vec<u32>, _>>() {
            Ok(list) => Ok(Some(list.into_iter().map(|n| n as usize).collect())),
            Err(_) => Err(SpecError::invalid(key, "a list with more", expected())),
        }
    }

    /// Rows of a tensor, for sizes without a key.
    pub fn rows(&self, tensor: &str) -> Result<usize, SpecError> {
        let shape = self.header.tensor_shape(tensor);
        let rows = shape.and_then(|shape| shape.first().copied());
        rows.ok_or_else(|| SpecError::Missing {
            field: format!("tensor {tensor}"),
        })
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.header.tensor_shape(tensor).is_some()
    }

    /// A key of the wrong type is an error, not an absent key with a default.
    fn typed<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let key = self.key(field);
        match read(&key) {
            None if self.header.contains(&key) => {
                Err(SpecError::invalid(key, "of another type", expected))
            }
            value => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_infinity_are_read() {
        let text = r#"{"bare": [0.0, Infinity, -Infinity], "spelled": {"__float__": "Infinity"},
            "word": "an \"Infinity\" of NaN"}"#;
        let config = Config::parse(text, "config.json").unwrap();
        let bare = vec![0.0, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(config.f64s("bare", 3).unwrap(), Some(bare));
        assert_eq!(config.f64("spelled").unwrap(), f64::INFINITY);
        let word = config.str("word").unwrap();
        assert_eq!(word, Some("an \"Infinity\" of NaN"));
    }

    #[test]
    fn renamed_field_replaces_the_usual_one() {
        let text = r#"{"block_ff_dim": 96, "intermediate_size": 64, "vocab_size": 8}"#;
        let config = Config::parse(text, "config.json").unwrap();
        let config = config.renamed(&[
            ("block_ff_dim", "intermediate_size"),
            ("absent", "vocab_size"),
        ]);
        assert_eq!(config.usize("intermediate_size").unwrap(), 96);
        assert_eq!(config.usize("vocab_size").unwrap(), 8);
    }
}
