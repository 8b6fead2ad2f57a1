//! The page at `/`, the API reference at `/docs`, and their files. Everything is embedded in the
//! binary; nothing is fetched from elsewhere. The content security policy keeps model output from
//! running as script, whatever the page's own code does.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};

#[cfg(test)]
mod tests;

/// The two `trusted-types` lines make the browser refuse any string as markup or script, even if the
/// page has a bug.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; font-src 'none'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    // The files change with the binary under the same names: browsers revalidate each time.
    (CACHE_CONTROL, "no-cache"),
];

/// One embedded file.
struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal: $kind:ident = $file:literal,)*) => {
        [$(Asset { path: $path, kind: $kind, text: include_str!(concat!("assets/", $file)) },)*]
    };
}

static ASSETS: &[Asset] = &assets![
    "/": HTML = "index.html",
    "/docs": HTML = "docs.html",
    "/page/style.css": CSS = "style.css",
    "/page/chat.css": CSS = "chat.css",
    "/page/server.css": CSS = "server.css",
    "/page/docs.css": CSS = "docs.css",
    "/page/icon.svg": SVG = "icon.svg",
    "/page/api.js": SCRIPT = "api.js",
    "/page/app.js": SCRIPT = "app.js",
    "/page/charts.js": SCRIPT = "charts.js",
    "/page/chat.js": SCRIPT = "chat.js",
    "/page/composer.js": SCRIPT = "composer.js",
    "/page/docs.js": SCRIPT = "docs.js",
    "/page/dom.js": SCRIPT = "dom.js",
    "/page/images.js": SCRIPT = "images.js",
    "/page/inline.js": SCRIPT = "inline.js",
    "/page/json.js": SCRIPT = "json.js",
    "/page/key.js": SCRIPT = "key.js",
    "/page/markdown.js": SCRIPT = "markdown.js",
    "/page/message.js": SCRIPT = "message.js",
    "/page/reply.js": SCRIPT = "reply.js",
    "/page/server.js": SCRIPT = "server.js",
    "/page/settings.js": SCRIPT = "settings.js",
    "/page/store.js": SCRIPT = "store.js",
    "/page/theme.js": SCRIPT = "theme.js",
    "/page/tools.js": SCRIPT = "tools.js",
];

/// The ETags of [`ASSETS`], in order.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ASSETS.iter().map(tag).collect());

fn tag(asset: &Asset) -> HeaderValue {
    let hash = Sha256::digest(asset.text.as_bytes());
    let short: String = hash[..12]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Quoted hexadecimal digits are a valid header value.
    HeaderValue::from_str(&format!("\"{short}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

pub fn routes() -> Router<Arc<App>> {
    let assets = ASSETS.iter().zip(TAGS.iter());
    assets.fold(Router::new(), |router, (asset, tag)| {
        let serve = move |app: State<Arc<App>>, method: Method, asked: HeaderMap| async move {
            serve(&app, asset, tag, &method, &asked)
        };
        router.route(asset.path, get(serve))
    })
}

fn serve(
    app: &App,
    asset: &'static Asset,
    tag: &HeaderValue,
    method: &Method,
    asked: &HeaderMap,
) -> Response {
    if !app.config().server.page {
        return switched_off(asset, method);
    }
    let known = asked.get_all(IF_NONE_MATCH).iter();
    let unchanged = known.filter_map(|known| known.to_str().ok()).any(|known| {
        let mut tags = known
            .split(',')
            .map(|one| one.trim().trim_start_matches("W/"));
        tags.any(|one| one == "*" || one.as_bytes() == tag.as_bytes())
    });
    let mut response = if unchanged {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        asset.text.into_response()
    };
    let headers = response.headers_mut();
    headers.remove(CONTENT_TYPE);
    if !unchanged {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    }
    headers.insert(ETAG, tag.clone());
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Ollama's clients probe with `HEAD /`, also if the page is off.
fn switched_off(asset: &Asset, method: &Method) -> Response {
    if asset.path == "/" && method == Method::HEAD {
        return StatusCode::OK.into_response();
    }
    let what = format!(
        "`{}` is not served: the page is disabled (`server.page`)",
        asset.path
    );
    ApiError::new(ErrorKind::NotFound, what).into_response()
}
