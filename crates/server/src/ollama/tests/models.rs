use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::json;

use super::{ignored, post, refused};
use crate::testing::{Harness, MODEL};

#[tokio::test]
async fn models_are_listed_shown_and_running() {
    let mut config = Harness::config();
    config.models[0]
        .sampling
        .insert("temperature".into(), json!(0.5));
    let server = Harness::with(crate::testing::Scripted::new("hello"), config);
    let tags = server.get("/api/tags").await.json();
    let [tag] = tags["models"].as_array().expect("a list").as_slice() else {
        panic!("{tags}");
    };
    assert_eq!(
        (&tag["name"], &tag["model"]),
        (&json!(MODEL), &json!(MODEL))
    );
    assert_eq!(tag["modified_at"], "2023-11-14T22:13:20.000000Z");
    assert_eq!(tag["size"], 2000);
    assert_eq!(tag["digest"].as_str().map(str::len), Some(64));
    let details = json!({
        "parent_model": "", "format": "safetensors", "family": "llama", "families": ["llama"],
        "parameter_size": "1.0K", "quantization_level": "bf16",
    });
    assert_eq!(tag["details"], details);

    assert_eq!(server.get("/api/ps").await.json(), json!({ "models": [] }));
    post(
        &server,
        "/api/generate",
        &json!({ "model": MODEL, "keep_alive": -1 }),
    )
    .await;
    let ps = server.get("/api/ps").await.json();
    let [process] = ps["models"].as_array().expect("a list").as_slice() else {
        panic!("{ps}");
    };
    assert_eq!(
        (&process["name"], &process["size"]),
        (&json!(MODEL), &json!(1000))
    );
    assert_eq!(process["context_length"], 4096);
    assert_eq!(process["expires_at"], "9999-12-31T23:59:59Z");
    assert_eq!(process["digest"], tag["digest"]);
    post(
        &server,
        "/api/generate",
        &json!({ "model": MODEL, "keep_alive": "1h" }),
    )
    .await;
    let ps = server.get("/api/ps").await.json();
    assert!(ps["models"][0]["expires_at"].as_str() < Some("9999"));

    for body in [
        json!({ "model": MODEL, "verbose": true }),
        json!({ "name": "tiny:latest" }),
    ] {
        let reply = post(&server, "/api/show", &body).await;
        let show = reply.json();
        assert_eq!(show["details"], details);
        assert_eq!(show["parameters"], "temperature 0.5");
        let able = json!(["completion", "tools", "thinking", "embedding"]);
        assert_eq!(show["capabilities"], able);
        assert_eq!(show["model_info"]["general.architecture"], "llama");
        assert_eq!(show["model_info"]["llama.context_length"], 4096);
        assert!(
            show["template"]
                .as_str()
                .expect("text")
                .contains("im_start")
        );
        assert_eq!(show["modified_at"], tag["modified_at"]);
        assert_eq!(ignored(&reply).is_some(), body.get("verbose").is_some());
    }
    refused(&server, "/api/show", &json!({}), "model").await;
    let template = json!({ "model": MODEL, "template": "x" });
    refused(&server, "/api/show", &template, "template").await;
    let reply = server.post("/api/show", &json!({ "model": "other" })).await;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn version_is_comparable() {
    let server = Harness::saying("hello");
    let version = server.get("/api/version").await.json();
    let version = version["version"].as_str().expect("text");
    let numbers: Vec<u32> = version
        .split('.')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!(numbers.len(), 3);
}

#[tokio::test]
async fn model_management_is_refused() {
    let server = Harness::saying("hello");
    let routes = [
        (Method::POST, "/api/pull"),
        (Method::POST, "/api/push"),
        (Method::POST, "/api/create"),
        (Method::POST, "/api/copy"),
        (Method::DELETE, "/api/delete"),
        (Method::POST, "/api/blobs/sha256:00"),
        (Method::HEAD, "/api/blobs/sha256:00"),
    ];
    for (method, path) in routes {
        let request = Request::builder().method(&method).uri(path);
        let request = request
            .body(Body::from(r#"{"model": "x"}"#))
            .expect("a request");
        let reply = server.send(request).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        if method != Method::HEAD {
            assert!(reply.json()["error"].is_string(), "{path}");
        }
    }
}
