//! Sessions that draw tokens by themselves.

use crate::support::*;
use loquat_engine::{EngineOptions, GenerateRequest, Logprobs, Sampler, SamplingParams};
use loquat_session::{Emit, Session, StepBatch, StepOutput};
use loquat_testkit::fake_session::{FakeOptions, FakeSession};

const PROMPT: [u32; 5] = [7, 3, 9, 1, 4];
const SEED: u64 = 11;

fn drawing() -> FakeOptions {
    FakeOptions {
        draws: true,
        ..FakeOptions::default()
    }
}

/// What a program without an engine gets from the session for the same request.
fn bare(request: &GenerateRequest) -> Vec<u32> {
    let mut session = FakeSession::new(drawing());
    let mut sampler = Sampler::new(request.sampling.clone(), SEED, &request.prompt, &[]);
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut next = request.prompt.clone();
    let mut tokens = Vec::new();
    while tokens.len() < request.max_tokens {
        let draw = sampler.next_draw().unwrap();
        assert_eq!(sampler.next_draw(), Some(draw), "the same until it is used");
        batch.clear();
        batch.push(sequence, &next, Emit::Drawn(draw));
        session.step(&batch, &mut output).unwrap();
        sampler.record_draw();
        next = output.tokens(0).to_vec();
        tokens.extend(&next);
    }
    tokens
}

#[test]
fn plain_sampling_runs_on_the_session() {
    let request = sampled(&PROMPT, 20, SEED);
    let expected = bare(&request);
    let (engine, _) = start(drawing(), EngineOptions::default());
    assert_eq!(ids(&engine, request.clone()), expected);
    // Beside others, and again.
    let others: Vec<_> = (0..6)
        .map(|seed| engine.submit(sampled(&[1, 2, 3], 12, seed)).unwrap())
        .collect();
    assert_eq!(ids(&engine, request), expected);
    for other in others {
        assert_eq!(other.collect_blocking().unwrap().ids().len(), 12);
    }
}

#[test]
fn complex_sampling_uses_logits() {
    let plain = sampled(&PROMPT, 12, SEED);
    let with = |change: fn(&mut SamplingParams)| {
        let mut request = plain.clone();
        change(&mut request.sampling);
        request
    };
    let requests = [
        with(|params| params.repetition_penalty = 1.3),
        with(|params| params.logit_bias = vec![(3, 2.0)]),
        with(|params| params.min_tokens = 3),
        with(|params| params.xtc_probability = 0.5),
        with(|params| params.order.reverse()),
        with(|params| params.temperature = 0.0),
        GenerateRequest {
            logprobs: Some(Logprobs::for_model(0)),
            ..plain.clone()
        },
    ];
    for request in requests {
        let (drawing, _) = start(drawing(), EngineOptions::default());
        let (other, _) = start_default();
        assert_eq!(
            ids(&drawing, request.clone()),
            ids(&other, request.clone()),
            "{request:?}"
        );
    }
}
