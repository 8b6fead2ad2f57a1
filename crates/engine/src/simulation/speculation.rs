//! Drafts change when tokens come, and nothing else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loquat_session::{Emit, Session, StepBatch, StepOutput};
use loquat_testkit::fake_session::{Cost, FakeOptions, FakeSession};
use loquat_text::{Special, Tokenizer};

use super::constrained::PatternConstraint;
use super::harness::{
    End, Harness, ReaderBehaviour, alone, even_steps, greedy, one_at_a_time, prompt, recurrent,
    sampled, windowed, without_drafts,
};
use super::rng::SeededRng;
use crate::sampling::tests::naive::{Past, distribution};
use crate::speculation::{ProposalRequest, Proposer};
use crate::{
    EngineOptions, FinishReason, GenerateRequest, Logprobs, SamplingParams, SpeculationMode,
    SpeculationOptions, TokenMask,
};

/// What requests are answered with, in the order of their arrival.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<Mutex<Vec<Vec<u32>>>>);

impl Answers {
    /// The next request's prompt and answer.
    pub fn add(&self, prompt: &[u32], answer: &[u32]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push([prompt, answer].concat());
    }

    /// What follows the request's first `len` tokens.
    fn after(&self, request: u64, len: usize) -> Vec<u32> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[request as usize][len..].to_vec()
    }
}

/// Drafts that are right, wrong, random, or right up to some point; often more than were asked for,
/// and past the end of the answer.
pub struct RandomProposer {
    rng: SeededRng,
    vocab_size: usize,
    answers: Answers,
}

impl RandomProposer {
    pub fn new(seed: u64, vocab_size: usize, answers: Answers) -> Self {
        Self {
            rng: SeededRng::new(seed ^ 0x5bec),
            vocab_size,
            answers,
        }
    }

    fn token(&mut self) -> u32 {
        // One past the vocabulary is not a token.
        self.rng.number(0..=self.vocab_size) as u32
    }
}

