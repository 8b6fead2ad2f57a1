//! Interprets raw parameter values by a tool's schema.

use serde_json::Value;

use super::json::quoted;
use super::python;

/// A tool offered to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSignature {
    /// The name by which the model calls it.
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// The JSON types that a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::format) struct Types(u8);

/// Limits references between schemas. A cyclic schema allows any value.
const MAX_DEPTH: usize = 8;

impl Types {
    pub const ANY: Self = Self(0x3f);
    /// Any value as JSON text, with quotation marks around strings.
    pub const JSON: Self = Self(0x7f);
    pub const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const OBJECT: Self = Self(16);
    const ARRAY: Self = Self(32);
    const NONE: Self = Self(0);

    /// The types a tool's schema allows for a parameter; any if it does not specify them.
    pub fn for_parameter(schema: &Value, key: &str) -> Self {
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(parameter), _) => Self::from_schema(parameter, schema, MAX_DEPTH),
            (None, other @ Value::Object(_)) => Self::from_schema(other, schema, MAX_DEPTH),
            (None, _) => Self::ANY,
        }
    }

    fn from_schema(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth == 0 {
            return Self::ANY;
        }
        let any_of = |schemas: &Vec<Value>| {
            Self::union(
                schemas
                    .iter()
                    .map(|each| Self::from_schema(each, root, depth - 1)),
            )
        };
        if let Some(target) = schema["$ref"].as_str() {
            let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
            return target.map_or(Self::ANY, |it| Self::from_schema(it, root, depth - 1));
        }
        match &schema["type"] {
            Value::String(name) => return Self::from_name(name),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str);
                return Self::union(names.map(Self::from_name));
            }
            _ => {}
        }
        if let Some(schemas) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            return any_of(schemas);
        }
        if let Some(schemas) = schema["allOf"].as_array() {
            let each = schemas
                .iter()
                .map(|it| Self::from_schema(it, root, depth - 1));
            return each.fold(Self::ANY, |all, one| Self(all.0 & one.0));
        }
        if let Some(values) = schema["enum"].as_array() {
            return Self::union(values.iter().map(Self::from_value));
        }
        if let Some(value) = schema.get("const") {
            return Self::from_value(value);
        }
        if schema.get("properties").is_some() {
            return Self::OBJECT;
        }
        if schema.get("items").is_some() {
            return Self::ARRAY;
        }
        Self::ANY
    }

    fn from_name(name: &str) -> Self {
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

    fn from_value(value: &Value) -> Self {
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

    /// Whether a string is allowed.
    pub fn allow_text(self) -> bool {
        self.allows(Self::STRING)
    }

    fn allows(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Converts raw text to JSON: a value of an allowed type if it parses as one, otherwise a
    /// string. A parameter that allows only strings stays a string, and text that fits no type is
    /// passed on as a string.
    pub fn convert(self, raw: &str) -> String {
        let text = raw.trim();
        if self == Self::JSON && serde_json::from_str::<Value>(text).is_ok() {
            return text.to_owned();
        }
        let fits = |json: &str| {
            let value = serde_json::from_str::<Value>(json).ok()?;
            let kind = Self::from_value(&value);
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
            let json = Types::for_parameter(&schema, key).convert(raw);
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
