//! Calls that are JSON objects: `{"name": "f", "arguments": {…}}` and `{"f": {…}}`.

use super::super::data::JsonFields;
use super::call::{Call, Progress, Reader};
use super::json::{JsonReader, Step};

/// Reads the object, its opening brace included.
#[derive(Debug)]
pub(super) struct JsonCall {
    /// The keys to look for; without them, the only key is the tool's name.
    fields: Option<&'static JsonFields>,
    /// Whether the first key must already look like a call.
    strict: bool,
    state: JsonCallState,
    reader: JsonReader,
    /// The raw text of the value being read.
    raw: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonCallState {
    Open,
    KeyOrClose,
    Key,
    Colon(Field),
    Value(Field),
    /// Arguments that are an object and can be sent as they come.
    Streaming,
    CommaOrClose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Id,
    Other,
}

impl JsonCall {
    pub fn new(fields: Option<&'static JsonFields>, strict: bool) -> Self {
        Self {
            fields,
            strict,
            state: JsonCallState::Open,
            reader: JsonReader::new(),
            raw: String::new(),
            name: None,
            id: None,
            early: None,
        }
    }

    fn structure(&mut self, c: char, call: &mut Call) -> Step {
        self.state = match (self.state, c) {
            (_, ' ' | '\t' | '\n' | '\r') => return Step::More,
            (JsonCallState::Open, '{') => JsonCallState::KeyOrClose,
            (JsonCallState::Colon(field), ':') => {
                self.begin_value();
                JsonCallState::Value(field)
            }
            (JsonCallState::CommaOrClose, ',') => {
                self.begin_value();
                JsonCallState::Key
            }
            (JsonCallState::KeyOrClose | JsonCallState::CommaOrClose, '}') => {
                return self.close(call);
            }
            _ => return Step::Broken,
        };
        Step::More
    }

    fn begin_value(&mut self) {
        self.reader = JsonReader::new();
        self.raw.clear();
    }

    fn key(&mut self, c: char, call: &mut Call) -> Step {
        if self.raw.is_empty() && !matches!(c, '"' | ' ' | '\t' | '\n' | '\r') {
            return self.structure(c, call);
        }
        match self.reader.push(c, &mut self.raw) {
            Step::Done => {}
            step => return step,
        }
        let Some(key) = unquoted(&self.raw) else {
            return Step::Broken;
        };
        let Some(field) = self.field(key) else {
            return Step::Broken;
        };
        self.state = JsonCallState::Colon(field);
        Step::More
    }

    /// The role of a key, unless it shows that this is not a call.
    fn field(&mut self, key: String) -> Option<Field> {
        let Some(fields) = self.fields else {
            let first = self.name.is_none();
            self.name.get_or_insert(key);
            return first.then_some(Field::Arguments);
        };
        let is = |keys: &[&str]| keys.contains(&key.as_str());
        if is(fields.name) {
            Some(Field::Name)
        } else if is(fields.arguments) {
            (self.name.is_some() || !self.strict).then_some(Field::Arguments)
        } else if is(fields.id) {
            Some(Field::Id)
        } else {
            (!self.strict || self.name.is_some() || key == "type").then_some(Field::Other)
        }
    }

    fn value(&mut self, c: char, field: Field, call: &mut Call) -> Step {
        let streams = field == Field::Arguments && self.raw.is_empty() && c == '{';
        if streams && let Some(name) = &self.name {
            if !call.start(name, self.id.take()) {
                return Step::Broken;
            }
            self.state = JsonCallState::Streaming;
            return self.stream(c, call);
        }
        match self.reader.push(c, &mut self.raw) {
            Step::Done => self.end_value(field, call),
            Step::DoneBefore => match self.end_value(field, call) {
                Step::More => self.push(c, call),
                step => step,
            },
            step => step,
        }
    }

    fn end_value(&mut self, field: Field, call: &mut Call) -> Step {
        self.state = JsonCallState::CommaOrClose;
        match field {
            Field::Name => {
                let Some(name) = unquoted(&self.raw).filter(|name| !name.is_empty()) else {
                    return Step::Broken;
                };
                self.name = Some(name);
                if let Some(arguments) = self.early.take() {
                    return self.send(&arguments, call);
                }
            }
            Field::Id => self.id = unquoted(&self.raw).or(Some(self.raw.clone())),
            Field::Arguments => {
                let Some(arguments) = as_object(&self.raw) else {
                    return Step::Broken;
                };
                if self.name.is_some() {
                    return self.send(&arguments, call);
                }
                self.early = Some(arguments);
            }
            Field::Other => {}
        }
        Step::More
    }

    /// Sends a call whose arguments are already complete.
    fn send(&mut self, arguments: &str, call: &mut Call) -> Step {
        let name = self.name.as_deref().unwrap_or_default();
        if *call.progress != Progress::Waiting || !call.start(name, self.id.take()) {
            return Step::Broken;
        }
        call.arguments(arguments);
        call.end();
        Step::More
    }

    fn stream(&mut self, c: char, call: &mut Call) -> Step {
        self.raw.clear();
        let step = self.reader.push(c, &mut self.raw);
        call.arguments(&self.raw);
        if step == Step::Done {
            call.end();
            self.state = JsonCallState::CommaOrClose;
            return Step::More;
        }
        step
    }

    fn close(&mut self, call: &mut Call) -> Step {
        if *call.progress == Progress::Waiting {
            if self.name.is_none() {
                return Step::Broken;
            }
            if self.send("{}", call) == Step::Broken {
                return Step::Broken;
            }
        }
        Step::Done
    }
}

impl Reader for JsonCall {
    fn push(&mut self, c: char, call: &mut Call) -> Step {
        let step = match self.state {
            JsonCallState::KeyOrClose | JsonCallState::Key => self.key(c, call),
            JsonCallState::Value(field) => self.value(c, field, call),
            JsonCallState::Streaming => self.stream(c, call),
            JsonCallState::Open | JsonCallState::Colon(_) | JsonCallState::CommaOrClose => {
                self.structure(c, call)
            }
        };
        // Errors after a complete call do not affect it.
        if step == Step::Broken && *call.progress == Progress::Ended {
            return Step::DoneBefore;
        }
        step
    }

    fn take_held(&mut self) -> String {
        self.reader.take_held()
    }
}

fn unquoted(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// Arguments as an object: some models put the object into a string, or `null` for none.
fn as_object(raw: &str) -> Option<String> {
    if raw == "null" || raw == "\"\"" {
        return Some("{}".to_owned());
    }
    if raw.starts_with('{') {
        return Some(raw.to_owned());
    }
    let inner: String = unquoted(raw)?;
    let object = serde_json::from_str::<serde_json::Value>(&inner)
        .ok()?
        .is_object();
    object.then_some(inner)
}
