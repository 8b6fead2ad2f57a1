use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::config::ModelConfig;
use crate::testing::{Harness, MODEL, Reply, Scripted};
use crate::wire::IGNORED_HEADER;

const ROUTE: &str = "/v1/chat/completions";

fn request(more: &Value) -> Value {
    let mut request = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }] });
    let more = more.as_object().expect("an object");
    request.as_object_mut().expect("one").extend(more.clone());
    request
}

async fn post_chat(says: &str, more: &Value) -> Value {
    let reply = Harness::saying(says).post(ROUTE, &request(more)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{more} {}", reply.text());
    reply.json()
}

fn weather() -> Value {
    json!({ "tools": [{ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "type": "string" } } } } }] })
}

#[tokio::test]
async fn answer_has_openais_shape() {
    let mut answer = post_chat("Hello!", &json!({})).await;
    let id = answer["id"].take();
    assert!(
        id.as_str().is_some_and(|id| id.starts_with("chatcmpl-")),
        "{id}"
    );
    assert!(answer["created"].take().as_u64() > Some(1_700_000_000));
    let prompt = answer["usage"]["prompt_tokens"].clone();
    let prompt = prompt.as_u64().expect("a number");
    let expected = json!({
        "id": null,
        "object": "chat.completion",
        "created": null,
        "model": MODEL,
        "system_fingerprint": format!("loquat-{}-fake", env!("CARGO_PKG_VERSION")),
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": "Hello!", "refusal": null },
            "logprobs": null,
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 7,
            "total_tokens": prompt + 7,
            "prompt_tokens_details": { "cached_tokens": 0 },
            "completion_tokens_details": { "reasoning_tokens": 0 },
        },
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn reply_parts_go_to_their_fields() {
    let called = "\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
        </tool_call>";
    // The model's output and extra fields; content, reasoning, calls and finish reason.
    let cases = [
        ("Hi.", json!({}), json!("Hi."), Value::Null, 0, "stop"),
        (
            "<think>\nhm\n</think>\n\nHi.",
            json!({}),
            json!("Hi."),
            json!("hm"),
            0,
            "stop",
        ),
        (called, weather(), Value::Null, Value::Null, 1, "tool_calls"),
        (
            "Hello",
            json!({ "max_tokens": 2 }),
            json!("He"),
            Value::Null,
            0,
            "length",
        ),
        (
            "Hello",
            json!({ "stop": "ll" }),
            json!("He"),
            Value::Null,
            0,
            "stop",
        ),
        (
            "Hello",
            json!({ "stop": ["x", "lo"] }),
            json!("Hel"),
            Value::Null,
            0,
            "stop",
        ),
        (
            "bcd",
            json!({ "guided_choice": ["a", "b"] }),
            json!("b"),
            Value::Null,
            0,
            "stop",
        ),
    ];
    for (says, more, content, thinking, calls, reason) in cases {
        let answer = post_chat(says, &more).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["content"], content, "{says} {more}");
        let thought = &choice["message"]["reasoning_content"];
        assert_eq!(*thought, thinking, "{says} {more}");
        assert_eq!(choice["finish_reason"], reason, "{says} {more}");
        let found = choice["message"]["tool_calls"].as_array();
        assert_eq!(found.map_or(0, Vec::len), calls, "{says} {more}");
    }
}

#[tokio::test]
async fn call_and_result_round_trip() {
    let says = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
        \"Rome\"}}\n</tool_call>";
    let server = Harness::saying(says);
    let answer = server.post(ROUTE, &request(&weather())).await.json();
    let message = answer["choices"][0]["message"].clone();
    let call = &message["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    assert_eq!(call["function"]["arguments"], "{\"city\": \"Rome\"}");
    let mut next = request(&weather());
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "sunny" });
    next["messages"]
        .as_array_mut()
        .expect("a list")
        .extend([message, result]);
    let reply = server.post(ROUTE, &next).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    // The earlier turns are cached.
    let cached = &reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() > Some(0), "{cached}");
}

