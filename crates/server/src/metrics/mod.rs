//! What is counted, and how it is told.

use std::time::Duration;

use axum::Router;
use loquat_engine::{FinishReason, Timings, Usage};
use std::sync::Arc;

use crate::app::App;

/// Counters and histograms of everything that was served.
pub struct Metrics {}

/// How a request that was queued came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    Failed,
    /// The client went away, or an operator ended it.
    Cancelled,
}

impl Metrics {
    pub fn new() -> Self {
        Self {}
    }

    /// A request reached the engine.
    pub fn began(&self, _model: &str, _route: &'static str, _prompt_tokens: usize) {}

    /// The engine did not take it.
    pub fn refused(&self, _model: &str, _route: &'static str) {}

    /// One of its choices is whole.
    pub fn finished(&self, _model: &str, _why: FinishReason, _usage: &Usage, _timings: &Timings) {}

    /// It is over; every request that began ends once.
    pub fn ended(&self, _model: &str, _route: &'static str, _how: Outcome, _elapsed: Duration) {}
}

pub fn routes() -> Router<Arc<App>> {
    Router::new()
}
