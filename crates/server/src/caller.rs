//! The caller of a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::auth::Key;
use crate::error::{ApiError, ErrorKind};
use crate::metrics::SocketClock;
use crate::models::ModelStatus;
use crate::telemetry::Generated;

/// Identifies a request and its client. The outermost layers add it to the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The client's `x-request-id`, or a generated one. Returned in the same header and written to
    /// every log line.
    pub request_id: Arc<str>,
    /// `None` if the server requires no keys.
    pub key: Option<Arc<Key>>,
    pub received: Instant,
    /// When the request times out.
    pub deadline: Option<Instant>,
    /// The connection's clock, which measures how long tokens take to reach the socket.
    pub clock: Option<Arc<SocketClock>>,
    /// Shared by all layers that handle the request.
    pub notes: Arc<Notes>,
}

/// What layers learn about a request, for the layer that logs it.
#[derive(Debug, Default)]
pub struct Notes {
    pub key: OnceLock<String>,
    pub model: OnceLock<String>,
    pub generated: Mutex<Option<Generated>>,
    /// Unknown fields and tools that were removed from the body.
    ignored: Mutex<Vec<String>>,
    /// The least limit that replaced a larger one of the request.
    max_tokens: Mutex<Option<usize>>,
    /// The model that serves a request for an unknown one.
    substitute: OnceLock<String>,
    /// Whether later system messages were joined with the first.
    joins_system: AtomicBool,
}

impl Notes {
    pub fn ignore(&self, names: impl IntoIterator<Item = String>) {
        lock(&self.ignored).extend(names);
    }

    pub fn take_ignored(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.ignored))
    }

    /// Notes that the reply is limited to fewer tokens than requested.
    pub fn limit_tokens(&self, limit: usize) {
        let mut least = lock(&self.max_tokens);
        *least = Some(least.map_or(limit, |least| least.min(limit)));
    }

    pub fn max_tokens(&self) -> Option<usize> {
        *lock(&self.max_tokens)
    }

    pub fn substitute_model(&self, name: &str) {
        self.substitute.get_or_init(|| name.to_owned());
    }

    pub fn substitute(&self) -> Option<&str> {
        self.substitute.get().map(String::as_str)
    }

    pub fn join_system(&self) {
        self.joins_system.store(true, Ordering::Relaxed);
    }

    pub fn joins_system(&self) -> bool {
        self.joins_system.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether the caller may use the model, by its configured name.
    pub fn may_see(&self, model: &str) -> bool {
        let key = self.key.as_ref();
        key.is_none_or(|key| key.may_use(model))
    }

    /// The models that the caller may use.
    pub fn visible(&self, models: Vec<ModelStatus>) -> impl Iterator<Item = ModelStatus> {
        let models = models.into_iter();
        models.filter(|model| self.may_see(&model.name))
    }

    /// Whether the caller may affect the requests of other clients.
    pub fn may_manage(&self) -> bool {
        let key = self.key.as_ref();
        key.is_none_or(|key| key.may_manage())
    }

    /// The error for a caller that may not, with what it may not do.
    pub fn check_may_manage(&self, what: &str) -> Result<(), ApiError> {
        if self.may_manage() {
            return Ok(());
        }
        let message = format!("{what} needs a key with the scope `manage`");
        Err(ApiError::new(ErrorKind::Forbidden, message).code("insufficient_scope"))
    }

    /// Returns when the request times out; never if it has no deadline.
    pub async fn out_of_time(&self) -> ApiError {
        match self.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
        ApiError::new(ErrorKind::Timeout, "the request timed out").code("request_timeout")
    }

    /// The client's name for the engine's fairness.
    pub fn client(&self) -> Option<String> {
        self.key.as_ref().map(|key| key.name.clone())
    }

    /// The scope in which prompts share the cache: one for each key and salt.
    pub fn cache_scope(&self, salt: Option<&str>) -> Option<String> {
        match (&self.key, salt) {
            (None, None) => None,
            (key, salt) => {
                let key = key.as_ref().map_or("", |key| key.name.as_str());
                // The length keeps key and salt apart: both may be any text.
                Some(format!("{}:{key}{}", key.len(), salt.unwrap_or("")))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::internal(&"a route has no caller layer"))
    }
}

#[test]
fn keys_never_share_a_cache_scope() {
    let scope = |name: &str, salt: Option<&str>| {
        let hash = crate::config::KeyHash([0; 32]);
        let settings = crate::config::Key::new(name, hash);
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
