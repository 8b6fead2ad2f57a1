//! Tools of types that are not implemented: built-in tools, which a service runs itself, and tools
//! with free-form input.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field::Field;
use crate::unknown_fields::{UnknownNames, similar_name};

/// How tables name the tools that are removed.
pub const IGNORED: (&str, &str) = (
    "tools[TYPE]",
    "tools of other types than functions are not offered to the model; refused if `tool_choice` \
     names one",
);

/// Removes the tools that are not of an implemented type, and returns how a header names them.
pub fn remove_others(
    fields: &mut Map<String, Value>,
    implemented: &[&str],
) -> Result<Vec<String>, ApiError> {
    let tools = match fields.get_mut(Field::Tools.name()) {
        Some(Value::Array(tools)) if !implemented.is_empty() => tools,
        _ => return Ok(Vec::new()),
    };
    let mut removed = Vec::new();
    let mut index = 0;
    let mut misspelled = None;
    tools.retain(|tool| {
        let at = index;
        index += 1;
        let Some(kind) = tool["type"].as_str() else {
            return true;
        };
        if implemented.contains(&kind) {
            return true;
        }
        if let Some(known) = similar_name(kind, implemented.iter().copied()) {
            misspelled.get_or_insert((at, kind.to_owned(), known.to_owned()));
        }
        removed.push(RemovedTool {
            kind: kind.to_owned(),
            name: tool_name(tool).map(str::to_owned),
        });
        false
    });
    if let Some((at, kind, known)) = misspelled {
        let field = Field::Tools.index(at).field(Field::Type);
        let problem = format!("is `{kind}`; did you mean `{known}`?");
        return Err(ApiError::invalid(field, problem));
    }
    if let Some(choice) = fields.get(Field::ToolChoice.name()) {
        check_choice(choice, &removed)?;
    }
    let mut names = UnknownNames::default();
    for tool in &removed {
        names.insert(format!("tools[{}]", tool.kind))?;
    }
    Ok(names.into_names())
}

struct RemovedTool {
    kind: String,
    name: Option<String>,
}

/// The name of a tool or of a choice, in any dialect.
fn tool_name(tool: &Value) -> Option<&str> {
    let places = [
        &tool["name"],
        &tool["function"]["name"],
        &tool["custom"]["name"],
    ];
    places.into_iter().find_map(Value::as_str)
}

/// Refuses a choice of a tool that was removed.
fn check_choice(choice: &Value, removed: &[RemovedTool]) -> Result<(), ApiError> {
    let (kind, name) = (choice["type"].as_str(), tool_name(choice));
    let chosen = removed.iter().find(|tool| {
        let is_named = name.is_some() && tool.name.as_deref() == name;
        is_named || name.is_none() && kind == Some(tool.kind.as_str())
    });
    match chosen {
        Some(RemovedTool { kind, .. }) => {
            let reason = format!("it names a tool of the type `{kind}`; only functions are called");
            Err(ApiError::unsupported(Field::ToolChoice, reason))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::json;

    use crate::testing::{Harness, MODEL, Reply};
    use crate::wire::IGNORED_HEADER;

    async fn post(path: &str, tools: serde_json::Value, choice: serde_json::Value) -> Reply {
        let mut body = json!({ "model": MODEL, "tools": tools, "tool_choice": choice });
        let messages = json!([{ "role": "user", "content": "hi" }]);
        match path {
            "/v1/responses" => {
                body["input"] = messages;
                body["client_metadata"] = json!({ "originator": "cli" });
            }
            _ => body["messages"] = messages,
        }
        if path == "/v1/messages" {
            body["max_tokens"] = json!(5);
        }
        Harness::saying("hello").post(path, &body).await
    }

    #[tokio::test]
    async fn unsupported_tools_are_removed() {
        let function = json!({ "type": "function", "function": { "name": "f" } });
        let flat = json!({ "type": "function", "name": "f" });
        let custom = json!({ "name": "f", "input_schema": { "type": "object" } });
        let cases = [
            (
                "/v1/chat/completions",
                json!([function, { "type": "custom", "custom": { "name": "patch" } }]),
                json!({ "type": "custom", "custom": { "name": "patch" } }),
                "tools[custom]",
            ),
            (
                "/v1/responses",
                json!([
                    flat,
                    { "type": "namespace", "name": "fs", "tools": [flat] },
                    { "type": "web_search", "external_web_access": true },
                    { "type": "custom", "name": "apply_patch", "format": { "type": "grammar" } },
                    { "type": "local_shell" },
                ]),
                json!({ "type": "web_search" }),
                "client_metadata, tools[namespace], tools[web_search], tools[custom], tools[local_shell]",
            ),
            (
                "/v1/messages",
                json!([custom, { "type": "web_search_20250305", "name": "web_search" }]),
                json!({ "type": "tool", "name": "web_search" }),
                "tools[web_search_20250305]",
            ),
        ];
        for (path, tools, choice, expected) in cases {
            let reply = post(path, tools.clone(), json!(null)).await;
            assert_eq!(reply.status(), StatusCode::OK, "{path} {}", reply.text());
            let header = reply.response.headers().get(IGNORED_HEADER);
            assert_eq!(header.expect("a header"), expected, "{path}");
            let refused = post(path, tools, choice).await;
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{path}");
            assert!(refused.text().contains("tool_choice"), "{}", refused.text());
        }
    }

    #[tokio::test]
    async fn misspelled_tool_type_is_refused() {
        let tools = json!([{ "type": "funtion", "function": { "name": "f" } }]);
        let reply = post("/v1/chat/completions", tools, json!(null)).await;
        assert_eq!(reply.json()["error"]["param"], "tools[0].type");
        assert!(reply.text().contains("did you mean `function`?"));
    }
}
