//! A random schedule: what the session is like, how the engine is set, who asks for what and when.

use std::time::Duration;

use loquat_session::sequences::SnapshotPolicy;
use loquat_testkit::fake_session::{Cost, FakeOptions, Fault};

use super::dice::Dice;
use super::guided::Rhythm;
use super::harness::Habit;
use crate::{Constrained, EngineOptions, GenerateRequest, Logprobs, Pooling, SamplingParams};

pub const VOCABULARY: usize = 48;

pub struct Plan {
    pub fake: FakeOptions,
    pub options: EngineOptions,
    pub arrivals: Vec<Arrival>,
    /// Turns at which the cache is cleared.
    pub clears: Vec<usize>,
    /// From this turn on every reader is eager.
    pub calm: usize,
}

pub struct Arrival {
    pub turn: usize,
    pub request: GenerateRequest,
    pub choices: usize,
    pub habit: Habit,
    /// When the reader goes away.
    pub leaves: Option<usize>,
}

impl Plan {
    pub fn new(seed: u64, recurrent: bool) -> Self {
        let mut dice = Dice::new(seed);
        let calm = dice.number(20..=200);
        let fake = fake(&mut dice, recurrent);
        let options = options(&mut dice, &fake);
        let prefixes: Vec<Vec<u32>> = (0..3).map(|_| tokens(&mut dice, 60)).collect();
        let crowd = if dice.percent(10) {
            dice.number(25..=45)
        } else {
            dice.number(1..=14)
        };
        let arrivals = (0..crowd)
            .map(|_| arrival(&mut dice, &prefixes, calm))
            .collect();
        let clears = (0..dice.number(0..=2)).map(|_| dice.number(0..=calm));
        Self {
            clears: clears.collect(),
            fake,
            options,
            arrivals,
            calm,
        }
    }

    /// Tokens that all requests come to, choices counted each.
    pub fn work(&self) -> usize {
        let work = |arrival: &Arrival| {
            let request = &arrival.request;
            (request.prompt.len() + request.max_tokens) * arrival.choices
        };
        self.arrivals.iter().map(work).sum()
    }
}

fn fake(dice: &mut Dice, recurrent: bool) -> FakeOptions {
    let granularity = dice.pick(&[1, 4, 16]);
    let tokens = dice.pick(&[48, 64, 96, 200, 600, 3000]);
    let max_sequences = dice.number(1..=12);
    FakeOptions {
        vocab_size: VOCABULARY,
        max_context: 128,
        max_sequences,
        max_step_tokens: dice.pick(&[1, 5, 16, 64, 256]),
        kv_capacity: tokens / granularity * granularity,
        kv_granularity: granularity,
        snapshots: recurrent.then(|| SnapshotPolicy {
            interval: dice.pick(&[1, 4, 16, 64]),
            max: dice.number(0..=4),
        }),
        // One for every sequence and one for every row.
        max_states: 2 * max_sequences + dice.number(0..=20),
        cost: Cost {
            step: Duration::from_micros(dice.pick(&[10, 1000, 8000])),
            row: Duration::from_micros(dice.pick(&[0, 500])),
            token: Duration::from_micros(dice.pick(&[0, 100, 3000])),
            depth: Duration::from_micros(dice.pick(&[0, 600])),
        },
        faults: faults(dice),
        ..FakeOptions::default()
    }
}

/// Never three whole steps in a row: that would be the engine's end.
fn faults(dice: &mut Dice) -> Vec<(usize, Fault)> {
    if dice.percent(50) {
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
        if !dice.percent(4) {
            failed = 0;
            continue;
        }
        let fault = match dice.pick(&kinds) {
            Fault::Fail if failed == 2 => Fault::RowFails,
            fault => fault,
        };
        failed = if fault == Fault::Fail { failed + 1 } else { 0 };
        faults.push((step, fault));
    }
    faults
}

