//! The part of JSON Schema that the tests use, implemented simply.

use regex::Regex;
use serde_json::{Map, Value};

pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return schema == &Value::Bool(true);
    };
    let judge = Judge { root, keywords };
    keywords
        .iter()
        .all(|(keyword, expected)| judge.holds(keyword, expected, value))
}

struct Judge<'a> {
    root: &'a Value,
    keywords: &'a Map<String, Value>,
}

impl Judge<'_> {
    fn holds(&self, keyword: &str, expected: &Value, value: &Value) -> bool {
        let valid = |schema: &Value| is_valid(self.root, schema, value);
        let list = || expected.as_array().expect("a list").iter();
        let bound = expected.as_f64().unwrap_or_default();
        let number = |holds: fn(f64, f64) -> bool| value.as_f64().is_none_or(|n| holds(n, bound));
        let length = value.as_str().map(|text| text.chars().count() as f64);
        let items = value.as_array().map(|items| items.len() as f64);
        let members = value.as_object().map(|members| members.len() as f64);
        match keyword {
            "$ref" => {
                let pointer = expected.as_str().expect("a string").trim_start_matches('#');
                valid(self.root.pointer(pointer).expect(pointer))
            }
            "type" => match expected {
                Value::Array(names) => names.iter().any(|name| is_type(name, value)),
                name => is_type(name, value),
            },
            "const" => equal(expected, value),
            "enum" => list().any(|one| equal(one, value)),
            "allOf" => list().all(valid),
            "anyOf" => list().any(valid),
            "oneOf" => list().filter(|schema| valid(schema)).count() == 1,
            "minimum" => number(|n, bound| n >= bound),
            "maximum" => number(|n, bound| n <= bound),
            "exclusiveMinimum" => number(|n, bound| n > bound),
            "exclusiveMaximum" => number(|n, bound| n < bound),
            "multipleOf" => number(|n, bound| ((n / bound) - (n / bound).round()).abs() < 1e-9),
            "minLength" => length.is_none_or(|length| length >= bound),
            "maxLength" => length.is_none_or(|length| length <= bound),
            "minItems" => items.is_none_or(|count| count >= bound),
            "maxItems" => items.is_none_or(|count| count <= bound),
            "minProperties" => members.is_none_or(|count| count >= bound),
            "maxProperties" => members.is_none_or(|count| count <= bound),
            "pattern" => value
                .as_str()
                .is_none_or(|text| matches(expected.as_str(), text)),
            "required" => value.as_object().is_none_or(|members| {
                list().all(|name| members.contains_key(name.as_str().expect("a name")))
            }),
            "items" | "prefixItems" => self.items(keyword, value),
            "properties" => self.members(value),
            "additionalProperties" | "patternProperties" => {
                self.keywords.contains_key("properties") || self.members(value)
            }
            "$defs" | "format" | "title" | "description" | "x-order" => true,
            other => panic!("the test's validator does not know `{other}`"),
        }
    }

    fn items(&self, keyword: &str, value: &Value) -> bool {
        let first = self.keywords.get("prefixItems").and_then(Value::as_array);
        let first = first.map_or(&[][..], Vec::as_slice);
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let valid = |schema: &Value, item: &Value| is_valid(self.root, schema, item);
        match keyword {
            "prefixItems" => first
                .iter()
                .zip(items)
                .all(|(schema, item)| valid(schema, item)),
            _ => items
                .iter()
                .skip(first.len())
                .all(|item| valid(&self.keywords["items"], item)),
        }
    }

    fn members(&self, value: &Value) -> bool {
        let map = |keyword: &str| self.keywords.get(keyword).and_then(Value::as_object);
        let patterns: Vec<(&String, &Value)> =
            map("patternProperties").into_iter().flatten().collect();
        value.as_object().is_none_or(|members| {
            members.iter().all(|(name, value)| {
                let valid = |schema: &Value| is_valid(self.root, schema, value);
                let named = map("properties").and_then(|named| named.get(name));
                let matching: Vec<&Value> = (patterns.iter())
                    .filter(|(pattern, _)| matches(Some(pattern), name))
                    .map(|(_, schema)| *schema)
                    .collect();
                let free = named.is_none() && matching.is_empty();
                let additional = self.keywords.get("additionalProperties").filter(|_| free);
                named.is_none_or(valid)
                    && matching.into_iter().all(valid)
                    && additional.is_none_or(valid)
            })
        })
    }
}

fn matches(pattern: Option<&str>, text: &str) -> bool {
    Regex::new(pattern.expect("a pattern"))
        .expect("a regular expression")
        .is_match(text)
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        other => panic!("{other:?} is not a type"),
    }
}

fn equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}
