//! Who asks.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::auth::Key;
use crate::error::{ApiError, ErrorKind};
use crate::metrics::SocketClock;
use crate::telemetry::Generated;

/// Whose request it is. The outermost layers put it among the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The client's own `x-request-id` where it sent one, ours otherwise; goes back in the same
    /// header and into every line of the log.
    pub request_id: Arc<str>,
    /// With which key; `None` where the server asks for none.
    pub key: Option<Arc<Key>>,
    pub received: Instant,
    /// By when it must have ended.
    pub deadline: Option<Instant>,
    /// Of the connection it came by; tells how long tokens take to the socket.
    pub clock: Option<Arc<SocketClock>>,
    /// Shared by all that serve the request.
    pub notes: Arc<Notes>,
}

/// What is learnt about a request on its way in, for those who log it on its way out.
#[derive(Debug, Default)]
pub struct Notes {
    pub key: OnceLock<String>,
    pub model: OnceLock<String>,
    pub generated: Mutex<Option<Generated>>,
}

impl Caller {
    pub fn new(request_id: impl Into<Arc<str>>) -> Self {
        Self {
            request_id: request_id.into(),
            key: None,
            received: Instant::now(),
            deadline: None,
            clock: None,
            notes: Arc::default(),
        }
    }

    /// Whether the model, by its configured name, is for this caller.
    pub fn may_see(&self, model: &str) -> bool {
        let key = self.key.as_ref();
        key.is_none_or(|key| key.may_use(model))
    }

    /// Returns when the request must end; never where it may take what it takes.
    pub async fn out_of_time(&self) -> ApiError {
        match self.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
        ApiError::new(
            ErrorKind::Timeout,
            "the request took longer than this server allows",
        )
        .code("request_timeout")
    }

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
                // Both may be any text; the length says where one ends.
                Some(format!("{}:{key}{}", key.len(), salt.unwrap_or("")))
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

#[test]
fn no_key_reaches_into_the_scope_of_another() {
    let scope = |name: &str, salt: Option<&str>| {
        let settings = crate::config::Key {
            name: name.to_owned(),
            hash: crate::config::KeyHash([0; 32]),
            scopes: Vec::new(),
            models: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent: None,
        };
        let keys = crate::auth::Keys::new(&[settings]);
        let caller = Caller {
            key: keys.list().pop(),
            ..Caller::new("id")
        };
        caller.cache_scope(salt).expect("a scope")
    };
    let scopes = [
        scope("team", None),
        scope("team", Some("a\nb")),
        scope("team\na", Some("b")),
        scope("teama", Some("\nb")),
        scope("te", Some("am")),
    ];
    let different: std::collections::BTreeSet<_> = scopes.iter().collect();
    assert_eq!(different.len(), scopes.len(), "{scopes:?}");
}
