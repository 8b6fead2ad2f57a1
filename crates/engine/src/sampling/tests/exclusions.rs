//! Forbidden tokens stay forbidden; if no token is left, the error says why.

use super::*;

fn possible(sampler: &mut Sampler, allowed: Option<&TokenMask>) -> Result<Vec<u32>, EngineError> {
    let shares = distribution(sampler, &[0.0; 5], allowed)?;
    Ok(shares.into_iter().map(|share| share.0).collect())
}

fn mask(ids: &[u32]) -> TokenMask {
    let mut mask = TokenMask::none(5);
    ids.iter().for_each(|&id| mask.allow(id));
    mask
}

#[test]
fn bad_words_are_never_completed() {
    let bad = params(|p| p.bad_words = vec![vec![0], vec![1, 2], vec![3, 1, 4]]);
    let cases: [(&[u32], &[u32], &[u32]); 6] = [
        (&[], &[], &[1, 2, 3, 4]),
        (&[1], &[], &[1, 3, 4]),
        (&[3], &[1], &[1, 3]),
        (&[3, 1], &[], &[1, 3]),
        (&[], &[3, 1], &[1, 3]),
        (&[], &[3, 1, 2], &[1, 2, 3, 4]),
    ];
    for (prompt, output, expected) in cases {
        let mut sampler = Sampler::new(bad.clone(), 0, prompt, &[]);
        output.iter().for_each(|&id| sampler.observe(id));
        let found = possible(&mut sampler, None);
        assert_eq!(found.as_deref(), Ok(expected), "{prompt:?} {output:?}");
    }
}

#[test]
fn stop_tokens_wait_for_min_tokens() {
    let mut sampler = Sampler::new(params(|p| p.min_tokens = 2), 0, &[7, 7, 7], &[1, 4]);
    for expected in [&[0, 2, 3][..], &[0, 2, 3], &[0, 1, 2, 3, 4]] {
        assert_eq!(possible(&mut sampler, None).as_deref(), Ok(expected));
        sampler.observe(0);
    }
}

#[test]
fn masked_tokens_stay_masked() {
    let pushed = params(|p| {
        p.logit_bias = vec![(0, 100.0)];
        (p.presence_penalty, p.repetition_penalty) = (-2.0, 0.01);
        (p.top_k, p.xtc_probability, p.xtc_threshold) = (3, 1.0, 0.0);
    });
    let mut orders = vec![DEFAULT_ORDER.to_vec()];
    orders.push(DEFAULT_ORDER.iter().rev().copied().collect());
    for order in orders {
        let params = SamplingParams {
            order,
            ..pushed.clone()
        };
        let mut sampler = Sampler::new(params, 0, &[0], &[]);
        sampler.observe(0);
        for ids in [&[2][..], &[1, 2], &[1, 2, 3, 4]] {
            let found = possible(&mut sampler, Some(&mask(ids))).expect("tokens");
            assert!(found.iter().all(|id| ids.contains(id)), "{found:?}");
        }
    }
}

#[test]
fn empty_candidates_name_the_cause() {
    let greedy = || SamplingParams::greedy();
    let forbids = |p: SamplingParams| SamplingParams {
        bad_words: (0..5).map(|id| vec![id]).collect(),
        ..p
    };
    let none = mask(&[]);
    let unsupported = EngineError::Unsupported {
        field: "sampling",
        why: "`bad_words`, `allowed_tokens` and `min_tokens` leave no token to choose",
    };
    for params in [greedy(), SamplingParams::default()] {
        let cases = [
            (params.clone(), Some(&none), ConstraintError::NoToken.into()),
            (
                forbids(params.clone()),
                Some(&none),
                ConstraintError::AllTokensExcluded.into(),
            ),
            (forbids(params.clone()), None, unsupported.clone()),
        ];
        for (params, allowed, expected) in cases {
            assert_eq!(possible(&mut sampler(params, 0), allowed), Err(expected));
        }
        let row = [NAN, -INF];
        let nothing = distribution(&mut sampler(params, 0), &row, None);
        assert_eq!(nothing, Err(EngineError::NoCandidate));
    }
}

#[test]
fn greedy_reads_logits_only_if_needed() {
    type Change = fn(&mut SamplingParams);
    let cases: [(Change, bool); 14] = [
        (|_| (), true),
        (|p| (p.top_k, p.top_p, p.min_p) = (40, 0.9, 0.1), true),
        (|p| (p.top_n_sigma, p.mirostat) = (1.0, 2), true),
        (|p| p.temperature = 1.0, false),
        (|p| p.dynatemp_range = 0.5, false),
        (|p| p.repetition_penalty = 1.1, false),
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (1.1, 0),
            true,
        ),
        (|p| p.dry_multiplier = 0.8, false),
        (|p| p.logit_bias = vec![(0, 1.0)], false),
        (|p| p.bad_words = vec![vec![0]], false),
        (|p| p.allowed_tokens = vec![0], false),
        (|p| p.min_tokens = 1, false),
        (|p| p.typical_p = 0.5, false),
        (|p| p.xtc_probability = 0.5, false),
    ];
    for (change, expected) in cases {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        assert_eq!(params.is_plain_greedy(), expected, "{params:?}");
    }
}
