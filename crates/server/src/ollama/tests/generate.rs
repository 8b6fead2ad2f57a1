use serde_json::{Value, json};

use super::{post, refused};
use crate::testing::{Harness, MODEL};

const GENERATE: &str = "/api/generate";

fn request(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": "hi" });
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

#[tokio::test]
async fn prompt_is_answered() {
    let server = Harness::saying("<think>well</think>Hello you!");
    let lines = post(&server, GENERATE, &request(json!({ "system": "be kind" })))
        .await
        .lines();
    let joined = |field: &str| -> String {
        lines
            .iter()
            .filter_map(|line| line[field].as_str())
            .collect()
    };
    assert_eq!(
        (joined("response"), joined("thinking")),
        ("Hello you!".into(), "well".into())
    );
    let last = lines.last().expect("a last line");
    assert_eq!(
        (&last["done"], &last["response"]),
        (&json!(true), &json!(""))
    );
    let whole = post(&server, GENERATE, &request(json!({ "stream": false })))
        .await
        .json();
    assert_eq!(whole["response"], "Hello you!");
    assert_eq!(whole["thinking"], "well");
    for answer in [last, &whole] {
        assert_eq!(answer["done_reason"], "stop");
        for name in [
            "total_duration",
            "prompt_eval_count",
            "eval_count",
            "eval_duration",
        ] {
            assert!(answer[name].as_u64() > Some(0), "{name}: {answer}");
        }
    }
    let longer = last["prompt_eval_count"].as_u64() > whole["prompt_eval_count"].as_u64();
    assert!(longer, "the system's words count");
}

#[tokio::test]
async fn raw_prompt_is_continued() {
    let server = Harness::saying("Hello you!");
    let prompt = "<|im_start|>assistant\n";
    let body = request(json!({ "prompt": prompt, "raw": true, "stream": false }));
    let raw = post(&server, GENERATE, &body).await.json();
    assert_eq!(raw["response"], "Hello you!");
    let templated = post(&server, GENERATE, &request(json!({ "stream": false })))
        .await
        .json();
    let count = |answer: &Value| answer["prompt_eval_count"].as_u64();
    assert!(count(&raw) < count(&templated), "no template around it");

    let streamed = request(json!({
        "prompt": prompt, "raw": true, "logprobs": true, "options": { "num_predict": 3 },
    }));
    let lines = post(&server, GENERATE, &streamed).await.lines();
    let tokens = lines.iter().filter_map(|line| line["logprobs"].as_array());
    assert_eq!(tokens.flatten().count(), 3);
    assert_eq!(lines.last().expect("a last line")["done_reason"], "length");
}

#[tokio::test]
async fn raw_prompts_follow_formats() {
    let server = Harness::saying(r#"Sure: {"a": 1}"#);
    let body = request(json!({
        "prompt": "<|im_start|>assistant\n", "raw": true, "stream": false, "format": "json",
        "options": { "num_predict": 100 },
    }));
    let answer = post(&server, GENERATE, &body).await.json();
    let text = answer["response"].as_str().expect("text");
    assert!(text.trim_start().starts_with('{'), "{text}");
}

#[tokio::test]
async fn empty_prompt_loads_and_unloads() {
    let server = Harness::saying("hello");
    for (keep, why) in [
        (Value::Null, "load"),
        (json!("5m"), "load"),
        (json!(0), "unload"),
    ] {
        let body = json!({ "model": MODEL, "keep_alive": keep });
        let answer = post(&server, GENERATE, &body).await.json();
        assert_eq!(answer["done_reason"], why);
        assert_eq!(
            (&answer["done"], &answer["response"]),
            (&json!(true), &json!(""))
        );
    }
}

#[tokio::test]
async fn unsupported_fields_are_named() {
    let server = Harness::saying("hello");
    let cases = [
        (json!({ "suffix": "end" }), "suffix"),
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "context": [1, 2] }), "context"),
        (json!({ "images": ["aGk="] }), "images[0]"),
        (json!({ "width": 64 }), "width"),
        (json!({ "raw": true, "system": "be kind" }), "system"),
        (json!({ "raw": true, "think": true }), "think"),
        (json!({ "format": { "type": "no such type" } }), "type"),
        (
            json!({ "raw": true, "format": { "type": "no such type" } }),
            "type",
        ),
        (json!({ "promt": "red" }), "promt"),
    ];
    for (more, named) in cases {
        refused(&server, GENERATE, &request(more), named).await;
    }
    let empties = json!({
        "suffix": "", "template": "", "context": [], "images": [], "system": "", "format": "",
        "stream": false, "truncate": false,
    });
    post(&server, GENERATE, &request(empties)).await;
}
