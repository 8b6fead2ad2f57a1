//! The admin API through the whole server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::config::{Config, Key, KeyHash, Model, Scope};
use crate::reload::Reloading;
use crate::testing::{Harness, Reply, Scripted, Stuck};

const ADMIN: &str = "an-operators-key";
const USER: &str = "a-users-key";
/// As models of hubs are called.
const MODEL: &str = "org/tiny";

fn key(name: &str, key: &str, scopes: &[Scope]) -> Key {
    Key {
        name: name.to_owned(),
        hash: KeyHash(Sha256::digest(key).into()),
        scopes: scopes.to_vec(),
        models: None,
        requests_per_minute: None,
        tokens_per_minute: Some(1_000_000),
        concurrent: None,
    }
}

fn config() -> Config {
    let mut model = Model::new(MODEL, "nowhere");
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

/// A server whose model takes its time.
fn server() -> Arc<Harness> {
    let model = Scripted {
        delay: Duration::from_millis(5),
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

/// Answered with 200.
async fn told(server: &Harness, method: Method, path: &str) -> Value {
    let reply = admin(server, method, path, Value::Null).await;
    assert_eq!(reply.status(), StatusCode::OK, "{path}: {}", reply.text());
    reply.json()
}

/// A request that goes on until something ends it, and is under way.
async fn under_way(server: &Arc<Harness>) -> tokio::task::JoinHandle<Reply> {
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
    while told(server, Method::GET, "requests").await["requests"] == json!([]) {
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
    told(server, Method::GET, "models/gpt").await["state"].clone()
}

#[tokio::test]
async fn only_operators_get_in() {
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
async fn a_model_goes_up_and_down() {
    let server = server();
    let listed = told(&server, Method::GET, "models").await;
    assert_eq!(listed["memory_bytes"], Value::Null);
    assert_eq!(listed["models"][0]["name"], MODEL);
    assert_eq!(listed["models"][0]["details"]["family"], "llama");
    // What is done under which name, and what the model is then.
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
        let model = told(&server, Method::POST, &format!("models/{step}")).await;
        assert_eq!(model["state"], expected, "after {step}");
        assert_eq!(model["activity"].is_object(), expected == "ready");
        assert_eq!(model["in_use"], 0);
    }
}

#[tokio::test]
async fn what_is_not_there_or_not_right_is_said_so() {
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
async fn a_request_is_cancelled_by_its_id_and_leaves_nothing() {
    let server = server();
    let asked = under_way(&server).await;
    let listed = &told(&server, Method::GET, "requests").await["requests"][0];
    let shown = ["id", "route", "model", "key"].map(|field| listed[field].clone());
    assert_eq!(shown, ["request-1", "/v1/chat/completions", MODEL, "user"]);
    let cancelled = told(&server, Method::DELETE, "requests/request-1").await;
    assert_eq!(cancelled, json!({ "id": "request-1", "cancelled": 1 }));
    let reply = asked.await.expect("a reply");
    assert_eq!(reply.status(), StatusCode::CONFLICT, "{}", reply.text());
    assert_eq!(reply.json()["error"]["code"], "request_cancelled");
    let left = told(&server, Method::GET, "requests").await;
    assert_eq!(left, json!({ "requests": [] }));
    let running = || async { told(&server, Method::GET, "models/gpt").await };
    while running().await["activity"]["running"] != 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(running().await["in_use"], 0);
    let keys = told(&server, Method::GET, "keys").await;
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
async fn a_request_in_flight_outlives_the_unloading_of_its_model() {
    let server = server();
    let asked = under_way(&server).await;
    let model = told(&server, Method::POST, "models/gpt/unload").await;
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
async fn patience_ends() {
    let server = server();
    let asked = under_way(&server).await;
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
async fn what_keeps_a_model_is_said_as_it_is() {
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
async fn caches_are_cleared_where_there_are_any() {
    let server = server();
    let none = told(&server, Method::POST, "cache/clear").await;
    assert_eq!(none, json!({ "cleared": [] }));
    told(&server, Method::POST, "models/gpt/load").await;
    for body in [json!({}), json!({ "model": "gpt" })] {
        let reply = admin(&server, Method::POST, "cache/clear", body).await;
        assert_eq!(reply.json(), json!({ "cleared": [MODEL] }));
    }
}

#[tokio::test]
async fn the_configuration_is_shown_without_secrets_and_read_again() {
    let server = server();
    let shown = told(&server, Method::GET, "config").await;
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
    let report = told(&server, Method::POST, "config/reload").await;
    assert_eq!(
        report,
        json!({ "applied": ["keys"], "needs_restart": ["server.port"] })
    );
    let reply = call(&server, USER, Method::GET, "/v1/models", Value::Null).await;
    assert_eq!(reply.status(), StatusCode::UNAUTHORIZED);
}
