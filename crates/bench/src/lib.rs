//! Benchmarks of a model and the engine on this machine: the scenarios behind `loquat bench`.
//!
//! Each scenario is one file and implements [`Scenario`]. It drives the engine or the server
//! through the same interfaces as other programs and returns a [`Report`]. This crate parses no
//! flags, finds no models and prints nothing; the command line does.

mod adapters;
mod clients;
mod constrained;
mod contention;
mod conversation;
mod demand;
mod encoding;
mod engine_overhead;
mod error;
mod figure;
mod figure_json;
mod http;
mod machine;
mod prefill_interference;
mod random;
mod report;
mod soak;
mod speculation;
mod startup;
mod stats;
pub mod synthetic;
mod timed_answer;
mod workload;
mod workloads;

use loquat::ModelFiles;
use loquat_engine::{Engine, EngineOptions, SpeculationMode, SpeculationOptions};
use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use loquat_spec::ModelSpec;

use random::Random;
use timed_answer::{ask, greedy};

pub use adapters::Adapters;
pub use clients::{Clients, Until};
pub use constrained::Constrained;
pub use contention::Contention;
pub use conversation::Conversation;
pub use demand::{Demand, ModelDemand};
pub use encoding::Encoding;
pub use engine_overhead::EngineOverhead;
pub use error::BenchError;
pub use figure::Figure;
pub use http::Http;
pub use machine::machine;
pub use prefill_interference::PrefillInterference;
pub use random::{InvalidLengthRange, LengthRange};
pub use report::{Report, ReportHead, Table};
pub use soak::Soak;
pub use speculation::Speculation;
pub use startup::Startup;
pub use workload::Workload;
pub use workloads::Workloads;

/// One thing to measure.
pub trait Scenario {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Sequences that run at once.
    fn sequences(&self) -> usize;

    /// Changes the session options for a model with this context length.
    fn adapt(&self, _options: &mut SessionOptions, _context: usize) {}

    /// Changes the session options for this model.
    fn adapt_to(
        &mut self,
        _options: &mut SessionOptions,
        _spec: &ModelSpec,
    ) -> Result<(), BenchError> {
        Ok(())
    }

    /// Refuses what does not fit before the weights are loaded.
    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError>;

    /// Reads what it needs from the model's files before the weights are loaded.
    fn prepare(&mut self, _model: &ModelFiles) -> Result<(), BenchError> {
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError>;
}

/// What the caller provides while a scenario runs.
pub struct Harness<'a> {
    /// The model that the session was opened from.
    pub model: &'a ModelFiles,
    /// Called with the completed share, from 0 to 1.
    pub progress: &'a dyn Fn(f32),
}

impl Harness<'_> {
    fn progress(&self, done: usize, all: usize) {
        (self.progress)(done as f32 / all as f32);
    }
}

/// The engine's options without speculative decoding: random weights repeat themselves, and each
/// step must compute what its scenario measures.
fn plain_options() -> EngineOptions {
    EngineOptions {
        speculation: SpeculationOptions {
            mode: SpeculationMode::Off,
            ..SpeculationOptions::default()
        },
        ..EngineOptions::default()
    }
}

/// Runs one request, so that later ones find memory and caches warm.
fn warm_up(session: Box<dyn Session>) -> Result<Box<dyn Session>, BenchError> {
    let vocab_size = session.capabilities().vocab_size;
    let room = session.capabilities().max_context;
    let engine = Engine::start(session, None, plain_options())?;
    let prompt = Random::new(u64::MAX, 0).tokens(vocab_size, (room / 2).clamp(1, 32));
    let tokens = (room - prompt.len()).clamp(1, 8);
    ask(&engine, greedy(prompt, tokens))?;
    Ok(engine.into_session()?)
}
