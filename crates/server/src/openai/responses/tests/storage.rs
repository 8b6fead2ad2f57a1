use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use super::{create_response, request, tokens, turn};
use crate::config;
use crate::testing::{Harness, Reply, Scripted};
use crate::wire::IGNORED_HEADER;

#[tokio::test]
async fn stored_response_is_continued() {
    let server = Harness::saying("<think>hm</think>\n\nYes.");
    let first = create_response(&server, json!({ "instructions": "be kind" })).await;
    let second = create_response(
        &server,
        json!({ "input": "and?", "previous_response_id": first["id"] }),
    )
    .await;
    let written = turn("user", "hi") + &turn("assistant", "Yes.") + &turn("user", "and?");
    let expected = tokens(&format!("{written}<|im_start|>assistant\n"));
    assert_eq!(second["usage"]["input_tokens"], expected);
    assert_eq!(second["previous_response_id"], first["id"]);
    let path = |response: &Value, rest: &str| {
        format!(
            "/v1/responses/{}{rest}",
            response["id"].as_str().unwrap_or_default()
        )
    };
    let kinds = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().cloned().unwrap_or_default();
        items
            .iter()
            .map(|item| format!("{} {}", item["type"], item["role"]))
            .collect()
    };
    let list = server
        .get(&path(&second, "/input_items?order=asc"))
        .await
        .json();
    let all = [
        "\"message\" \"user\"",
        "\"reasoning\" null",
        "\"message\" \"assistant\"",
    ];
    assert_eq!(kinds(&list)[..3], all);
    assert_eq!(list["data"].as_array().map(Vec::len), Some(4));
    assert_eq!(list["has_more"], false);
    let after = list["data"][0]["id"].as_str().unwrap_or_default();
    let query = format!("/input_items?order=asc&limit=1&after={after}");
    let page = server.get(&path(&second, &query)).await.json();
    assert_eq!(kinds(&page), all[1..2]);
    assert_eq!(page["has_more"], true);
    // An input may refer to a stored item.
    let reference = json!({ "type": "item_reference", "id": first["output"][1]["id"] });
    let input = json!([{ "role": "user", "content": "hi" }, reference, { "role": "user", "content": "and?" }]);
    let third = create_response(&server, json!({ "input": input, "store": false })).await;
    assert_eq!(third["usage"]["input_tokens"], expected);
    assert_eq!(
        server.get(&path(&third, "")).await.status(),
        StatusCode::NOT_FOUND
    );
    // A response does not need the one it continues.
    let deleted = Request::delete(path(&first, "")).body(Body::empty());
    let deleted = server.send(deleted.expect("a request")).await;
    assert_eq!(deleted.json()["deleted"], true);
    assert_eq!(
        server.get(&path(&first, "")).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(server.get(&path(&second, "")).await.json(), second);
    let cancelled = server.post(&path(&second, "/cancel"), &json!({})).await;
    assert_eq!(cancelled.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn storage_follows_the_configured_limits() {
    let cases = [
        (
            config::Responses {
                max_stored: 1,
                ..config::Responses::default()
            },
            [404, 200],
        ),
        (
            config::Responses {
                max_bytes: 5000,
                ..config::Responses::default()
            },
            [404, 200],
        ),
        (
            config::Responses {
                keep: Duration::ZERO,
                ..config::Responses::default()
            },
            [404, 404],
        ),
        (config::Responses::default(), [200, 200]),
    ];
    for (limits, expected) in cases {
        let config = config::Config {
            responses: limits.clone(),
            ..Harness::config()
        };
        let server = Harness::with(Scripted::new("Yes."), config);
        let long = "a".repeat(3000);
        let first = create_response(&server, json!({ "input": long })).await;
        let second = create_response(&server, json!({ "input": long })).await;
        for (response, status) in [first, second].iter().zip(expected) {
            let path = format!(
                "/v1/responses/{}",
                response["id"].as_str().unwrap_or_default()
            );
            assert_eq!(server.get(&path).await.status(), status, "{limits:?}");
        }
    }
}

/// A server with the keys `ada` and `bob`.
fn two_keys(responses: config::Responses) -> Harness {
    let key = |name: &str| config::Key::new(name, config::KeyHash::digest(name));
    let config = config::Config {
        keys: vec![key("ada"), key("bob")],
        responses,
        ..Harness::config()
    };
    Harness::with(Scripted::new("Yes."), config)
}

async fn send(server: &Harness, method: &str, path: &str, key: &str, body: &Value) -> Reply {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()));
    server.send(request.expect("a request")).await
}

#[tokio::test]
async fn largest_owner_is_evicted_first() {
    let cases = [
        config::Responses {
            max_stored: 4,
            ..config::Responses::default()
        },
        config::Responses {
            max_bytes: 20_000,
            ..config::Responses::default()
        },
    ];
    for limits in cases {
        let server = two_keys(limits.clone());
        let created = async |key: &str, size: usize| {
            let body = request(json!({ "input": "a".repeat(size) }));
            let created = send(&server, "POST", "/v1/responses", key, &body).await;
            assert_eq!(created.status(), StatusCode::OK, "{}", created.text());
            format!(
                "/v1/responses/{}",
                created.json()["id"].as_str().unwrap_or_default()
            )
        };
        let is_stored = async |key: &str, path: &str| {
            let reply = send(&server, "GET", path, key, &json!({})).await;
            reply.status() == StatusCode::OK
        };
        let bobs = created("bob", 1000).await;
        let first = created("ada", 1000).await;
        for _ in 0..10 {
            created("ada", 1000).await;
        }
        let last = created("ada", 1000).await;
        assert!(is_stored("bob", &bobs).await, "{limits:?}");
        assert!(!is_stored("ada", &first).await, "{limits:?}");
        assert!(is_stored("ada", &last).await, "{limits:?}");
    }
}

