//! A random schedule: the session, the engine's options, and requests with their arrival times.

use std::time::Duration;

use loquat_session::sequences::SnapshotPolicy;
use loquat_session::{KvGroup, KvGroups, Reach};
use loquat_testkit::fake_session::{Cost, FakeOptions, Fault};

use super::constrained::PatternConstraint;
use super::harness::ReaderBehaviour;
use super::rng::SeededRng;
use crate::{
    EngineOptions, GenerateRequest, Logprobs, Pooling, RequestConstraint, SamplingParams,
    SpeculationOptions,
};

pub const VOCABULARY: usize = 48;

/// How a model's sequences can be forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// At any length.
    KeepsAll,
    /// At snapshots.
    Recurrent,
    /// Within windows.
    Windowed,
}

pub struct Plan {
    pub fake: FakeOptions,
    pub options: EngineOptions,
    pub arrivals: Vec<NewSequence>,
    /// Turns at which the cache is cleared.
    pub clears: Vec<usize>,
    /// From this turn on every reader is eager.
    pub calm: usize,
}

pub struct NewSequence {
    pub turn: usize,
    pub request: GenerateRequest,
    pub choices: usize,
    pub habit: ReaderBehaviour,
    /// When the reader is dropped.
    pub leaves: Option<usize>,
}

impl Plan {
    pub fn new(seed: u64, kind: ModelKind) -> Self {
        let mut rng = SeededRng::new(seed);
        let calm = rng.number(20..=200);
        let fake = fake(&mut rng, kind);
        let options = options(&mut rng, &fake);
        let prefixes: Vec<Vec<u32>> = (0..3).map(|_| tokens(&mut rng, 60)).collect();
        let crowd = if rng.percent(10) {
            rng.number(25..=45)
        } else {
            rng.number(1..=14)
        };
        let arrivals = (0..crowd)
            .map(|_| arrival(&mut rng, &prefixes, calm))
            .collect();
        let clears = (0..rng.number(0..=2)).map(|_| rng.number(0..=calm));
        Self {
            clears: clears.collect(),
            fake,
            options,
            arrivals,
            calm,
        }
    }

    /// The tokens of all requests; each choice counts.
    pub fn work(&self) -> usize {
        let work = |arrival: &NewSequence| {
            let request = &arrival.request;
            (request.prompt.len() + request.max_tokens) * arrival.choices
        };
        self.arrivals.iter().map(work).sum()
    }
}

fn fake(rng: &mut SeededRng, kind: ModelKind) -> FakeOptions {
    let granularity = rng.pick(&[1, 4, 16]);
    let tokens = rng.pick(&[48, 64, 96, 200, 600, 3000]);
    let max_sequences = rng.number(1..=12);
    FakeOptions {
        vocab_size: VOCABULARY,
        max_context: 128,
        max_sequences,
        max_step_tokens: rng.pick(&[1, 5, 16, 64, 256]),
        kv_capacity: tokens / granularity * granularity,
        kv_granularity: granularity,
        kv_groups: match kind {
            ModelKind::Windowed => windows(rng),
            ModelKind::KeepsAll | ModelKind::Recurrent => KvGroups::uniform(4),
        },
        snapshots: (kind == ModelKind::Recurrent).then(|| SnapshotPolicy {
            interval: rng.pick(&[1, 4, 16, 64]),
            max: rng.number(0..=4),
        }),
        // One for every sequence and one for every row.
        max_states: 2 * max_sequences + rng.number(0..=20),
        cost: Cost {
            step: Duration::from_micros(rng.pick(&[10, 1000, 8000])),
            row: Duration::from_micros(rng.pick(&[0, 500])),
            token: Duration::from_micros(rng.pick(&[0, 100, 3000])),
            depth: Duration::from_micros(rng.pick(&[0, 600])),
            encode: Duration::ZERO,
        },
        faults: faults(rng),
        ..FakeOptions::default()
    }
}

/// With or without layers that keep everything.
fn windows(rng: &mut SeededRng) -> KvGroups {
    let reach = |rng: &mut SeededRng| {
        if rng.percent(70) {
            Reach::Window(rng.pick(&[1, 3, 8, 20, 40]))
        } else {
            Reach::Chunk(rng.pick(&[4, 16, 30]))
        }
    };
    let group = |reach, bytes_per_token| KvGroup {
        reach,
        bytes_per_token,
    };
    let mut groups = vec![group(reach(rng), rng.pick(&[1, 3, 20]))];
    if rng.percent(80) {
        groups.insert(0, group(Reach::All, rng.pick(&[1, 4, 10])));
    }
    KvGroups::new(&groups)
}

/// Never three failed steps in a row: the engine would shut down.
fn faults(rng: &mut SeededRng) -> Vec<(usize, Fault)> {
    if rng.percent(50) {
        return Vec::new();
    }
    let kinds = [
        Fault::Fail,
        Fault::RowFails,
        Fault::KvExhausted,
        Fault::Withhold,
    ];
    let mut faults = Vec::new();
    let mut failed = 0;
    for step in 0..150 {
        if !rng.percent(4) {
            failed = 0;
            continue;
        }
        let fault = match rng.pick(&kinds) {
            Fault::Fail if failed == 2 => Fault::RowFails,
            fault => fault,
        };
        failed = if fault == Fault::Fail { failed + 1 } else { 0 };
        faults.push((step, fault));
    }
    faults
}

