//! An embedding depends only on its prompt, not on how the prompt was computed.

use loquat_testkit::fake_session::FakeOptions;

use super::harness::{Harness, even_steps, greedy, prompt, recurrent};
use crate::{EngineError, EngineOptions, FinishReason, GenerateRequest, Logprobs, Pooling};

const POOLINGS: [Pooling; 2] = [Pooling::Mean, Pooling::Last];

fn embed(prompt: &[u32], pooling: Pooling) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        embed: Some(pooling),
        ..GenerateRequest::default()
    }
}

fn embedded(harness: &mut Harness, request: GenerateRequest) -> Vec<f32> {
    let reader = harness.submit(request);
    let reader = harness.finish(reader);
    assert_eq!(reader.usage().completion_tokens, 0);
    let embedding = reader.embedding.clone();
    embedding.expect("an embedding")
}

/// In one step, by an engine that does nothing else.
fn alone(request: GenerateRequest) -> Vec<f32> {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    embedded(&mut harness, request)
}

fn in_chunks() -> EngineOptions {
    EngineOptions {
        step_tokens: Some(7),
        ..EngineOptions::default()
    }
}

#[test]
fn embedding_ignores_chunks_and_batch() {
    for fake in [even_steps(), recurrent()] {
        for pooling in POOLINGS {
            let mut harness = Harness::new(fake.clone(), in_chunks());
            let talker = harness.submit(greedy(&prompt(2, 30), 40));
            let request = || embed(&prompt(1, 100), pooling);
            assert_eq!(embedded(&mut harness, request()), alone(request()));
            harness.finish(talker);
            harness.assert_empty();
        }
    }
}

#[test]
fn prompts_and_poolings_change_embeddings() {
    let all = [
        alone(embed(&prompt(1, 100), Pooling::Mean)),
        alone(embed(&prompt(1, 100), Pooling::Last)),
        alone(embed(&prompt(1, 99), Pooling::Mean)),
        alone(embed(&prompt(2, 100), Pooling::Last)),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "{i}");
    }
    let one = |pooling| alone(embed(&[5], pooling));
    assert_eq!(one(Pooling::Mean), one(Pooling::Last));
}

#[test]
fn last_pooling_uses_the_cache() {
    for (pooling, cached) in [(Pooling::Mean, 0), (Pooling::Last, 99)] {
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        harness.answer(greedy(&prompt(1, 100), 1));
        let reader = harness.submit(embed(&prompt(1, 100), pooling));
        let reader = harness.finish(reader);
        assert_eq!(reader.usage().cached_tokens, cached, "{pooling:?}");
        let expected = alone(embed(&prompt(1, 100), pooling));
        assert_eq!(reader.embedding.as_ref(), Some(&expected), "{pooling:?}");
        // Other requests reuse what an embedding computed.
        let next = harness.submit(greedy(&prompt(1, 100), 1));
        assert_eq!(harness.finish(next).usage().cached_tokens, 99);
    }
}

#[test]
fn preempted_prompt_is_pooled_once() {
    let fake = FakeOptions {
        kv_capacity: 256,
        ..even_steps()
    };
    for pooling in POOLINGS {
        let mut harness = Harness::new(fake.clone(), in_chunks());
        let reader = harness.submit(embed(&prompt(1, 200), pooling));
        harness.turns(10);
        let urgent = harness.submit(GenerateRequest {
            priority: -100,
            ..greedy(&prompt(2, 150), 4)
        });
        harness.finish(urgent);
        assert!(
            harness.readers[reader].embedding.is_none(),
            "it was preempted"
        );
        assert_eq!(harness.engine.stats().totals.preempted, 1);
        let expected = alone(embed(&prompt(1, 200), pooling));
        assert_eq!(harness.finish(reader).embedding, Some(expected));
        harness.assert_empty();
    }
}

#[test]
fn ignored_options_are_refused_by_field() {
    let refused = |fake: FakeOptions, change: fn(&mut GenerateRequest)| {
        let harness = Harness::new(fake, EngineOptions::default());
        let mut request = embed(&[1, 2], Pooling::Mean);
        change(&mut request);
        match harness.engine.submit(request).map(|_| ()) {
            Err(EngineError::Unsupported { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    let with = |change| refused(even_steps(), change);
    assert_eq!(with(|r| r.max_tokens = 1), "max_tokens");
    assert_eq!(with(|r| r.prompt_logprobs = true), "prompt_logprobs");
    assert_eq!(
        with(|r| r.logprobs = Some(Logprobs::for_model(0))),
        "logprobs"
    );
    assert_eq!(with(|r| r.stop_ids = vec![1]), "stop_ids");
    assert_eq!(with(|r| r.sampling.top_k = 3), "sampling");
    let without = FakeOptions {
        hidden_size: None,
        ..even_steps()
    };
    assert_eq!(refused(without, |_| {}), "embed");
}

#[test]
fn embedding_finishes_without_tokens() {
    use super::harness::End;
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    let reader = harness.submit(embed(&prompt(1, 20), Pooling::Mean));
    let ends = &harness.finish(reader).ends;
    let [End::Finished { reason, .. }] = ends.as_slice() else {
        panic!("{ends:?}");
    };
    assert_eq!(*reason, FinishReason::Length);
    harness.assert_empty();
}
