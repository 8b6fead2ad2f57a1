//! Limits on the number of an object's properties.

use serde_json::{Map, Value};

/// The effect of `minProperties` and `maxProperties` given the rest of a schema.
#[derive(Debug, PartialEq)]
pub(super) enum Count {
    /// The other keywords already guarantee it.
    Certain,
    Kept,
    Unsupported(String),
}

/// Evaluates one of the two keywords.
pub(super) fn count(keyword: &str, limit: u64, schema: &Map<String, Value>) -> Count {
    let object = |keyword: &str| schema.get(keyword).and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let mut required = required.cloned().unwrap_or_default();
    let mut seen = std::collections::HashSet::new();
    required.retain(|name| seen.insert(name.to_string()));
    let named = object("properties");
    let is_named = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        named.is_some_and(|named| named.contains_key(name))
    };
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && object("patternProperties").is_none_or(Map::is_empty);
    let names = named.map_or(0, Map::len) as u64;
    let optional = names - required.iter().filter(|name| is_named(name)).count() as u64;
    let required = required.len() as u64;

    if keyword == "minProperties" && limit <= required {
        return Count::Certain;
    }
    if keyword == "maxProperties" && closed && limit >= names {
        return Count::Certain;
    }
    // A model may write the same free property twice.
    if keyword == "minProperties" && limit > required + 1 {
        return Count::Unsupported(format!(
            "only the required properties and one more are certain, {} here",
            required + 1
        ));
    }
    // One of the optional ones, or none: llguidance spells the cases out.
    if optional == 0 || (closed && limit == required + 1) {
        return Count::Kept;
    }
    Count::Unsupported("a count needs every property to be required".to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn satisfiable_counts_are_kept() {
        let two = json!({"a": {}, "b": {}});
        let cases = [
            (
                "minProperties",
                2,
                json!({"required": ["a", "b"]}),
                "certain",
            ),
            ("minProperties", 1, json!({}), "kept"),
            ("minProperties", 2, json!({}), "unsupported"),
            (
                "minProperties",
                1,
                json!({"properties": two}),
                "unsupported",
            ),
            (
                "minProperties",
                1,
                json!({"properties": two, "additionalProperties": false}),
                "kept",
            ),
            ("maxProperties", 3, json!({}), "kept"),
            (
                "maxProperties",
                2,
                json!({"properties": two, "additionalProperties": false}),
                "certain",
            ),
            (
                "maxProperties",
                1,
                json!({"properties": two, "additionalProperties": false}),
                "kept",
            ),
            (
                "maxProperties",
                2,
                json!({"properties": two}),
                "unsupported",
            ),
            (
                "maxProperties",
                3,
                json!({"properties": two, "required": ["a", "b"]}),
                "kept",
            ),
        ];
        for (keyword, limit, schema, expected) in cases {
            let members = schema.as_object().expect("an object");
            let found = match count(keyword, limit, members) {
                Count::Certain => "certain",
                Count::Kept => "kept",
                Count::Unsupported(_) => "unsupported",
            };
            assert_eq!(found, expected, "{keyword} {limit} of {schema}");
        }
    }
}
