//! Every step, alone and with the others in every order, against the plain implementation.

use super::naive::{self, Past};
use super::*;

const SIZES: [usize; 8] = [1, 2, 3, 7, 33, 129, 700, 3000];

/// Rows that models give, and rows that none should.
fn row(rng: &mut SeededRng, size: usize) -> Vec<f32> {
    let spread = [0.1, 1.0, 3.0, 10.0][rng.below(4)];
    let ties = rng.one_in(3);
    let odd = rng.one_in(3);
    let value = |_| {
        let normal = rng.normal() * spread;
        let value = if ties { normal.round() } else { normal };
        if odd && rng.one_in(5) {
            [-INF, NAN, value][rng.below(3)]
        } else {
            value
        }
    };
    (0..size).map(value).collect()
}

/// Sets the parameters of one step to values that have an effect.
fn switch_on(step: SamplingStep, rng: &mut SeededRng, params: &mut SamplingParams) {
    match step {
        SamplingStep::Penalties => {
            params.repetition_penalty = 0.5 + rng.unit() * 1.5;
            params.presence_penalty = rng.unit() * 2.0 - 1.0;
            params.frequency_penalty = rng.unit() * 2.0 - 1.0;
            params.penalty_last_n = [-1, 0, 1, 3, 10, 100][rng.below(6)];
        }
        SamplingStep::Dry => {
            params.dry_multiplier = rng.unit() * 2.0;
            params.dry_base = 1.0 + rng.unit();
            params.dry_allowed_length = rng.below(4);
            params.dry_penalty_last_n = [-1, 0, 1, 5, 12, 100][rng.below(6)];
        }
        SamplingStep::Temperature => {
            params.temperature = [0.0, 0.3, 0.8, 1.5, 4.0][rng.below(5)];
            if rng.one_in(2) {
                params.dynatemp_range = rng.unit();
                params.dynatemp_exponent = rng.unit() * 3.0;
            }
        }
        SamplingStep::TopNSigma => params.top_n_sigma = 0.1 + rng.unit() * 3.0,
        SamplingStep::TopK => params.top_k = 1 + rng.below(200),
        SamplingStep::TypicalP => params.typical_p = rng.unit(),
        SamplingStep::TopP => params.top_p = rng.unit(),
        SamplingStep::MinP => params.min_p = rng.unit() * 0.5,
        SamplingStep::Xtc => {
            params.xtc_probability = 1.0;
            params.xtc_threshold = rng.unit() * 0.5;
        }
    }
}

/// Settings that hold in any order.
fn push_and_forbid(rng: &mut SeededRng, size: usize, params: &mut SamplingParams) {
    let id = |rng: &mut SeededRng| rng.below(size) as u32;
    if rng.one_in(3) {
        let biases = (0..3).map(|_| (id(rng), rng.normal() * 3.0));
        params.logit_bias = biases.collect();
    }
    if rng.one_in(3) {
        params.bad_words = vec![vec![id(rng)], vec![0, id(rng)], vec![0, 0, id(rng)]];
    }
    if rng.one_in(6) {
        params.allowed_tokens = (0..10).map(|_| id(rng)).collect();
    }
    if rng.one_in(3) {
        params.min_tokens = rng.below(12);
    }
}

/// Tokens of the golden tokenizer that hold a DRY breaker; ids below 6 have one.
fn breakers(tokenizer: &Tokenizer) -> Vec<u32> {
    let texts = DEFAULT_DRY_SEQUENCE_BREAKERS.into_iter();
    let ids = texts.flat_map(|text| tokenizer.encode(text, loquat_text::Special::PLAIN));
    ids.flatten().collect()
}

/// A text with repetitions and breakers in it.
fn text(rng: &mut SeededRng, length: usize, breakers: &[u32]) -> Vec<u32> {
    (0..length)
        .map(|_| {
            if rng.one_in(12) {
                breakers[rng.below(breakers.len())]
            } else {
                [0, 2, 3, 4, 5][rng.below(5)]
            }
        })
        .collect()
}

