//! Additions to every operation.

use serde_json::{Map, Value, json};

use super::RequestBody;
use super::parameters;
use super::refusals::{GENERATING, REFUSALS, Refusal, RefusalScope, schema_of};
use crate::dialect::Dialect;
use crate::llama_cpp;
use crate::samplers;
use crate::wire::entries;

/// Paths that need no key.
const OPEN: &[&str] = &[
    "/health",
    "/health/live",
    "/health/ready",
    "/openapi.json",
    "/version",
];

/// The extension that lists ignored and refused fields of a body.
pub const FATES: &str = "x-fields";

pub fn amend(document: &mut Value, bodies: &[RequestBody]) {
    for body in bodies {
        let name = (body.schema)();
        let schema = &mut document["components"]["schemas"][name.as_ref()];
        if let Some(properties) = schema["properties"].as_object_mut() {
            widen(properties, body);
        }
        schema[FATES] = fates(body);
    }
    document["components"]["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer" },
        "api_key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
    });
    let streams = streaming(document);
    let Some(paths) = document["paths"].as_object_mut() else {
        return;
    };
    for (path, operations) in paths {
        for (verb, operation) in operations.as_object_mut().into_iter().flatten() {
            name(operation, verb, path);
            secure(operation, path);
            leave_out(operation);
            refuse(operation, path);
            if path == llama_cpp::COMPLETION {
                allow_selected_fields(operation);
            }
            if body_schema(operation).is_some_and(|schema| streams.contains(&schema)) {
                stream(operation, path);
            }
        }
    }
    allow_any_alternative(document);
}

/// utoipa writes alternatives as `oneOf`, but a value may match several: an empty list is a list of
/// anything.
fn allow_any_alternative(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(alternatives) = fields.remove("oneOf") {
                fields.insert("anyOf".to_owned(), alternatives);
            }
            fields.values_mut().for_each(allow_any_alternative);
        }
        Value::Array(items) => items.iter_mut().for_each(allow_any_alternative),
        _ => {}
    }
}

/// Adds the fields that constrain answers and sampling parameters after the type's own fields,
/// which win; then ignored fields.
fn widen(properties: &mut Map<String, Value>, body: &RequestBody) {
    let answer_format = if body.answer_format {
        parameters::answer_format()
    } else {
        Map::new()
    };
    let sampling = if body.sampling {
        parameters::sampling()
    } else {
        Map::new()
    };
    let ignored = entries(body.ignored).map(|(field, why)| {
        let schema = json!({ "description": format!("Ignored: {why}") });
        ((*field).to_owned(), schema)
    });
    let added = answer_format.into_iter().chain(sampling).chain(ignored);
    for (field, schema) in added {
        properties.entry(field).or_insert(schema);
    }
}

fn fates(body: &RequestBody) -> Value {
    let samplers = body.sampling.then_some(&samplers::IGNORED);
    let ignored = entries(body.ignored).chain(entries(body.within));
    let ignored = ignored.chain(samplers);
    let ignored = ignored.map(|(field, why)| (*field, "ignored", why));
    let refused = entries(body.refused).map(|(field, why)| (field.name(), why));
    let nested = entries(body.refused_within).map(|(field, why)| (*field, why));
    let refused = refused.chain(nested);
    let refused = refused.map(|(field, why)| (field, "refused", why));
    let fates = ignored.chain(refused);
    fates
        .map(|(field, fate, why)| json!({ "field": field, "fate": fate, "why": why }))
        .collect()
}

/// Handlers' names repeat; method and path together are unique.
fn name(operation: &mut Value, verb: &str, path: &str) {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    operation["operationId"] = format!("{verb}_{}", words.join("_")).into();
}

/// The empty alternative is for a server without keys.
fn secure(operation: &mut Value, path: &str) {
    operation["security"] = if OPEN.contains(&path) {
        json!([])
    } else {
        json!([{}, { "bearer": [] }, { "api_key": [] }])
    };
}

fn refuse(operation: &mut Value, path: &str) {
    let has_body = operation.get("requestBody").is_some();
    let content = json!({ "application/json": {
        "schema": { "$ref": format!("#/components/schemas/{}", schema_of(path)) },
    }});
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    let meets = |refusal: &&Refusal| match refusal.scope {
        RefusalScope::Any => true,
        RefusalScope::Bodies => has_body,
        RefusalScope::Generating => GENERATING.contains(&path),
    };
    for refusal in REFUSALS.iter().filter(meets) {
        let entry = responses.entry(refusal.status);
        entry.or_insert_with(|| json!({ "description": refusal.why }));
    }
    let refusals = responses
        .iter_mut()
        .filter(|(status, _)| status.as_str() >= "400");
    for (_, response) in refusals {
        if response.get("content").is_none() {
            response["content"] = content.clone();
        }
    }
}

/// The request schemas that have a `stream`.
fn streaming(document: &Value) -> Vec<String> {
    let schemas = document["components"]["schemas"].as_object();
    let streaming = schemas.into_iter().flatten();
    let streaming = streaming.filter(|(_, schema)| schema["properties"].get("stream").is_some());
    streaming.map(|(name, _)| name.clone()).collect()
}

pub fn body_schema(operation: &Value) -> Option<String> {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let name = schema["$ref"].as_str()?.rsplit('/').next()?;
    Some(name.to_owned())
}

/// utoipa describes an optional body as nullable, which it is not.
fn leave_out(operation: &mut Value) {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let mut alternatives = schema["oneOf"].as_array().into_iter().flatten();
    let named = alternatives.find(|schema| schema.get("$ref").is_some());
    if let Some(named) = named.cloned() {
        operation["requestBody"]["content"]["application/json"]["schema"] = named;
        operation["requestBody"]["required"] = false.into();
    }
}

/// `response_fields` selects fields of a completion, and several prompts get a list.
fn allow_selected_fields(operation: &mut Value) {
    let schema = &mut operation["responses"]["200"]["content"]["application/json"]["schema"];
    let selected = json!({
        "type": "object",
        "description": "The fields that `response_fields` names, by their paths",
    });
    let one = json!({ "anyOf": [schema.take(), selected] });
    *schema = json!({ "anyOf": [one, { "type": "array", "items": one }] });
}

fn stream(operation: &mut Value, path: &str) {
    let (kind, schema) = match Dialect::from_path(path) {
        Dialect::Ollama => (
            "application/x-ndjson",
            json!({ "type": "string", "description": "One JSON line per chunk" }),
        ),
        // The schema of an event stream applies to each event.
        _ => (
            "text/event-stream",
            json!({
                "type": "object",
                "description": "One server-sent event per chunk",
                "properties": { "event": { "type": "string" }, "data": { "type": "string" } },
                "required": ["data"],
            }),
        ),
    };
    operation["responses"]["200"]["content"][kind] = json!({ "schema": schema });
}
