use std::fmt;

use serde_json::{Map, Value};

use crate::error::SpecError;

/// A JSON object that remembers where it stands, so that an error can name the whole field.
/// `null` counts as absent, as transformers writes it.
#[derive(Debug, Clone)]
pub struct Config {
    prefix: String,
    fields: Map<String, Value>,
}

impl Config {
    /// `source_name` is the file the text came from, for the error.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, SpecError> {
        match serde_json::from_str(text) {
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

    /// The field's full name, as error messages say it.
    pub fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field stands there, `null` included.
    pub fn mentions(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
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

    /// Counts stay below 2³²: nothing real is larger, and products of two cannot overflow.
    pub fn usize_opt(&self, field: &str) -> Result<Option<usize>, SpecError> {
        self.typed(field, "a whole number below 4294967296", |value| {
            u32::try_from(value.as_u64()?).ok().map(|n| n as usize)
        })
    }

    pub fn f64(&self, field: &str) -> Result<f64, SpecError> {
        self.f64_opt(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn f64_or(&self, field: &str, default: f64) -> Result<f64, SpecError> {
        Ok(self.f64_opt(field)?.unwrap_or(default))
    }

    pub fn f64_opt(&self, field: &str) -> Result<Option<f64>, SpecError> {
        self.typed(field, "a number", Value::as_f64)
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

/// A value as an error message shows it: never a page long.
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

/// What families ask of a GGUF header; the parser itself lives in `weights`. A typed getter
/// answers `None` for a value of another type too.
pub trait GgufHeader {
    /// Whether the key is there, whatever its type.
    fn contains(&self, key: &str) -> bool;
    fn str(&self, key: &str) -> Option<&str>;
    fn u64(&self, key: &str) -> Option<u64>;
    fn f64(&self, key: &str) -> Option<f64>;
    /// The shape of a tensor in the file, outermost dimension first.
    fn tensor_shape(&self, name: &str) -> Option<&[usize]>;
}

/// A header seen through its architecture's prefix: `block_count` is `llama.block_count`.
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

    pub fn str_opt(&self, field: &str) -> Result<Option<&str>, SpecError> {
        self.typed(field, "a string", |key| self.header.str(key))
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.header.tensor_shape(tensor).is_some()
    }

    /// A key of the wrong type must not pass for an absent one, which may have a default.
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
