//! responses

use std::sync::Arc;

use axum::Router;

use crate::app::App;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
}

/// Responses that were kept, for turns that go on from them.
pub struct Responses {}

impl Responses {
    pub fn new(_config: &crate::config::Responses) -> Self {
        Self {}
    }
}
