//! Endpoints that manage model files, which are refused: the configuration names the models.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, post};

use crate::app::App;
use crate::error::ApiError;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/pull", post(pull))
        .route("/api/push", post(push))
        .route("/api/create", post(create))
        .route("/api/copy", post(copy))
        .route("/api/delete", delete(remove))
        .route("/api/blobs/{digest}", post(upload_blob).head(find_blob))
}

fn refused(what: &str) -> ApiError {
    let message = format!("{what} is not supported: the server's configuration names its models");
    ApiError::bad_request(message).code("not_implemented")
}

/// Refused: the configuration names the models
#[utoipa::path(post, path = "/api/pull", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn pull() -> ApiError {
    refused("Pulling models")
}

/// Refused: the configuration names the models
#[utoipa::path(post, path = "/api/push", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn push() -> ApiError {
    refused("Pushing models")
}

/// Refused: the configuration names the models
#[utoipa::path(post, path = "/api/create", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn create() -> ApiError {
    refused("Creating models")
}

/// Refused: the configuration names models and aliases
#[utoipa::path(post, path = "/api/copy", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn copy() -> ApiError {
    refused("Copying models")
}

/// Refused: the configuration names the models
#[utoipa::path(delete, path = "/api/delete", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn remove() -> ApiError {
    refused("Deleting models")
}

/// Refused: the configuration names the models
#[utoipa::path(post, path = "/api/blobs/{digest}", tag = "ollama",
    params(("digest" = String, Path, description = "The digest of the file")),
    responses((status = 400, description = "Always")))]
pub async fn upload_blob() -> ApiError {
    refused("Uploading model files")
}

/// Refused: the configuration names the models
#[utoipa::path(head, path = "/api/blobs/{digest}", tag = "ollama",
    params(("digest" = String, Path, description = "The digest of the file")),
    responses((status = 400, description = "Always")))]
pub async fn find_blob() -> ApiError {
    refused("Uploading model files")
}
