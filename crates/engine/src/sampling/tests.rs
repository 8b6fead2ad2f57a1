use super::*;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Logits whose softmax is 0.5, 0.25, 0.125, 0.125.
fn halves() -> Vec<f32> {
    [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec()
}

fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    change(&mut params);
    params
}

/// How often each token is drawn in `draws` tries from one random stream.
fn frequencies(params: SamplingParams, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(params, 7, &[]);
    let mut scratch = Scratch::default();
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        let info = sampler
            .sample(&mut logits.to_vec(), None, &mut scratch)
            .expect("a token");
        counts[info.id as usize] += 1;
    }
    counts
}

#[test]
fn draws_follow_hand_computed_distributions() {
    let cases: [(&str, SamplingParams, [f64; 4]); 10] = [
        ("plain", params(|_| ()), [0.5, 0.25, 0.125, 0.125]),
        (
            "temperature 1/2 squares",
            params(|p| p.temperature = 0.5),
            [16.0 / 22.0, 4.0 / 22.0, 1.0 / 22.0, 1.0 / 22.0],
        ),
        (
            "top_k",
            params(|p| p.top_k = 2),
            [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
        ),
        (
            "top_k breaks a tie by id",
            params(|p| p.top_k = 3),
            [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0],
        ),
        (
            "top_p",
            params(|p| p.top_p = 0.7),
            [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
        ),
        (
            "top_p keeps one",
            params(|p| p.top_p = 0.0),
            [1.0, 0.0, 0.0, 0.0],
        ),
        (
            "min_p",
            params(|p| p.min_p = 0.4),
            [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
        ),
        (
            "top_p of what top_k left",
            params(|p| (p.top_k, p.top_p) = (2, 0.6)),
            [1.0, 0.0, 0.0, 0.0],
        ),
        (
            "min_p of what top_p left",
            params(|p| (p.top_p, p.min_p) = (0.8, 0.3)),
            [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
        ),
        (
            "bias",
            params(|p| p.logit_bias = vec![(0, -100.0), (1, 2f32.ln())]),
            [0.0, 2.0 / 3.0, 1.0 / 6.0, 1.0 / 6.0],
        ),
    ];
    const DRAWS: usize = 20_000;
    for (name, params, expected) in cases {
        let counts = frequencies(params, &halves(), DRAWS);
        let mut chi_square = 0.0;
        for (count, share) in counts.iter().zip(expected) {
            let wanted = share * DRAWS as f64;
            if share == 0.0 {
                assert_eq!(*count, 0, "{name}: {counts:?}");
            } else {
                chi_square += (*count as f64 - wanted).powi(2) / wanted;
            }
        }
        // Three degrees of freedom exceed 16.27 once in a thousand; the seed is fixed.
        assert!(chi_square < 16.27, "{name}: {counts:?} gives {chi_square}");
    }
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id() {
    type Case<'a> = (&'a [f32], Vec<(u32, f32)>, u32);
    let cases: [Case<'_>; 5] = [
        (&[0.0, 2.0, 1.0], vec![], 1),
        (&[3.0, 3.0, 3.0], vec![], 0),
        (&[0.0, 2.0, 1.0], vec![(2, 1.5)], 2),
        (&[0.0, 2.0, 1.0], vec![(1, -100.0)], 2),
        (&[0.0, 2.0, 1.0], vec![(0, 1.5), (0, 1.5)], 0),
    ];
    for (logits, bias, expected) in cases {
        let params = params(|p| (p.temperature, p.logit_bias) = (0.0, bias));
        assert_eq!(frequencies(params, logits, 1)[expected as usize], 1);
    }
}

#[test]
fn penalties_move_logits_as_documented() {
    let prompt = [0, 1, 1];
    let output = [2, 2, 3];
    let logits = [2.0f32, -2.0, 2.0, -2.0, 2.0];
    let cases = [
        (params(|_| ()), [2.0, -2.0, 2.0, -2.0, 2.0]),
        (
            params(|p| p.repetition_penalty = 2.0),
            [1.0, -4.0, 1.0, -4.0, 2.0],
        ),
        (
            params(|p| p.presence_penalty = 0.5),
            [2.0, -2.0, 1.5, -2.5, 2.0],
        ),
        (
            params(|p| p.frequency_penalty = 0.5),
            [2.0, -2.0, 1.0, -2.5, 2.0],
        ),
        (
            params(|p| {
                (
                    p.repetition_penalty,
                    p.presence_penalty,
                    p.frequency_penalty,
                ) = (2.0, 1.0, -0.5)
            }),
            [1.0, -4.0, 1.0, -4.5, 2.0],
        ),
    ];
    for (params, expected) in cases {
        let mut sampler = Sampler::new(params.clone(), 0, &prompt);
        for id in output {
            sampler.observe(id).expect("no constraint");
        }
        let mut found = logits;
        sampler.penalise(&mut found);
        assert_eq!(found, expected, "{params:?}");
    }
}

#[test]
fn hostile_logits_give_a_token_or_a_typed_error() {
    let modes = [
        SamplingParams::greedy(),
        params(|_| ()),
        params(|p| p.top_k = 2),
        params(|p| p.top_p = 0.9),
        params(|p| p.min_p = 0.1),
        params(|p| p.temperature = 1e-30),
        params(|p| p.temperature = 100.0),
    ];
    let rows: [(&[f32], &[u32]); 8] = [
        (&[NAN, 1.0, NAN, 1.0], &[1, 3]),
        (&[0.0, INF, 0.0], &[1]),
        (&[0.0, INF, INF], &[1, 2]),
        (&[-INF, -INF, 0.0, -INF], &[2]),
        (&[NAN, INF, -INF], &[1]),
        (&[f32::MAX, f32::MIN, f32::MIN], &[0]),
        (&[NAN, NAN], &[]),
        (&[-INF, -INF, -INF], &[]),
    ];
    for mode in &modes {
        for (row, legal) in rows {
            for alternatives in [None, Some(3)] {
                let mut sampler = Sampler::new(mode.clone(), 3, &[]);
                let mut scratch = Scratch::default();
                match sampler.sample(&mut row.to_vec(), alternatives, &mut scratch) {
                    Ok(info) => {
                        assert!(legal.contains(&info.id), "{mode:?} {row:?} {info:?}");
                        let logprobs = info.top.iter().map(|t| t.1).chain(info.logprob);
                        assert!(logprobs.into_iter().all(|l| l <= 0.0), "{info:?}");
                    }
                    Err(error) => {
                        assert_eq!(error, EngineError::NoCandidate);
                        assert!(legal.is_empty(), "{mode:?} {row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn logprobs_are_the_models_own() {
    let adjusted = params(|p| {
        (p.temperature, p.top_k, p.repetition_penalty) = (0.3, 1, 4.0);
        p.logit_bias = vec![(3, 100.0)];
    });
    let mut sampler = Sampler::new(adjusted, 1, &[0, 1, 2]);
    let mut scratch = Scratch::default();
    let info = sampler
        .sample(&mut halves(), Some(2), &mut scratch)
        .expect("a token");
    assert_eq!(info.id, 3);
    let close = |found: f32, share: f32| (found - share.ln()).abs() < 1e-6;
    assert!(close(info.logprob.expect("asked for"), 0.125), "{info:?}");
    assert_eq!(info.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert!(
        close(info.top[0].1, 0.5) && close(info.top[1].1, 0.25),
        "{info:?}"
    );
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let logits = vec![0.0; 64];
    let run = |seed, alternatives| -> Vec<u32> {
        let mut sampler = Sampler::new(SamplingParams::default(), seed, &[]);
        let mut scratch = Scratch::default();
        let mut next = || sampler.sample(&mut logits.clone(), alternatives, &mut scratch);
        (0..32).map(|_| next().expect("a token").id).collect()
    };
    assert_eq!(run(1, None), run(1, Some(5)));
    assert_ne!(run(1, None), run(2, None));
    assert_ne!(fresh_seed(), fresh_seed());
}
