//! The admin API: models, requests, caches, keys, configuration. Every route needs a key with the
//! scope `admin`; errors have OpenAI's shape.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};

use crate::app::App;

pub(crate) mod adapters;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod keys;
pub(crate) mod models;
pub(crate) mod requests;
#[cfg(test)]
mod tests;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/admin/v1/models", get(models::list))
        // Model names contain slashes, which only a wildcard matches.
        .route(
            "/admin/v1/models/{*tail}",
            get(models::get).post(models::act),
        )
        .route(
            "/admin/v1/requests",
            get(requests::list).delete(requests::cancel_all),
        )
        .route("/admin/v1/requests/{id}", delete(requests::cancel))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/admin/v1/cache/clear", post(cache::clear))
        .route("/admin/v1/keys", get(keys::list))
        .route("/admin/v1/config", get(config::get))
        .route("/admin/v1/config/reload", post(config::reload))
}
