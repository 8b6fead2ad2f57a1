//! Who may do what: keys, what they are for, and how much.
//!
//! Without any keys, everybody who reaches the server may use its models and read its metrics;
//! operating it takes a key in any case.

mod credentials;
mod limits;
mod meter;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use loquat_engine::Usage;

use crate::app::App;
use crate::caller::Caller;
use crate::config::{self, Scope};
use crate::error::{ApiError, ErrorKind};
use crate::http::hold;
pub use meter::KeyUsage;
use meter::Meter;

/// The keys in force.
#[derive(Debug)]
pub struct Keys {
    keys: RwLock<Vec<Arc<Key>>>,
}

/// A key, and what it was used for so far.
pub struct Key {
    pub name: String,
    /// As configured.
    pub settings: config::Key,
    /// Stays when the configuration is read again, so that nobody gets a fresh allowance by it.
    meter: Arc<Meter>,
}

/// Says whose key it is and nothing that would help to find it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

impl Keys {
    pub fn new(keys: &[config::Key]) -> Self {
        let keys = keys.iter().map(|key| Key::new(key, Arc::default()));
        Self {
            keys: RwLock::new(keys.collect()),
        }
    }

    /// Puts other keys in force. Those that keep their name keep their counts.
    pub fn replace(&self, keys: &[config::Key]) {
        let mut current = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = keys.iter().map(|key| {
            let before = current.iter().find(|before| before.name == key.name);
            let meter = before.map(|before| Arc::clone(&before.meter));
            Key::new(key, meter.unwrap_or_default())
        });
        *current = replaced.collect();
    }

    pub fn list(&self) -> Vec<Arc<Key>> {
        let keys = self.keys.read();
        keys.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_empty(&self) -> bool {
        let keys = self.keys.read();
        keys.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The key that a request was sent with, where it is for the scope; none where none is asked
    /// for.
    fn authorize(&self, headers: &HeaderMap, scope: Scope) -> Result<Option<Arc<Key>>, ApiError> {
        let keys = self.list();
        if keys.is_empty() {
            return match scope {
                Scope::Inference | Scope::Metrics => Ok(None),
                Scope::Admin => Err(no_admin()),
            };
        }
        let key = credentials::find(headers, &keys)?;
        if key.settings.scopes.contains(&scope) {
            return Ok(Some(key));
        }
        let what = format!(
            "the key `{}` is not for this: it lacks the scope `{}`",
            key.name,
            scope.name()
        );
        Err(ApiError::new(ErrorKind::Forbidden, what).code("insufficient_scope"))
    }
}

pub fn no_admin() -> ApiError {
    let what = "operating the server takes a key; add one with the scope `admin` to `[[keys]]` \
                in the configuration";
    ApiError::new(ErrorKind::Forbidden, what).code("admin_disabled")
}

impl Key {
    fn new(settings: &config::Key, meter: Arc<Meter>) -> Arc<Self> {
        Arc::new(Self {
            name: settings.name.clone(),
            settings: settings.clone(),
            meter,
        })
    }

    /// Counts what a request came to.
    pub fn used(&self, usage: &Usage) {
        self.meter.used(&self.settings, usage);
    }

    /// What it was used for since the server started.
    pub fn usage(&self) -> KeyUsage {
        self.meter.usage()
    }

    /// Whether the key is for this model, by its configured name.
    pub fn may_use(&self, model: &str) -> bool {
        let allowed = self.settings.models.as_ref();
        allowed.is_none_or(|models| models.iter().any(|allowed| allowed == model))
    }
}

/// The layer before everything that uses models: finds the caller's key, and holds it to its
/// limits until the response has ended.
pub async fn inference(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let key = match enter(&app, &mut request, Scope::Inference) {
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(refusal) => return refusal.into_response(),
    };
    let limits = &key.settings;
    match key.meter.admit(limits, Instant::now()) {
        Ok(admitted) => {
            let mut response = next.run(request).await;
            limits::tell(&key.meter.rates(limits, Instant::now()), &mut response);
            hold(response, admitted)
        }
        Err(refusal) => {
            let mut response = refusal.into_response();
            limits::tell(&key.meter.rates(limits, Instant::now()), &mut response);
            response
        }
    }
}

/// The layer before what is measured.
pub async fn metrics(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match enter(&app, &mut request, Scope::Metrics) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The layer before what changes the server.
pub async fn admin(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match enter(&app, &mut request, Scope::Admin) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Tells the request whose it is.
fn enter(app: &App, request: &mut Request, scope: Scope) -> Result<Option<Arc<Key>>, ApiError> {
    let key = app.keys.authorize(request.headers(), scope)?;
    if let (Some(caller), Some(key)) = (request.extensions_mut().get_mut::<Caller>(), &key) {
        // Nobody else writes this note, so that it cannot have been written.
        let _ = caller.notes.key.set(key.name.clone());
        caller.key = Some(Arc::clone(key));
    }
    Ok(key)
}