#[tokio::test]
async fn reasoning_tokens_are_counted() {
    let answer = post_chat("<think>\nhm\n</think>\n\nHi.", &json!({})).await;
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 2);
}

#[tokio::test]
async fn choices_are_ordered_and_share_the_prompt() {
    let one = post_chat("Hi", &json!({})).await;
    let two = post_chat("Hi", &json!({ "n": 2 })).await;
    let found = two["choices"].as_array().expect("choices").iter();
    let found: Vec<_> = found
        .map(|choice| {
            (
                choice["index"].clone(),
                choice["message"]["content"].clone(),
            )
        })
        .collect();
    assert_eq!(found, [(json!(0), json!("Hi")), (json!(1), json!("Hi"))]);
    assert_eq!(two["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(two["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn log_probabilities_cover_the_text() {
    let says = "<think>hm</think>é!";
    let more = json!({ "logprobs": true, "top_logprobs": 2 });
    let answer = post_chat(says, &more).await;
    let content = &answer["choices"][0]["logprobs"]["content"];
    let content = content.as_array().expect("tokens");
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).expect("text"), "é!");
    for token in content {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 2);
        // The fake model is certain.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        assert!(top[0]["logprob"].as_f64() > top[1]["logprob"].as_f64());
    }
    let bare = post_chat("Hi", &json!({ "logprobs": true })).await;
    let content = &bare["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["token"], "H");
    assert_eq!(content[0]["top_logprobs"], json!([]));
    assert_eq!(content.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn ignored_fields_are_listed() {
    let more = json!({ "user": "me", "store": false, "metadata": {}, "verbosity": "low",
        "prediction": { "type": "content", "content": "{}" },
        "response_format": { "type": "json_schema", "json_schema": { "name": "x",
            "description": "y", "schema": { "type": "object", "properties": {} } } } });
    let reply = Harness::saying("{}").post(ROUTE, &request(&more)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    let named = reply.response.headers()[IGNORED_HEADER]
        .to_str()
        .expect("plain");
    assert_eq!(
        named,
        "user, store, metadata, verbosity, prediction, response_format.json_schema.description"
    );
}

fn refused(reply: &Reply) -> (u16, Value, Value) {
    let error = &reply.json()["error"];
    let found = error["message"].is_string() && error["type"].is_string();
    assert!(found, "{} {}", reply.status(), reply.text());
    (
        reply.status().as_u16(),
        error["param"].clone(),
        error["code"].clone(),
    )
}

#[tokio::test]
async fn unservable_requests_are_refused() {
    let bad_schema = json!({ "type": "object", "properties": 7 });
    let long = "word ".repeat(2000);
    let cases = [
        (
            json!({ "model": "nobody" }),
            404,
            json!("model"),
            json!("model_not_found"),
        ),
        (
            json!({ "temprature": 1 }),
            400,
            json!("temprature"),
            json!("unknown_parameter"),
        ),
        (
            json!({ "functions": [{ "name": "f" }] }),
            400,
            json!("functions"),
            json!("unsupported_parameter"),
        ),
        (
            json!({ "messages": [] }),
            400,
            json!("messages"),
            Value::Null,
        ),
        (
            json!({ "messages": 7 }),
            400,
            json!("messages"),
            Value::Null,
        ),
        (
            json!({ "temperature": -1 }),
            400,
            json!("temperature"),
            Value::Null,
        ),
        (
            json!({ "priority": 101 }),
            400,
            json!("priority"),
            Value::Null,
        ),
        (json!({ "stop": "" }), 400, json!("stop"), Value::Null),
        (
            json!({ "messages": [{ "role": "user", "content": long }] }),
            400,
            Value::Null,
            json!("context_length_exceeded"),
        ),
        (
            json!({ "max_tokens": 5000 }),
            400,
            Value::Null,
            json!("context_length_exceeded"),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": {
                "schema": bad_schema } } }),
            400,
            json!("response_format"),
            Value::Null,
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": 123 } }),
            400,
            json!("response_format"),
            Value::Null,
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "type": "hiccup" } } }),
            400,
            json!("response_format"),
            Value::Null,
        ),
        (
            json!({ "json_schema": bad_schema }),
            400,
            json!("json_schema"),
            Value::Null,
        ),
        (
            json!({ "grammar": "root ::= (" }),
            400,
            json!("grammar"),
            Value::Null,
        ),
        (
            json!({ "guided_json": bad_schema }),
            400,
            json!("guided_json"),
            Value::Null,
        ),
        (
            json!({ "guided_regex": "(" }),
            400,
            json!("guided_regex"),
            Value::Null,
        ),
        (
            json!({ "tool_choice": "required" }),
            400,
            json!("tool_choice"),
            Value::Null,
        ),
        (
            json!({ "chat_template_kwargs": { "messages": [] } }),
            400,
            json!("chat_template_kwargs"),
            Value::Null,
        ),
    ];
    let mut config = Harness::config();
    config.server.strict_model_names = true;
    config.server.strict_limits = true;
    let server = Harness::with(Scripted::new("Hi"), config);
    for (more, status, param, code) in cases {
        for stream in [false, true] {
            let mut request = request(&more);
            request["stream"] = json!(stream);
            let reply = server.post(ROUTE, &request).await;
            let expected = (status, param.clone(), code.clone());
            assert!(reply.status().is_client_error(), "{request}");
            assert_eq!(refused(&reply), expected, "{request} {}", reply.text());
            let message = reply.json()["error"]["message"].to_string();
            let message = message.to_lowercase();
            let named = param.as_str().is_none_or(|param| message.contains(param));
            assert!(named, "{param} {message}");
        }
    }
}

