//! Tagged unions of closed types.
//!
//! utoipa describes a variant as `allOf` its type and an object with the tag. If the type allows no
//! further fields, that is a contradiction. This module merges both into one object.

use serde_json::{Map, Value, json};

/// Merges every such variant in the document.
pub fn join(document: &mut Value) {
    let schemas = document["components"]["schemas"].take();
    let mut joined = schemas.clone();
    visit(&mut joined, &schemas);
    document["components"]["schemas"] = joined;
}

fn visit(value: &mut Value, schemas: &Value) {
    if let Some(whole) = joined(value, schemas) {
        *value = whole;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|field| visit(field, schemas)),
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, schemas)),
        _ => {}
    }
}

fn joined(value: &Value, schemas: &Value) -> Option<Value> {
    let [reference, tag] = value["allOf"].as_array()?.as_slice() else {
        return None;
    };
    let name = reference["$ref"].as_str()?.rsplit('/').next()?;
    let closed = &schemas[name];
    if closed["additionalProperties"] != false {
        return None;
    }
    let mut whole = closed.clone();
    whole["title"] = name.into();
    let mut properties: Map<String, Value> = tag["properties"].as_object()?.clone();
    properties.extend(
        closed["properties"]
            .as_object()
            .cloned()
            .unwrap_or_default(),
    );
    whole["properties"] = properties.into();
    let required = [tag, closed].map(|part| part["required"].as_array().cloned());
    let required: Vec<_> = required.into_iter().flatten().flatten().collect();
    whole["required"] = json!(required);
    Some(whole)
}
