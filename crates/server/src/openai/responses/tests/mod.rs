mod storage;

use std::time::Duration;

use axum::http::StatusCode;
use loquat_text::Special;
use serde_json::{Value, json};

use crate::http::SYSTEM_HEADER;
use crate::testing::{Harness, MODEL, Scripted, TEMPLATE, tokenizer};
use crate::wire::IGNORED_HEADER;

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

/// A request with these fields.
fn request(fields: Value) -> Value {
    let mut request = json!({ "model": MODEL, "input": "hi" });
    for (name, value) in fields.as_object().cloned().unwrap_or_default() {
        request[name] = value;
    }
    request
}

fn tools() -> Value {
    json!([{
        "type": "function",
        "name": "add",
        "parameters": { "type": "object", "properties": { "a": { "type": "integer" } } },
    }])
}

async fn create_response(server: &Harness, fields: Value) -> Value {
    let reply = server.post("/v1/responses", &request(fields)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    reply.json()
}

/// The number of tokens of a rendered prompt.
fn tokens(rendered: &str) -> usize {
    let ids = tokenizer().encode(rendered, Special::RENDERED);
    ids.expect("tokens").len()
}

fn turn(role: &str, content: &str) -> String {
    format!("<|im_start|>{role}\n{content}<|im_end|>\n")
}

#[tokio::test]
async fn items_become_messages() {
    let user = json!({ "role": "user", "content": "hi" });
    let text = json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": "yo", "annotations": [], "logprobs": [] }] });
    let reasoning = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "status": null,
        "content": [{ "type": "reasoning_text", "text": "hm" }] });
    let call = json!({ "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add",
        "arguments": "{\"a\": 1}", "status": "completed" });
    let output = json!({ "type": "function_call_output", "call_id": "c1", "output": "2" });
    let called = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let cases = [
        (json!({}), turn("user", "hi")),
        (
            json!({ "instructions": "be kind" }),
            turn("system", "be kind") + &turn("user", "hi"),
        ),
        (
            json!({ "input": [user, text, user] }),
            turn("user", "hi") + &turn("assistant", "yo") + &turn("user", "hi"),
        ),
        (
            json!({ "input": [user, reasoning, text, call, output] }),
            turn("user", "hi") + &turn("assistant", &format!("yo{called}")) + &turn("tool", "2"),
        ),
        (
            json!({ "input": [user, call, output, text, text] }),
            turn("user", "hi")
                + &turn("assistant", called)
                + &turn("tool", "2")
                + &turn("assistant", "yo")
                + &turn("assistant", "yo"),
        ),
        (
            json!({ "input": [{ "role": "user", "content": [
                { "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" },
            ]}]}),
            turn("user", "a\nb"),
        ),
    ];
    let server = Harness::saying("ok");
    for (fields, written) in cases {
        let response = create_response(&server, fields.clone()).await;
        let expected = tokens(&format!("{written}<|im_start|>assistant\n"));
        assert_eq!(response["usage"]["input_tokens"], expected, "{fields}");
    }
}

