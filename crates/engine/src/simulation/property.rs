//! Thousands of random schedules, and what must hold in every one of them.
//!
//! A failure names its seed; `SIMULATION_SEED=<seed>` runs that one alone.

use std::collections::BTreeMap;
use std::ops::Range;

use loquat_session::SequenceId;
use loquat_testkit::fake_session::FakeOptions;

use super::harness::{End, Harness, Reader, ReaderBehaviour, without_drafts};
use super::plan::{ModelKind, NewSequence, Plan, VOCABULARY};
use super::speculation::{Answers, RandomProposer};
use crate::running::Running;
use crate::{EngineError, EngineOptions, FinishReason, GenerateRequest, Stats};

#[test]
fn random_schedules_with_any_length_forks() {
    run(0..6000, ModelKind::KeepsAll, Drafts::Default);
}

#[test]
fn random_schedules_with_snapshot_forks() {
    run(6000..9000, ModelKind::Recurrent, Drafts::Default);
}

#[test]
fn random_schedules_with_windows() {
    run(9000..12000, ModelKind::Windowed, Drafts::Default);
}

#[test]
fn random_drafts_with_any_length_cuts() {
    run(drafted(12000..15000), ModelKind::KeepsAll, Drafts::Random);
}

#[test]
fn random_drafts_with_snapshot_cuts() {
    run(drafted(15000..18000), ModelKind::Recurrent, Drafts::Random);
}

#[test]
fn random_drafts_with_windows() {
    run(drafted(18000..21000), ModelKind::Windowed, Drafts::Random);
}

/// A fifth of the schedules, or all with `LOQUAT_FULL=1`.
fn drafted(seeds: Range<u64>) -> Range<u64> {
    let is_full = std::env::var_os("LOQUAT_FULL").is_some_and(|value| value == "1");
    let count = seeds.end - seeds.start;
    seeds.start..seeds.start + if is_full { count } else { count / 5 }
}

/// Who drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drafts {
    /// The engine's proposer, as many drafts as pay.
    Default,
    /// A proposer that is right, wrong or out of range at random, and always verified.
    Random,
}

fn run(seeds: Range<u64>, kind: ModelKind, drafts: Drafts) {
    let one = |seed| {
        let _announce = PrintSeedOnPanic(seed);
        Simulation::new(Plan::new(seed, kind), (seed, drafts)).run()
    };
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        one(seed.parse().expect("a number"));
        return;
    }
    let plenty = seeds.clone().count() as u64 / 20;
    let stats: Vec<Stats> = seeds.map(one).collect();
    // Schedules in which nothing happens prove nothing.
    let counts = |stats: &Stats| {
        let (totals, cache) = (&stats.totals, &stats.cache);
        [
            ("finished", totals.finished),
            ("failed", totals.failed),
            ("cancelled", totals.cancelled),
            ("timed out", totals.timed_out),
            ("refused", totals.refused),
            ("preempted", totals.preempted),
            ("hits", cache.hits),
            ("evictions", cache.evictions),
        ]
    };
    let mut happened = BTreeMap::new();
    for (what, times) in stats.iter().flat_map(counts) {
        *happened.entry(what).or_insert(0) += times;
    }
    assert!(
        happened.values().all(|times| *times > plenty),
        "{happened:?}"
    );
    if drafts == Drafts::Random {
        let accepted = |stats: &Stats| stats.speculation.accepted_tokens;
        let proposed = |stats: &Stats| stats.speculation.draft_tokens;
        let (accepted, proposed): (u64, u64) = (
            stats.iter().map(accepted).sum(),
            stats.iter().map(proposed).sum(),
        );
        assert!(
            accepted > 20 * plenty && proposed > 2 * accepted,
            "{accepted} of {proposed}"
        );
    }
}

/// Prints the seed that failed.
struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule of seed {} failed", self.0);
        }
    }
}

struct Simulation {
    plan: Plan,
    harness: Harness,
    /// What each reader asked for, the choice's own seed included.
    submitted: Vec<SubmittedRequest>,
    /// An engine without drafts, other requests or a cache, whose readers are in the same order.
    alone: Harness,
    answers: Answers,
    refused: u64,
    /// Turns within which all must end.
    patience: usize,
}

