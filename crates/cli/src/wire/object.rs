//! Reading an object key by key, with an eye on what is left over.

use serde_json::{Map, Value};

use crate::error::CliError;

/// Where a value stands in the file that a flag names.
#[derive(Debug, Clone)]
pub struct Place {
    pub flag: &'static str,
    pub path: String,
}

impl Place {
    /// The whole of the file, which goes by this name.
    pub fn root(flag: &'static str, name: &str) -> Self {
        Self {
            flag,
            path: name.to_owned(),
        }
    }

    pub fn item(&self, index: usize) -> Self {
        Self {
            flag: self.flag,
            path: format!("{}[{index}]", self.path),
        }
    }

    pub fn field(&self, key: &str) -> Self {
        Self {
            flag: self.flag,
            path: format!("{}.{key}", self.path),
        }
    }

    /// A value that is not what it should be.
    pub fn wrong(&self, found: &Value, expected: &str) -> CliError {
        self.refused(&format!("is {}; it must be {expected}", brief(found)))
    }

    pub fn refused(&self, why: &str) -> CliError {
        let Self { flag, path } = self;
        CliError::Field {
            flag,
            what: format!("`{path}` {why}"),
        }
    }

    pub fn text(&self, value: Value) -> Result<String, CliError> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(&other, "a string")),
        }
    }

    pub fn list(&self, value: Value) -> Result<Vec<Value>, CliError> {
        match value {
            Value::Array(items) => Ok(items),
            other => Err(self.wrong(&other, "a list")),
        }
    }

    pub fn object(&self, value: Value) -> Result<Object, CliError> {
        match value {
            Value::Object(fields) => Ok(Object {
                place: self.clone(),
                fields,
                known: Vec::new(),
            }),
            other => Err(self.wrong(&other, "an object")),
        }
    }
}

/// A value in few words.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        short => {
            let text = short.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

/// An object whose keys are taken one by one.
pub struct Object {
    pub place: Place,
    fields: Map<String, Value>,
    /// Keys that were asked for.
    known: Vec<&'static str>,
}

impl Object {
    /// A key's value; null is none.
    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        let value = self.fields.shift_remove(key);
        value.filter(|value| !value.is_null())
    }

    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, CliError> {
        let value = self.take(key);
        let place = self.place.field(key);
        value.map(|value| place.text(value)).transpose()
    }

    pub fn required_text(&mut self, key: &'static str) -> Result<String, CliError> {
        let text = self.text(key)?;
        text.ok_or_else(|| self.place.field(key).refused("is missing"))
    }

    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, CliError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.place.field(key).wrong(&other, "true or false")),
        }
    }

    /// Only this value, where there is one at all.
    pub fn constant(&mut self, key: &'static str, only: &str) -> Result<(), CliError> {
        match self.take(key) {
            Some(value) if value != only => {
                Err(self.place.field(key).wrong(&value, &format!("{only:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what nobody asked for.
    pub fn end(self) -> Result<(), CliError> {
        let said = self.fields.iter().find(|(_, value)| !value.is_null());
        match said {
            None => Ok(()),
            Some((key, _)) => {
                let known = self.known.join(", ");
                let why = format!("is not known; known here: {known}");
                Err(self.place.field(key).refused(&why))
            }
        }
    }
}
