//! What is counted, and how it is told: to Prometheus at `/metrics`, to the page at `/stats`.

mod exposition;
mod families;
mod process;
mod recent;
mod request;
pub mod scrape;
mod socket;
pub mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use loquat_engine::FinishReason;
use prometheus::Registry;

use crate::app::App;
use families::{Families, Meters};
use recent::Recent;

pub use process::{peak_resident_bytes, resident_bytes, resident_bytes_of};
pub use request::{Asked, RequestMeter, Summary};
pub use socket::{SocketClock, Watcher};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/stats", get(stats::stats))
}

/// Counters and histograms of everything that was served. What a model is doing right now is not
/// here: engines are asked when somebody wants to know.
pub struct Metrics {
    registry: Registry,
    families: Families,
    by_model: RwLock<HashMap<String, Arc<Meters>>>,
    recent: Recent,
    watcher: OnceLock<Watcher>,
}

/// How a request that was queued came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    Failed,
    /// The client went away, or an operator ended it.
    Cancelled,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a choice ended, in one word.
fn reason(why: FinishReason) -> &'static str {
    match why {
        FinishReason::Stop => "stop",
        FinishReason::StopString(_) => "stop_string",
        FinishReason::Length => "length",
    }
}

impl Metrics {
    pub fn new() -> Self {
        let registry = Registry::new();
        Self {
            families: Families::new(&registry),
            registry,
            by_model: RwLock::default(),
            recent: Recent::default(),
            watcher: OnceLock::new(),
        }
    }

    /// The engine took a request.
    pub fn began(&self, asked: Asked<'_>) -> RequestMeter {
        RequestMeter::new(self.of(asked.model), asked)
    }

    /// The engine did not take it.
    pub fn refused(&self, model: &str, route: &'static str) {
        self.count(model, route, "refused");
    }

    /// A response goes out. Routes are as they are written in the router, so that there are few.
    pub fn answered(&self, route: &str, method: &Method, status: StatusCode) {
        let labels = [route, known(method), status.as_str()];
        self.families.responses.with_label_values(&labels).inc();
    }

    /// For one connection.
    pub fn socket_clock(&self) -> Arc<SocketClock> {
        let times = self.families.to_socket.clone();
        Arc::new(SocketClock::new(times, self.watcher.get().cloned()))
    }

    /// Has somebody told of every token's time to the socket, on connections to come. The first
    /// to ask is told.
    pub fn watch_tokens(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    fn count(&self, model: &str, route: &str, outcome: &str) {
        let labels = [model, route, outcome];
        self.families.requests.with_label_values(&labels).inc();
    }

    fn of(&self, model: &str) -> Arc<Meters> {
        let known = self.by_model.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(meters) = known.get(model) {
            return Arc::clone(meters);
        }
        drop(known);
        let mut known = self
            .by_model
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let meters = known
            .entry(model.to_owned())
            .or_insert_with(|| Arc::new(self.families.of(model)));
        Arc::clone(meters)
    }
}

/// Clients may invent methods; counters must not grow with them.
fn known(method: &Method) -> &str {
    match *method {
        Method::GET | Method::POST | Method::DELETE | Method::HEAD | Method::OPTIONS => {
            method.as_str()
        }
        Method::PUT | Method::PATCH => method.as_str(),
        _ => "other",
    }
}

pub fn since_1970(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64()
}