/// As Codex sends them: instructions, then developer messages at the start and between turns.
#[tokio::test]
async fn later_developer_messages_work_with_strict_templates() {
    let refuse = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('the system message must be first') }}{% endif %}{% endfor %}";
    let developer = |text: &str| {
        json!({ "type": "message", "role": "developer",
            "content": [{ "type": "input_text", "text": text }] })
    };
    let fields = json!({ "instructions": "a", "input": [
        developer("b"),
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": "yes?" },
        developer("c"),
        { "role": "user", "content": "why" },
    ]});
    let said = |text| turn("user", text);
    let yes = turn("assistant", "yes?");
    let system = |text| turn("system", text);
    let joined = [system("a\n\nb\n\nc"), said("hi"), yes.clone(), said("why")];
    let unchanged = [
        system("a"),
        system("b"),
        said("hi"),
        yes,
        system("c"),
        said("why"),
    ];
    for (template, prompt, note) in [
        (
            format!("{refuse}{TEMPLATE}"),
            joined.concat(),
            Some("joined"),
        ),
        (TEMPLATE.to_owned(), unchanged.concat(), None),
    ] {
        let model = Scripted {
            template,
            ..Scripted::new("ok")
        };
        let server = Harness::with(model, Harness::config());
        let reply = server.post("/v1/responses", &request(fields.clone())).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
        let expected = tokens(&format!("{prompt}<|im_start|>assistant\n"));
        assert_eq!(reply.json()["usage"]["input_tokens"], expected);
        let header = reply.response.headers().get(SYSTEM_HEADER);
        assert_eq!(header.map(|value| value.to_str().expect("text")), note);
    }
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let item = |item: Value| json!({ "input": [item] });
    let part = |part: Value| item(json!({ "role": "user", "content": [part] }));
    let cases = [
        (
            json!({ "input": null }),
            Some("input"),
            "`input` is missing",
        ),
        (json!({ "input": 5 }), Some("input"), "a string or a list"),
        (
            json!({ "speculative.n_max": -1 }),
            Some("speculative.n_max"),
            "`speculative.n_max`",
        ),
        (json!({ "input": [] }), Some("input"), "`input` is empty"),
        (
            json!({ "inptu": 1 }),
            Some("inptu"),
            "did you mean `input`?",
        ),
        (
            json!({ "conversation": "c" }),
            Some("conversation"),
            "previous_response_id",
        ),
        (
            json!({ "background": true }),
            Some("background"),
            "not supported",
        ),
        (
            json!({ "truncation": "auto" }),
            Some("truncation"),
            "not supported",
        ),
        (
            json!({ "max_output_tokens": 0 }),
            Some("max_output_tokens"),
            "`max_output_tokens`",
        ),
        (
            json!({ "top_logprobs": 21 }),
            Some("top_logprobs"),
            "from 0 to 20",
        ),
        (
            json!({ "temperature": -1 }),
            Some("temperature"),
            "temperature",
        ),
        (
            json!({ "include": ["everything"] }),
            Some("include[0]"),
            "everything",
        ),
        (
            part(json!({ "type": "input_image" })),
            Some("input_image.image_url"),
            "is missing",
        ),
        (
            part(json!({ "type": "input_file" })),
            Some("input[0]"),
            "`input_file` is not supported",
        ),
        (
            item(json!({ "type": "web_search_call" })),
            Some("input[0]"),
            "not supported",
        ),
        (
            item(json!({ "type": "item_reference", "id": "msg_x" })),
            Some("input"),
            "Item with id 'msg_x' not found.",
        ),
        (
            json!({ "input": vec![json!({ "type": "item_reference", "id": "msg_x" }); 2] }),
            Some("input"),
            "Duplicate item found with id msg_x",
        ),
        (
            item(json!({ "type": "function_call_output", "call_id": "c9", "output": "" })),
            Some("input"),
            "call_id c9",
        ),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "function", "name": "sub" } }),
            Some("tool_choice"),
            "`sub`",
        ),
        (
            json!({ "tools": tools(), "tool_choice": {
                "type": "allowed_tools", "mode": "auto",
                "tools": [{ "type": "function", "name": "sub" }],
            }}),
            Some("tool_choice.tools"),
            "`sub`",
        ),
        (
            json!({ "text": { "format": {
                "type": "json_schema", "name": "n", "schema": { "type": "nothing" },
            }}}),
            Some("text.format"),
            "`text.format`",
        ),
        (
            json!({ "metadata": { "k": "v".repeat(513) } }),
            Some("metadata"),
            "512",
        ),
        (
            json!({ "previous_response_id": "resp_x" }),
            Some("previous_response_id"),
            "Previous response with id 'resp_x' not found.",
        ),
    ];
    let server = Harness::saying("hello");
    for (fields, param, expected) in cases {
        let body = request(fields);
        let reply = server.post("/v1/responses", &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{body}");
        let error = reply.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        assert_eq!(error["param"].as_str(), param, "{body}: {error}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{body}: {message}");
    }
}

