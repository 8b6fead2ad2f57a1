//! Fields that a request's type does not have.
//!
//! The OpenAPI description of a request lists its fields at every depth, and is generated from the
//! types that parse it. A field that it does not list is refused if it looks like a listed one, and
//! otherwise removed before the request is parsed, and named in a header of the response.

use std::collections::HashSet;
use std::mem;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field::FieldPath;
use crate::wire::{FieldTables, entries};

/// Distinct unknown fields of a request. Clients send a few; more only cost time.
const MOST_UNKNOWN: usize = 1000;

/// What happens to unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPolicy {
    /// Those that look like a misspelled field are refused, others ignored.
    Lenient,
    /// All are refused.
    Strict,
}

impl FieldPolicy {
    pub fn new(strict: bool) -> Self {
        if strict { Self::Strict } else { Self::Lenient }
    }

    /// Refuses an unknown field, or returns. `known` are the fields beside it.
    pub fn check<'a>(
        self,
        field: FieldPath,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), ApiError> {
        let similar = similar_name(name, known);
        let problem = match (similar, self) {
            (Some(similar), _) => format!("is not a known field; did you mean `{similar}`?"),
            (None, Self::Strict) => "is not a known field".to_owned(),
            (None, Self::Lenient) => return Ok(()),
        };
        Err(ApiError::invalid(field, problem).code("unknown_parameter"))
    }
}

/// The known name that `found` probably misspells: at most two letters differ, and one in a short
/// name, where two are a different word.
pub fn similar_name<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = found.chars().count();
    let most = match length {
        0..=2 => return None,
        3..=4 => 1,
        _ => 2,
    };
    // The distance takes time in proportion to both lengths, and `found` may be megabytes.
    let near = known
        .into_iter()
        .filter(|name| name.chars().count().abs_diff(length) <= most)
        .map(|name| (strsim::osa_distance(found, name), name));
    let near = near.filter(|(distance, _)| *distance <= most);
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The names of unknown fields, each once, in the order of the request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnknownNames {
    names: Vec<String>,
    known: HashSet<String>,
}

impl UnknownNames {
    /// Adds a name, unless the request has too many.
    pub fn insert(&mut self, name: String) -> Result<(), ApiError> {
        if self.known.contains(&name) {
            return Ok(());
        }
        if self.names.len() == MOST_UNKNOWN {
            let message = format!("the request has more than {MOST_UNKNOWN} unknown fields");
            return Err(ApiError::bad_request(message).code("unknown_parameter"));
        }
        self.known.insert(name.clone());
        self.names.push(name);
        Ok(())
    }

    pub fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// Removes unknown fields from a request.
pub struct FieldChecker<'a> {
    /// The schemas that references name.
    pub schemas: &'a Value,
    /// Nested fields that have no effect, by their path without indices or by their name.
    pub ignored: FieldTables<&'static str>,
    pub policy: FieldPolicy,
    /// The path of the value that is checked.
    path: String,
    found: Findings,
    /// Unknown fields that are no misspellings: the address of the schema, and the path without
    /// indices.
    checked: HashSet<(usize, String)>,
}

/// Removed fields, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Those that the table lists.
    pub ignored: Vec<&'static str>,
    /// All others, by their paths without indices.
    pub unknown: UnknownNames,
}

impl<'a> FieldChecker<'a> {
    pub fn new(
        schemas: &'a Value,
        ignored: FieldTables<&'static str>,
        policy: FieldPolicy,
    ) -> Self {
        Self {
            schemas,
            ignored,
            policy,
            path: String::new(),
            found: Findings::default(),
            checked: HashSet::new(),
        }
    }

    /// Checks the fields of a body by the schema of this name. `listed` are further known fields.
    pub fn check_body(
        mut self,
        fields: &mut Map<String, Value>,
        schema: &str,
        listed: &[&str],
    ) -> Result<Findings, ApiError> {
        self.fields(fields, &self.schemas[schema], listed)?;
        Ok(self.found)
    }

