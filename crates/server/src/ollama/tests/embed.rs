use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{ignored, post, refused};
use crate::testing::{Harness, MODEL, Scripted};

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(answer["embeddings"].clone()).expect("vectors")
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}

#[tokio::test]
async fn embeddings_match_openais() {
    let server = Harness::saying("unheard");
    let body = json!({ "model": MODEL, "input": ["hello", "goodbye"], "keep_alive": "5m" });
    let answer = post(&server, "/api/embed", &body).await.json();
    assert_eq!(answer["model"], MODEL);
    let both = vectors(&answer);
    assert_eq!(both.len(), 2);
    assert!(
        both.iter()
            .all(|vector| (length(vector) - 1.0).abs() < 1e-5)
    );
    assert!(answer["prompt_eval_count"].as_u64() > Some(2));
    assert!(answer["total_duration"].as_u64() >= answer["load_duration"].as_u64());

    let body = json!({ "model": MODEL, "input": "hello", "options": { "num_ctx": 64 } });
    let reply = post(&server, "/api/embed", &body).await;
    assert_eq!(ignored(&reply), Some("options"));
    assert_eq!(vectors(&reply.json()), both[..1]);

    let openai = json!({ "model": MODEL, "input": "goodbye" });
    let openai = post(&server, "/v1/embeddings", &openai).await.json();
    assert_eq!(openai["data"][0]["embedding"], answer["embeddings"][1]);

    let older = json!({ "model": MODEL, "prompt": "hello" });
    let older = post(&server, "/api/embeddings", &older).await.json();
    let older: Vec<f32> = serde_json::from_value(older["embedding"].clone()).expect("a vector");
    assert!((length(&older) - 1.0).abs() > 1e-3, "as the model gives it");
    assert!((older[0] / length(&older) - both[0][0]).abs() < 1e-5);
}

#[tokio::test]
async fn long_inputs_are_truncated_or_refused() {
    let model = Scripted {
        context: 64,
        ..Scripted::new("unheard")
    };
    let server = Harness::with(model, Harness::config());
    let long = "word ".repeat(40);
    let body = json!({ "model": MODEL, "input": ["short", long, "short", long] });
    let reply = post(&server, "/api/embed", &body).await;
    assert_eq!(reply.response.headers()["x-loquat-truncated"], "1, 3");
    let all = vectors(&reply.json());
    assert_eq!(all[1], all[3]);
    let body = json!({ "model": MODEL, "input": ["short", long], "truncate": false });
    refused(&server, "/api/embed", &body, "input[1]").await;
    let older = json!({ "model": MODEL, "prompt": long });
    let reply = post(&server, "/api/embeddings", &older).await;
    assert_eq!(reply.response.headers()["x-loquat-truncated"], "0");
}

#[tokio::test]
async fn empty_input_loads_the_model() {
    let server = Harness::saying("unheard");
    for input in [Value::Null, json!(""), json!([])] {
        let body = json!({ "model": MODEL, "input": input });
        let answer = post(&server, "/api/embed", &body).await.json();
        assert_eq!(answer["embeddings"], json!([]));
    }
    let answer = post(&server, "/api/embeddings", &json!({ "model": MODEL }))
        .await
        .json();
    assert_eq!(answer["embedding"], json!([]));
    assert_eq!(server.app.models.status()[0].state.name(), "ready");
}

#[tokio::test]
async fn unsupported_fields_are_named() {
    let server = Harness::saying("unheard");
    let cases = [
        (json!({ "input": "a", "dimensions": 4 }), "dimensions"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
        (
            json!({ "input": "a", "options": { "num_ctz": 1 } }),
            "options.num_ctz",
        ),
        (json!({ "input": "a", "inputs": "a" }), "inputs"),
    ];
    for (mut body, named) in cases {
        body["model"] = json!(MODEL);
        refused(&server, "/api/embed", &body, named).await;
    }
    let mute = Scripted {
        embeddings: false,
        ..Scripted::new("unheard")
    };
    let server = Harness::with(mute, Harness::config());
    let body = json!({ "model": MODEL, "input": "hello" });
    let reply = server.post("/api/embed", &body).await;
    assert_eq!(reply.status(), StatusCode::BAD_REQUEST);
    assert!(reply.text().contains("hidden states"));
}
