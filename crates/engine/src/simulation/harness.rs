//! An engine whose worker runs turn by turn, and readers that take its events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_session::sequences::SnapshotPolicy;
use loquat_session::{KvGroup, KvGroups, Reach};
use loquat_testkit::fake_session::{Cost, FakeCounters, FakeOptions, FakeSession, VirtualClock};
use loquat_text::Tokenizer;

use crate::speculation::Proposer;
use crate::time::TimeSource;
use crate::worker::Worker;
use crate::{
    Engine, EngineError, EngineOptions, Event, FinishReason, GenerateRequest, Generation,
    SamplingParams, SpeculationMode, SpeculationOptions, Timings, TokenInfo, Usage,
};

/// Time that passes in a turn without anything to run.
const IDLE: Duration = Duration::from_millis(5);
/// More turns than any test takes.
const ENDLESS: usize = 200_000;

pub struct Harness {
    pub engine: Engine,
    pub worker: Worker,
    pub clock: Arc<VirtualClock>,
    pub counters: Arc<FakeCounters>,
    pub readers: Vec<Reader>,
    pub turns: usize,
    start: Instant,
    /// The last turn found nothing to run.
    idle: bool,
}

/// How a reader takes events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderBehaviour {
    Eager,
    /// One event every so many turns.
    Every(usize),
    /// None at all.
    Stalled,
}

#[derive(Debug)]
pub struct Reader {
    /// `None` when it was dropped.
    pub generation: Option<Generation>,
    pub habit: ReaderBehaviour,
    pub prompt_logprobs: Option<Vec<TokenInfo>>,
    pub embedding: Option<Vec<f32>>,
    pub tokens: Vec<TokenInfo>,
    /// The sizes of token events.
    pub events: Vec<usize>,
    pub text: String,
    /// When each token was taken.
    pub times: Vec<Duration>,
    pub ends: Vec<End>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Finished {
        reason: FinishReason,
        usage: Usage,
        timings: Timings,
        seed: u64,
    },
    Failed(EngineError),
}

impl Harness {
    pub fn new(fake: FakeOptions, options: EngineOptions) -> Self {
        Self::with_tokenizer(fake, None, options)
    }

    /// Without a tokenizer, events have no text.
    pub fn with_tokenizer(
        fake: FakeOptions,
        tokenizer: Option<Tokenizer>,
        options: EngineOptions,
    ) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let session = FakeSession::new(FakeOptions {
            clock: Some(Arc::clone(&clock)),
            ..fake
        });
        let counters = session.counters();
        let (start, ticks) = (Instant::now(), Arc::clone(&clock));
        let time = TimeSource::new(move || start + ticks.elapsed());
        let assembled = Engine::assemble(Box::new(session), tokenizer, options, time);
        let (engine, worker) = assembled.expect("legal options");
        Self {
            engine,
            worker,
            clock,
            counters,
            readers: Vec::new(),
            turns: 0,
            start,
            idle: false,
        }
    }

    /// Lets `proposer` draft, and verifies all that it drafts.
    pub fn propose(&mut self, proposer: impl Proposer + 'static) {
        let speculator = &mut self.worker.speculator;
        speculator.replace(Box::new(proposer), true);
    }

    /// Submits a request with an eager reader; returns the reader's number.
    pub fn submit(&mut self, request: GenerateRequest) -> usize {
        let generation = self.engine.submit(request).expect("accepted");
        self.read(generation)
    }

    pub fn submit_choices(&mut self, request: GenerateRequest, n: usize) -> Vec<usize> {
        let choices = self.engine.submit_choices(request, n).expect("accepted");
        let generations = choices.into_generations().into_iter();
        generations.map(|choice| self.read(choice)).collect()
    }

    /// Adds a reader for `generation`; returns its number.
    pub fn read(&mut self, generation: Generation) -> usize {
        self.readers.push(Reader {
            generation: Some(generation),
            habit: ReaderBehaviour::Eager,
            prompt_logprobs: None,
            embedding: None,
            tokens: Vec::new(),
            events: Vec::new(),
            text: String::new(),
            times: Vec::new(),
            ends: Vec::new(),
        });
        self.readers.len() - 1
    }

    /// One turn of the engine's loop, then of every reader; returns whether there was anything to
    /// run.
    pub fn turn(&mut self) -> bool {
        self.worker.take_commands(false);
        let ran = !self.sleeps() && {
            let stepped = self.worker.step().expect("the engine runs");
            self.worker.store_prefixes(stepped) || stepped
        };
        if !ran {
            self.clock.advance(IDLE);
        }
        self.idle = !ran;
        let now = self.clock.elapsed();
        for reader in &mut self.readers {
            reader.take(self.turns, now);
        }
        self.turns += 1;
        ran
    }

    /// Whether the engine's thread would keep waiting: a wake-up that it misses is missed here too.
    fn sleeps(&self) -> bool {
        let now = self.start + self.clock.elapsed();
        let due = self.worker.next_deadline().is_some_and(|at| at <= now);
        self.idle && !self.worker.woken && !due
    }

    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    pub fn turn_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let most = self.turns + ENDLESS;
        while !done(self) {
            assert!(self.turns < most, "never happened: {what}");
            self.turn();
        }
    }

    /// Turns until the reader has its last event.
    pub fn finish(&mut self, reader: usize) -> &Reader {
        self.turn_until("its end", |harness| harness.readers[reader].has_ended());
        &self.readers[reader]
    }

    pub fn finish_all(&mut self) {
        for reader in 0..self.readers.len() {
            if self.readers[reader].generation.is_some() {
                self.finish(reader);
            }
        }
    }

    /// Runs a request to its end and returns its tokens.
    pub fn answer(&mut self, request: GenerateRequest) -> Vec<u32> {
        let reader = self.submit(request);
        self.finish(reader).ids()
    }

    /// Tokens computed while `work` was done.
    pub fn computed(&mut self, work: impl FnOnce(&mut Self)) -> usize {
        let before = self.counters.computed_tokens();
        work(self);
        self.counters.computed_tokens() - before
    }

    /// Asserts that clearing the cache releases everything, and that every request ended once.
    pub fn assert_empty(&mut self) {
        self.turn();
        let stats = self.engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_reserved), (0, 0, 0));
        self.engine.clear_cache();
        self.turn();
        let stats = self.engine.stats();
        assert_eq!(self.counters.live(), 0, "sequences");
        assert_eq!(stats.memory.kv_in_use, 0, "KV");
        assert_eq!(stats.memory.states_in_use, 0, "states");
        assert_eq!((stats.cache.entries, stats.cache.bytes), (0, 0));
        let totals = stats.totals;
        let ended = totals.finished + totals.failed + totals.cancelled + totals.timed_out;
        assert_eq!(totals.submitted, ended, "{totals:?}");
    }
}

