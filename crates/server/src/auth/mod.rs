//! Authentication: keys, scopes and limits.
//!
//! Without keys, anyone who can reach the server may use its models and read its metrics; the admin
//! API always needs a key.

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

/// The configured keys.
#[derive(Debug)]
pub struct Keys {
    keys: RwLock<Vec<Arc<Key>>>,
}

/// A key and its usage.
pub struct Key {
    pub name: String,
    /// As configured.
    pub settings: config::Key,
    /// Survives a reload, so that a reload resets no limit.
    meter: Arc<Meter>,
}

/// Prints the name only, not the hash.
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

    /// Replaces the keys. A key that keeps its name keeps its counts.
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

    /// The request's key if it has the scope; `None` if the server needs no key.
    fn authorize(&self, headers: &HeaderMap, scope: Scope) -> Result<Option<Arc<Key>>, ApiError> {
        let keys = self.list();
        if keys.is_empty() {
            return match scope {
                Scope::Inference | Scope::Metrics | Scope::Manage => Ok(None),
                Scope::Admin => Err(no_admin()),
            };
        }
        let key = credentials::find(headers, &keys)?;
        if key.settings.scopes.contains(&scope) {
            return Ok(Some(key));
        }
        let what = format!("the key `{}` lacks the scope `{}`", key.name, scope.name());
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

    /// Counts a finished request.
    pub fn used(&self, usage: &Usage) {
        self.meter.used(&self.settings, usage);
    }

    /// Usage since the server started.
    pub fn usage(&self) -> KeyUsage {
        self.meter.usage()
    }

    /// Whether its requests may affect those of other clients.
    pub fn may_manage(&self) -> bool {
        let scopes = &self.settings.scopes;
        scopes.contains(&Scope::Manage) || scopes.contains(&Scope::Admin)
    }

    /// Whether the key allows the model with this configured name.
    pub fn may_use(&self, model: &str) -> bool {
        let allowed = self.settings.models.as_ref();
        allowed.is_none_or(|models| models.iter().any(|allowed| allowed == model))
    }
}

/// The layer around requests that use models: authenticates, and enforces the key's limits until the
/// response has ended.
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
            limits::set_headers(&key.meter.rates(limits, Instant::now()), &mut response);
            hold(response, admitted)
        }
        Err(refusal) => {
            let mut response = refusal.into_response();
            limits::set_headers(&key.meter.rates(limits, Instant::now()), &mut response);
            response
        }
    }
}

/// The layer around metrics.
pub async fn metrics(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match enter(&app, &mut request, Scope::Metrics) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The layer around the admin API.
pub async fn admin(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match enter(&app, &mut request, Scope::Admin) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Attaches the key to the request.
fn enter(app: &App, request: &mut Request, scope: Scope) -> Result<Option<Arc<Key>>, ApiError> {
    let key = app.keys.authorize(request.headers(), scope)?;
    if let (Some(caller), Some(key)) = (request.extensions_mut().get_mut::<Caller>(), &key) {
        // Only this function sets the note, so it is empty.
        let _ = caller.notes.key.set(key.name.clone());
        caller.key = Some(Arc::clone(key));
    }
    Ok(key)
}