fn assert_agreement(found: &[(u32, f64)], expected: &[(u32, f64)], what: &str) {
    /// Below this, either may have rounded to zero.
    const LEAST: f64 = 1e-30;
    for (list, others) in [(found, expected), (expected, found)] {
        for (id, share) in list.iter().filter(|(_, share)| *share > LEAST) {
            let other = others.iter().find(|other| other.0 == *id);
            let other = other.map_or(0.0, |other| other.1);
            assert!(
                (share - other).abs() <= 2e-4 * share + 1e-9,
                "token {id}: {share} and {other} {what}\n{found:?}\n{expected:?}"
            );
        }
    }
}

fn judge(rng: &mut SeededRng, params: SamplingParams, tokenizer: &Tokenizer, size: usize) {
    assert_eq!(params.validate(size), Ok(()));
    let lengths = (rng.below(30), rng.below(20));
    let breakers = breakers(tokenizer);
    let prompt = text(rng, lengths.0, &breakers);
    let output = text(rng, lengths.1, &breakers);
    let stop_ids = [rng.below(size) as u32, 1];
    let mut mask = TokenMask::none(size);
    (0..size as u32)
        .filter(|id| id % 3 > 0)
        .for_each(|id| mask.allow(id));
    let mask = rng.one_in(4).then_some(&mask);
    let logits = row(rng, size);

    let mut sampler = Sampler::new(params.clone(), 5, &prompt, &stop_ids).with_tokenizer(tokenizer);
    output.iter().for_each(|&id| sampler.observe(id));
    let past = Past {
        prompt: &prompt,
        output: &output,
        stop_ids: &stop_ids,
        breakers: &breakers,
        allowed: mask,
    };
    let expected = naive::distribution(&params, &past, &logits);
    match distribution(&mut sampler, &logits, mask) {
        Ok(found) => assert_agreement(&found, &expected, &format!("{params:?}")),
        Err(error) => assert!(expected.is_empty(), "{error} {expected:?} {params:?}"),
    }
}

#[test]
fn each_step_matches_reference() {
    let tokenizer = tokenizer();
    for step in DEFAULT_ORDER {
        let mut rng = SeededRng::new(step as u64);
        for case in 0..160 {
            let mut params = SamplingParams::default();
            switch_on(step, &mut rng, &mut params);
            judge(&mut rng, params, &tokenizer, SIZES[case % SIZES.len()]);
        }
    }
}

#[test]
fn steps_in_any_order_match_reference() {
    let tokenizer = tokenizer();
    let mut rng = SeededRng::new(99);
    for case in 0..1200 {
        let mut params = SamplingParams::default();
        rng.shuffle(&mut params.order);
        params.order.truncate(1 + rng.below(DEFAULT_ORDER.len()));
        for step in params.order.clone() {
            if rng.one_in(2) {
                switch_on(step, &mut rng, &mut params);
            }
        }
        let size = SIZES[case % SIZES.len()];
        push_and_forbid(&mut rng, size, &mut params);
        judge(&mut rng, params, &tokenizer, size);
    }
}

#[test]
fn order_changes_the_result() {
    use SamplingStep::*;
    let order = |order: &[SamplingStep], change: fn(&mut SamplingParams)| {
        params(|p| {
            p.order = order.to_vec();
            change(p);
        })
    };
    let heat: fn(&mut SamplingParams) = |p| (p.temperature, p.top_p) = (0.5, 0.7);
    let exclude: fn(&mut SamplingParams) = |p| {
        (p.top_k, p.xtc_probability, p.xtc_threshold) = (2, 1.0, 0.2);
    };
    let cases: [(SamplingParams, &[u32]); 6] = [
        (order(&[Temperature, TopP], heat), &[0]),
        (order(&[TopP, Temperature], heat), &[0, 1]),
        (order(&[TopK, Xtc], exclude), &[1]),
        (order(&[Xtc, TopK], exclude), &[1, 2]),
        (order(&[TopK], |p| p.top_k = 1), &[0]),
        (order(&[], |_| ()), &[0, 1, 2, 3]),
    ];
    for (params, expected) in cases {
        let found = distribution(&mut sampler(params.clone(), 1), &halves(), None);
        let ids: Vec<u32> = found.expect("tokens").iter().map(|t| t.0).collect();
        assert_eq!(ids, expected, "{params:?}");
    }
}
