use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, Method, Request, StatusCode};

use super::{ASSETS, HTML};
use crate::config::{Config, Server};
use crate::testing::{Harness, Reply, Scripted};

fn header(reply: &Reply, name: HeaderName) -> &str {
    let value = reply.response.headers().get(&name);
    value.map_or("", |value| value.to_str().expect("ASCII"))
}

fn without_page() -> Harness {
    let config = Config {
        server: Server {
            page: false,
            ..Server::default()
        },
        ..Harness::config()
    };
    Harness::with(Scripted::new("hello"), config)
}

async fn ask(server: &Harness, method: Method, path: &str) -> Reply {
    let request = Request::builder().method(method).uri(path);
    server
        .send(request.body(Body::empty()).expect("a request"))
        .await
}

#[tokio::test]
async fn every_file_has_type_and_policy() {
    let server = Harness::saying("hello");
    for asset in ASSETS {
        let reply = server.get(asset.path).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", asset.path);
        assert_eq!(header(&reply, CONTENT_TYPE), asset.kind, "{}", asset.path);
        assert_eq!(header(&reply, X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header(&reply, REFERRER_POLICY), "no-referrer");
        assert_eq!(header(&reply, CACHE_CONTROL), "no-cache");
        let policy = header(&reply, CONTENT_SECURITY_POLICY);
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "font-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(
                policy.split("; ").any(|part| part == rule),
                "{rule}: {policy}"
            );
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.text(), asset.text);
    }
}

#[tokio::test]
async fn cached_files_are_not_sent_again() {
    let server = Harness::saying("hello");
    let tag = header(&server.get("/page/app.js").await, ETAG).to_owned();
    let other = header(&server.get("/").await, ETAG).to_owned();
    assert_ne!(tag, other);
    let cases = [
        (tag.clone(), StatusCode::NOT_MODIFIED),
        (format!("W/{tag}"), StatusCode::NOT_MODIFIED),
        (format!("{other}, {tag}"), StatusCode::NOT_MODIFIED),
        ("*".to_owned(), StatusCode::NOT_MODIFIED),
        (other, StatusCode::OK),
        ("app".to_owned(), StatusCode::OK),
    ];
    for (known, status) in cases {
        let request = Request::get("/page/app.js").header(IF_NONE_MATCH, &known);
        let reply = server
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        assert_eq!(reply.status(), status, "{known}");
        assert_eq!(header(&reply, ETAG), tag, "{known}");
        assert_eq!(reply.body.is_empty(), status == StatusCode::NOT_MODIFIED);
    }
}

#[tokio::test]
async fn head_request_succeeds_without_page() {
    for server in [Harness::saying("hello"), without_page()] {
        let reply = ask(&server, Method::HEAD, "/").await;
        assert_eq!(reply.status(), StatusCode::OK);
        assert!(reply.body.is_empty());
    }
}

#[tokio::test]
async fn page_can_be_disabled() {
    let server = without_page();
    for asset in ASSETS {
        let reply = server.get(asset.path).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{}", asset.path);
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains("server.page"), "{message}");
    }
}

#[test]
fn page_is_self_contained() {
    for asset in ASSETS {
        let text = asset.text;
        for never in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(never), "{}: {never}", asset.path);
        }
        if asset.kind == HTML {
            for never in [
                "<script>",
                "<style",
                " style=",
                " onclick=",
                "src=\"http",
                "href=\"http",
            ] {
                assert!(!text.contains(never), "{}: {never}", asset.path);
            }
        }
    }
}

/// Every imported or referenced file is served.
#[test]
fn every_reference_is_served() {
    for asset in ASSETS {
        for quoted in asset.text.split('"').skip(1).step_by(2) {
            let path = match quoted.strip_prefix("./") {
                Some(file) if file.ends_with(".js") => format!("/page/{file}"),
                _ if quoted.starts_with("/page/") => quoted.to_owned(),
                _ => continue,
            };
            let served = ASSETS.iter().any(|other| other.path == path);
            assert!(served, "{} names {path}", asset.path);
        }
    }
}
