//! Lists and cancels running requests.

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

/// A running request.
#[derive(Debug, Serialize, ToSchema)]
struct AdminRequest {
    /// As in the response's `x-request-id`.
    id: String,
    /// Its route, such as `/v1/chat/completions`.
    route: &'static str,
    model: String,
    /// The name of its key.
    key: Option<String>,
    /// In seconds since 1970.
    started_at: f64,
    prompt_tokens: usize,
    /// Delivered so far, for all choices.
    completion_tokens: usize,
}

/// The result of a cancellation.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminCancelled {
    id: String,
    /// Several if requests share an id, or a request has several prompts.
    cancelled: usize,
}

/// The result of cancelling every request.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminAllCancelled {
    /// Requests that ran.
    cancelled: usize,
}

/// Lists running requests.
#[utoipa::path(
    get,
    path = "/admin/v1/requests",
    tag = "admin",
    responses((status = 200, description = "Requests that generate now", body = AdminRequests))
)]
pub async fn list(State(app): State<Arc<App>>) -> Json<AdminRequests> {
    let entries = app.in_flight.list();
    let requests = entries.iter().map(|entry| describe(entry));
    Json(AdminRequests {
        requests: requests.collect(),
    })
}

/// Cancels a request. Its client receives an error; delivered tokens stay counted.
#[utoipa::path(
    delete,
    path = "/admin/v1/requests/{id}",
    tag = "admin",
    params(("id" = String, Path, description = "As in the list of requests")),
    responses((status = 200, description = "Cancelled", body = AdminCancelled))
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
        let what = format!("there is no running request with the id `{id}`");
        return Err(ApiError::new(ErrorKind::NotFound, what).code("request_not_found"));
    }
    meant.iter().for_each(|entry| entry.cancel());
    let cancelled = meant.len();
    Ok(Json(AdminCancelled { id, cancelled }))
}

/// Cancels every running request.
#[utoipa::path(
    delete,
    path = "/admin/v1/requests",
    tag = "admin",
    responses((status = 200, description = "Cancelled", body = AdminAllCancelled))
)]
pub async fn cancel_all(State(app): State<Arc<App>>) -> Json<AdminAllCancelled> {
    let entries = app.in_flight.list();
    entries.iter().for_each(|entry| entry.cancel());
    let cancelled = entries.len();
    tracing::info!(cancelled, "an operator cancelled all requests");
    Json(AdminAllCancelled { cancelled })
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
