//! Protects the server from requests that browsers send for foreign pages.
//!
//! A page of another site can make its visitor's browser send requests to a server on loopback: as a
//! plain POST, which needs no preflight; or under its own host name, resolved to 127.0.0.1 (DNS
//! rebinding). The first shows in `Origin`, the second in `Host`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER};
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower::{Layer, ServiceExt};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

use crate::app::App;
use crate::config::Config;
use crate::error::{ApiError, ErrorKind};
use crate::http::{MAX_TOKENS_HEADER, MODEL_HEADER, SYSTEM_HEADER};
use crate::wire::IGNORED_HEADER;

/// Origins that may always use a server on loopback: local pages, and editors that show web pages.
const LOCAL_ORIGINS: [&str; 5] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "app://obsidian.md",
    "vscode-webview://*",
];

/// Names of a loopback server: its own, and the one that containers have for their host.
const LOOPBACK_NAMES: [&str; 2] = ["localhost", "host.docker.internal"];

/// How long browsers may cache a preflight response.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The layer that refuses browser requests of pages that are not allowed.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match check(&app.config(), app.keys.is_empty(), &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check(config: &Config, without_keys: bool, request: &Request) -> Result<(), ApiError> {
    let host = host(request)?;
    // Beyond loopback the server does not know its names unless they are configured. A key protects
    // it anyway.
    let knows_names = config.server.host.is_loopback() || !config.server.host_names.is_empty();
    if without_keys && knows_names {
        check_host(config, host.as_ref())?;
    }
    let Some(origin) = request.headers().get(ORIGIN) else {
        return Ok(());
    };
    check_origin(config, origin, host.as_ref())?;
    check_content_type(request)
}

/// The host name in the request; HTTP/2 and proxies' clients put it into the URI. Clients other than
/// browsers may omit it.
fn host(request: &Request) -> Result<Option<Authority>, ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let named = hosts.next().filter(|host| !host.is_empty());
    if hosts.next().is_some() {
        return Err(invalid_host("the request has several `Host` headers"));
    }
    let parsed = named.map(|host| Authority::try_from(host.as_bytes()));
    let parsed = parsed.transpose();
    let parsed = parsed.map_err(|_| invalid_host("the `Host` header is not a host name"))?;
    Ok(request.uri().authority().cloned().or(parsed))
}

fn invalid_host(problem: &str) -> ApiError {
    let what = format!("{problem}; send one, such as `Host: localhost:8080`");
    ApiError::bad_request(what).code("invalid_host")
}

/// An address cannot be rebound.
fn check_host(config: &Config, host: Option<&Authority>) -> Result<(), ApiError> {
    let Some(host) = host.map(Authority::host) else {
        return Ok(());
    };
    let own = |name: &str| name.eq_ignore_ascii_case(host);
    let is_loopback_name = host.to_ascii_lowercase().ends_with(".localhost");
    let mut names = config.server.host_names.iter().map(String::as_str);
    if is_address(host) || is_loopback_name || LOOPBACK_NAMES.into_iter().any(own) || names.any(own)
    {
        return Ok(());
    }
    let what =
        format!("the host name `{host}` is not allowed; add it to `server.host_names` to allow it");
    Err(ApiError::new(ErrorKind::Forbidden, what).code("unknown_host"))
}

fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
}

fn check_origin(
    config: &Config,
    origin: &HeaderValue,
    host: Option<&Authority>,
) -> Result<(), ApiError> {
    if is_allowed(config, origin) || is_same(origin, host) {
        return Ok(());
    }
    let what = format!(
        "the origin {} is not allowed; add it to `cors.origins` to allow it",
        origin.to_str().unwrap_or("another site")
    );
    Err(ApiError::new(ErrorKind::Forbidden, what).code("origin_not_allowed"))
}

/// Whether the configuration allows the origin, or the server is on loopback and the page is local.
fn is_allowed(config: &Config, origin: &HeaderValue) -> bool {
    let Ok(origin) = origin.to_str() else {
        return config.cors.origins.iter().any(|allowed| allowed == "*");
    };
    let mut configured = config.cors.origins.iter().map(String::as_str);
    let is_local = || {
        LOCAL_ORIGINS
            .iter()
            .any(|local| matches_origin(local, origin))
    };
    configured.any(|allowed| matches_origin(allowed, origin))
        || config.server.host.is_loopback() && is_local()
}

