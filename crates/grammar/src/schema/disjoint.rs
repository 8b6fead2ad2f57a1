//! Checks whether two schemas have no value in common, as far as that can be determined.

use serde_json::{Map, Value};

use super::path::resolve;

/// Comparisons of two schemas for one document: enough for a hundred alternatives with ten
/// properties each.
pub(super) const BUDGET: usize = 200_000;

/// Returns `true` only if certainly no value satisfies both.
pub(super) fn disjoint(root: &Value, one: &Value, other: &Value, budget: &mut usize) -> bool {
    let mut comparison = Comparison { root, budget };
    comparison.schemas(one, other, 0)
}

/// How far references and nesting are followed.
const MAX_DEPTH: usize = 12;

struct Comparison<'a> {
    root: &'a Value,
    budget: &'a mut usize,
}

impl<'a> Comparison<'a> {
    fn schemas(&mut self, one: &'a Value, other: &'a Value, depth: usize) -> bool {
        if depth > MAX_DEPTH || *self.budget == 0 {
            return false;
        }
        *self.budget -= 1;
        let (Value::Object(a), Value::Object(b)) = (one, other) else {
            return [one, other].contains(&&Value::Bool(false));
        };
        excludes_by_type(a, b)
            || excludes_by_value(a, b)
            || excludes_by_range(a, b)
            || excludes_by_range(b, a)
            || self.excludes_by_property(a, b, depth)
            || self.part_excludes(a, other, depth)
            || self.part_excludes(b, one, depth)
    }

    /// Whether the subschemas of `schema` exclude `other`: one of `allOf` is enough, of a union all
    /// must.
    fn part_excludes(
        &mut self,
        schema: &'a Map<String, Value>,
        other: &'a Value,
        depth: usize,
    ) -> bool {
        let parts = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| resolve(self.root, reference));
        if target.is_some_and(|target| self.schemas(target, other, depth + 1)) {
            return true;
        }
        if parts("allOf")
            .is_some_and(|all| all.iter().any(|part| self.schemas(part, other, depth + 1)))
        {
            return true;
        }
        let unions = ["anyOf", "oneOf"].into_iter().filter_map(parts);
        let mut unions = unions.filter(|union| !union.is_empty());
        unions.any(|union| {
            union
                .iter()
                .all(|part| self.schemas(part, other, depth + 1))
        })
    }

    /// Two objects exclude each other if one requires a property that the other forbids or gives a
    /// disjoint schema.
    fn excludes_by_property(
        &mut self,
        a: &'a Map<String, Value>,
        b: &'a Map<String, Value>,
        depth: usize,
    ) -> bool {
        if types(a) != OBJECT || types(b) != OBJECT {
            return false;
        }
        let required = |schema: &'a Map<String, Value>| {
            let names = schema.get("required").and_then(Value::as_array);
            names.into_iter().flatten().filter_map(Value::as_str)
        };
        let mut names = required(a).chain(required(b));
        names.any(|name| match (property(a, name), property(b, name)) {
            (Some(one), Some(other)) => self.schemas(one, other, depth + 1),
            _ => false,
        })
    }
}

/// The schema of a property, if known: its own, or that of unnamed properties.
fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let named = schema.get("properties").and_then(|named| named.get(name));
    named.or_else(|| {
        if schema.contains_key("patternProperties") {
            None
        } else {
            schema.get("additionalProperties")
        }
    })
}

const OBJECT: u8 = 1 << 5;
const ANY: u8 = (1 << 7) - 1;

/// The types a schema's own keywords allow, one bit each. An integer is a number too.
fn types(schema: &Map<String, Value>) -> u8 {
    let named = match schema.get("type") {
        Some(Value::Array(names)) => names.iter().fold(0, |all, name| all | bits_of_name(name)),
        Some(name) => bits_of_name(name),
        None => ANY,
    };
    let literal = literals(schema).map(|literals| {
        let bits = literals.iter().map(bits_of_value);
        bits.fold(0, |all, bit| all | bit)
    });
    named & literal.unwrap_or(ANY)
}

fn bits_of_name(name: &Value) -> u8 {
    match name.as_str() {
        Some("null") => 1,
        Some("boolean") => 1 << 1,
        Some("string") => 1 << 2,
        Some("array") => 1 << 3,
        Some("integer") => 1 << 4,
        Some("object") => OBJECT,
        Some("number") => 1 << 4 | 1 << 6,
        _ => ANY,
    }
}

fn bits_of_value(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 1 << 1,
        Value::String(_) => 1 << 2,
        Value::Array(_) => 1 << 3,
        Value::Number(_) => 1 << 4 | 1 << 6,
        Value::Object(_) => OBJECT,
    }
}

fn literals(schema: &Map<String, Value>) -> Option<&[Value]> {
    let one = schema.get("const").map(std::slice::from_ref);
    one.or_else(|| schema.get("enum")?.as_array().map(Vec::as_slice))
}

fn excludes_by_type(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    types(a) & types(b) == 0
}

fn excludes_by_value(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    match (literals(a), literals(b)) {
        (Some(a), Some(b)) => !a.iter().any(|one| b.iter().any(|other| equal(one, other))),
        _ => false,
    }
}

/// `1` and `1.0` are one value, also within a list or an object, which are not looked into.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == other,
    }
}

/// Whether all of `low` is below all of `high`, if both are only numbers.
fn excludes_by_range(low: &Map<String, Value>, high: &Map<String, Value>) -> bool {
    const NUMBER: u8 = 1 << 4 | 1 << 6;
    if (types(low) | types(high)) & !NUMBER != 0 {
        return false;
    }
    let bound = |schema: &Map<String, Value>, keyword: &str| schema.get(keyword)?.as_f64();
    let open =
        |one: Option<f64>, other: Option<f64>| matches!((one, other), (Some(a), Some(b)) if a <= b);
    let top = bound(low, "exclusiveMaximum");
    let bottom = bound(high, "exclusiveMinimum");
    let (last, first) = (bound(low, "maximum"), bound(high, "minimum"));
    open(top, first)
        || open(last, bottom)
        || open(top, bottom)
        || matches!((last, first), (Some(last), Some(first)) if last < first)
}
