use axum::http::StatusCode;
use serde_json::json;

use super::{ALIASES, RERANKING};
use crate::testing::{Harness, Scripted};

fn coder(reply: &str) -> Harness {
    let model = Scripted {
        fim: true,
        ..Scripted::new(reply)
    };
    Harness::with(model, Harness::config())
}

/// A prompt after which the scripted model answers.
const PROMPT: &str = "<|im_start|>assistant\n";

#[tokio::test]
async fn completion_has_llama_cpps_form() {
    let server = Harness::saying("hello");
    let body = json!({ "prompt": PROMPT, "n_predict": 16, "cache_prompt": true });
    let reply = server.post("/completion", &body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.response.headers()["x-loquat-ignored"], "cache_prompt");
    let json = reply.json();
    assert_eq!(json["content"], "hello");
    assert_eq!(json["stop"], true);
    assert_eq!(json["stop_type"], "eos");
    assert_eq!(json["truncated"], false);
    assert!(json["timings"]["predicted_n"].is_number(), "{json}");

    let body = json!({ "prompt": PROMPT, "n_predict": 3, "return_tokens": true });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["stop_type"], "limit");
    assert_eq!(json["tokens"].as_array().map(Vec::len), Some(3));

    let body = json!({ "prompt": PROMPT, "n_predict": -1, "stop": ["l"] });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["content"], "he");
    assert_eq!(
        (&json["stop_type"], &json["stopping_word"]),
        (&json!("word"), &json!("l"))
    );

    let body = json!({ "prompt": PROMPT, "n_predict": 0 });
    let reply = server.post("/completion", &body).await;
    assert_eq!(reply.json()["error"]["param"], "n_predict");
}

#[tokio::test]
async fn completion_streams_until_stop() {
    let server = Harness::saying("hello");
    let body = json!({ "prompt": PROMPT, "stream": true });
    let events = server.post("/completion", &body).await.events();
    let texts = events.iter().map(|(_, chunk)| chunk["content"].as_str());
    assert_eq!(texts.collect::<Option<String>>().as_deref(), Some("hello"));
    let stops: Vec<_> = events
        .iter()
        .map(|(_, chunk)| chunk["stop"] == true)
        .collect();
    assert_eq!(stops.iter().filter(|stop| **stop).count(), 1);
    assert_eq!(stops.last(), Some(&true));
}

#[tokio::test]
async fn infill_writes_between_prefix_and_suffix() {
    let server = coder("return a + b");
    let body = json!({
        "input_prefix": "def add(a, b):\n    ",
        "input_suffix": "\n",
        "input_extra": [{ "filename": "lib.py", "text": "x = 1\n" }],
        "prompt": "# sum\n",
    });
    let reply = server.post("/infill", &body).await;
    assert_eq!(reply.json()["content"], "return a + b", "{}", reply.text());

    let body = json!({ "prompt": "a", "suffix": "b", "max_tokens": 64 });
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.json()["choices"][0]["text"], "return a + b");

    let body = json!({ "model": "tiny", "prompt": "a", "suffix": "b", "stream": false });
    let reply = server.post("/api/generate", &body).await;
    assert_eq!(reply.json()["response"], "return a + b");
}

#[tokio::test]
async fn suffix_without_tokens_names_the_model() {
    let server = Harness::saying("hello");
    let cases = [
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
        ),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
        (
            "/api/generate",
            json!({ "model": "tiny", "prompt": "a", "suffix": "b" }),
        ),
    ];
    for (path, body) in cases {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        let message = "the model `tiny` has no fill-in-the-middle tokens";
        assert!(reply.text().contains(message), "{path}: {}", reply.text());
    }
}

#[tokio::test]
async fn properties_slots_and_templates_are_served() {
    let server = Harness::saying("hello");
    let props = server.get("/props").await.json();
    assert_eq!(props["model_alias"], "tiny");
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert!(
        props["chat_template"]
            .as_str()
            .is_some_and(|text| text.contains("im_start"))
    );
    let slots = server.get("/slots").await.json();
    let slots = slots.as_array().expect("slots");
    assert_eq!(props["total_slots"], slots.len());
    assert!(slots.iter().all(|slot| slot["is_processing"] == false));

    let user = json!({ "role": "user", "content": "hi" });
    let turn = "<|im_start|>user\nhi<|im_end|>\n";
    let cases = [
        (json!({ "messages": [user] }), format!("{turn}{PROMPT}")),
        (
            json!({ "messages": [user], "add_generation_prompt": false }),
            turn.to_owned(),
        ),
        (
            json!({ "messages": [user, { "role": "assistant", "content": "so ", "prefix": true }] }),
            format!("{turn}{PROMPT}so "),
        ),
    ];
    for (body, prompt) in cases {
        let reply = server.post("/apply-template", &body).await;
        assert_eq!(reply.json()["prompt"], prompt, "{}", reply.text());
    }
}

#[tokio::test]
async fn short_paths_answer_like_the_long_ones() {
    let server = Harness::saying("hello");
    for path in ALIASES {
        let post = server.post(path, &json!({ "x": 1 })).await;
        let get = server.get(path).await;
        let found = [post.status(), get.status()];
        assert!(!found.contains(&StatusCode::NOT_FOUND), "{path}: {found:?}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let reply = server.post("/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "hello");
}

#[tokio::test]
async fn reranking_is_refused() {
    let server = Harness::saying("hello");
    for path in RERANKING {
        let reply = server
            .post(path, &json!({ "query": "a", "documents": ["b"] }))
            .await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        assert!(reply.text().contains("no reranking models"), "{path}");
    }
}
