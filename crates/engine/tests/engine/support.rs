//! An engine on a fake session.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_engine::{
    Engine, EngineOptions, Event, GenerateRequest, Generation, SamplingParams, TokenInfo,
};
use loquat_session::Session;
use loquat_testkit::fake_session::{FakeCounters, FakeOptions, FakeSession};
use loquat_text::Tokenizer;

/// Longer than anything takes on a busy machine, unless it hangs.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(600);

pub fn start(fake: FakeOptions, options: EngineOptions) -> (Engine, Arc<FakeCounters>) {
    let session = FakeSession::new(fake);
    let counters = session.counters();
    let engine = Engine::start(Box::new(session), None, options).expect("an engine");
    (engine, counters)
}

pub fn start_default() -> (Engine, Arc<FakeCounters>) {
    start(FakeOptions::default(), EngineOptions::default())
}

/// An engine with text, whose session answers a prompt of one token with `script`.
pub fn start_scripted(script: &str) -> Engine {
    let tokenizer = tokenizer();
    let script = tokenizer
        .encode(script, loquat_text::Special::RENDERED)
        .expect("tokens");
    let session = FakeSession::new(FakeOptions {
        vocab_size: tokenizer.vocab_size(),
        script,
        ..FakeOptions::default()
    });
    Engine::start(Box::new(session), Some(tokenizer), EngineOptions::default()).expect("an engine")
}

/// A byte-level tokenizer: one token a byte.
pub fn tokenizer() -> Tokenizer {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");
    Tokenizer::from_huggingface(Path::new(dir)).expect("the golden tokenizer")
}

pub fn greedy(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    }
}

pub fn sampled(prompt: &[u32], max_tokens: usize, seed: u64) -> GenerateRequest {
    GenerateRequest {
        sampling: SamplingParams {
            seed: Some(seed),
            ..SamplingParams::default()
        },
        ..greedy(prompt, max_tokens)
    }
}

pub fn ids(engine: &Engine, request: GenerateRequest) -> Vec<u32> {
    let generation = engine.submit(request).expect("accepted");
    generation.collect_blocking().expect("finished").ids()
}

/// Waits for the first tokens, so that the request surely runs.
pub fn until_running(generation: &mut Generation) -> Vec<TokenInfo> {
    match generation.recv_blocking() {
        Some(Event::Tokens { tokens, .. }) => tokens,
        other => panic!("tokens expected, not {other:?}"),
    }
}

/// Waits until the engine has taken all requests from its queue. If a test holds the session, the
/// engine then stays in that step: nothing ends, pauses or is preempted.
pub fn until_admitted(engine: &Engine) {
    eventually("nothing waits", || engine.stats().waiting == 0);
}

/// What the fake would say to `prompt`, asked directly and one token at a time.
pub fn oracle(fake: FakeOptions, prompt: &[u32], count: usize) -> Vec<u32> {
    use loquat_session::{Emit, StepBatch, StepOutput};
    let mut session = FakeSession::new(fake);
    let sequence = session.create().expect("a sequence");
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut output_ids = Vec::new();
    let mut next = prompt.to_vec();
    while output_ids.len() < count {
        for token in next {
            batch.clear();
            batch.push(sequence, &[token], Emit::Greedy { positions: 1 });
            session.step(&batch, &mut output).expect("a step");
        }
        output_ids.push(output.tokens(0)[0]);
        next = vec![output.tokens(0)[0]];
    }
    output_ids
}

/// Waits until `done`; the limit only detects hangs.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Everything given back: sequences, KV, reservations and places in the queue. What is kept for
/// its prefix is given back first.
pub fn assert_empty(engine: &Engine, counters: &FakeCounters) {
    eventually("nothing runs or waits", || {
        let stats = engine.stats();
        (stats.running, stats.waiting, stats.kv_reserved) == (0, 0, 0)
    });
    engine.clear_cache();
    eventually("nothing is held", || {
        let stats = engine.stats();
        (
            stats.memory.kv_in_use,
            stats.cache.entries,
            stats.cache.bytes,
        ) == (0, 0, 0)
            && counters.live() == 0
    });
}
