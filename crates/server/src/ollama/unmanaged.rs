//! What Ollama does with models' files, and this server does not: its configuration says which
//! models there are.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, post};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};

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
    let what = format!("{what} is not done over HTTP: the server's configuration names its models");
    ApiError::new(ErrorKind::InvalidRequest, what).code("not_implemented")
}

/// Refused: models are named by the configuration
#[utoipa::path(post, path = "/api/pull", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn pull() -> ApiError {
    refused("Pulling models")
}

/// Refused: models are named by the configuration
#[utoipa::path(post, path = "/api/push", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn push() -> ApiError {
    refused("Pushing models")
}

/// Refused: models are named by the configuration
#[utoipa::path(post, path = "/api/create", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn create() -> ApiError {
    refused("Creating models")
}

/// Refused: models are named by the configuration, and aliases too
#[utoipa::path(post, path = "/api/copy", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn copy() -> ApiError {
    refused("Copying models")
}

/// Refused: models are named by the configuration
#[utoipa::path(delete, path = "/api/delete", tag = "ollama",
    responses((status = 400, description = "Always")))]
pub async fn remove() -> ApiError {
    refused("Deleting models")
}

/// Refused: models are named by the configuration
#[utoipa::path(post, path = "/api/blobs/{digest}", tag = "ollama",
    params(("digest" = String, Path, description = "Of the file")),
    responses((status = 400, description = "Always")))]
pub async fn upload_blob() -> ApiError {
    refused("Taking in files of models")
}

/// Refused: models are named by the configuration
#[utoipa::path(head, path = "/api/blobs/{digest}", tag = "ollama",
    params(("digest" = String, Path, description = "Of the file")),
    responses((status = 400, description = "Always")))]
pub async fn find_blob() -> ApiError {
    refused("Taking in files of models")
}
