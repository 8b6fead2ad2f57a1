//! What a tool's schema says of a raw parameter value.

use serde_json::Value;

use super::json::quoted;
use super::python;

/// A tool that the model was told of.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSignature {
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// The JSON types that a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::format) struct Types(u8);

/// A schema refers to others; one that goes round in circles says nothing.
const MAX_DEPTH: usize = 8;

impl Types {
    pub const ANY: Self = Self(0x3f);
    /// Anything, and the text is JSON of it, so that a string has its quotation marks.
    pub const JSON: Self = Self(0x7f);
    pub const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const OBJECT: Self = Self(16);
    const ARRAY: Self = Self(32);
    const NONE: Self = Self(0);

    /// What a tool's schema allows for one of its parameters; anything where it does not say.
    pub fn of_parameter(schema: &Value, key: &str) -> Self {
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(parameter), _) => Self::of_schema(parameter, schema, MAX_DEPTH),
            (None, other @ Value::Object(_)) => Self::of_schema(other, schema, MAX_DEPTH),
            (None, _) => Self::ANY,
        }
    }

    fn of_schema(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth == 0 {
            return Self::ANY;
        }
        let any_of = |schemas: &Vec<Value>| {
            Self::union(
                schemas
                    .iter()
                    .map(|each| Self::of_schema(each, root, depth - 1)),
            )
        };
        if let Some(target) = schema["$ref"].as_str() {
            let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
            return target.map_or(Self::ANY, |it| Self::of_schema(it, root, depth - 1));
        }
        match &schema["type"] {
            Value::String(name) => return Self::of_name(name),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str);
                return Self::union(names.map(Self::of_name));
            }
            _ => {}
        }
        if let Some(schemas) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            return any_of(schemas);
        }
        if let Some(schemas) = schema["allOf"].as_array() {
            let each = schemas
                .iter()
                .map(|it| Self::of_schema(it, root, depth - 1));
            return each.fold(Self::ANY, |all, one| Self(all.0 & one.0));
        }
        if let Some(values) = schema["enum"].as_array() {
            return Self::union(values.iter().map(Self::of_value));
        }
        if let Some(value) = schema.get("const") {
            return Self::of_value(value);
        }
        if schema.get("properties").is_some() {
            return Self::OBJECT;
        }
        if schema.get("items").is_some() {
            return Self::ARRAY;
        }
        Self::ANY
    }

    fn of_name(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" | "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
        }
    }

    fn union(types: impl Iterator<Item = Self>) -> Self {
        types.fold(Self::NONE, |all, one| Self(all.0 | one.0))
    }

    /// Whether a string is among what is allowed.
    pub fn allow_text(self) -> bool {
        self.allows(Self::STRING)
    }

    fn allows(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The JSON that raw text stands for: a value of an allowed type if it is one, a string if it
    /// is not. A string is never taken for another type where only a string will do, and text that
    /// fits nothing is passed on as a string rather than lost.
    pub fn convert(self, raw: &str) -> String {
        let text = raw.trim();
        if self == Self::JSON && serde_json::from_str::<Value>(text).is_ok() {
            return text.to_owned();
        }
        let fits = |json: &str| {
            let value = serde_json::from_str::<Value>(json).ok()?;
            let kind = Self::of_value(&value);
            (kind != Self::STRING && self.allows(kind)).then_some(())
        };
        if fits(text).is_some() {
            return text.to_owned();
        }
        let python = python::to_json(text).filter(|json| fits(json).is_some());
        python.unwrap_or_else(|| quoted(raw))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn raw_values_follow_the_schema() {
        let schema = json!({
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "flag": {"type": "boolean"},
                "list": {"type": "array", "items": {"type": "string"}},
                "nullable": {"type": ["string", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "choice": {"enum": ["1", "2"]},
                "pointed": {"$ref": "#/$defs/place"},
                "circle": {"$ref": "#/$defs/circle"},
                "free": {},
            },
            "$defs": {
                "place": {"type": "object", "properties": {}},
                "circle": {"$ref": "#/$defs/circle"},
            },
        });
        for (key, raw, wanted) in [
            ("text", "12", "\"12\""),
            ("text", " a ", "\" a \""),
            ("count", " 12\n", "12"),
            ("count", "twelve", "\"twelve\""),
            ("flag", "True", "true"),
            ("flag", "false", "false"),
            ("list", "['a', \"b\"]", "[\"a\",\"b\"]"),
            ("list", "[\"a\", 1]", "[\"a\", 1]"),
            ("nullable", "null", "null"),
            ("nullable", "7", "\"7\""),
            ("either", "7", "7"),
            ("either", "x", "\"x\""),
            ("choice", "1", "\"1\""),
            ("pointed", "{\"a\": 1}", "{\"a\": 1}"),
            ("circle", "1", "1"),
            ("free", "{\"a\": 1}", "{\"a\": 1}"),
            ("free", "\"quoted\"", "\"\\\"quoted\\\"\""),
            ("unheard_of", "1.5", "1.5"),
            ("unheard_of", "Paris", "\"Paris\""),
        ] {
            let json = Types::of_parameter(&schema, key).convert(raw);
            assert_eq!(json, wanted, "{key}: {raw}");
        }
        for (raw, wanted) in [
            ("\"Paris\"", "\"Paris\""),
            ("Paris", "\"Paris\""),
            ("1", "1"),
        ] {
            assert_eq!(Types::JSON.convert(raw), wanted, "{raw}");
        }
    }
}
