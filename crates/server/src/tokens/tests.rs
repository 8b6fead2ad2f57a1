use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{Special, special_tokens};
use crate::testing::{Harness, MODEL};

#[tokio::test]
async fn text_is_tokenized_and_decoded() {
    let server = Harness::saying("");
    for text in ["hello", "Grüße 🦀", "<|im_start|>user\n", ""] {
        let request = json!({ "prompt": text, "add_special_tokens": false,
            "return_token_strs": true });
        let reply = server.post("/tokenize", &request).await.json();
        let tokens = reply["tokens"].as_array().expect("tokens");
        assert_eq!(reply["count"], tokens.len());
        assert_eq!(reply["max_model_len"], 4096);
        assert_eq!(
            reply["token_strs"].as_array().map(Vec::len),
            Some(tokens.len())
        );
        let request = json!({ "model": MODEL, "tokens": tokens });
        let reply = server.post("/detokenize", &request).await.json();
        assert_eq!(reply, json!({ "prompt": text, "content": text }));
    }
}

#[test]
fn special_tokens_follow_each_servers_default() {
    let cases = [
        (json!({ "prompt": "a" }), (true, true)),
        (json!({ "content": "a" }), (false, true)),
        (json!({ "content": "a", "add_special": true }), (true, true)),
        (
            json!({ "prompt": "a", "add_special": false }),
            (false, true),
        ),
        (
            json!({ "prompt": "a", "add_special_tokens": false }),
            (false, true),
        ),
        (
            json!({ "content": "a", "parse_special": false }),
            (false, false),
        ),
    ];
    for (request, expected) in cases {
        let read = serde_json::from_value(request.clone()).expect("valid");
        let Special { add, parse } = special_tokens(&read).expect("valid");
        assert_eq!((add, parse), expected, "{request}");
    }
}

#[tokio::test]
async fn llama_cpps_fields_are_read() {
    let server = Harness::saying("");
    let tokens = async |request: Value| {
        let reply = server.post("/tokenize", &request).await.json();
        reply["tokens"].clone()
    };
    let special = tokens(json!({ "content": "<|im_end|>" })).await;
    assert_eq!(special.as_array().map(Vec::len), Some(1));
    let plain = tokens(json!({ "content": "<|im_end|>", "parse_special": false })).await;
    assert_eq!(plain.as_array().map(Vec::len), Some(10));

    let pieces = tokens(json!({ "content": "hé", "with_pieces": true })).await;
    let ids = tokens(json!({ "content": "hé" })).await;
    assert_eq!(
        pieces,
        json!([
            { "id": ids[0], "piece": "h" },
            { "id": ids[1], "piece": [0xc3] },
            { "id": ids[2], "piece": [0xa9] },
        ])
    );
}

#[tokio::test]
async fn conversation_is_tokenized_as_rendered() {
    let server = Harness::saying("");
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        (
            json!({}),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            json!({ "add_generation_prompt": false }),
            "<|im_start|>user\nhi<|im_end|>\n",
        ),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": false } }),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
    ];
    for (more, expected) in cases {
        let mut request = json!({ "messages": messages });
        let more = more.as_object().expect("an object").clone();
        request.as_object_mut().expect("one").extend(more);
        let reply = server.post("/tokenize", &request).await;
        let request = json!({ "tokens": reply.json()["tokens"] });
        let reply = server.post("/detokenize", &request).await.json();
        assert_eq!(reply["prompt"], expected);
    }
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let server = Harness::saying("");
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        ("/tokenize", json!({}), "prompt"),
        (
            "/tokenize",
            json!({ "prompt": "a", "messages": messages }),
            "prompt",
        ),
        (
            "/tokenize",
            json!({ "prompt": "a", "content": "b" }),
            "content",
        ),
        ("/tokenize", json!({ "prompt": "a", "tools": [] }), "tools"),
        ("/tokenize", json!({ "messages": [] }), "messages"),
        (
            "/tokenize",
            json!({ "messages": messages, "add_special_tokens": true }),
            "add_special_tokens",
        ),
        (
            "/tokenize",
            json!({ "messages": messages, "parse_special": false }),
            "parse_special",
        ),
        (
            "/tokenize",
            json!({ "prompt": "a", "add_special": true, "add_special_tokens": false }),
            "add_special",
        ),
        ("/tokenize", json!({ "prompt": 7 }), "prompt"),
        (
            "/detokenize",
            json!({ "tokens": [1, 9_999_999] }),
            "tokens[1]",
        ),
        ("/detokenize", json!({ "tokens": [1, -1] }), "tokens[1]"),
        ("/detokenize", json!({ "tokens": [], "token": 1 }), "token"),
    ];
    for (path, request, param) in cases {
        let reply = server.post(path, &request).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{request}");
        assert_eq!(reply.json()["error"]["param"], param, "{request}");
    }
    let reply = server.get("/tokenizer_info?modle=x").await;
    assert_eq!(reply.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn tokenizer_info_has_tokens_and_template() {
    let server = Harness::saying("");
    for path in ["/tokenizer_info", "/tokenizer_info?model=tiny"] {
        let info = server.get(path).await.json();
        assert!(info["eos_token"].is_string(), "{info}");
        assert!(
            info["chat_template"]
                .as_str()
                .is_some_and(|text| text.contains("messages"))
        );
        assert_ne!(info["vocab_size"], Value::Null);
    }
    let reply = server.get("/tokenizer_info?model=nobody").await;
    assert_eq!(reply.response.headers()["x-loquat-model"], "tiny");
}
