//! Whether a schema has an instance of finite size.
//!
//! A list whose every element must contain another such list is well formed but has no values; a
//! model constrained to it would write brackets until its budget ends.

use serde_json::{Map, Value};

use crate::{GrammarError, Result};

/// Refuses a lowered schema that only infinite values satisfy.
pub(super) fn check(schema: &Value, definitions: &[Value]) -> Result<()> {
    // Definitions are numbered as they are met, so later ones are the inner ones: going backwards
    // settles most schemas in one round.
    let mut known = vec![false; definitions.len()];
    loop {
        let mut settled = true;
        for (number, definition) in definitions.iter().enumerate().rev() {
            if !known[number] && is_finite(definition, &known) {
                known[number] = true;
                settled = false;
            }
        }
        if settled {
            break;
        }
    }
    if is_finite(schema, &known) {
        Ok(())
    } else {
        Err(GrammarError::Unsatisfiable {
            why: "its references form an endless cycle".to_string(),
        })
    }
}

fn is_finite(schema: &Value, known: &[bool]) -> bool {
    let Value::Object(members) = schema else {
        return true;
    };
    let finite = |schema: &Value| is_finite(schema, known);
    members
        .iter()
        .all(|(keyword, value)| match keyword.as_str() {
            "$ref" => {
                definition_number(value).is_none_or(|number| known.get(number) == Some(&true))
            }
            "allOf" => value.as_array().is_none_or(|all| all.iter().all(finite)),
            "anyOf" => value.as_array().is_none_or(|any| any.iter().any(finite)),
            "required" if is_only(members, "object") => required_are_finite(members, value, known),
            "minItems" if is_only(members, "array") => {
                first_items_are_finite(members, value, known)
            }
            _ => true,
        })
}

fn required_are_finite(members: &Map<String, Value>, required: &Value, known: &[bool]) -> bool {
    let properties = members.get("properties");
    let names = required.as_array().map_or(&[][..], Vec::as_slice);
    let mut schemas = names
        .iter()
        .filter_map(|name| properties?.get(name.as_str()?));
    schemas.all(|schema| is_finite(schema, known))
}

fn first_items_are_finite(members: &Map<String, Value>, min_items: &Value, known: &[bool]) -> bool {
    let min_items = min_items.as_u64().unwrap_or(0);
    let first = members.get("prefixItems").and_then(Value::as_array);
    let first = first.map_or(&[][..], Vec::as_slice);
    let mut needed = (0..min_items).zip(first);
    let rest_needed = min_items > first.len() as u64;
    let rest = members.get("items").filter(|_| rest_needed);
    needed.all(|(_, schema)| is_finite(schema, known))
        && rest.is_none_or(|schema| is_finite(schema, known))
}

fn is_only(members: &Map<String, Value>, expected: &str) -> bool {
    match members.get("type") {
        Some(Value::Array(types)) => types.iter().all(|name| name == expected),
        Some(name) => name == expected,
        None => false,
    }
}

fn definition_number(reference: &Value) -> Option<usize> {
    reference.as_str()?.strip_prefix("#/$defs/")?.parse().ok()
}