    fn value(&mut self, value: &mut Value, schema: &'a Value) -> Result<(), ApiError> {
        match value {
            Value::Object(fields) => match self.object_schema(fields, schema) {
                Some(schema) => self.fields(fields, schema, &[]),
                None => Ok(()),
            },
            Value::Array(items) => {
                let Some(schema) = self.alternatives(schema).find_map(|each| each.get("items"))
                else {
                    return Ok(());
                };
                for (index, item) in items.iter_mut().enumerate() {
                    self.within(&format!("[{index}]"), |checker| checker.value(item, schema))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fields(
        &mut self,
        fields: &mut Map<String, Value>,
        schema: &'a Value,
        listed: &[&str],
    ) -> Result<(), ApiError> {
        let Some(properties) = schema["properties"].as_object() else {
            return Ok(());
        };
        let mut known = Map::new();
        for (name, mut value) in mem::take(fields) {
            let dot = if self.path.is_empty() { "" } else { "." };
            let step = format!("{dot}{name}");
            if let Some(schema) = properties.get(&name) {
                self.within(&step, |checker| checker.value(&mut value, schema))?;
                known.insert(name, value);
            } else if listed.contains(&name.as_str()) {
                known.insert(name, value);
            } else if !value.is_null() {
                let names = properties
                    .keys()
                    .map(String::as_str)
                    .chain(listed.iter().copied());
                self.within(&step, |checker| checker.remove(&name, schema, names))?;
            }
        }
        *fields = known;
        Ok(())
    }

    /// Records that the field at the current path is removed, or refuses it.
    fn remove<'n>(
        &mut self,
        name: &str,
        schema: &Value,
        known: impl Iterator<Item = &'n str>,
    ) -> Result<(), ApiError> {
        let path = without_indices(&self.path);
        let mut table = entries(self.ignored).map(|(listed, _)| *listed);
        if let Some(listed) = table.find(|listed| *listed == path || *listed == name) {
            if !self.found.ignored.contains(&listed) {
                self.found.ignored.push(listed);
            }
            return Ok(());
        }
        // Items of a list have the same fields, again and again.
        let address = std::ptr::from_ref(schema).addr();
        if !self.checked.insert((address, path.clone())) {
            return Ok(());
        }
        let field = FieldPath::verbatim(self.path.clone());
        self.policy.check(field, name, known)?;
        self.found.unknown.insert(path)
    }

    fn within<T>(&mut self, step: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push_str(step);
        let checked = check(self);
        self.path.truncate(length);
        checked
    }

    /// The schema of an object among its alternatives: that of its `type`, or the first.
    fn object_schema(&self, fields: &Map<String, Value>, schema: &'a Value) -> Option<&'a Value> {
        let tag = fields.get("type").filter(|tag| !tag.is_null());
        let matches = |schema: &&Value| {
            let tags = schema["properties"]["type"]["enum"].as_array();
            match (tag, tags) {
                (Some(tag), Some(tags)) => tags.contains(tag),
                _ => true,
            }
        };
        let mut objects = self.alternatives(schema);
        objects.find(|schema| schema.get("properties").is_some() && matches(schema))
    }

    /// The schemas that a value may have, without references and choices between schemas.
    fn alternatives(&self, schema: &'a Value) -> Box<dyn Iterator<Item = &'a Value> + 'a> {
        let schemas = self.schemas;
        let resolve = move |schema: &'a Value| match schema["$ref"].as_str() {
            Some(reference) => &schemas[reference.rsplit('/').next().unwrap_or(reference)],
            None => schema,
        };
        fn flatten<'s>(
            schema: &'s Value,
            resolve: impl Fn(&'s Value) -> &'s Value + Copy + 's,
        ) -> Box<dyn Iterator<Item = &'s Value> + 's> {
            let schema = resolve(schema);
            let choices = ["oneOf", "anyOf", "allOf"].into_iter();
            let mut choices = choices.filter_map(|choice| schema[choice].as_array());
            match choices.next() {
                Some(choices) => {
                    Box::new(choices.iter().flat_map(move |each| flatten(each, resolve)))
                }
                None => Box::new(std::iter::once(schema)),
            }
        }
        flatten(schema, resolve)
    }
}

/// The path of a field of every item: `messages.content.x`.
fn without_indices(path: &str) -> String {
    let mut parts = path.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |whole, part| match part.split_once(']') {
        Some((index, rest)) if index.bytes().all(|digit| digit.is_ascii_digit()) => whole + rest,
        _ => whole + "[" + part,
    })
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::testing::{Harness, MODEL, Reply, Scripted};
    use crate::wire::IGNORED_HEADER;

    fn ignored(reply: &Reply) -> Option<&str> {
        let header = reply.response.headers().get(IGNORED_HEADER);
        header.and_then(|header| header.to_str().ok())
    }

    #[test]
    fn only_misspelled_names_are_similar() {
        let known = ["temperature", "stop", "model", "n"];
        for (found, expected) in [
            ("temprature", Some("temperature")),
            ("tempreature", Some("temperature")),
            ("tempertur", Some("temperature")),
            ("tempertu", None),
            ("stpo", Some("stop")),
            ("modle", Some("model")),
            ("mood", None),
            ("k", None),
            ("colour", None),
        ] {
            assert_eq!(similar_name(found, known), expected, "{found}");
        }
    }

    #[test]
    fn paths_lose_only_indices() {
        for (path, expected) in [
            ("messages[0].content[12].x", "messages.content.x"),
            ("x", "x"),
            ("a[b].c", "a[b].c"),
        ] {
            assert_eq!(without_indices(path), expected);
        }
    }

    /// Each path with a request, and the same with unknown fields at several depths.
    fn requests() -> [(&'static str, Value, Value, &'static str); 7] {
        let message = json!({ "role": "user", "content": "hi" });
        let odd = json!([{ "role": "user", "colour": 1, "content": "hi" }]);
        [
            (
                "/v1/chat/completions",
                json!({ "messages": [message], "max_tokens": 4 }),
                json!({
                    "colour": 1,
                    "messages": [{ "role": "user", "content": [
                        { "type": "text", "text": "hi", "colour": 1 },
                        { "type": "text", "text": "hi", "colour": 2, "shape": null },
                    ]}],
                    "tools": [{ "type": "function", "function": { "name": "f", "colour": 1 } }],
                    "stream": true,
                    "stream_options": { "colour": 1 },
                }),
                "messages.content.colour, colour, tools.function.colour, stream_options.colour",
            ),
            (
                "/v1/completions",
                json!({ "prompt": "hi", "max_tokens": 4 }),
                json!({ "colour": { "temprature": 1 } }),
                "colour",
            ),
            (
                "/v1/responses",
                json!({ "input": "hi" }),
                json!({
                    "input": [
                        { "role": "user", "content": [
                            { "type": "input_text", "text": "hi", "colour": 1 },
                        ], "colour": 1 },
                        { "type": "function_call", "call_id": "c", "name": "f",
                          "arguments": "{}", "colour": 1 },
                        { "type": "function_call_output", "call_id": "c", "output": "1" },
                    ],
                    "reasoning": { "colour": 1 },
                    "text": { "format": { "type": "text", "colour": 1 } },
                }),
                "input.content.colour, input.colour, reasoning.colour, text.format.colour",
            ),
            (
                "/v1/messages",
                json!({ "messages": [message], "max_tokens": 4 }),
                json!({
                    "messages": [{ "role": "user", "content": [
                        { "type": "text", "text": "hi", "colour": 1 },
                    ]}],
                    "system": [{ "type": "text", "text": "hi", "colour": 1 }],
                    "tools": [{ "name": "f", "input_schema": { "type": "object" }, "colour": 1 }],
                    "tool_choice": { "type": "auto", "colour": 1 },
                    "thinking": { "type": "adaptive", "colour": 1 },
                }),
                "messages.content.colour, system.colour, tools.colour, tool_choice.colour, \
                 thinking.colour",
            ),
            (
                "/api/chat",
                json!({ "messages": [message], "stream": false }),
                json!({ "messages": odd, "options": { "colour": 1 } }),
                "messages.colour, options.colour",
            ),
            (
                "/v1/embeddings",
                json!({ "input": "hi" }),
                json!({ "colour": 1 }),
                "colour",
            ),
            (
                "/tokenize",
                json!({ "prompt": "hi" }),
                json!({ "colour": 1 }),
                "colour",
            ),
        ]
    }

    fn merged(base: &Value, more: &Value) -> Value {
        let mut body = base.clone();
        body["model"] = json!(MODEL);
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    }

    #[tokio::test]
    async fn unknown_fields_are_named_in_header() {
        let server = Harness::saying("hello");
        for (path, base, more, expected) in requests() {
            let plain = server.post(path, &merged(&base, &json!({}))).await;
            assert_eq!(plain.status(), StatusCode::OK, "{path} {}", plain.text());
            assert_eq!(ignored(&plain), None, "{path}");
            let reply = server.post(path, &merged(&base, &more)).await;
            assert_eq!(reply.status(), StatusCode::OK, "{path} {}", reply.text());
            assert_eq!(ignored(&reply), Some(expected), "{path}");
        }
    }

    #[tokio::test]
    async fn strict_fields_refuses_unknown_fields() {
        let mut config = Harness::config();
        config.server.strict_fields = true;
        let server = Harness::with(Scripted::new("hello"), config);
        for (path, base, more, _) in requests() {
            let reply = server.post(path, &merged(&base, &more)).await;
            assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
            let message = reply.text();
            assert!(message.contains("colour"), "{path} {message}");
            // Fields that the tables list stay ignored.
            let listed = json!({ "user": "me", "metadata": {} });
            if path == "/v1/chat/completions" {
                let reply = server.post(path, &merged(&base, &listed)).await;
                assert_eq!(ignored(&reply), Some("user, metadata"));
            }
        }
    }

    #[tokio::test]
    async fn misspelled_fields_are_refused_by_path() {
        let server = Harness::saying("hello");
        let message = json!({ "role": "user", "content": "hi" });
        let part = json!({ "type": "text", "text": "hi", "txet": 1 });
        for (path, body, field, meant) in [
            (
                "/v1/chat/completions",
                json!({ "messages": [message], "temprature": 1 }),
                "temprature",
                "temperature",
            ),
            (
                "/v1/chat/completions",
                json!({ "messages": [message, { "role": "user", "contnet": "hi" }] }),
                "messages[1].contnet",
                "content",
            ),
            (
                "/v1/responses",
                json!({ "input": [{ "role": "user", "content": [
                    { "type": "input_text", "txet": "hi" },
                ]}]}),
                "input[0].content[0].txet",
                "text",
            ),
            (
                "/v1/messages",
                json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": [part] }] }),
                "messages[0].content[0].txet",
                "text",
            ),
            (
                "/api/chat",
                json!({ "messages": [message], "options": { "num_predcit": 1 } }),
                "options.num_predcit",
                "num_predict",
            ),
        ] {
            let reply = server.post(path, &merged(&body, &json!({}))).await;
            assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path} {body}");
            let text = reply.text();
            let expected = format!("`{field}` is not a known field; did you mean `{meant}`?");
            assert!(text.contains(&expected), "{expected}: {text}");
        }
    }

    /// Comparing each name with all others would take minutes.
    #[tokio::test]
    async fn too_many_unknown_fields_are_refused() {
        let server = Harness::saying("hello");
        let count = 300_000;
        let fields = |count| -> Map<String, Value> {
            let names = (0..count).map(|index| format!("colour_{index:06}"));
            names.map(|name| (name, json!(1))).collect()
        };
        let tools = (0..count).map(|index| json!({ "type": format!("colour_{index}") }));
        let tools: Vec<_> = tools.collect();
        let message = json!({ "role": "user", "content": "hi" });
        let colourful = merged(&message, &json!(fields(count)));
        for (path, base, more) in [
            (
                "/v1/completions",
                json!({ "prompt": "hi" }),
                json!(fields(count)),
            ),
            (
                "/v1/chat/completions",
                json!({}),
                json!({ "messages": [colourful] }),
            ),
            (
                "/api/chat",
                json!({ "messages": [message] }),
                json!({ "options": fields(count) }),
            ),
            (
                "/v1/responses",
                json!({ "input": "hi" }),
                json!({ "tools": tools }),
            ),
        ] {
            let reply = server.post(path, &merged(&base, &more)).await;
            assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
            let message = reply.text();
            let expected = "more than 1000 unknown fields";
            assert!(message.contains(expected), "{path} {message}");
        }
        let most = merged(&json!({ "prompt": "hi" }), &json!(fields(1000)));
        let reply = server.post("/v1/completions", &most).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    }

    /// Every one would be compared with every known name.
    #[test]
    fn repeated_unknown_field_is_checked_once() {
        let schemas = json!({ "Body": { "properties": { "items": { "items": {
            "properties": { "known": {} },
        }}}}});
        let item = json!({ "colour": 1, "shape": 2 });
        let mut body = json!({ "items": vec![item; 1000] });
        let mut checker = FieldChecker::new(&schemas, &[], FieldPolicy::Lenient);
        let fields = body.as_object_mut().expect("an object");
        let schema = &schemas["Body"];
        checker.fields(fields, schema, &[]).expect("no error");
        assert_eq!(checker.checked.len(), 2);
        assert_eq!(
            checker.found.unknown.into_names(),
            ["items.colour", "items.shape"]
        );
    }

    #[test]
    fn huge_names_are_similar_to_none() {
        let found = "a".repeat(30_000_000);
        let known = std::iter::repeat_n("temperature", 100);
        assert_eq!(similar_name(&found, known), None);
    }

    #[tokio::test]
    async fn odd_names_fit_in_a_header() {
        let server = Harness::saying("hello");
        let mut body = json!({ "prompt": "hi", "grün, \n": 1, ("a".repeat(500)): 1 });
        for index in 0..300 {
            body[format!("odd_{index:03}")] = json!(1);
        }
        let reply = server.post("/v1/completions", &body).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
        let header = ignored(&reply).expect("a header");
        assert!(header.starts_with("gr\\u{fc}n"), "{header}");
        assert!(header.len() < 4096 && header.ends_with(", ..."), "{header}");
    }
}