#[tokio::test]
async fn only_model_may_be_omitted() {
    let mut request = request(&json!({}));
    request.as_object_mut().expect("one").remove("model");
    let reply = Harness::saying("Hi").post(ROUTE, &request).await;
    assert_eq!(reply.json()["model"], MODEL);
    let mut config = Harness::config();
    config.models.push(ModelConfig::new("another", "nowhere"));
    let several = Harness::with(Scripted::new("Hi"), config);
    let reply = several.post(ROUTE, &request).await;
    assert_eq!(
        refused(&reply),
        (400, json!("model"), json!("model_not_found"))
    );
}

#[tokio::test]
async fn grammar_of_llama_cpp_constrains() {
    let more = json!({ "grammar": "root ::= \"a\"{5,5}" });
    let reply = Harness::saying("bbb").post(ROUTE, &request(&more)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "aaaaa");
}

#[tokio::test]
async fn last_message_is_continued() {
    let messages = |last: Value| json!([{ "role": "user", "content": "hi" }, last]);
    let prefix = json!({ "role": "assistant", "content": "Hel", "prefix": true });
    let plain = json!({ "role": "assistant", "content": "Hel" });
    let cases = [
        json!({ "messages": messages(prefix) }),
        json!({ "messages": messages(plain.clone()), "continue_final_message": true }),
        json!({
            "messages": messages(plain.clone()),
            "continue_final_message": true, "add_generation_prompt": false,
        }),
    ];
    for case in cases {
        let answer = post_chat("Hello!", &case).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "lo!", "{case}");
    }
    let new_turn = json!({ "messages": messages(plain) });
    let answer = post_chat("Hello!", &new_turn).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello!");
}

#[tokio::test]
async fn impossible_continuations_name_their_field() {
    let user = json!({ "role": "user", "content": "hi", "prefix": true });
    let assistant = json!({ "role": "assistant", "content": "Hel" });
    let cases = [
        (json!({ "continue_final_message": true }), "messages"),
        (json!({ "messages": [user] }), "messages[0].prefix"),
        (
            json!({
                "messages": [assistant], "continue_final_message": true,
                "add_generation_prompt": true,
            }),
            "add_generation_prompt",
        ),
    ];
    let server = Harness::saying("Hello!");
    for (more, param) in cases {
        let reply = server.post(ROUTE, &request(&more)).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{more}");
        assert_eq!(reply.json()["error"]["param"], param, "{more}");
    }
}
