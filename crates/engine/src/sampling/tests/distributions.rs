//! Tokens are drawn as often as their probabilities say.

use super::*;

/// How often each token is drawn in `draws` tries from one random stream.
fn frequencies(params: SamplingParams, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = sampler(params, 7);
    let mut scratch = SamplerScratch::default();
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        let info = sampler.sample(&mut logits.to_vec(), None, None, &mut scratch);
        counts[info.expect("a token").id as usize] += 1;
    }
    counts
}

/// Sums squared deviations from `expected`; nothing impossible was drawn.
fn chi_square(counts: &[usize], expected: &[f64], name: &str) -> f64 {
    let draws = counts.iter().sum::<usize>() as f64;
    let pairs = counts.iter().zip(expected);
    pairs
        .map(|(&count, share)| {
            let wanted = share * draws;
            assert!(count == 0 || *share > 0.0, "{name}: {counts:?}");
            if wanted > 0.0 {
                (count as f64 - wanted).powi(2) / wanted
            } else {
                0.0
            }
        })
        .sum()
}

#[test]
fn draws_follow_hand_computed_distributions() {
    type Case = (&'static str, fn(&mut SamplingParams), [f64; 4]);
    let cases: [Case; 15] = [
        ("plain", |_| (), [0.5, 0.25, 0.125, 0.125]),
        (
            "temperature 1/2 squares",
            |p| p.temperature = 0.5,
            [16.0 / 22.0, 4.0 / 22.0, 1.0 / 22.0, 1.0 / 22.0],
        ),
        ("top_k", |p| p.top_k = 2, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]),
        (
            "top_k breaks a tie by id",
            |p| p.top_k = 3,
            [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0],
        ),
        ("top_p", |p| p.top_p = 0.7, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]),
        ("top_p keeps one", |p| p.top_p = 0.0, [1.0, 0.0, 0.0, 0.0]),
        ("min_p", |p| p.min_p = 0.4, [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]),
        (
            "top_p after top_k",
            |p| (p.top_k, p.top_p) = (2, 0.6),
            [1.0, 0.0, 0.0, 0.0],
        ),
        (
            "min_p after top_p",
            |p| (p.top_p, p.min_p) = (0.8, 0.3),
            [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
        ),
        (
            "bias",
            |p| p.logit_bias = vec![(0, -100.0), (1, 2f32.ln())],
            [0.0, 2.0 / 3.0, 1.0 / 6.0, 1.0 / 6.0],
        ),
        (
            "typical_p: 1.75 bits are expected, the second token has 2 and the first 1",
            |p| p.typical_p = 0.2,
            [0.0, 1.0, 0.0, 0.0],
        ),
        (
            "xtc half of the time",
            |p| (p.xtc_probability, p.xtc_threshold) = (0.5, 0.2),
            [0.25, 0.375, 0.1875, 0.1875],
        ),
        (
            "xtc always, but only one token is that likely",
            |p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.3),
            [0.5, 0.25, 0.125, 0.125],
        ),
        (
            "allowed tokens",
            |p| p.allowed_tokens = vec![1, 3],
            [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0],
        ),
        (
            "a varying temperature that is 1 at 7/8 of the entropy",
            |p| (p.temperature, p.dynatemp_range, p.dynatemp_exponent) = (0.625, 0.5, 1.0),
            [0.5, 0.25, 0.125, 0.125],
        ),
    ];
    const DRAWS: usize = 20_000;
    for (name, change, expected) in cases {
        let counts = frequencies(params(change), &halves(), DRAWS);
        let chi_square = chi_square(&counts, &expected, name);
        // Three degrees of freedom exceed 16.27 once in a thousand; the seed is fixed.
        assert!(chi_square < 16.27, "{name}: {counts:?} gives {chi_square}");
    }
}

#[test]
fn draws_from_a_whole_row_follow_its_softmax() {
    // More than a block, so that a draw finds its block and then its token.
    let logits: Vec<f32> = (0..300).map(|id| (id as f32 * 0.37).sin() * 2.0).collect();
    let shares = distribution(&mut sampler(params(|_| ()), 1), &logits, None).expect("tokens");
    let shares: Vec<f64> = shares.into_iter().map(|share| share.1).collect();
    let counts = frequencies(params(|_| ()), &logits, 60_000);
    let chi_square = chi_square(&counts, &shares, "row");
    // 299 degrees of freedom exceed 381 once in a thousand.
    assert!(chi_square < 381.0, "{chi_square}");
}

#[test]
fn greedy_takes_largest_logit_lowest_id() {
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
fn seeds_repeat_and_differ() {
    let logits = vec![0.0; 64];
    let run = |params: SamplingParams, seed, alternatives: Option<usize>| -> Vec<u32> {
        let mut sampler = sampler(params, seed);
        let mut scratch = SamplerScratch::default();
        let logprobs = alternatives.map(Logprobs::for_model);
        let mut next = || sampler.sample(&mut logits.clone(), None, logprobs, &mut scratch);
        (0..32).map(|_| next().expect("a token").id).collect()
    };
    let plain = || params(|_| ());
    assert_eq!(run(plain(), 1, None), run(plain(), 1, Some(5)));
    assert_ne!(run(plain(), 1, None), run(plain(), 2, None));
    assert_ne!(fresh_seed(), fresh_seed());
    // Steps that are off draw no random numbers.
    let off = params(|p| {
        (p.xtc_threshold, p.dry_base, p.mirostat_tau) = (0.3, 3.0, 1.0);
        (p.dynatemp_exponent, p.penalty_last_n) = (2.0, 5);
    });
    assert_eq!(run(off, 1, None), run(plain(), 1, None));
}