#[tokio::test]
async fn response_has_reasoning_text_and_calls() {
    let server = Harness::saying(&format!("<think>hm</think>\n\nOk{CALL}"));
    let fields = json!({
        "tools": tools(),
        "metadata": { "a": "b" },
        "temperature": 0.5,
        "reasoning": { "summary": "auto" },
        "max_tool_calls": 3,
        "context_management": [{ "type": "compaction", "compact_threshold": 100_000 }],
        "prompt_cache_options": { "mode": "implicit" },
    });
    let reply = server.post("/v1/responses", &request(fields)).await;
    let ignored = reply.response.headers().get(IGNORED_HEADER);
    let ignored = ignored.and_then(|ignored| ignored.to_str().ok());
    let expected = "max_tool_calls, context_management, prompt_cache_options, reasoning.summary";
    assert_eq!(ignored, Some(expected));
    let response = reply.json();
    assert_eq!(response["object"], "response");
    assert_eq!(response["status"], "completed");
    assert_eq!(response["metadata"], json!({ "a": "b" }));
    assert_eq!(response["temperature"], 0.5);
    assert_eq!(response["text"], json!({ "format": { "type": "text" } }));
    assert_eq!(response["tool_choice"], "auto");
    assert_eq!(response["tools"][0]["name"], "add");
    assert_eq!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"],
        2
    );
    let output = response["output"].as_array().cloned().unwrap_or_default();
    let kinds: Vec<_> = output
        .iter()
        .filter_map(|item| item["type"].as_str())
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(
        output[0]["content"],
        json!([{ "type": "reasoning_text", "text": "hm" }])
    );
    assert_eq!(
        output[1]["content"],
        json!([{ "type": "output_text", "text": "Ok", "annotations": [], "logprobs": [] }])
    );
    let arguments = output[2]["arguments"].as_str().unwrap_or_default();
    assert_eq!(
        serde_json::from_str::<Value>(arguments).ok(),
        Some(json!({ "a": 1 }))
    );
    for (item, prefix) in output.iter().zip(["rs_", "msg_", "fc_"]) {
        assert_eq!(item["status"], "completed");
        assert!(item["id"].as_str().is_some_and(|id| id.starts_with(prefix)));
    }
}

#[tokio::test]
async fn cut_response_is_incomplete() {
    let server = Harness::saying("Hello.");
    let response = create_response(&server, json!({ "max_output_tokens": 3 })).await;
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["output"][0]["content"][0]["text"], "Hel");
    assert_eq!(response["completed_at"], json!(null));
}

#[tokio::test]
async fn only_text_has_log_probabilities() {
    let server = Harness::saying("<think>hm</think>\n\nYes.");
    let fields = json!({ "top_logprobs": 2, "include": ["message.output_text.logprobs"] });
    let response = create_response(&server, fields).await;
    let logprobs = response["output"][1]["content"][0]["logprobs"].clone();
    let logprobs = logprobs.as_array().cloned().unwrap_or_default();
    let spelled: String = logprobs
        .iter()
        .filter_map(|each| each["token"].as_str())
        .collect();
    assert_eq!(spelled.trim_start(), "Yes.");
    assert_eq!(
        logprobs[0]["top_logprobs"].as_array().map(Vec::len),
        Some(2)
    );
}

#[tokio::test]
async fn answer_follows_its_schema() {
    let server = Harness::saying("nothing of the kind");
    let schema = json!({
        "type": "object", "properties": { "ok": { "const": true } }, "required": ["ok"],
        "additionalProperties": false,
    });
    let fields = json!({
        "text": { "format": { "type": "json_schema", "name": "n", "schema": schema } },
        "reasoning": { "effort": "none" },
    });
    let response = create_response(&server, fields).await;
    let text = response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap_or_default();
    assert_eq!(
        serde_json::from_str::<Value>(text).ok(),
        Some(json!({ "ok": true }))
    );
}

