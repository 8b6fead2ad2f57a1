//! Runs generation requests on one session: schedule, run, sample, settle.
//!
//! One thread owns the session; requests come in and events go out over channels, and dropping
//! a request's [`Generation`] cancels it. A batch of one is a batch: there is no other loop.
//!
//! What it leaves to others: computing logits (`session` and its backends), tokenizing prompts
//! and rendering conversations (`text`, `chat`), wire formats (`server`).

mod admission;
mod choices;
mod clients;
mod constraint;
mod engine;
mod error;
mod event;
mod generation;
mod limits;
mod pace;
mod prefix_cache;
mod queue;
mod reload;
mod request;
mod running;
mod sampling;
mod scheduler;
mod sequence;
mod settle;
mod shared;
#[cfg(test)]
mod simulation;
mod stats;
mod text_stream;
mod time;
mod usage;
mod worker;

pub use choices::Choices;
pub use constraint::{Constrained, Constraint};
pub use engine::{Engine, EngineOptions};
pub use error::{Blame, EngineError};
pub use event::{Event, FinishReason, TokenInfo};
pub use generation::{Completion, Generation};
pub use prefix_cache::CacheStats;
pub use request::{GenerateRequest, PRIORITIES};
pub use sampling::{
    FREQUENCY_PENALTY, LOGIT_BIAS, MIN_P, PARAMETERS, PRESENCE_PENALTY, Parameter,
    REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_K, TOP_P,
};
pub use stats::{Stats, Totals};
pub use usage::{Timings, Usage};
