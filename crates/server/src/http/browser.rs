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
use crate::http::{MAX_TOKENS_HEADER, MODEL_HEADER};
use crate::wire::IGNORED_HEADER;

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
    let host = host(request);
    // Beyond loopback the server cannot know its names, and a key protects it anyway.
    if without_keys && config.server.host.is_loopback() {
        check_host(config, host.as_ref())?;
    }
    let Some(origin) = request.headers().get(ORIGIN) else {
        return Ok(());
    };
    check_origin(config, origin, host.as_ref())?;
    check_content_type(request)
}

/// The host name in the request; HTTP/2 and proxies' clients put it into the URI.
fn host(request: &Request) -> Option<Authority> {
    let named = request.uri().authority().cloned();
    named.or_else(|| {
        let host = request.headers().get(HOST)?;
        Authority::try_from(host.as_bytes()).ok()
    })
}

/// An address cannot be rebound, and clients other than browsers may omit the name.
fn check_host(config: &Config, host: Option<&Authority>) -> Result<(), ApiError> {
    let Some(host) = host.map(Authority::host) else {
        return Ok(());
    };
    let own = |name: &str| name.eq_ignore_ascii_case(host);
    let is_loopback_name = host.to_ascii_lowercase().ends_with(".localhost");
    let configured = &config.server.host_names;
    if is_address(host) || own("localhost") || is_loopback_name || configured.iter().any(|n| own(n))
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

fn is_allowed(config: &Config, origin: &HeaderValue) -> bool {
    let origin = origin.as_bytes();
    let mut allowed = config.cors.origins.iter().map(String::as_bytes);
    allowed.any(|allowed| allowed == b"*" || allowed.eq_ignore_ascii_case(origin))
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

/// The CORS layer, if any origin is allowed.
pub async fn cors(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let config = app.config();
    if config.cors.origins.is_empty() {
        return next.run(request).await;
    }
    let allowed = move |origin: &HeaderValue, _: &_| is_allowed(&config, origin);
    let exposed = [
        HeaderName::from_static("x-request-id"),
        HeaderName::from_static("request-id"),
        HeaderName::from_static(IGNORED_HEADER),
        MAX_TOKENS_HEADER,
        MODEL_HEADER,
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
            (&[("host", "evil.example")], &[], 403),
            (&[("host", "localhost.evil.example")], &[], 403),
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
                403,
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
    fn host_names_are_free_with_keys() {
        let foreign = request(Method::GET, &[("host", "evil.example")]);
        assert!(check(&config(&[]), true, &foreign).is_err());
        assert!(check(&config(&[]), false, &foreign).is_ok());
        let mut exposed = config(&[]);
        exposed.server.host = IpAddr::from([0, 0, 0, 0]);
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

        let shut = Harness::with(Scripted::new("hello"), config(&[]));
        let reply = shut.send(preflight()).await;
        assert_eq!(reply.status(), StatusCode::FORBIDDEN);
        assert!(!reply.response.headers().contains_key(allow));
    }
}
