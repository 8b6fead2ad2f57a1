use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use loquat_engine::Usage;
use serde_json::json;

use super::meter::Meter;
use super::*;
use crate::config::{Config, Key as Settings, KeyHash, ModelConfig};
use crate::testing::{Harness, MODEL, Reply, Scripted};

fn key(name: &str, secret: &str, scopes: &[Scope]) -> Settings {
    Settings {
        scopes: scopes.to_vec(),
        ..Settings::new(name, KeyHash::digest(secret))
    }
}

fn server(keys: Vec<Settings>) -> Harness {
    let config = Config {
        keys,
        ..Harness::config()
    };
    Harness::with(Scripted::new("hello"), config)
}

async fn get(server: &Harness, path: &str, header: Option<(&str, &str)>) -> Reply {
    let mut request = Request::get(path);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    server
        .send(request.body(Body::empty()).expect("a request"))
        .await
}

const MODELS: &str = "/v1/models";

#[tokio::test]
async fn key_is_found_in_every_header() {
    let server = server(vec![
        key("first", "one", &[Scope::Inference]),
        key("second", "two", &[Scope::Inference]),
    ]);
    for (header, status) in [
        (Some(("authorization", "Bearer one")), 200),
        (Some(("authorization", "bearer two")), 200),
        (Some(("x-api-key", "two")), 200),
        (Some(("api-key", "one")), 200),
        (Some(("authorization", "Bearer three")), 401),
        (Some(("authorization", "Bearer ")), 401),
        (Some(("authorization", "Basic one")), 401),
        (Some(("authorization", "one")), 401),
        (Some(("x-api-key", "")), 401),
        (Some(("x-api-key", "one ")), 200),
        (Some(("x-api-key", "o")), 401),
        (None, 401),
    ] {
        let reply = get(&server, MODELS, header).await;
        assert_eq!(reply.status().as_u16(), status, "{header:?}");
        assert!(!reply.text().contains("three"), "keys are not repeated");
    }
}

#[tokio::test]
async fn each_scope_allows_only_its_routes() {
    let all = [Scope::Inference, Scope::Metrics, Scope::Admin];
    let server = server(
        all.map(|scope| key(scope.name(), scope.name(), &[scope]))
            .into(),
    );
    for (path, needed) in [
        (MODELS, Scope::Inference),
        ("/metrics", Scope::Metrics),
        ("/admin/v1/models", Scope::Admin),
    ] {
        for scope in all {
            let reply = get(&server, path, Some(("x-api-key", scope.name()))).await;
            let expected = if scope == needed {
                StatusCode::OK
            } else {
                StatusCode::FORBIDDEN
            };
            assert_eq!(reply.status(), expected, "{path} with {scope:?}");
        }
    }
    for open in ["/health", "/version", "/openapi.json", "/"] {
        let reply = get(&server, open, None).await;
        assert_eq!(reply.status(), StatusCode::OK, "{open}");
    }
}

#[tokio::test]
async fn without_keys_only_admin_is_closed() {
    let server = server(Vec::new());
    for (path, status) in [(MODELS, 200), ("/metrics", 200), ("/admin/v1/models", 403)] {
        let reply = get(&server, path, Some(("authorization", "Bearer any"))).await;
        assert_eq!(reply.status().as_u16(), status, "{path}");
    }
}

