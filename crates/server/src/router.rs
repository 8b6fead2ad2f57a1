//! Which path is whose, and what stands before it.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::{
    admin, anthropic, auth, dialect, health, http, metrics, ollama, openai, openapi, page, tokens,
};

/// Everything that is served.
pub fn router(app: &Arc<App>) -> Router {
    let inference = Router::new()
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(tokens::routes())
        .layer(from_fn_with_state(Arc::clone(app), http::read_body))
        .layer(from_fn_with_state(Arc::clone(app), http::bound))
        .layer(from_fn_with_state(Arc::clone(app), auth::inference));
    let measured = metrics::routes().layer(from_fn_with_state(Arc::clone(app), auth::metrics));
    let operating = admin::routes()
        .layer(from_fn_with_state(Arc::clone(app), http::read_body))
        .layer(from_fn_with_state(Arc::clone(app), auth::admin));
    Router::new()
        .merge(inference)
        .merge(measured)
        .merge(operating)
        .merge(health::routes())
        .merge(openapi::routes())
        .merge(page::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // The first is the innermost. Bodies are bounded by `read_body`.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(http::catch_panics))
        .layer(from_fn_with_state(Arc::clone(app), http::cors))
        .layer(from_fn_with_state(Arc::clone(app), http::guard))
        .layer(from_fn(dialect::speak))
        .layer(from_fn_with_state(Arc::clone(app), http::identify))
        .with_state(Arc::clone(app))
}

async fn not_found(uri: axum::http::Uri) -> ApiError {
    let what = format!("nothing is served at `{}`; see /openapi.json", uri.path());
    ApiError::new(ErrorKind::NotFound, what)
}

async fn method_not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    let what = format!("`{}` does not take {method}; see /openapi.json", uri.path());
    ApiError::new(ErrorKind::MethodNotAllowed, what)
}
