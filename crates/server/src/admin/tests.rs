//! The admin API through the whole server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::config::{Config, Key, KeyHash, ModelConfig, Scope};
use crate::reload::Reloading;
use crate::testing::{Harness, Reply, Scripted, Stuck};

const ADMIN: &str = "an-operators-key";
const USER: &str = "a-users-key";
/// A name as on a hub.
const MODEL: &str = "org/tiny";

fn key(name: &str, key: &str, scopes: &[Scope]) -> Key {
    Key {
        scopes: scopes.to_vec(),
        tokens_per_minute: Some(1_000_000),
        ..Key::new(name, KeyHash::digest(key))
    }
}

fn config() -> Config {
    let mut model = ModelConfig::new(MODEL, "nowhere");
    model.aliases = vec!["gpt".to_owned()];
    Config {
        keys: vec![
            key("operator", ADMIN, &[Scope::Admin]),
            key("user", USER, &[Scope::Inference]),
        ],
        models: vec![model],
        ..Config::default()
    }
}

/// A server with a model that takes minutes to reply.
fn server() -> Arc<Harness> {
    server_with(Duration::from_millis(200))
}

/// A reply of a thousand tokens that take this long each.
fn server_with(delay: Duration) -> Arc<Harness> {
    let model = Scripted {
        delay,
        ..Scripted::new(&"word ".repeat(200))
    };
    Arc::new(Harness::with(model, config()))
}

async fn call(server: &Harness, key: &str, method: Method, path: &str, body: Value) -> Reply {
    let body = match body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .header("x-request-id", "request-1")
        .body(body);
    server.send(request.expect("a request")).await
}

async fn admin(server: &Harness, method: Method, path: &str, body: Value) -> Reply {
    call(server, ADMIN, method, &format!("/admin/v1/{path}"), body).await
}

/// The body of a response with status 200.
async fn ok(server: &Harness, method: Method, path: &str) -> Value {
    let reply = admin(server, method, path, Value::Null).await;
    assert_eq!(reply.status(), StatusCode::OK, "{path}: {}", reply.text());
    reply.json()
}