/// Whether the origin is `allowed`. `*` alone matches every origin, after `://` every host, and after
/// `:` every port.
fn matches_origin(allowed: &str, origin: &str) -> bool {
    let starts_with = |prefix: &str| {
        let start = origin.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    match allowed.strip_suffix('*') {
        None => allowed.eq_ignore_ascii_case(origin),
        Some(prefix) if prefix.is_empty() || prefix.ends_with("://") => starts_with(prefix),
        Some(prefix) => {
            let without_port = prefix.trim_end_matches(':');
            let is_number = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
            without_port.eq_ignore_ascii_case(origin)
                || starts_with(prefix) && is_number(&origin[prefix.len()..])
        }
    }
}

/// Whether the page comes from this server. The scheme may differ behind a TLS proxy.
fn is_same(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let (Ok(origin), Some(host)) = (Uri::try_from(origin.as_bytes()), host) else {
        return false;
    };
    let (Some(scheme), Some(from)) = (origin.scheme_str(), origin.authority()) else {
        return false;
    };
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default);
    from.host().eq_ignore_ascii_case(host.host()) && port(from) == port(host)
}

/// Browsers never send JSON across sites without a preflight.
fn check_content_type(request: &Request) -> Result<(), ApiError> {
    let carries = matches!(
        *request.method(),
        Method::POST | Method::PUT | Method::PATCH
    );
    if !carries || request.body().is_end_stream() {
        return Ok(());
    }
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let what = "requests from web pages must have the content type `application/json`";
    Err(ApiError::new(ErrorKind::UnsupportedMedia, what))
}

