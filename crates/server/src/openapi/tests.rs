use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use loquat_engine::PARAMETERS;
use serde_json::Value;

use super::amend::body_schema;
use super::refusals::GENERATING;
use super::{BODIES, document};
use crate::llama_cpp::{ALIASES, RERANKING};
use crate::router::router;
use crate::testing::Harness;
use crate::wire::entries;

/// Each operation as verb and path.
fn documented() -> Vec<(String, String, Value)> {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().expect("operations");
        item.iter()
            .map(move |(verb, operation)| (verb.to_uppercase(), path.clone(), operation.clone()))
    });
    operations.collect()
}

/// The router's paths, from its debug output: axum has no other way to list them.
fn routed() -> BTreeSet<String> {
    let words = format!("{:?}", router(&Harness::saying("").app));
    let paths = words.split('"').filter(|word| word.starts_with('/'));
    paths.map(str::to_owned).collect()
}

/// Whether a route serves a documented path: names of parameters may differ, and a tail is one or
/// more of the path's segments.
fn serves(route: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for part in route.split('/') {
        match segments.next() {
            Some(_) if part.starts_with("{*") => return true,
            Some(segment) if part.starts_with('{') && segment.starts_with('{') => {}
            Some(segment) if part == segment => {}
            _ => return false,
        }
    }
    segments.next().is_none()
}

#[test]
fn every_route_is_documented() {
    let routed = routed();
    assert!(routed.contains("/openapi.json"), "{routed:?}");
    let documented: BTreeSet<_> = documented().into_iter().map(|(_, path, _)| path).collect();
    let is_page = |path: &str| path == "/" || path == "/docs" || path.starts_with("/page/");
    // axum's own: the fallback's.
    let is_fallback = |path: &str| path.contains("__private__axum");
    // Other names of documented routes, and routes that refuse every request.
    let is_alias = |path: &str| ALIASES.contains(&path) || RERANKING.contains(&path);
    let missing: Vec<_> = routed
        .iter()
        .filter(|route| !is_page(route) && !is_fallback(route) && !is_alias(route))
        .filter(|route| !documented.iter().any(|path| serves(route, path)))
        .collect();
    assert!(missing.is_empty(), "not in openapi/mod.rs: {missing:?}");
}

#[tokio::test]
async fn every_documented_operation_is_routed() {
    let server = Harness::saying("hello");
    for (verb, path, _) in documented() {
        let method = Method::from_bytes(verb.as_bytes()).expect("a method");
        let request = Request::builder()
            .method(method)
            .uri(path.replace(['{', '}'], ""));
        let reply = server
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        assert_ne!(
            reply.status(),
            StatusCode::METHOD_NOT_ALLOWED,
            "{verb} {path}"
        );
        assert!(!reply.text().contains("nothing is served"), "{verb} {path}");
    }
}

#[test]
fn every_body_is_in_the_list() {
    let document = document();
    let listed: BTreeSet<_> = BODIES
        .iter()
        .map(|body| (body.schema)().into_owned())
        .collect();
    for (verb, path, operation) in documented() {
        if operation.get("requestBody").is_none() {
            continue;
        }
        let schema = body_schema(&operation);
        let schema = schema.unwrap_or_else(|| panic!("{verb} {path} has a body without a name"));
        let schemas = &document["components"]["schemas"];
        if schemas[&schema]["type"] == "array" {
            // Nothing is accepted beside the items, and they list their fields.
            let items = schemas[&schema]["items"]["$ref"]
                .as_str()
                .expect("a reference");
            let items = items.rsplit('/').next().expect("a name");
            assert_eq!(schemas[items]["additionalProperties"], false, "{items}");
            continue;
        }
        assert!(listed.contains(&schema), "{verb} {path}: {schema}");
    }
}

#[test]
fn bodies_list_every_known_field() {
    let document = document();
    for body in BODIES {
        let name = (body.schema)();
        let schema = &document["components"]["schemas"][name.as_ref()];
        assert_eq!(schema["additionalProperties"], false, "{name}");
        let properties = schema["properties"].as_object().expect("properties");
        for (field, _) in entries(body.ignored) {
            assert!(properties.contains_key(*field), "{name}: {field}");
        }
        for parameter in PARAMETERS.iter().filter(|_| body.sampling) {
            assert!(
                properties.contains_key(parameter.name),
                "{name}: {}",
                parameter.name
            );
        }
    }
}

