//! The layer before everything that takes long.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::hold;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

/// Refuses new work when the server stops, and ends what takes longer than it may. A stream whose
/// time is up while it runs is ended by its turn at the engine, which can still say why.
pub async fn bound(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    let Some(working) = app.traffic.work() else {
        return ApiError::overloaded("the server is stopping").into_response();
    };
    tokio::select! {
        biased;
        response = next.run(request) => hold(response, working),
        late = caller.out_of_time() => late.into_response(),
    }
}
