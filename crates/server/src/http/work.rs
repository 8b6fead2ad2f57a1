//! The layer around requests that use models.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::hold;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

/// Refuses new work during shutdown and enforces the request timeout. A stream that times out while
/// it runs is ended by its own event loop, which can still report the reason.
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
