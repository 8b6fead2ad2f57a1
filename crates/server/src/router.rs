//! Which path is whose, and what stands before it.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

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
        .layer(from_fn_with_state(Arc::clone(app), auth::inference));
    Router::new()
        .merge(inference)
        .merge(metrics::routes())
        .merge(admin::routes())
        .merge(health::routes())
        .merge(openapi::routes())
        .merge(page::routes())
        .fallback(nowhere)
        .method_not_allowed_fallback(otherwise)
        .layer(from_fn_with_state(Arc::clone(app), http::identify))
        .layer(from_fn_with_state(Arc::clone(app), dialect::speak))
        .with_state(Arc::clone(app))
}

async fn nowhere(uri: axum::http::Uri) -> ApiError {
    let what = format!("nothing is served at `{}`; see /openapi.json", uri.path());
    ApiError::new(ErrorKind::NotFound, what)
}

async fn otherwise(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    let what = format!("`{}` does not take {method}; see /openapi.json", uri.path());
    ApiError::new(ErrorKind::MethodNotAllowed, what)
}
