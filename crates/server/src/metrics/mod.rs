//! Metrics: `/metrics` for Prometheus, `/stats` for the page.

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
pub use request::{QueuedRequest, RequestMeter, Summary};
pub use socket::{SocketClock, Watcher};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/stats", get(stats::stats))
}

/// Counters and histograms of served requests. A model's current activity is not here: scrapes read
/// it from the engines.
pub struct Metrics {
    registry: Registry,
    families: Families,
    by_model: RwLock<HashMap<String, Arc<Meters>>>,
    recent: Recent,
    watcher: OnceLock<Watcher>,
}

/// How a queued request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    Failed,
    /// The client disconnected, or an operator cancelled it.
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

/// The label for a finish reason.
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

    /// The engine accepted a request.
    pub fn began(&self, queued: QueuedRequest<'_>) -> RequestMeter {
        RequestMeter::new(self.meters(queued.model), queued)
    }

    /// The engine refused a request.
    pub fn refused(&self, model: &str, route: &'static str) {
        self.count(model, route, "refused");
    }

    /// Counts a response. Routes are patterns of the router, so that there are few.
    pub fn answered(&self, route: &str, method: &Method, status: StatusCode) {
        let labels = [route, known(method), status.as_str()];
        self.families.responses.with_label_values(&labels).inc();
    }

    /// For one connection.
    pub fn socket_clock(&self) -> Arc<SocketClock> {
        let times = self.families.to_socket.clone();
        Arc::new(SocketClock::new(times, self.watcher.get().cloned()))
    }

    /// Reports every token's time to the socket on later connections. Only the first watcher is
    /// set.
    pub fn watch_tokens(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    fn count(&self, model: &str, route: &str, outcome: &str) {
        let labels = [model, route, outcome];
        self.families.requests.with_label_values(&labels).inc();
    }

    fn meters(&self, model: &str) -> Arc<Meters> {
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
            .or_insert_with(|| Arc::new(self.families.for_model(model)));
        Arc::clone(meters)
    }
}

/// Unknown methods share a label, so that clients cannot grow the counters.
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