/// Starts a request that runs until it is ended.
async fn start_request(server: &Arc<Harness>) -> tokio::task::JoinHandle<Reply> {
    let asked = tokio::spawn({
        let server = Arc::clone(server);
        async move {
            let body = json!({
                "model": "gpt",
                "messages": [{ "role": "user", "content": "Hello" }],
                "max_tokens": 1000,
            });
            call(&server, USER, Method::POST, "/v1/chat/completions", body).await
        }
    });
    while ok(server, Method::GET, "requests").await["requests"] == json!([]) {
        assert!(
            !asked.is_finished(),
            "{}",
            asked.await.expect("a reply").text()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked
}

async fn state(server: &Harness) -> Value {
    ok(server, Method::GET, "models/gpt").await["state"].clone()
}

#[tokio::test]
async fn admin_scope_is_required() {
    let open = Harness::saying("hello");
    let reply = open.get("/admin/v1/models").await;
    assert_eq!(reply.status(), StatusCode::FORBIDDEN);
    assert!(reply.text().contains("[[keys]]"), "{}", reply.text());
    let server = server();
    for (key, status) in [
        (ADMIN, StatusCode::OK),
        (USER, StatusCode::FORBIDDEN),
        ("nobodys", StatusCode::UNAUTHORIZED),
    ] {
        for path in ["models", "models/gpt", "requests", "keys", "config"] {
            let path = format!("/admin/v1/{path}");
            let reply = call(&server, key, Method::GET, &path, Value::Null).await;
            assert_eq!(reply.status(), status, "{key} at {path}");
        }
    }
}

#[tokio::test]
async fn model_loads_drains_and_unloads() {
    let server = server();
    let listed = ok(&server, Method::GET, "models").await;
    assert_eq!(listed["memory_bytes"], Value::Null);
    assert_eq!(listed["models"][0]["name"], MODEL);
    assert_eq!(listed["models"][0]["details"]["family"], "llama");
    // The action, the name in the path, and the state afterwards.
    let steps = [
        ("org/tiny/load", "ready"),
        ("org/tiny/load", "ready"),
        ("org%2Ftiny/unload", "unloaded"),
        ("gpt/unload", "unloaded"),
        ("gpt/reload", "ready"),
        ("gpt/reload", "ready"),
        ("gpt/drain", "drained"),
        ("gpt/unload", "drained"),
        ("gpt/load", "ready"),
    ];
    for (step, expected) in steps {
        let model = ok(&server, Method::POST, &format!("models/{step}")).await;
        assert_eq!(model["state"], expected, "after {step}");
        assert_eq!(model["activity"].is_object(), expected == "ready");
        assert_eq!(model["in_use"], 0);
    }
}

#[tokio::test]
async fn invalid_requests_get_clear_errors() {
    let server = server();
    let cases = [
        (
            Method::GET,
            "models/other",
            json!(null),
            404,
            "model_not_found",
        ),
        (
            Method::POST,
            "models/other/load",
            json!(null),
            404,
            "model_not_found",
        ),
        (
            Method::POST,
            "models/other/unload",
            json!(null),
            404,
            "model_not_found",
        ),
        (
            Method::POST,
            "cache/clear",
            json!({ "model": "other" }),
            404,
            "model_not_found",
        ),
        (
            Method::POST,
            "cache/clear",
            json!({ "models": 1 }),
            400,
            "unknown_parameter",
        ),
        (
            Method::POST,
            "models/gpt/load",
            json!({ "now": true }),
            400,
            "unknown_parameter",
        ),
        (
            Method::POST,
            "models/gpt/unload",
            json!({ "now": true }),
            400,
            "unknown_parameter",
        ),
        (
            Method::DELETE,
            "requests/1",
            json!(null),
            404,
            "request_not_found",
        ),
        (
            Method::POST,
            "config/reload",
            json!(null),
            409,
            "no_configuration",
        ),
    ];
    for (method, path, body, status, code) in cases {
        let reply = admin(&server, method, path, body).await;
        assert_eq!(reply.status(), status, "{path}");
        assert_eq!(reply.json()["error"]["code"], code, "{path}");
    }
    let reply = admin(
        &server,
        Method::POST,
        "models/gpt/unload",
        json!({ "patience": -1 }),
    )
    .await;
    assert_eq!(reply.json()["error"]["param"], "patience");
    for path in ["models/gpt/explode", "models/gpt", "models/load"] {
        let reply = admin(&server, Method::POST, path, Value::Null).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn request_is_cancelled_by_id() {
    let server = server();
    let asked = start_request(&server).await;
    let listed = &ok(&server, Method::GET, "requests").await["requests"][0];
    let shown = ["id", "route", "model", "key"].map(|field| listed[field].clone());
    assert_eq!(shown, ["request-1", "/v1/chat/completions", MODEL, "user"]);
    let cancelled = ok(&server, Method::DELETE, "requests/request-1").await;
    assert_eq!(cancelled, json!({ "id": "request-1", "cancelled": 1 }));
    let reply = asked.await.expect("a reply");
    assert_eq!(reply.status(), StatusCode::CONFLICT, "{}", reply.text());
    assert_eq!(reply.json()["error"]["code"], "request_cancelled");
    let left = ok(&server, Method::GET, "requests").await;
    assert_eq!(left, json!({ "requests": [] }));
    let running = || async { ok(&server, Method::GET, "models/gpt").await };
    while running().await["activity"]["running"] != 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(running().await["in_use"], 0);
    let keys = ok(&server, Method::GET, "keys").await;
    let user = &keys["keys"][1];
    assert_eq!(user["name"], "user");
    assert_eq!(user["tokens_per_minute"], 1_000_000);
    assert_eq!(
        (&user["usage"]["requests"], &user["usage"]["running"]),
        (&json!(1), &json!(0))
    );
    assert!(user["usage"]["prompt_tokens"].as_u64() > Some(0));
    assert!(!keys.to_string().contains("sha256"));
}

#[tokio::test]
async fn all_requests_are_cancelled_at_once() {
    let server = server();
    let first = start_request(&server).await;
    let second = start_request(&server).await;
    while ok(&server, Method::GET, "requests").await["requests"][1].is_null() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let cancelled = ok(&server, Method::DELETE, "requests").await;
    assert_eq!(cancelled, json!({ "cancelled": 2 }));
    for asked in [first, second] {
        let reply = asked.await.expect("a reply");
        assert_eq!(reply.json()["error"]["code"], "request_cancelled");
    }
    let none = ok(&server, Method::DELETE, "requests").await;
    assert_eq!(none, json!({ "cancelled": 0 }));
}

#[tokio::test]
async fn running_request_survives_unload() {
    let server = server_with(Duration::from_millis(2));
    let asked = start_request(&server).await;
    let model = ok(&server, Method::POST, "models/gpt/unload").await;
    assert_eq!(model["state"], "unloaded");
    let reply = asked.await.expect("a reply");
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    let said = &reply.json()["choices"][0]["message"]["content"];
    assert_eq!(
        said.as_str().map(|said| said.matches("word").count()),
        Some(200)
    );
}

#[tokio::test]
async fn requests_beyond_patience_are_cancelled() {
    let server = server();
    let asked = start_request(&server).await;
    let body = json!({ "patience": 0.02 });
    let reply = admin(&server, Method::POST, "models/gpt/drain", body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(state(&server).await, "drained");
    let reply = asked.await.expect("a reply");
    assert_eq!(reply.json()["error"]["code"], "request_cancelled");
    let body = json!({ "model": "gpt", "messages": [{ "role": "user", "content": "Hello" }] });
    let reply = call(&server, USER, Method::POST, "/v1/chat/completions", body).await;
    assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.json()["error"]["code"], "model_drained");
}

#[tokio::test]
async fn error_says_why_model_stays() {
    let (stuck, _let_go) = Stuck::new();
    let app = App::new(config(), Arc::new(stuck));
    let code = || super::models::still_there(&app, MODEL).code;
    assert_eq!(code(), Some("model_in_use"));
    tokio::spawn({
        let app = Arc::clone(&app);
        async move { app.models.lease(MODEL).await.map(drop) }
    });
    tokio::task::yield_now().await;
    assert_eq!(code(), Some("model_loading"));
}

#[tokio::test]
async fn caches_are_cleared() {
    let server = server();
    let none = ok(&server, Method::POST, "cache/clear").await;
    assert_eq!(none, json!({ "cleared": [] }));
    ok(&server, Method::POST, "models/gpt/load").await;
    for body in [json!({}), json!({ "model": "gpt" })] {
        let reply = admin(&server, Method::POST, "cache/clear", body).await;
        assert_eq!(reply.json(), json!({ "cleared": [MODEL] }));
    }
}

#[tokio::test]
async fn config_is_shown_without_secrets_and_reloaded() {
    let server = server();
    let shown = ok(&server, Method::GET, "config").await;
    let hash: String = Sha256::digest(ADMIN)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(!shown.to_string().contains(&hash[8..16]), "{shown}");
    assert!(shown.to_string().contains(MODEL));
    server.app.set_reloading(Reloading {
        read: Box::new(|| {
            let mut config = config();
            config.keys.pop();
            config.server.port = 1;
            Ok(config)
        }),
        log_level: Box::new(|_| Ok(())),
    });
    let report = ok(&server, Method::POST, "config/reload").await;
    assert_eq!(
        report,
        json!({ "applied": ["keys"], "needs_restart": ["server.port"] })
    );
    let reply = call(&server, USER, Method::GET, "/v1/models", Value::Null).await;
    assert_eq!(reply.status(), StatusCode::UNAUTHORIZED);
}

/// They are parsed on async threads.
#[tokio::test]
async fn long_bodies_are_refused() {
    let server = server();
    let long = json!({ "patience": 1, "model": "x".repeat(64 << 10) });
    for path in ["cache/clear", "models/gpt/unload", "models/gpt/load"] {
        let reply = admin(&server, Method::POST, path, long.clone()).await;
        assert_eq!(reply.status(), StatusCode::PAYLOAD_TOO_LARGE, "{path}");
    }
}
