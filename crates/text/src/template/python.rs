//! Values as Python spells them: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

/// `str(value)`: what `{{ value }}` prints.
pub(super) fn str(value: &Value) -> String {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text.to_owned(),
        (None, ValueKind::Undefined) => String::new(),
        (None, _) => repr(value),
    }
}

/// `repr(value)`: how a value shows inside a list or a dict.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => "Undefined".to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::String => repr_str(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items: Vec<String> = items(value).map(|item| repr(&item)).collect();
            match (value.is_tuple(), &items[..]) {
                (true, [only]) => format!("({only},)"),
                (true, _) => format!("({})", items.join(", ")),
                (false, _) => format!("[{}]", items.join(", ")),
            }
        }
        ValueKind::Map => {
            let pairs = items(value).map(|key| {
                let item = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&item))
            });
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}

/// Python prefers single quotes, and double ones where only they need no escape.
fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => {
                push_formatted(&mut out, format_args!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `repr(float)`: like Rust's, but with a signed exponent of two digits at least.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{number:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn push_formatted(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(arguments);
}

/// Arguments of `json.dumps` that templates use.
#[derive(Debug, Default)]
pub(super) struct JsonOptions {
    pub indent: Option<usize>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// Between items, and between key and value.
    pub separators: Option<Vec<String>>,
}

/// `json.dumps(value, …)`.
pub(super) fn json_dumps(value: &Value, options: &JsonOptions) -> Result<String, Error> {
    if value.is_undefined() {
        let why = "an undefined value has no JSON";
        return Err(Error::new(ErrorKind::BadSerialization, why));
    }
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let (item, key) = match (options.separators.as_deref(), options.indent) {
        (Some([item, key]), _) => (item.as_str(), key.as_str()),
        (Some(_), _) => {
            let why = "`separators` of tojson must be two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        (None, Some(_)) => (",", ": "),
        (None, None) => (", ", ": "),
    };
    let mut writer = JsonWriter {
        out: String::new(),
        options,
        item,
        key,
    };
    writer.value(&json, 0);
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    options: &'a JsonOptions,
    item: &'a str,
    key: &'a str,
}

impl JsonWriter<'_> {
    fn value(&mut self, json: &Json, depth: usize) {
        match json {
            Json::Null => self.out.push_str("null"),
            Json::Bool(true) => self.out.push_str("true"),
            Json::Bool(false) => self.out.push_str("false"),
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(number) => self.out.push_str(&float(number)),
                None => self.out.push_str(&number.to_string()),
            },
            Json::String(text) => self.string(text),
            Json::Array(list) if list.is_empty() => self.out.push_str("[]"),
            Json::Array(list) => {
                self.out.push('[');
                for (index, item) in list.iter().enumerate() {
                    self.between(index, depth + 1);
                    self.value(item, depth + 1);
                }
                self.line(depth);
                self.out.push(']');
            }
            Json::Object(map) if map.is_empty() => self.out.push_str("{}"),
            Json::Object(map) => {
                let mut pairs: Vec<_> = map.iter().collect();
                if self.options.sort_keys {
                    pairs.sort_unstable_by_key(|(key, _)| *key);
                }
                self.out.push('{');
                for (index, (key, item)) in pairs.into_iter().enumerate() {
                    self.between(index, depth + 1);
                    self.string(key);
                    self.out.push_str(self.key);
                    self.value(item, depth + 1);
                }
                self.line(depth);
                self.out.push('}');
            }
        }
    }

    fn between(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(self.item);
        }
        self.line(depth);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.options.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.options.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        push_formatted(&mut self.out, format_args!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// `value is iterable`, which to Python `None` is not and an undefined value is.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_print_as_python_prints_them() {
        let cases = [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!("it's"), "it's"),
            (json!(["it's", "a\"b", "é\n"]), r#"["it's", 'a"b', 'é\n']"#),
            (
                json!({"a": [1, 2.0, null], "b": {}}),
                "{'a': [1, 2.0, None], 'b': {}}",
            ),
            (json!([1e16, 1e-5, 0.1]), "[1e+16, 1e-05, 0.1]"),
        ];
        for (value, text) in cases {
            assert_eq!(str(&Value::from(Serde(&value))), text);
        }
        assert_eq!(str(&Value::UNDEFINED), "");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = json!({"b": [1, 1.0, "é<\u{1}\"😀"], "a": {}, "c": []});
        let indented = "{\n  \"b\": [\n    1,\n    1.0,\n    \"é<\\u0001\\\"😀\"\n  ],\n  \"a\": {},\n  \"c\": []\n}";
        let cases = [
            (
                JsonOptions::default(),
                r#"{"b": [1, 1.0, "é<\u0001\"😀"], "a": {}, "c": []}"#,
            ),
            (
                JsonOptions {
                    ensure_ascii: true,
                    sort_keys: true,
                    separators: Some(vec![",".into(), ":".into()]),
                    ..JsonOptions::default()
                },
                r#"{"a":{},"b":[1,1.0,"\u00e9<\u0001\"\ud83d\ude00"],"c":[]}"#,
            ),
            (
                JsonOptions {
                    indent: Some(2),
                    ..JsonOptions::default()
                },
                indented,
            ),
        ];
        for (options, text) in cases {
            let dumped = json_dumps(&Value::from(Serde(&value)), &options);
            assert_eq!(dumped.ok().as_deref(), Some(text));
        }
        assert!(json_dumps(&Value::UNDEFINED, &JsonOptions::default()).is_err());
    }
}