#[tokio::test]
async fn arguments_follow_schemas_where_possible() {
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1}}\n</tool_call>";
    let server = Harness::saying(call);
    let schema = json!({
        "type": "object", "properties": { "a": { "const": 1 } }, "required": ["a"],
        "additionalProperties": false,
    });
    let mut loose = schema.clone();
    loose["dependentSchemas"] = json!({ "a": {} });
    for (schema, strict, expected) in [
        (&schema, json!(null), json!({ "a": 1 })),
        (&schema, json!(true), json!({ "a": 1 })),
        (&schema, json!(false), json!({ "b": 1 })),
        (&loose, json!(null), json!({ "b": 1 })),
    ] {
        let tool = json!({ "type": "function", "name": "add", "parameters": schema,
            "strict": strict });
        let response = create_response(&server, json!({ "tools": [tool] })).await;
        let arguments = response["output"][0]["arguments"].as_str();
        let arguments = arguments.and_then(|text| serde_json::from_str::<Value>(text).ok());
        assert_eq!(arguments, Some(expected), "{tool}");
    }
}

#[tokio::test]
async fn stream_events_are_complete_and_ordered() {
    let server = Harness::saying(&format!("<think>hm</think>\n\nOk{CALL}"));
    let body = request(json!({ "stream": true, "tools": tools() }));
    let events = server.post("/v1/responses", &body).await.events();
    for (index, (name, data)) in events.iter().enumerate() {
        assert_eq!(name.as_deref(), data["type"].as_str());
        assert_eq!(data["sequence_number"], index);
    }
    let mut names: Vec<_> = events
        .iter()
        .filter_map(|(name, _)| name.as_deref())
        .collect();
    // Deltas are joined: their size depends on the tokenizer.
    names.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    let of = |kind: &'static str| {
        events
            .iter()
            .filter(move |(name, _)| name.as_deref() == Some(kind))
    };
    let deltas = |kind: &'static str| -> String {
        of(kind)
            .filter_map(|(_, data)| data["delta"].as_str())
            .collect()
    };
    assert_eq!(deltas("response.reasoning_text.delta"), "hm");
    assert_eq!(deltas("response.output_text.delta"), "Ok");
    let whole = &events[events.len() - 1].1["response"];
    let arguments = &whole["output"][2]["arguments"];
    assert_eq!(
        Some(deltas("response.function_call_arguments.delta").as_str()),
        arguments.as_str()
    );
    let done: Vec<_> = of("response.output_item.done")
        .map(|(_, data)| &data["item"])
        .collect();
    assert_eq!(json!(done), whole["output"]);
    let added: Vec<_> = of("response.output_item.added")
        .map(|(_, data)| &data["item"])
        .collect();
    for (index, item) in added.iter().enumerate() {
        assert_eq!(item["id"], whole["output"][index]["id"]);
        assert_eq!(item["status"], "in_progress");
    }
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    assert_eq!(events[0].1["response"]["id"], whole["id"]);
    let path = format!("/v1/responses/{}", whole["id"].as_str().unwrap_or_default());
    assert_eq!(server.get(&path).await.json(), *whole);
}

#[tokio::test]
async fn failed_stream_is_reported_and_stored() {
    let model = Scripted {
        delay: Duration::from_millis(5),
        ..Scripted::new(&"a".repeat(1000))
    };
    let server = Harness::with(model, Harness::config());
    let body = request(json!({ "stream": true }));
    let cancel = async {
        loop {
            if let Some(entry) = server.app.in_flight.list().first() {
                break entry.cancel();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let (reply, ()) = tokio::join!(server.post("/v1/responses", &body), cancel);
    let events = reply.events();
    let [.., (error, first), (failed, end)] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(error.as_deref(), Some("error"));
    assert_eq!(first["code"], "request_cancelled");
    assert_eq!(failed.as_deref(), Some("response.failed"));
    assert_eq!(end["response"]["status"], "failed");
    assert_eq!(end["response"]["error"]["message"], first["message"]);
    let path = format!(
        "/v1/responses/{}",
        end["response"]["id"].as_str().unwrap_or_default()
    );
    assert_eq!(server.get(&path).await.json()["status"], "failed");
}