fn options(dice: &mut Dice, fake: &FakeOptions) -> EngineOptions {
    let mut maybe = |most: usize| dice.percent(50).then(|| dice.number(1..=most));
    let step_tokens = maybe(fake.max_step_tokens);
    let max_running = maybe(fake.max_sequences);
    let patience = |dice: &mut Dice| {
        let some = dice.percent(15);
        some.then(|| Duration::from_millis(dice.number(1..=2000) as u64))
    };
    let max_queue = dice.pick(&[1, 3, 8, 64]);
    EngineOptions {
        step_tokens,
        max_running,
        max_queue,
        max_queue_per_client: dice.percent(20).then(|| dice.number(1..=max_queue)),
        event_buffer: dice.number(1..=8),
        cache_bytes: dice.pick(&[None, None, Some(0), Some(64), Some(1000), Some(4000)]),
        max_slowdown: dice.pick(&[1.0, 1.25, 2.0, 8.0, f32::INFINITY]),
        aging: Duration::from_millis(dice.pick(&[1, 50, 1000, 1_000_000])),
        queue_timeout: patience(dice),
        first_token_timeout: patience(dice),
        reader_grace: Duration::ZERO,
    }
}

fn arrival(dice: &mut Dice, prefixes: &[Vec<u32>], calm: usize) -> Arrival {
    let turn = dice.number(0..=calm);
    let habits = [
        Habit::Eager,
        Habit::Eager,
        Habit::Every(dice.number(2..=9)),
        Habit::Stalled,
    ];
    Arrival {
        turn,
        request: request(dice, prefixes),
        choices: dice.pick(&[1, 1, 1, 1, 2, 4]),
        habit: dice.pick(&habits),
        leaves: dice.percent(20).then(|| turn + dice.number(0..=60)),
    }
}

fn request(dice: &mut Dice, prefixes: &[Vec<u32>]) -> GenerateRequest {
    let request = speaking(dice, prefixes);
    if dice.percent(10) {
        embedding(dice, request)
    } else {
        request
    }
}

/// The same prompt for the same client, to be embedded.
fn embedding(dice: &mut Dice, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        max_tokens: 0,
        sampling: SamplingParams::default(),
        stop_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        constraint: None,
        embed: Some(dice.pick(&[Pooling::Mean, Pooling::Last])),
        ..request
    }
}

fn speaking(dice: &mut Dice, prefixes: &[Vec<u32>]) -> GenerateRequest {
    let mut prompt = dice.pick(prefixes);
    prompt.truncate(dice.pick(&[1, 3, 16, 17, 20, 40, 60]));
    if dice.percent(60) {
        let own = dice.number(1..=6);
        prompt.extend(tokens(dice, own));
    }
    let scored = dice.percent(20);
    let max_tokens = if scored && dice.percent(30) {
        0
    } else {
        dice.number(1..=16)
    };
    let patience = |dice: &mut Dice| {
        let some = dice.percent(10);
        some.then(|| Duration::from_millis(dice.number(0..=500) as u64))
    };
    let name = |dice: &mut Dice| dice.pick(&[None, Some("a".to_owned()), Some("b".to_owned())]);
    GenerateRequest {
        prompt,
        max_tokens,
        sampling: sampling(dice),
        stop_ids: if dice.percent(20) {
            tokens(dice, 2)
        } else {
            Vec::new()
        },
        logprobs: dice
            .percent(20)
            .then(|| Logprobs::of_model(dice.number(0..=3))),
        prompt_logprobs: scored,
        constraint: constraint(dice),
        priority: dice.pick(&[-2, 0, 0, 0, 3]),
        client: name(dice),
        cache_scope: name(dice).filter(|_| dice.percent(30)),
        queue_timeout: patience(dice),
        first_token_timeout: patience(dice),
        ..GenerateRequest::default()
    }
}

fn constraint(dice: &mut Dice) -> Option<Constrained> {
    if !dice.percent(20) {
        return None;
    }
    let end = dice.percent(50).then(|| dice.number(1..=16));
    Rhythm::new(dice.number(0..=6), end).constrained()
}

fn sampling(dice: &mut Dice) -> SamplingParams {
    if dice.percent(50) {
        return SamplingParams::greedy();
    }
    SamplingParams {
        temperature: dice.pick(&[0.7, 1.0, 3.0]),
        top_k: dice.pick(&[0, 5]),
        repetition_penalty: dice.pick(&[1.0, 1.3]),
        seed: Some(dice.number(0..=1000) as u64),
        ..SamplingParams::default()
    }
}

fn tokens(dice: &mut Dice, count: usize) -> Vec<u32> {
    let token = |_| dice.number(0..=VOCABULARY - 1) as u32;
    (0..count).map(token).collect()
}
