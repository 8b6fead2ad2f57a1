//! Runs generation requests on one session: schedule, run, sample, settle.
//!
//! One thread owns the session. Requests and events pass through channels, and dropping a request's
//! [`Generation`] cancels it. There is one loop: a batch of one is a batch.
//!
//! Not here: computing logits (`session` and its backends), tokenizing and rendering (`text`,
//! `chat`), wire formats (`server`).
#![deny(missing_docs)]

mod active_constraint;
mod adapters;
mod admission;
mod choices;
mod clients;
mod constraint;
mod constraint_worker;
mod disk_tier;
mod encoding;
mod engine;
mod error;
mod event;
mod generation;
mod limits;
mod mask;
mod media;
mod media_cache;
mod monitor;
mod no_session;
mod pacing;
mod pooling;
mod prefix_cache;
mod queue;
mod request;
mod running;
mod sampling;
mod scheduler;
mod sequence;
mod settle;
mod shared;
#[cfg(test)]
mod simulation;
mod speculation;
mod stats;
mod text_stream;
mod time;
mod usage;
mod worker;

pub use adapters::UnloadMode;
pub use choices::Choices;
pub use constraint::{AllowedTokens, Constraint, ConstraintError, RequestConstraint};
pub use engine::{Engine, EngineOptions};
pub use error::{EngineError, EngineFailure};
pub use event::{Distribution, Event, FinishReason, Logprobs, TokenInfo};
pub use generation::{Completion, CompletionBuilder, Generation};
pub use loquat_kvdisk::{DiskOptions, DiskStats};
pub use loquat_text::Blame;
pub use mask::TokenMask;
pub use media::{MediaContent, PromptMedia, PromptSpan, join_spans};
pub use monitor::StepMonitor;
pub use pooling::Pooling;
pub use prefix_cache::CacheStats;
pub use request::GenerateRequest;
pub use sampling::{
    ALLOWED_TOKENS, BAD_WORDS, DEFAULT_DRY_SEQUENCE_BREAKERS, DEFAULT_ORDER, DRY_ALLOWED_LENGTH,
    DRY_BASE, DRY_MULTIPLIER, DRY_PENALTY_LAST_N, DRY_SEQUENCE_BREAKERS, DYNATEMP_EXPONENT,
    DYNATEMP_RANGE, FREQUENCY_PENALTY, LOGIT_BIAS, MIN_P, MIN_TOKENS, MIROSTAT, MIROSTAT_ETA,
    MIROSTAT_TAU, ORDER, PARAMETERS, PENALTY_LAST_N, PRESENCE_PENALTY, Parameter, ParameterKind,
    ParameterSlot, REPETITION_PENALTY, SEED, Sampler, SamplerScratch, SamplingParams, SamplingStep,
    TEMPERATURE, TOP_K, TOP_N_SIGMA, TOP_P, TYPICAL_P, XTC_PROBABILITY, XTC_THRESHOLD,
    word_sequences,
};
pub use speculation::{SpeculationMode, SpeculationOptions, SpeculationStats};
pub use stats::{Stats, Totals};
pub use usage::{DraftCounts, Timings, Usage};