struct SubmittedRequest {
    request: GenerateRequest,
    leaves: Option<usize>,
}

impl Simulation {
    fn new(plan: Plan, (seed, drafts): (u64, Drafts)) -> Self {
        let mut harness = Harness::new(plan.fake.clone(), plan.options.clone());
        let answers = Answers::default();
        if drafts == Drafts::Random {
            let proposer = RandomProposer::new(seed, VOCABULARY, answers.clone());
            harness.propose(proposer);
        }
        let alone = Harness::new(
            FakeOptions {
                vocab_size: VOCABULARY,
                ..FakeOptions::default()
            },
            EngineOptions {
                cache_bytes: Some(0),
                ..without_drafts()
            },
        );
        Self {
            harness,
            alone,
            answers,
            // Every token may be held back for sixteen steps; some are computed again after a
            // preemption.
            patience: 2000 + 20 * plan.work(),
            plan,
            submitted: Vec::new(),
            refused: 0,
        }
    }

    fn run(mut self) -> Stats {
        for turn in 0..=self.plan.calm {
            self.arrive(turn);
            self.leave(turn);
            if self.plan.clears.contains(&turn) {
                self.harness.engine.clear_cache();
            }
            self.turn();
        }
        for reader in &mut self.harness.readers {
            reader.habit = ReaderBehaviour::Eager;
        }
        let done = |reader: &Reader| reader.has_ended() || reader.generation.is_none();
        while !self.harness.readers.iter().all(done) {
            assert!(self.harness.turns < self.patience, "a request starves");
            self.turn();
        }
        self.judge()
    }

    fn arrive(&mut self, turn: usize) {
        let due = |arrival: &mut NewSequence| arrival.turn == turn;
        let arrivals: Vec<NewSequence> = self.plan.arrivals.extract_if(.., due).collect();
        for arrival in arrivals {
            self.submit(arrival);
        }
    }

    fn submit(&mut self, arrival: NewSequence) {
        let NewSequence {
            request,
            choices,
            habit,
            leaves,
            ..
        } = arrival;
        let engine = &self.harness.engine;
        let submitted = match choices {
            1 => engine.submit(request.clone()).map(|one| vec![one]),
            n => engine
                .submit_choices(request.clone(), n)
                .map(|choices| choices.into_generations()),
        };
        let generations = match submitted {
            Ok(generations) => generations,
            Err(error) => return self.refuse(&request, choices, error),
        };
        for (choice, generation) in (0..).zip(generations) {
            let reader = self.harness.read(generation);
            self.harness.readers[reader].habit = habit;
            let mut request = request.clone();
            let seed = &mut request.sampling.seed;
            *seed = seed.map(|seed| seed + choice);
            let expected = self.alone.submit(GenerateRequest {
                queue_timeout: None,
                first_token_timeout: None,
                ..request.clone()
            });
            let expected = self.alone.finish(expected).ids();
            self.answers.add(&request.prompt, &expected);
            self.submitted.push(SubmittedRequest { request, leaves });
        }
    }

    /// A refusal must have a valid reason.
    fn refuse(&mut self, request: &GenerateRequest, choices: usize, error: EngineError) {
        let reach = request.prompt.len() + request.max_tokens;
        let limits = &self.harness.worker.limits;
        match error {
            EngineError::QueueFull => self.refused += choices as u64,
            EngineError::NeverFits { capacity, .. } => {
                assert!(limits.reservation(reach) > capacity);
            }
            other => panic!("refused with {other}"),
        }
    }

    fn leave(&mut self, turn: usize) {
        for (asked, reader) in self.submitted.iter().zip(&mut self.harness.readers) {
            if asked.leaves == Some(turn) && !reader.has_ended() {
                reader.generation = None;
            }
        }
    }