#[tokio::test]
async fn oversized_response_evicts_nothing() {
    let limits = config::Responses {
        max_bytes: 5000,
        ..config::Responses::default()
    };
    let config = config::Config {
        responses: limits,
        ..Harness::config()
    };
    let server = Harness::with(Scripted::new("Yes."), config);
    let path = |response: &Value| {
        let id = response["id"].as_str().unwrap_or_default();
        format!("/v1/responses/{id}")
    };
    let small = create_response(&server, json!({})).await;
    let large = create_response(&server, json!({ "instructions": "a".repeat(3900) })).await;
    assert_eq!(server.get(&path(&large)).await.status(), 404);
    assert_eq!(server.get(&path(&small)).await.status(), 200);
}

#[tokio::test]
async fn ignored_fields_are_not_stored() {
    let server = Harness::saying("Yes.");
    let annotated =
        |text: &str| json!({ "type": "output_text", "text": text, "annotations": [{ "a": 1 }] });
    let input = json!([
        { "role": "user", "content": "hi", "phase": "final" },
        { "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret" },
        { "role": "assistant", "content": [annotated("yo")] },
        { "role": "user", "content": "and?" },
    ]);
    let reply = server
        .post("/v1/responses", &request(json!({ "input": input })))
        .await;
    let ignored = reply.response.headers().get(IGNORED_HEADER);
    let ignored = ignored.and_then(|ignored| ignored.to_str().ok());
    assert_eq!(ignored, Some("phase, encrypted_content"));
    let id = reply.json()["id"].as_str().unwrap_or_default().to_owned();
    let list = server
        .get(&format!("/v1/responses/{id}/input_items?order=asc"))
        .await
        .json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(4));
    assert_eq!(list["data"][0].get("phase"), None);
    assert_eq!(list["data"][1].get("encrypted_content"), None);
    assert_eq!(list["data"][2]["content"][0]["annotations"], json!([]));
}

#[tokio::test]
async fn expired_items_cannot_be_referenced() {
    for (keep, status) in [(Duration::ZERO, 400), (Duration::from_secs(60), 200)] {
        let responses = config::Responses {
            keep,
            ..config::Responses::default()
        };
        let config = config::Config {
            responses,
            ..Harness::config()
        };
        let server = Harness::with(Scripted::new("Yes."), config);
        let first = create_response(&server, json!({})).await;
        let reference = json!({ "type": "item_reference", "id": first["output"][0]["id"] });
        let input = json!([reference, { "role": "user", "content": "and?" }]);
        let body = request(json!({ "input": input }));
        let reply = server.post("/v1/responses", &body).await;
        assert_eq!(reply.status(), status, "{keep:?}");
    }
}

#[tokio::test]
async fn queries_accept_lists_and_refuse_unknown_names() {
    let server = Harness::saying("Yes.");
    let created = create_response(&server, json!({})).await;
    let id = created["id"].as_str().unwrap_or_default();
    let two = "include[]=a&include%5B%5D=b";
    let cases = [
        (format!("?{two}&stream=false"), 200),
        ("?stream=true".to_owned(), 400),
        ("?stream=1".to_owned(), 400),
        ("?banana=1".to_owned(), 400),
        (format!("/input_items?{two}&limit=5&order=asc"), 200),
        ("/input_items?limit=x".to_owned(), 400),
        ("/input_items?banana=1".to_owned(), 400),
    ];
    for (rest, status) in cases {
        let reply = server.get(&format!("/v1/responses/{id}{rest}")).await;
        assert_eq!(reply.status(), status, "{rest} {}", reply.text());
    }
}

#[tokio::test]
async fn response_belongs_to_its_key() {
    let server = two_keys(config::Responses::default());
    let body = request(json!({}));
    let created = send(&server, "POST", "/v1/responses", "ada", &body).await;
    let id = created.json()["id"].as_str().unwrap_or_default().to_owned();
    let path = format!("/v1/responses/{id}");
    let items = format!("{path}/input_items");
    let item = created.json()["output"][0]["id"].clone();
    let reference = json!({ "input": [{ "type": "item_reference", "id": item }] });
    let cases = [
        ("GET", path.as_str(), json!({}), [404, 200]),
        ("GET", items.as_str(), json!({}), [404, 200]),
        (
            "POST",
            "/v1/responses",
            request(json!({ "previous_response_id": id })),
            [400, 200],
        ),
        ("POST", "/v1/responses", request(reference), [400, 200]),
        ("DELETE", path.as_str(), json!({}), [404, 200]),
    ];
    for (method, path, body, expected) in cases {
        for (key, status) in ["bob", "ada"].into_iter().zip(expected) {
            let reply = send(&server, method, path, key, &body).await;
            assert_eq!(reply.status(), status, "{key}: {method} {path} {body}");
        }
    }
}