#[test]
fn debug_shows_only_the_name() {
    let keys = Keys::new(&[key("name", "secret", &[])]);
    assert_eq!(format!("{:?}", keys.list()), r#"[Key("name")]"#);
}

#[test]
fn key_is_limited_to_its_models() {
    let settings = Settings {
        models: Some(vec!["tiny".to_owned()]),
        ..key("name", "secret", &[])
    };
    let key = Key::new(&settings, Arc::default());
    assert!(key.may_use("tiny"));
    assert!(!key.may_use("other"));
}

#[tokio::test]
async fn forbidden_models_look_missing() {
    let mut config = Harness::config();
    config.models.push(ModelConfig {
        aliases: vec!["alias".to_owned()],
        ..ModelConfig::new("secret", "nowhere")
    });
    config
        .models
        .push(ModelConfig::new("hidden:latest", "nowhere"));
    config.keys = vec![Settings {
        models: Some(vec![MODEL.to_owned()]),
        ..key("name", "key", &[Scope::Inference])
    }];
    let server = Harness::with(Scripted::new("hello"), config);
    let ask = async |method: Method, path: &str, model: &str| {
        let path = path.replace("{}", model);
        let body = match method {
            Method::GET => Body::empty(),
            _ => Body::from(
                json!({ "model": model, "messages": [], "input": "a", "prompt": "a" }).to_string(),
            ),
        };
        let request = Request::builder().method(method).uri(&path);
        let request = request.header("x-api-key", "key").body(body);
        server.send(request.expect("a request")).await
    };
    for (method, path) in [
        (Method::GET, "/v1/models/{}"),
        (Method::POST, "/v1/completions"),
        (Method::POST, "/api/show"),
        (Method::POST, "/api/generate"),
    ] {
        let nobody = ask(method.clone(), path, "nobody").await;
        for model in ["secret", "alias", "hidden:latest", "hidden"] {
            let reply = ask(method.clone(), path, model).await;
            assert_eq!(reply.status(), nobody.status(), "{path} of {model}");
            let expected = nobody.text().replace("nobody", model);
            let found = reply.text().replace(":latest", "");
            assert_eq!(found, expected.replace(":latest", ""), "{path}");
        }
    }
    let nobody = ask(Method::GET, "/v1/models/{}", "nobody").await;
    assert_eq!(nobody.status(), StatusCode::NOT_FOUND);
    assert_eq!(nobody.json()["error"]["code"], "model_not_found");
    let message = nobody.json()["error"]["message"].to_string();
    assert!(message.ends_with("Use one of: tiny.\""), "{message}");
    // The only allowed model need not be named.
    let request = Request::post("/v1/completions").header("x-api-key", "key");
    let request = request.body(Body::from(json!({ "prompt": "a" }).to_string()));
    let reply = server.send(request.expect("a request")).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.json()["model"], MODEL);
}

#[test]
fn replaced_key_keeps_counts_by_name() {
    let keys = Keys::new(&[key("stays", "old", &[]), key("goes", "gone", &[])]);
    let usage = Usage {
        prompt_tokens: 3,
        completion_tokens: 2,
        cached_tokens: 1,
    };
    let before = keys.list();
    before.iter().for_each(|key| key.used(&usage));
    keys.replace(&[key("new", "new", &[]), key("stays", "other", &[])]);
    // A request that began before the change still counts.
    before[0].used(&usage);
    let counts: Vec<_> = keys
        .list()
        .iter()
        .map(|key| (key.name.clone(), key.usage().prompt_tokens))
        .collect();
    assert_eq!(counts, [("new".to_owned(), 0), ("stays".to_owned(), 6)]);
    let sent = HeaderMap::from_iter([(
        axum::http::HeaderName::from_static("x-api-key"),
        axum::http::HeaderValue::from_static("old"),
    )]);
    assert!(keys.authorize(&sent, Scope::Inference).is_err());
}

#[test]
fn requests_beyond_the_rate_are_refused() {
    let limits = Settings {
        requests_per_minute: Some(2),
        ..key("name", "secret", &[])
    };
    let (meter, start) = (Arc::new(Meter::default()), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    for (second, admitted) in [(0, true), (0, true), (0, false), (29, false), (30, true)] {
        let answer = meter.admit(&limits, at(second));
        assert_eq!(answer.is_ok(), admitted, "at {second} s");
    }
    let refusal = meter.admit(&limits, at(30)).expect_err("too many");
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(30)));
    let rate = meter.rates(&limits, at(30)).requests.expect("a rate");
    assert_eq!((rate.limit, rate.remaining), (2, 0));
    assert_eq!(rate.reset, Duration::from_secs(60));
    let usage = meter.usage();
    assert_eq!((usage.requests, usage.refused, usage.running), (3, 3, 0));
}

