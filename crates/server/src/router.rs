//! Routes and their middleware.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::{
    admin, anthropic, auth, dialect, health, http, llama_cpp, metrics, ollama, openai, openapi,
    page, tokens,
};

/// All routes of the server.
pub fn router(app: &Arc<App>) -> Router {
    let inference = Router::new()
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(tokens::routes())
        .merge(llama_cpp::routes())
        .layer(from_fn_with_state(Arc::clone(app), http::read_body))
        .layer(from_fn_with_state(Arc::clone(app), http::bound))
        .layer(from_fn_with_state(Arc::clone(app), auth::inference));
    let metrics = metrics::routes().layer(from_fn_with_state(Arc::clone(app), auth::metrics));
    let admin = admin::routes()
        .layer(from_fn_with_state(Arc::clone(app), http::read_body))
        .layer(from_fn_with_state(Arc::clone(app), auth::admin));
    Router::new()
        .merge(inference)
        .merge(metrics)
        .merge(admin)
        .merge(health::routes())
        .merge(openapi::routes())
        .merge(page::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // The first layer is the innermost. `read_body` limits bodies.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(http::catch_panics))
        .layer(from_fn_with_state(Arc::clone(app), http::cors))
        .layer(from_fn_with_state(Arc::clone(app), http::guard))
        .layer(from_fn(dialect::render_errors))
        .layer(from_fn_with_state(Arc::clone(app), http::identify))
        .with_state(Arc::clone(app))
}

async fn not_found(uri: axum::http::Uri) -> ApiError {
    let message = format!("no endpoint at `{}`; see /openapi.json", uri.path());
    ApiError::new(ErrorKind::NotFound, message)
}

async fn method_not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    let message = format!(
        "`{}` does not allow {method}; see /openapi.json",
        uri.path()
    );
    ApiError::new(ErrorKind::MethodNotAllowed, message)
}