    fn turn(&mut self) {
        self.harness.turn();
        let worker = &self.harness.worker;
        let limits = &worker.limits;
        assert!(worker.running.len() <= limits.max_running);
        let ids: Vec<SequenceId> = worker.running.iter().map(|running| running.id).collect();
        let held = worker.session.held(&ids).expect("they are alive").kv_tokens;
        let promises = worker.running.iter();
        let promised: usize = promises.map(|r| r.promised(limits)).sum();
        // A fork is promised a copy of its last run until it writes; its source may have made
        // that copy instead.
        let unwritten = |running: &&Running| running.computed == running.shared;
        let forks = worker.running.iter().filter(unwritten).count();
        // Each count is rounded up to whole tokens.
        let rounding = worker.running.len();
        // A fork is promised all of its windows, also while it holds those of a source that has
        // gone on.
        let forked = worker.running.iter().filter(|running| running.forked > 0);
        let windows: usize = forked
            .map(|running| limits.windows(running.sequence.max_len()))
            .sum();
        let most = limits.kv_capacity + forks * limits.kv_granularity + rounding + windows;
        assert!(
            held + promised <= most,
            "{held} held and {promised} promised, more than {most}"
        );
        assert!(held <= limits.kv_capacity);
        let starved = self.harness.counters.starved_rows();
        assert_eq!(starved, 0, "promised memory was missing");
    }

    fn judge(mut self) -> Stats {
        let readers = self.harness.readers.iter().zip(&self.alone.readers);
        for (asked, (reader, expected)) in self.submitted.iter().zip(readers) {
            judge(&asked.request, reader, expected, &self.plan);
        }
        let totals = self.harness.engine.stats().totals;
        let delivered: usize = self.harness.readers.iter().map(|r| r.tokens.len()).sum();
        let nobody_left = self.harness.readers.iter().all(|r| r.generation.is_some());
        assert_eq!(totals.submitted, self.submitted.len() as u64);
        assert_eq!(totals.refused, self.refused);
        assert!(totals.completion_tokens >= delivered as u64);
        assert!(!nobody_left || totals.completion_tokens == delivered as u64);
        self.harness.assert_empty();
        self.harness.engine.stats()
    }
}

/// Compares what a reader received with what the request gives `alone`.
fn judge(request: &GenerateRequest, reader: &Reader, alone: &Reader, plan: &Plan) {
    assert!(alone.tokens.starts_with(&reader.tokens), "other tokens");
    assert!(alone.events.starts_with(&reader.events), "other events");
    if reader.prompt_logprobs.is_some() {
        assert_eq!(reader.prompt_logprobs, alone.prompt_logprobs);
    }
    let Some(generation) = &reader.generation else {
        return;
    };
    assert_eq!(reader.ends.len(), 1, "one end");
    assert!(generation.has_ended());
    assert_eq!(generation.usage().completion_tokens, reader.tokens.len());
    match &reader.ends[0] {
        End::Finished { reason, usage, .. } => {
            let End::Finished { reason: same, .. } = &alone.ends[0] else {
                panic!("it fails alone");
            };
            assert_eq!(reason, same);
            assert_eq!(reader.tokens, alone.tokens);
            assert_eq!(reader.prompt_logprobs, alone.prompt_logprobs);
            assert_eq!(reader.embedding, alone.embedding);
            assert_eq!(reader.embedding.is_some(), request.embed.is_some());
            assert_eq!(usage.prompt_tokens, request.prompt.len());
            assert_eq!(usage.completion_tokens, reader.tokens.len());
            assert!(usage.cached_tokens < usage.prompt_tokens);
            let whole = reader.tokens.len() == request.max_tokens;
            assert!(*reason != FinishReason::Length || whole);
        }
        End::Failed(error) => judge_failure(request, error, plan),
    }
}

/// A failure must have a cause.
fn judge_failure(request: &GenerateRequest, error: &EngineError, plan: &Plan) {
    let options = &plan.options;
    match error {
        EngineError::QueueTimeout { waited } => {
            let most = request.queue_timeout.or(options.queue_timeout);
            assert!(most.is_some_and(|most| *waited >= most), "{waited:?}");
        }
        EngineError::FirstTokenTimeout { waited } => {
            let most = request.first_token_timeout.or(options.first_token_timeout);
            assert!(most.is_some_and(|most| *waited >= most), "{waited:?}");
        }
        EngineError::Session(_) => assert!(!plan.fake.faults.is_empty(), "{error}"),
        other => panic!("failed with {other}"),
    }
}