#[test]
fn operations_have_names_summaries_tags_and_errors() {
    let mut names = BTreeSet::new();
    let tags = document()["tags"].clone();
    let tags: Vec<_> = tags
        .as_array()
        .expect("tags")
        .iter()
        .map(|tag| &tag["name"])
        .collect();
    for (verb, path, operation) in documented() {
        let name = operation["operationId"]
            .as_str()
            .expect("a name")
            .to_owned();
        assert!(names.insert(name), "{verb} {path}");
        assert!(
            operation["summary"].is_string(),
            "{verb} {path} has no summary"
        );
        assert!(
            tags.contains(&&operation["tags"][0]),
            "{verb} {path}: {}",
            operation["tags"]
        );
        let refused = &operation["responses"]["503"]["content"]["application/json"];
        assert!(
            refused["schema"]["$ref"].is_string(),
            "{verb} {path}: {refused}"
        );
    }
}

#[test]
fn generating_operations_can_be_cancelled() {
    let (generating, others): (Vec<_>, Vec<_>) = documented()
        .into_iter()
        .filter(|(_, path, _)| !path.starts_with("/admin"))
        .partition(|(verb, path, _)| verb == "POST" && GENERATING.contains(&path.as_str()));
    assert_eq!(generating.len(), GENERATING.len());
    let conflicts = |operation: &Value| operation["responses"].get("409").is_some();
    for (verb, path, operation) in generating {
        assert!(conflicts(&operation), "{verb} {path}");
    }
    for (verb, path, operation) in others {
        assert!(!conflicts(&operation), "{verb} {path}");
    }
}

#[test]
fn path_parameters_are_in_the_path() {
    for (verb, path, operation) in documented() {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "path") {
            let name = parameter["name"].as_str().expect("a name");
            assert!(
                path.contains(&format!("{{{name}}}")),
                "{verb} {path}: {name}"
            );
        }
    }
}

#[test]
fn no_variant_refuses_its_own_tag() {
    let document = document();
    let variants = &document["components"]["schemas"]["ResponseItem"]["anyOf"];
    let message = variants.as_array().and_then(|variants| variants.first());
    let message = message.expect("a message");
    assert_eq!(message["additionalProperties"], false, "{message}");
    assert!(message["properties"]["type"].is_object(), "{message}");
    assert!(message["properties"]["content"].is_object(), "{message}");
    let required = message["required"].as_array().expect("required");
    assert!(required.contains(&Value::from("type")), "{message}");
}

#[test]
fn every_reference_resolves() {
    let document = document();
    let schemas = document["components"]["schemas"]
        .as_object()
        .expect("schemas");
    let words = document.to_string();
    for reference in words.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(schemas.contains_key(name), "{name}");
    }
}

/// Schemas are keyed by type name: two types with one name would collide.
#[test]
fn no_two_schemas_share_a_name() {
    let mut seen = BTreeMap::new();
    for (path, source) in sources() {
        for name in described_types(&source) {
            let before = seen.insert(name.clone(), path.clone());
            assert_eq!(before, None, "{name} is also in {}", path.display());
        }
    }
    assert!(seen.contains_key("ChatCompletionRequest"), "{seen:?}");
}

#[test]
fn every_ignored_field_is_listed() {
    let listed = BODIES
        .iter()
        .flat_map(|body| entries(body.ignored).chain(entries(body.within)));
    let listed: BTreeSet<_> = listed.map(|(field, _)| *field).collect();
    let mut found = 0;
    for (path, source) in sources() {
        for way in ["ignored.push(\"", "ignore_if(\""] {
            for rest in source.split(way).skip(1) {
                let name = rest.split('"').next().expect("a name");
                assert!(listed.contains(name), "{name} in {}", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 5, "{found}");
}

/// Every other file of this crate.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs")
                && !path.ends_with("openapi/tests.rs")
            {
                let source = std::fs::read_to_string(&path).expect("a file");
                sources.push((path, source));
            }
        }
    }
    sources
}

/// The names in the description of a source's types that derive `ToSchema`.
fn described_types(source: &str) -> Vec<String> {
    let derives = source.split("#[derive(").skip(1);
    let described = derives.filter(|rest| {
        let list = rest.split(')').next().unwrap_or("");
        list.contains("ToSchema")
    });
    let names = described.filter_map(|rest| {
        let at = rest
            .find("struct ")
            .into_iter()
            .chain(rest.find("enum "))
            .min()?;
        let renamed = rest[..at].split("schema(as = ").nth(1);
        let name = renamed.or_else(|| rest[at..].split(' ').nth(1))?;
        Some(
            name.split(|c: char| !c.is_alphanumeric())
                .next()?
                .to_owned(),
        )
    });
    names.collect()
}