#[test]
fn token_debt_delays_the_next_request() {
    let limits = Settings {
        tokens_per_minute: Some(60),
        ..key("name", "secret", &[])
    };
    let (meter, start) = (Arc::new(Meter::default()), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    assert!(meter.admit(&limits, at(0)).is_ok());
    meter.used(
        &limits,
        &Usage {
            prompt_tokens: 60,
            completion_tokens: 40,
            cached_tokens: 0,
        },
    );
    for (second, admitted) in [(0, false), (39, false), (41, true)] {
        let answer = meter.admit(&limits, at(second));
        assert_eq!(answer.is_ok(), admitted, "at {second} s");
    }
}

#[tokio::test]
async fn limits_are_reported_and_enforced() {
    let limited = Settings {
        requests_per_minute: Some(1),
        ..key("name", "secret", &[Scope::Inference])
    };
    let server = server(vec![limited]);
    let sent = Some(("x-api-key", "secret"));
    let reply = get(&server, MODELS, sent).await;
    assert_eq!(reply.status(), StatusCode::OK);
    assert_eq!(header(&reply, "x-ratelimit-remaining-requests"), "0");
    let reply = get(&server, MODELS, sent).await;
    assert_eq!(reply.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    assert_eq!(header(&reply, "retry-after"), "60");
    assert_eq!(header(&reply, "x-ratelimit-limit-requests"), "1");
}

fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
    let value = reply.response.headers().get(name);
    value.map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test]
async fn concurrency_counts_until_response_bodies_end() {
    let limits = Settings {
        concurrent: Some(1),
        ..key("name", "secret", &[])
    };
    let meter = Arc::new(Meter::default());
    let admitted = meter.admit(&limits, Instant::now()).expect("the first");
    let response = hold(Response::new(Body::from("body")), admitted);
    assert!(meter.admit(&limits, Instant::now()).is_err());
    drop(response);
    assert!(meter.admit(&limits, Instant::now()).is_ok());
}

#[tokio::test]
async fn affecting_others_needs_the_scope_manage() {
    let server = server(vec![
        key("user", "one", &[Scope::Inference]),
        key("manager", "two", &[Scope::Inference, Scope::Manage]),
        key("operator", "three", &[Scope::Inference, Scope::Admin]),
    ]);
    let send = async |secret: &str, path: &str, body: serde_json::Value| {
        let request = Request::post(path)
            .header("x-api-key", secret)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()));
        server.send(request.expect("a request")).await
    };
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let urgent = json!({ "messages": messages, "priority": -1 });
    let unload = json!({ "model": MODEL, "keep_alive": 0 });
    let short = json!({ "model": MODEL, "messages": messages, "keep_alive": "1ms" });
    for (secret, status) in [("one", 403), ("two", 200), ("three", 200)] {
        for (path, body, field) in [
            ("/v1/chat/completions", &urgent, "priority"),
            ("/api/generate", &unload, "keep_alive"),
        ] {
            let reply = send(secret, path, body.clone()).await;
            assert_eq!(
                reply.status(),
                status,
                "{secret} at {path}: {}",
                reply.text()
            );
            assert!(
                status == 200 || reply.text().contains(field),
                "{}",
                reply.text()
            );
        }
        // A prompt is answered; only the field has no effect.
        let reply = send(secret, "/api/chat", short.clone()).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        let ignored = reply.response.headers().get("x-loquat-ignored");
        assert_eq!(ignored.is_some(), secret == "one", "{ignored:?}");
    }
    let later = json!({ "messages": messages, "priority": 1 });
    let reply = send("one", "/v1/chat/completions", later).await;
    assert_eq!(reply.status(), 200, "anyone may wait");
}