fn options(rng: &mut SeededRng, fake: &FakeOptions) -> EngineOptions {
    let mut maybe = |most: usize| rng.percent(50).then(|| rng.number(1..=most));
    let step_tokens = maybe(fake.max_step_tokens);
    let max_running = maybe(fake.max_sequences);
    let patience = |rng: &mut SeededRng| {
        let some = rng.percent(15);
        some.then(|| Duration::from_millis(rng.number(1..=2000) as u64))
    };
    let max_queue = rng.pick(&[1, 3, 8, 64]);
    EngineOptions {
        kv_disk: None,
        step_tokens,
        max_running,
        max_queue,
        max_queue_per_client: rng.percent(20).then(|| rng.number(1..=max_queue)),
        event_buffer: rng.number(1..=8),
        cache_bytes: rng.pick(&[None, None, Some(0), Some(64), Some(1000), Some(4000)]),
        max_slowdown: rng.pick(&[1.0, 1.25, 2.0, 8.0, f32::INFINITY]),
        aging: Duration::from_millis(rng.pick(&[1, 50, 1000, 1_000_000])),
        queue_timeout: patience(rng),
        first_token_timeout: patience(rng),
        reader_grace: Duration::ZERO,
        speculation: SpeculationOptions::default(),
    }
}

fn arrival(rng: &mut SeededRng, prefixes: &[Vec<u32>], calm: usize) -> NewSequence {
    let turn = rng.number(0..=calm);
    let habits = [
        ReaderBehaviour::Eager,
        ReaderBehaviour::Eager,
        ReaderBehaviour::Every(rng.number(2..=9)),
        ReaderBehaviour::Stalled,
    ];
    NewSequence {
        turn,
        request: request(rng, prefixes),
        choices: rng.pick(&[1, 1, 1, 1, 2, 4]),
        habit: rng.pick(&habits),
        leaves: rng.percent(20).then(|| turn + rng.number(0..=60)),
    }
}

fn request(rng: &mut SeededRng, prefixes: &[Vec<u32>]) -> GenerateRequest {
    let request = generation(rng, prefixes);
    if rng.percent(10) {
        embedding(rng, request)
    } else {
        request
    }
}

/// The same prompt for the same client, to be embedded.
fn embedding(rng: &mut SeededRng, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        max_tokens: 0,
        sampling: SamplingParams::default(),
        stop_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        constraint: None,
        embed: Some(rng.pick(&[Pooling::Mean, Pooling::Last])),
        ..request
    }
}

fn generation(rng: &mut SeededRng, prefixes: &[Vec<u32>]) -> GenerateRequest {
    let mut prompt = rng.pick(prefixes);
    prompt.truncate(rng.pick(&[1, 3, 16, 17, 20, 40, 60]));
    if rng.percent(60) {
        let own = rng.number(1..=6);
        prompt.extend(tokens(rng, own));
    }
    let scored = rng.percent(20);
    let max_tokens = if scored && rng.percent(30) {
        0
    } else {
        rng.number(1..=16)
    };
    let patience = |rng: &mut SeededRng| {
        let some = rng.percent(10);
        some.then(|| Duration::from_millis(rng.number(0..=500) as u64))
    };
    let name = |rng: &mut SeededRng| rng.pick(&[None, Some("a".to_owned()), Some("b".to_owned())]);
    GenerateRequest {
        prompt,
        max_tokens,
        sampling: sampling(rng),
        stop_ids: if rng.percent(20) {
            tokens(rng, 2)
        } else {
            Vec::new()
        },
        logprobs: rng
            .percent(20)
            .then(|| Logprobs::for_model(rng.number(0..=3))),
        prompt_logprobs: scored,
        constraint: constraint(rng),
        priority: rng.pick(&[-2, 0, 0, 0, 3]),
        client: name(rng),
        cache_scope: name(rng).filter(|_| rng.percent(30)),
        queue_timeout: patience(rng),
        first_token_timeout: patience(rng),
        ..GenerateRequest::default()
    }
}

fn constraint(rng: &mut SeededRng) -> Option<RequestConstraint> {
    if !rng.percent(20) {
        return None;
    }
    let end = rng.percent(50).then(|| rng.number(1..=16));
    PatternConstraint::new(rng.number(0..=6), end).constrained()
}

fn sampling(rng: &mut SeededRng) -> SamplingParams {
    if rng.percent(50) {
        return SamplingParams::greedy();
    }
    SamplingParams {
        temperature: rng.pick(&[0.7, 1.0, 3.0]),
        top_k: rng.pick(&[0, 5]),
        repetition_penalty: rng.pick(&[1.0, 1.3]),
        seed: Some(rng.number(0..=1000) as u64),
        ..SamplingParams::default()
    }
}

fn tokens(rng: &mut SeededRng, count: usize) -> Vec<u32> {
    let token = |_| rng.number(0..=VOCABULARY - 1) as u32;
    (0..count).map(token).collect()
}