impl Reader {
    pub fn has_ended(&self) -> bool {
        !self.ends.is_empty()
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    pub fn usage(&self) -> Usage {
        match self.ends.first() {
            Some(End::Finished { usage, .. }) => *usage,
            other => panic!("not finished: {other:?}"),
        }
    }

    pub fn timings(&self) -> Timings {
        match self.ends.first() {
            Some(End::Finished { timings, .. }) => *timings,
            other => panic!("not finished: {other:?}"),
        }
    }

    pub fn error(&self) -> &EngineError {
        match self.ends.first() {
            Some(End::Failed(error)) => error,
            other => panic!("not failed: {other:?}"),
        }
    }

    pub fn first_token(&self) -> Duration {
        *self.times.first().expect("a token")
    }

    fn take(&mut self, turn: usize, now: Duration) {
        let most = match self.habit {
            ReaderBehaviour::Eager => usize::MAX,
            ReaderBehaviour::Every(turns) if turn.is_multiple_of(turns) => 1,
            ReaderBehaviour::Every(_) | ReaderBehaviour::Stalled => 0,
        };
        for _ in 0..most {
            let next = self.generation.as_mut().and_then(Generation::try_recv);
            let Some(event) = next else {
                return;
            };
            self.note(event, now);
        }
    }

    fn note(&mut self, event: Event, now: Duration) {
        match event {
            Event::PromptLogprobs(scores) => {
                assert!(self.tokens.is_empty(), "prompt logprobs come first");
                assert!(self.prompt_logprobs.replace(scores).is_none(), "once");
            }
            Event::Embedding(embedding) => {
                assert!(self.embedding.replace(embedding).is_none(), "once");
            }
            Event::Tokens { tokens, text } => {
                self.events.push(tokens.len());
                self.text.push_str(&text);
                self.times.extend(tokens.iter().map(|_| now));
                self.tokens.extend(tokens);
            }
            Event::Finished {
                reason,
                usage,
                timings,
                seed,
                text,
            } => {
                self.text.push_str(&text);
                self.ends.push(End::Finished {
                    reason,
                    usage,
                    timings,
                    seed,
                });
            }
            Event::Failed(error) => self.ends.push(End::Failed(error)),
        }
    }
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
    let sampling = SamplingParams {
        seed: Some(seed),
        ..SamplingParams::default()
    };
    GenerateRequest {
        sampling,
        ..greedy(prompt, max_tokens)
    }
}

/// A prompt of `len` tokens that shares nothing with another `kind`'s.
pub fn prompt(kind: u32, len: usize) -> Vec<u32> {
    let tokens = (0..).map(|at: u32| (at * 7 + kind * 31 + at * kind) % 200);
    std::iter::once(200 + kind % 64)
        .chain(tokens)
        .take(len)
        .collect()
}

/// Each step takes 10 ms, whatever is in it.
pub fn even_steps() -> FakeOptions {
    FakeOptions {
        cost: Cost {
            step: Duration::from_millis(10),
            ..Cost::default()
        },
        ..FakeOptions::default()
    }
}

/// As `even_steps`, with a model that can be forked only at its snapshots.
pub fn recurrent() -> FakeOptions {
    FakeOptions {
        snapshots: Some(SnapshotPolicy {
            interval: 1000,
            max: 1,
        }),
        ..even_steps()
    }
}

/// As `even_steps`, with a model of which three quarters of the KV are of the last 32 tokens.
pub fn windowed() -> FakeOptions {
    let group = |reach, bytes_per_token| KvGroup {
        reach,
        bytes_per_token,
    };
    FakeOptions {
        kv_groups: KvGroups::new(&[group(Reach::All, 1), group(Reach::Window(32), 3)]),
        ..even_steps()
    }
}

/// One sequence at a time.
pub fn one_at_a_time() -> EngineOptions {
    EngineOptions {
        max_running: Some(1),
        ..EngineOptions::default()
    }
}

pub fn without_drafts() -> EngineOptions {
    EngineOptions {
        speculation: SpeculationOptions {
            mode: SpeculationMode::Off,
            ..SpeculationOptions::default()
        },
        ..EngineOptions::default()
    }
}

pub fn without_cache() -> EngineOptions {
    EngineOptions {
        cache_bytes: Some(0),
        ..EngineOptions::default()
    }
}

/// A request's tokens on an engine of its own.
pub fn alone(request: GenerateRequest) -> Vec<u32> {
    Harness::new(FakeOptions::default(), without_drafts()).answer(request)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
