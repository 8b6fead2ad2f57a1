//! Who asks.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::auth::Key;
use crate::error::ApiError;

/// Whose request it is. The outermost layers put it among the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The client's own `x-request-id` where it sent one, ours otherwise; goes back in the same
    /// header and into every line of the log.
    pub request_id: Arc<str>,
    /// With which key; `None` where the server asks for none.
    pub key: Option<Arc<Key>>,
    pub received: Instant,
}

impl Caller {
    /// By whom the engine tells clients apart.
    pub fn client(&self) -> Option<String> {
        self.key.as_ref().map(|key| key.name.clone())
    }

    /// Within which prompts share what was computed: each key's own, and within it each salt's.
    pub fn cache_scope(&self, salt: Option<&str>) -> Option<String> {
        match (&self.key, salt) {
            (None, None) => None,
            (key, salt) => {
                let key = key.as_ref().map_or("", |key| key.name.as_str());
                Some(format!("{key}\n{}", salt.unwrap_or("")))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::internal(&"a route stands outside the layer of callers"))
    }
}
