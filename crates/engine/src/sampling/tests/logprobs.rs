//! Log-probabilities of the model's distribution and of the sampled one.

use super::*;

fn close(found: f32, share: f32) -> bool {
    (found - share.ln()).abs() < 1e-6
}

fn sample_info(
    params: SamplingParams,
    distribution: Distribution,
    alternatives: usize,
) -> TokenInfo {
    let logprobs = Logprobs {
        alternatives,
        distribution,
    };
    let mut sampler = Sampler::new(params, 1, &[0, 1, 2], &[]);
    let sampled = sampler.sample(
        &mut halves(),
        None,
        Some(logprobs),
        &mut SamplerScratch::default(),
    );
    sampled.expect("a token")
}

#[test]
fn model_logprobs_are_unadjusted() {
    let adjusted = params(|p| {
        (p.temperature, p.top_k, p.repetition_penalty) = (0.3, 1, 4.0);
        p.logit_bias = vec![(3, 100.0)];
    });
    let info = sample_info(adjusted, Distribution::Model, 2);
    assert_eq!(info.id, 3);
    assert!(close(info.logprob.expect("asked for"), 0.125), "{info:?}");
    assert_eq!(info.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert!(
        close(info.top[0].1, 0.5) && close(info.top[1].1, 0.25),
        "{info:?}"
    );
}

#[test]
fn sampled_logprobs_match_draw() {
    type Case = (fn(&mut SamplingParams), usize, &'static [(u32, f32)]);
    let cases: [Case; 6] = [
        (|p| p.top_k = 2, 9, &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]),
        (|p| p.top_k = 2, 1, &[(0, 2.0 / 3.0)]),
        (|p| p.top_k = 2, 0, &[]),
        (
            |p| p.temperature = 0.5,
            2,
            &[(0, 16.0 / 22.0), (1, 4.0 / 22.0)],
        ),
        (|p| p.temperature = 0.0, 4, &[(0, 1.0)]),
        (|p| p.logit_bias = vec![(3, 100.0)], 1, &[(3, 1.0)]),
    ];
    for (change, alternatives, expected) in cases {
        let info = sample_info(params(change), Distribution::Sampled, alternatives);
        assert_eq!(info.top.len(), expected.len(), "{info:?}");
        for (found, (id, share)) in info.top.iter().zip(expected) {
            assert!(found.0 == *id && close(found.1, *share), "{info:?}");
        }
        let own = info.top.iter().find(|top| top.0 == info.id);
        assert!(
            own.is_none_or(|top| Some(top.1) == info.logprob),
            "{info:?}"
        );
    }
}

#[test]
fn forced_token_has_logprobs() {
    let sampler = sampler(params(|p| p.top_k = 1), 0);
    let mut scratch = SamplerScratch::default();
    let mut forced = |distribution, alternatives| {
        let logprobs = Some(Logprobs {
            alternatives,
            distribution,
        });
        let info = sampler.score_forced(3, &halves(), logprobs, &mut scratch);
        info.expect("a token")
    };
    let model = forced(Distribution::Model, 1);
    assert_eq!((model.id, model.top[0].0), (3, 0));
    assert!(close(model.logprob.expect("asked for"), 0.125), "{model:?}");
    for (alternatives, top) in [(0, vec![]), (4, vec![(3, 0.0)])] {
        let sampled = forced(Distribution::Sampled, alternatives);
        assert_eq!((sampled.logprob, sampled.top), (Some(0.0), top));
    }
    let bare = sampler.score_forced(3, &[], None, &mut SamplerScratch::default());
    assert_eq!(bare, Ok(TokenInfo::bare(3)));
}