impl Proposer for RandomProposer {
    fn propose(&mut self, requests: &mut [ProposalRequest<'_>]) {
        for request in requests {
            assert!(request.drafts.is_empty());
            let answer = self.answers.after(request.sequence, request.tokens.len());
            let count = request.most + self.rng.number(0..=3);
            let right = match self.rng.number(0..=4) {
                0 => 0,
                1 | 2 => usize::MAX,
                _ => self.rng.number(0..=count),
            };
            for at in 0..self.rng.pick(&[0, 1, count, count]) {
                let draft = match answer.get(at) {
                    Some(token) if at < right => *token,
                    Some(token) if self.rng.percent(50) => (token + 1) % self.vocab_size as u32,
                    _ => self.token(),
                };
                request.drafts.push(draft);
            }
        }
    }

    fn forget(&mut self, _sequence: u64) {}
}

/// Drafts the answer, and then zeros.
struct RightProposer(Answers);

impl Proposer for RightProposer {
    fn propose(&mut self, requests: &mut [ProposalRequest<'_>]) {
        for request in requests {
            let answer = self.0.after(request.sequence, request.tokens.len());
            let drafts = answer.into_iter().chain(std::iter::repeat(0));
            request.drafts.extend(drafts.take(request.most));
            request.evidence = 9;
        }
    }

    fn forget(&mut self, _sequence: u64) {}
}

/// A harness in which every draft is right.
fn always_right(fake: FakeOptions, requests: &[GenerateRequest]) -> Harness {
    let answers = Answers::default();
    for request in requests {
        answers.add(&request.prompt, &alone(request.clone()));
    }
    let mut harness = Harness::new(fake, EngineOptions::default());
    harness.propose(RightProposer(answers));
    harness
}

#[test]
fn right_drafts_save_steps() {
    // Where sequences are cut at snapshots, the prompt's last token takes a step of its own. A
    // recurrent model's drafts are as many as may be computed again.
    for (fake, prompt_steps, blocks) in [
        (even_steps(), 1, &[31, 6][..]),
        (windowed(), 2, &[31, 6]),
        (recurrent(), 2, &[14, 14, 8]),
    ] {
        for request in [greedy(&prompt(1, 8), 40), sampled(&prompt(1, 8), 40, 3)] {
            let mut harness = always_right(fake.clone(), std::slice::from_ref(&request));
            let reader = harness.submit(request.clone());
            let reader = harness.finish(reader);
            assert_eq!(reader.ids(), alone(request));
            let steps = reader.times.last().expect("a token").as_millis() / 10;
            assert_eq!(steps, prompt_steps + blocks.len() as u128);
            // An event for each token, as without drafts.
            assert_eq!(reader.events, [1; 40]);
            let drafted: usize = blocks.iter().sum();
            let drafts = reader.timings().drafts;
            assert_eq!((drafts.tokens, drafts.accepted), (drafted, drafted));
            let stats = harness.engine.stats().speculation;
            assert_eq!(stats.drafts, blocks.len() as u64);
            assert_eq!(stats.draft_tokens, drafted as u64);
            assert_eq!(stats.accepted_tokens, drafted as u64);
            assert_eq!(stats.accepted_at[..6], [blocks.len() as u64; 6]);
            assert_eq!(stats.accepted_at.iter().sum::<u64>(), drafted as u64);
            harness.assert_empty();
        }
    }
}

#[test]
fn stop_token_inside_block_ends_request() {
    let plain = greedy(&prompt(1, 8), 20);
    let tokens = alone(plain.clone());
    for at in 0..20 {
        let request = GenerateRequest {
            stop_ids: vec![tokens[at]],
            ..plain.clone()
        };
        let answers = Answers::default();
        answers.add(&request.prompt, &tokens);
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        harness.propose(RightProposer(answers));
        let reader = harness.submit(request.clone());
        let first = tokens.iter().position(|token| *token == tokens[at]);
        let count = first.expect("it is there") + 1;
        let reader = harness.finish(reader);
        assert_eq!(reader.ids(), tokens[..count]);
        assert_eq!(reader.usage().completion_tokens, count);
        assert!(matches!(
            reader.ends[0],
            End::Finished {
                reason: FinishReason::Stop,
                ..
            }
        ));
        // What was drafted beyond is not kept: the next request finds the same prefix as without.
        let next = [&request.prompt[..], &tokens].concat();
        let reader = harness.submit(greedy(&next, 1));
        let cached = harness.finish(reader).usage().cached_tokens;
        assert_eq!(cached, 8 + count - 1);
        harness.assert_empty();
    }
}

#[test]
fn stop_string_inside_block_ends_request() {
    const TEXT: &str = "One, two – three; four, five.";
    let path = loquat_testkit::goldens::fixtures().join("goldens/llama");
    let tokenizer = Tokenizer::from_huggingface(&path).expect("the golden tokenizer");
    let script = tokenizer.encode(TEXT, Special::PLAIN).expect("tokens");
    let fake = FakeOptions {
        vocab_size: tokenizer.vocab_size(),
        script: script.clone(),
        ..even_steps()
    };
    let answer = |options, proposer: Option<RightProposer>, request: &GenerateRequest| {
        let tokenizer = Some(tokenizer.clone());
        let mut harness = Harness::with_tokenizer(fake.clone(), tokenizer, options);
        if let Some(proposer) = proposer {
            harness.propose(proposer);
        }
        let reader = harness.submit(request.clone());
        let reader = harness.finish(reader);
        let (accepted, text) = (reader.timings().drafts.accepted, reader.text.clone());
        let Some(End::Finished { reason, usage, .. }) = reader.ends.first() else {
            panic!("{:?}", reader.ends);
        };
        let all = (text, reader.ids(), *reason, *usage);
        harness.assert_empty();
        (all, accepted)
    };
    // Any two characters, so that the stop ends almost anywhere in the block. One character has
    // several tokens.
    let ends: Vec<usize> = TEXT.char_indices().map(|(at, _)| at).collect();
    for window in ends.windows(3).skip(1) {
        let stop = &TEXT[window[0]..window[2]];
        let begin = TEXT.find(stop).expect("it is there");
        let request = GenerateRequest {
            stop: vec!["absent".to_owned(), stop.to_owned()],
            ..greedy(&[0], 2 * script.len())
        };
        let answers = Answers::default();
        answers.add(&request.prompt, &script);
        let (plain, _) = answer(without_drafts(), None, &request);
        let proposer = Some(RightProposer(answers));
        let (drafted, accepted) = answer(EngineOptions::default(), proposer, &request);
        assert_eq!(drafted, plain, "{stop:?}");
        let (text, ids, reason, usage) = drafted;
        assert_eq!(text, TEXT[..begin], "{stop:?}");
        assert_eq!(reason, FinishReason::StopString(1));
        let count = begin + stop.len();
        assert_eq!((ids.len(), usage.completion_tokens), (count, count));
        // The first token comes with the prompt; all others come from one block.
        assert_eq!(accepted, count - 1, "{stop:?}");
    }
}

#[test]
fn blocks_end_with_max_tokens_and_context() {
    for max_tokens in 1..=10 {
        let fake = FakeOptions {
            max_context: 8 + max_tokens,
            kv_capacity: 32,
            ..even_steps()
        };
        let request = greedy(&prompt(1, 8), max_tokens);
        let mut harness = always_right(fake, std::slice::from_ref(&request));
        let reader = harness.submit(request.clone());
        assert_eq!(harness.finish(reader).ids(), alone(request));
        let drafted = harness.engine.stats().speculation.draft_tokens;
        // The first token comes with the prompt, the last one after the last draft.
        assert_eq!(drafted, max_tokens.saturating_sub(2) as u64);
        harness.assert_empty();
    }
}

#[test]
fn slow_reader_pauses_inside_block() {
    let request = greedy(&prompt(1, 8), 30);
    let answers = Answers::default();
    answers.add(&request.prompt, &alone(request.clone()));
    let mut harness = Harness::new(
        even_steps(),
        EngineOptions {
            event_buffer: 4,
            ..EngineOptions::default()
        },
    );
    harness.propose(RightProposer(answers));
    let reader = harness.submit(request.clone());
    harness.readers[reader].habit = ReaderBehaviour::Stalled;
    harness.turns(20);
    assert_eq!(harness.engine.stats().totals.completion_tokens, 4);
    harness.readers[reader].habit = ReaderBehaviour::Eager;
    assert_eq!(harness.finish(reader).ids(), alone(request));
}

#[test]
fn request_limits_its_drafts() {
    for (own, drafts) in [(Some(0), 0), (Some(1), 4), (Some(3), 6)] {
        let request = GenerateRequest {
            draft_tokens: own,
            ..greedy(&prompt(1, 8), 9)
        };
        let mut harness = always_right(even_steps(), std::slice::from_ref(&request));
        harness.answer(request);
        assert_eq!(
            harness.engine.stats().speculation.draft_tokens,
            drafts,
            "{own:?}"
        );
    }
}

fn guided(run: usize, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        constraint: PatternConstraint::new(run, None).constrained(),
        ..request
    }
}

#[test]
fn constraint_masks_drafts() {
    // Every draft is forbidden; none is verified.
    struct Forbidden;
    impl Proposer for Forbidden {
        fn propose(&mut self, requests: &mut [ProposalRequest<'_>]) {
            requests
                .iter_mut()
                .for_each(|request| request.drafts.extend([40; 4]));
        }
        fn forget(&mut self, _sequence: u64) {}
    }
    let request = guided(3, sampled(&prompt(1, 8), 24, 1));
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    harness.propose(Forbidden);
    assert_eq!(harness.answer(request.clone()), alone(request));
    let stats = harness.engine.stats().speculation;
    // Each is replaced by what is forced after it, if it was chosen.
    assert!(stats.accepted_tokens < stats.draft_tokens / 2, "{stats:?}");
}

#[test]
fn forced_tokens_are_free_drafts() {
    // With log-probabilities, each forced token needs logits; one step gives all of them.
    let request = GenerateRequest {
        logprobs: Some(Logprobs::for_model(2)),
        ..guided(5, sampled(&prompt(1, 8), 24, 1))
    };
    let run = |options: EngineOptions| {
        let mut harness = Harness::new(even_steps(), options);
        let reader = harness.submit(request.clone());
        let reader = harness.finish(reader);
        let steps = reader.times.last().expect("a token").as_millis() / 10;
        (reader.tokens.clone(), steps)
    };
    let (tokens, steps) = run(without_drafts());
    assert_eq!(steps, 24);
    let (same, fewer) = run(EngineOptions::default());
    assert_eq!(same, tokens);
    assert!(fewer <= 12, "{fewer} steps");
}

/// A device on which a token in a row costs `token` beside a step's `step`.
fn device(step: u64, token: u64) -> FakeOptions {
    FakeOptions {
        cost: Cost {
            step: Duration::from_micros(step),
            token: Duration::from_micros(token),
            ..Cost::default()
        },
        ..FakeOptions::default()
    }
}

/// The time of some requests at once with and without drafts, which the engine limits itself. The
/// proposer is right with this probability.
fn speedup(fake: &FakeOptions, requests: &[GenerateRequest], percent_right: usize) -> f64 {
    let run = |mut harness: Harness| {
        for request in requests {
            harness.submit(request.clone());
        }
        harness.finish_all();
        harness.clock.elapsed().as_secs_f64()
    };
    let plain = run(Harness::new(fake.clone(), without_drafts()));
    let answers = Answers::default();
    for request in requests {
        answers.add(&request.prompt, &alone(request.clone()));
    }
    let proposer = SometimesRight {
        rng: SeededRng::new(1),
        answers,
        percent_right,
    };
    let mut harness = Harness::new(fake.clone(), EngineOptions::default());
    let speculator = &mut harness.worker.speculator;
    speculator.replace(Box::new(proposer), false);
    plain / run(harness)
}

struct SometimesRight {
    rng: SeededRng,
    answers: Answers,
    percent_right: usize,
}

impl Proposer for SometimesRight {
    fn propose(&mut self, requests: &mut [ProposalRequest<'_>]) {
        for request in requests {
            let answer = self.answers.after(request.sequence, request.tokens.len());
            let drafts = answer.into_iter().take(request.most);
            let draft = |token| {
                if self.rng.percent(self.percent_right) {
                    token
                } else {
                    token ^ 1
                }
            };
            request.drafts.extend(drafts.map(draft));
        }
    }

    fn forget(&mut self, _sequence: u64) {}
}

#[test]
fn depth_follows_acceptance_and_cost() {
    // (a step's cost, a token's, streams, right of a hundred drafts, least and most speedup)
    let cases = [
        // Memory-bound: tokens cost next to nothing.
        (1000, 10, 1, 98, 5.0, 40.0),
        (1000, 10, 1, 80, 2.5, 5.0),
        (1000, 10, 1, 40, 1.2, 1.7),
        (1000, 10, 8, 80, 2.0, 5.0),
        // Nothing is right.
        (1000, 10, 1, 0, 0.98, 1.0),
        // Tokens cost a third of a step.
        (1000, 500, 1, 98, 1.8, 4.0),
        (1000, 500, 1, 20, 0.97, 1.05),
        // Compute-bound: what is verified costs as much as what is decoded.
        (10, 1000, 1, 98, 0.97, 1.05),
        (10, 1000, 8, 80, 0.97, 1.05),
        (1000, 400, 32, 60, 0.97, 1.05),
    ];
    for (step, token, streams, percent, least, most) in cases {
        let requests = (0..streams).map(|kind| greedy(&prompt(kind, 20), 300));
        let requests: Vec<GenerateRequest> = requests.collect();
        let gain = speedup(&device(step, token), &requests, percent);
        let case = format!("{step} + {token} per token, {streams} streams, {percent} %");
        assert!((least..=most).contains(&gain), "{case}: {gain:.3}");
    }
}

#[test]
fn neighbours_without_drafts_are_slowed_little() {
    let fake = device(1000, 20);
    let quick = greedy(&prompt(1, 20), 200);
    let other = GenerateRequest {
        draft_tokens: Some(0),
        ..greedy(&prompt(2, 20), 200)
    };
    let time = |harness: &mut Harness| {
        harness.submit(quick.clone());
        let other = harness.submit(other.clone());
        harness.finish_all();
        harness.readers[other].timings().decode.as_secs_f64()
    };
    let plain = time(&mut Harness::new(fake.clone(), without_drafts()));
    let answers = Answers::default();
    for request in [&quick, &other] {
        answers.add(&request.prompt, &alone(request.clone()));
    }
    let mut harness = Harness::new(fake, EngineOptions::default());
    let speculator = &mut harness.worker.speculator;
    speculator.replace(Box::new(RightProposer(answers)), false);
    let drafted = time(&mut harness);
    assert!(harness.engine.stats().speculation.accepted_tokens > 50);
    assert!(drafted < 1.03 * plain, "{drafted} instead of {plain}");
}

#[test]
fn drafts_of_few_streams_do_not_slow_the_batch() {
    // One more token lengthens a step of eight streams by 4 %.
    let fake = device(1000, 60);
    let requests: Vec<GenerateRequest> = (0..8)
        .map(|kind| GenerateRequest {
            draft_tokens: (kind > 1).then_some(0),
            ..greedy(&prompt(kind, 20), 300)
        })
        .collect();
    let gain = speedup(&fake, &requests, 90);
    assert!(gain > 0.99, "{gain:.3}");
}

#[test]
fn steps_with_prompts_have_no_drafts() {
    let long = greedy(&prompt(1, 8), 60);
    let late = greedy(&prompt(2, 100), 1);
    let mut harness = always_right(
        FakeOptions {
            max_step_tokens: 16,
            ..even_steps()
        },
        &[long.clone(), late.clone()],
    );
    let first = harness.submit(GenerateRequest {
        draft_tokens: Some(1),
        ..long.clone()
    });
    harness.turns(3);
    let before = harness.engine.stats().speculation.draft_tokens;
    assert!(before > 0);
    let late = harness.submit(late);
    harness.turns(4);
    assert!(!harness.readers[late].has_ended());
    assert_eq!(harness.engine.stats().speculation.draft_tokens, before);
    harness.finish(late);
    assert_eq!(harness.finish(first).ids(), alone(long));
}

#[test]
fn modes_follow_what_sessions_can() {
    let speculates = |fake: FakeOptions, mode| {
        let speculation = SpeculationOptions {
            mode,
            ..SpeculationOptions::default()
        };
        let options = EngineOptions {
            speculation,
            ..one_at_a_time()
        };
        let engine = crate::Engine::start(Box::new(FakeSession::new(fake)), None, options);
        engine.map(|engine| engine.speculates())
    };
    let mut whole = even_steps();
    whole.media.attention = loquat_spec::MediaAttention::FirstRow;
    for (fake, mode, expected) in [
        (even_steps(), SpeculationMode::Auto, true),
        (even_steps(), SpeculationMode::Off, false),
        (even_steps(), SpeculationMode::Lookup, true),
        (recurrent(), SpeculationMode::Auto, true),
        (whole.clone(), SpeculationMode::Auto, false),
    ] {
        assert_eq!(speculates(fake, mode), Ok(expected), "{mode:?}");
    }
    let refused = speculates(whole, SpeculationMode::Lookup).expect_err("it cannot be cut");
    assert!(refused.to_string().contains("speculation"), "{refused}");
}

/// What the model gives after `tokens`, asked directly.
struct Model(FakeSession);

impl Model {
    fn logits(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<f32>> {
        let session = &mut self.0;
        let sequence = session.create().expect("a sequence");
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        batch.push(sequence, tokens, Emit::Logits { positions: count });
        session.step(&batch, &mut output).expect("a step");
        session.release(sequence).expect("it is alive");
        (0..count).map(|at| output.logits(0, at).to_vec()).collect()
    }
}

const SMALL_VOCABULARY: usize = 9;
const DRAWS: usize = 64;

/// Draws through random drafts, compared with the exact chain: every draw is mapped to the unit
/// interval by the exact distribution, at random within its share, and must come out uniform.
fn chi_square(name: &str, params: &SamplingParams, draws: usize, constrained: bool) {
    const BINS: usize = 40;
    let fake = FakeOptions {
        vocab_size: SMALL_VOCABULARY,
        max_step_tokens: 256,
        ..device(1000, 10)
    };
    let mut model = Model(FakeSession::new(fake.clone()));
    let mut rng = SeededRng::new(5);
    let mut bins = [0usize; BINS];
    let mut accepted = 0;
    for seed in 0..draws.div_ceil(DRAWS) {
        let request = GenerateRequest {
            prompt: (0..6)
                .map(|_| rng.number(0..=SMALL_VOCABULARY - 1) as u32)
                .collect(),
            max_tokens: DRAWS,
            sampling: SamplingParams {
                seed: Some(seed as u64),
                ..params.clone()
            },
            constraint: constrained
                .then(|| PatternConstraint::new(0, None).constrained())
                .flatten(),
            ..GenerateRequest::default()
        };
        // Drafts are right more often if they are the likeliest tokens, as those of real proposers.
        let likeliest = Harness::new(fake.clone(), without_drafts()).answer(GenerateRequest {
            sampling: SamplingParams::greedy(),
            constraint: None,
            ..request.clone()
        });
        let answers = Answers::default();
        answers.add(&request.prompt, &likeliest);
        let mut harness = Harness::new(fake.clone(), EngineOptions::default());
        harness.propose(RandomProposer::new(seed as u64, SMALL_VOCABULARY, answers));
        let output = harness.answer(request.clone());
        accepted += harness.engine.stats().speculation.accepted_tokens;
        let text = [&request.prompt[..], &output].concat();
        let logits = model.logits(&text[..text.len() - 1], output.len());
        for (at, (token, logits)) in output.iter().zip(&logits).enumerate() {
            let mask = constrained.then(|| mask(at.checked_sub(1).map_or(0, |at| output[at])));
            let past = Past {
                prompt: &request.prompt,
                output: &output[..at],
                stop_ids: &[],
                breakers: &[],
                allowed: mask.as_ref(),
            };
            let exact = distribution(params, &past, logits);
            let below: f64 = exact
                .iter()
                .filter(|(id, _)| id < token)
                .map(|(_, p)| p)
                .sum();
            let own = exact.iter().find(|(id, _)| id == token);
            let own = own.map(|(_, p)| *p).expect("a possible token");
            let unit = rng.number(0..=999_999) as f64 / 1e6;
            let bin = ((below + own * unit) * BINS as f64) as usize;
            bins[bin.min(BINS - 1)] += 1;
        }
    }
    let total: usize = bins.iter().sum();
    assert!(
        accepted as usize > total / 20,
        "{name}: {accepted} drafts accepted"
    );
    let expected = total as f64 / BINS as f64;
    let squares = bins
        .iter()
        .map(|bin| (*bin as f64 - expected).powi(2) / expected);
    let found: f64 = squares.sum();
    // Of 39 degrees of freedom, one in a hundred thousand exceeds this.
    assert!(
        found < 90.0,
        "{name}: chi-square {found:.1} of {total} draws"
    );
}

/// The mask of `PatternConstraint` without forced runs.
fn mask(last: u32) -> TokenMask {
    let mut mask = TokenMask::none(SMALL_VOCABULARY);
    for id in 0..SMALL_VOCABULARY as u32 {
        if last % 5 == 4 || id % 3 == last % 3 {
            mask.allow(id);
        }
    }
    mask
}

#[test]
fn drafted_draws_follow_exact_chain() {
    let is_full = std::env::var_os("LOQUAT_FULL").is_some_and(|value| value == "1");
    let draws = if is_full { 200_000 } else { 6_400 };
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, bool, Change); 12] = [
        ("plain", false, |_| ()),
        ("temperature", false, |p| p.temperature = 3.0),
        ("low temperature", false, |p| p.temperature = 0.6),
        ("top_k", false, |p| (p.temperature, p.top_k) = (4.0, 3)),
        ("top_p", false, |p| (p.temperature, p.top_p) = (4.0, 0.7)),
        ("min_p", false, |p| (p.temperature, p.min_p) = (4.0, 0.2)),
        ("typical_p", false, |p| {
            (p.temperature, p.typical_p) = (4.0, 0.6)
        }),
        ("penalties", false, |p| {
            (p.temperature, p.repetition_penalty) = (3.0, 1.4);
            (p.presence_penalty, p.frequency_penalty) = (0.3, 0.2);
        }),
        ("recent penalties", false, |p| {
            (p.temperature, p.repetition_penalty, p.penalty_last_n) = (3.0, 1.4, 5);
        }),
        ("bias", false, |p| {
            (p.temperature, p.logit_bias) = (3.0, vec![(2, 4.0), (5, -3.0)]);
        }),
        ("constraint", true, |p| p.temperature = 3.0),
        ("all", true, |p| {
            (p.temperature, p.top_k, p.top_p, p.min_p) = (2.5, 6, 0.95, 0.02);
            (p.repetition_penalty, p.frequency_penalty) = (1.2, 0.1);
            p.logit_bias = vec![(2, 1.0)];
        }),
    ];
    for (name, constrained, change) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        chi_square(name, &params, draws, constrained);
    }
}