/// The CORS layer. Without configured origins it is for local pages only.
pub async fn cors(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let config = app.config();
    let origin = request.headers().get(ORIGIN);
    let is_cross_origin = origin.is_some_and(|origin| is_allowed(&config, origin));
    if config.cors.origins.is_empty() && !is_cross_origin {
        return next.run(request).await;
    }
    let allowed = move |origin: &HeaderValue, _: &_| is_allowed(&config, origin);
    let exposed = [
        HeaderName::from_static("x-request-id"),
        HeaderName::from_static("request-id"),
        HeaderName::from_static(IGNORED_HEADER),
        MAX_TOKENS_HEADER,
        MODEL_HEADER,
        SYSTEM_HEADER,
        RETRY_AFTER,
    ];
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(true)
        .expose_headers(exposed)
        .max_age(MAX_AGE);
    match cors.layer(next).oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;

    use super::*;
    use crate::testing::{Harness, Scripted};

    fn config(origins: &[&str]) -> Config {
        let mut config = Harness::config();
        config.cors.origins = origins.iter().map(|&origin| origin.to_owned()).collect();
        config.server.host_names = vec!["box.example".to_owned()];
        config
    }

    fn request(method: Method, headers: &[(&str, &str)]) -> Request {
        let request = axum::http::Request::builder().method(method).uri("/v1/x");
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        request.body(Body::from("{}")).expect("a request")
    }

    #[test]
    fn foreign_pages_are_refused() {
        const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], u16);
        let cases: &[Case] = &[
            (&[("host", "localhost:8080")], &[], 200),
            (&[("host", "127.0.0.1:8080")], &[], 200),
            (&[("host", "[::1]:8080")], &[], 200),
            (&[("host", "192.168.0.7")], &[], 200),
            (&[("host", "chat.localhost")], &[], 200),
            (&[("host", "BOX.example")], &[], 200),
            (&[("host", "host.docker.internal:8080")], &[], 200),
            (&[("host", "evil.example")], &[], 403),
            (&[("host", "localhost.evil.example")], &[], 403),
            (&[("host", "evil host")], &[], 400),
            (&[("host", "localhost"), ("host", "localhost")], &[], 400),
            (&[("host", "")], &[], 200),
            (&[], &[], 200),
            (
                &[("host", "localhost"), ("origin", "http://localhost"), JSON],
                &[],
                200,
            ),
            (
                &[
                    ("host", "localhost:1"),
                    ("origin", "http://localhost:1"),
                    JSON,
                ],
                &[],
                200,
            ),
            (
                &[
                    ("host", "box.example"),
                    ("origin", "https://box.example:443"),
                    JSON,
                ],
                &[],
                200,
            ),
            (
                &[
                    ("host", "localhost:1"),
                    ("origin", "http://localhost:2"),
                    JSON,
                ],
                &[],
                200,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "https://evil.example"),
                    JSON,
                ],
                &[],
                403,
            ),
            (&[("host", "localhost"), ("origin", "null"), JSON], &[], 403),
            (
                &[("host", "localhost"), ("origin", "\u{e9}"), JSON],
                &[],
                403,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "https://good.example"),
                    JSON,
                ],
                &["https://good.example"],
                200,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "https://good.example.evil"),
                    JSON,
                ],
                &["https://good.example"],
                403,
            ),
            (
                &[("host", "localhost"), ("origin", "null"), JSON],
                &["*"],
                200,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "http://localhost"),
                    ("content-type", "text/plain"),
                ],
                &[],
                415,
            ),
            (
                &[("host", "localhost"), ("origin", "http://localhost")],
                &[],
                415,
            ),
            (
                &[("host", "localhost"), ("content-type", "text/plain")],
                &[],
                200,
            ),
        ];
        for (headers, origins, expected) in cases {
            let checked = check(&config(origins), true, &request(Method::POST, headers));
            let status = checked.map_or_else(|refusal| refusal.kind.status(), |()| StatusCode::OK);
            assert_eq!(status.as_u16(), *expected, "{headers:?} with {origins:?}");
        }
    }

    #[test]
    fn local_pages_are_allowed_on_loopback_only() {
        let mut exposed = config(&[]);
        exposed.server.host = IpAddr::from([0, 0, 0, 0]);
        for (origin, expected) in [
            ("http://localhost", true),
            ("http://localhost:5173", true),
            ("http://127.0.0.1:3000", true),
            ("http://[::1]:3000", true),
            ("app://obsidian.md", true),
            ("vscode-webview://1f2e3d", true),
            ("http://localhost.evil.example", false),
            ("http://localhost:1.evil.example", false),
            ("http://127.0.0.1.evil.example:80", false),
            ("app://obsidian.md.evil", false),
            ("app://other", false),
            ("https://evil.example", false),
        ] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            let page = request(Method::GET, &headers);
            assert_eq!(
                check(&config(&[]), true, &page).is_ok(),
                expected,
                "{origin}"
            );
            assert!(check(&exposed, true, &page).is_err(), "{origin}");
        }
    }

    #[test]
    fn configured_origins_may_have_wildcards() {
        for (allowed, origin, expected) in [
            ("https://good.example:*", "https://good.example:8443", true),
            ("https://good.example:*", "https://good.example", true),
            (
                "https://good.example:*",
                "https://good.example:8443x",
                false,
            ),
            ("https://good.example:*", "http://good.example:8443", false),
            ("tauri://*", "tauri://localhost", true),
            ("tauri://*", "tauris://localhost", false),
            ("*", "null", true),
        ] {
            assert_eq!(
                matches_origin(allowed, origin),
                expected,
                "{allowed} {origin}"
            );
        }
    }

    #[test]
    fn host_names_are_free_with_keys() {
        let foreign = request(Method::GET, &[("host", "evil.example")]);
        assert!(check(&config(&[]), true, &foreign).is_err());
        assert!(check(&config(&[]), false, &foreign).is_ok());
        let mut exposed = config(&[]);
        exposed.server.host = IpAddr::from([0, 0, 0, 0]);
        assert!(check(&exposed, true, &foreign).is_err());
        assert!(check(&exposed, false, &foreign).is_ok());
        exposed.server.host_names.clear();
        assert!(check(&exposed, true, &foreign).is_ok());
    }

    #[tokio::test]
    async fn cors_headers_are_sent_only_if_configured() {
        let preflight = || {
            request(
                Method::OPTIONS,
                &[
                    ("host", "localhost"),
                    ("origin", "https://good.example"),
                    ("access-control-request-method", "POST"),
                    ("access-control-request-headers", "authorization"),
                ],
            )
        };
        let allow = "access-control-allow-origin";
        let open = Harness::with(Scripted::new("hello"), config(&["https://good.example"]));
        let reply = open.send(preflight()).await;
        assert_eq!(reply.status(), StatusCode::OK);
        assert_eq!(reply.response.headers()[allow], "https://good.example");
        let missing = request(
            Method::GET,
            &[("host", "localhost"), ("origin", "https://good.example")],
        );
        let reply = open.send(missing).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND);
        assert_eq!(reply.response.headers()[allow], "https://good.example");

        let local = [
            ("host", "localhost:8080"),
            ("origin", "http://localhost:5173"),
            ("access-control-request-method", "POST"),
        ];
        let shut = Harness::with(Scripted::new("hello"), config(&[]));
        let reply = shut.send(request(Method::OPTIONS, &local)).await;
        assert_eq!(reply.response.headers()[allow], "http://localhost:5173");
        let reply = shut.send(preflight()).await;
        assert_eq!(reply.status(), StatusCode::FORBIDDEN);
        assert!(!reply.response.headers().contains_key(allow));
    }
}
