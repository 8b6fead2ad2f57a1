//! Requests under way, and ending them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::in_flight::Entry;
use crate::metrics::since_1970;

/// Requests that generate.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminRequests {
    /// Oldest first.
    requests: Vec<AdminRequest>,
}

/// A request under way.
#[derive(Debug, Serialize, ToSchema)]
struct AdminRequest {
    /// As in the response's `x-request-id`.
    id: String,
    /// Where it was sent: `/v1/chat/completions`.
    route: &'static str,
    model: String,
    /// The name of the key it came with.
    key: Option<String>,
    /// In seconds since 1970.
    started_at: f64,
    prompt_tokens: usize,
    /// Delivered so far, over all choices.
    completion_tokens: usize,
}

/// What was cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminCancelled {
    id: String,
    /// Several where a client gave several requests one id, or one request several prompts.
    cancelled: usize,
}

/// The requests under way.
#[utoipa::path(
    get,
    path = "/admin/v1/requests",
    tag = "admin",
    responses((status = 200, description = "Those that generate now", body = AdminRequests))
)]
pub async fn list(State(app): State<Arc<App>>) -> Json<AdminRequests> {
    let entries = app.in_flight.list();
    let requests = entries.iter().map(|entry| describe(entry));
    Json(AdminRequests {
        requests: requests.collect(),
    })
}

/// Cancels a request. Its client is told so; what was delivered stays counted.
#[utoipa::path(
    delete,
    path = "/admin/v1/requests/{id}",
    tag = "admin",
    params(("id" = String, Path, description = "As in the list of requests")),
    responses((status = 200, description = "It was told to end", body = AdminCancelled))
)]
pub async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<AdminCancelled>, ApiError> {
    let entries = app.in_flight.list();
    let meant: Vec<_> = entries
        .iter()
        .filter(|entry| *entry.request_id == *id)
        .collect();
    if meant.is_empty() {
        let what = format!("no request of the id `{id}` is under way");
        return Err(ApiError::new(ErrorKind::NotFound, what).code("request_not_found"));
    }
    meant.iter().for_each(|entry| entry.cancel());
    let cancelled = meant.len();
    Ok(Json(AdminCancelled { id, cancelled }))
}

fn describe(entry: &Entry) -> AdminRequest {
    AdminRequest {
        id: entry.request_id.to_string(),
        route: entry.route,
        model: entry.model.clone(),
        key: entry.key.clone(),
        started_at: since_1970(entry.began),
        prompt_tokens: entry.prompt_tokens,
        completion_tokens: entry.completion_tokens.load(Ordering::Relaxed),
    }
}
