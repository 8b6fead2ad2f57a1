//! DRY with breakers that span tokens, and without a tokenizer.

use super::*;

/// By how much DRY lowers the logit of each byte in `after`, given a text.
fn lowered(text: &str, after: &str, change: fn(&mut SamplingParams)) -> Vec<f32> {
    let mut params = params(|p| (p.dry_multiplier, p.dry_base) = (1.0, 2.0));
    change(&mut params);
    let tokenizer = tokenizer();
    let ids = ids_of(&tokenizer, text);
    let (prompt, output) = ids.split_at(ids.len() / 2);
    let mut sampler = Sampler::new(params, 0, prompt, &[]).with_tokenizer(&tokenizer);
    output.iter().for_each(|&id| sampler.observe(id));
    let row = discouraged(&sampler);
    let after = ids_of(&tokenizer, after).into_iter();
    after.map(|id| -row[id as usize]).collect()
}

fn ids_of(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let ids = tokenizer.encode(text, loquat_text::Special::PLAIN);
    ids.expect("tokens")
}

/// A row of zeroes after DRY.
fn discouraged(sampler: &Sampler) -> Vec<f32> {
    let mut row = vec![0.0; 256];
    let (mut scratch, mut buffers) = (SamplerScratch::default(), Default::default());
    let mut pool = CandidatePool::new(&mut row, &mut scratch);
    let dry = sampler.dry.as_ref().expect("asked for");
    let done = dry.apply_dry(&sampler.tokens, &mut pool, &mut buffers);
    assert_eq!(done, Ok(()));
    row
}

#[test]
fn dry_penalises_repetitions() {
    type Case = (
        &'static str,
        &'static str,
        fn(&mut SamplingParams),
        &'static [f32],
    );
    let cases: [Case; 10] = [
        ("abcd abc", "dax", |_| (), &[2.0, 0.0, 0.0]),
        ("abcd ab", "cdx", |_| (), &[1.0, 0.0, 0.0]),
        ("abcd a", "b", |_| (), &[0.0]),
        ("abcd abc", "d", |p| p.dry_allowed_length = 3, &[1.0]),
        ("abcd abc", "d", |p| p.dry_allowed_length = 4, &[0.0]),
        ("abcd abc", "d", |p| p.dry_penalty_last_n = 5, &[0.0]),
        ("abcd abc", "d", |p| p.dry_penalty_last_n = 7, &[1.0]),
        // The longest repetition counts.
        ("bcx abcd abc", "dx", |_| (), &[4.0, 1.0]),
        // A breaker ends it, and is itself not penalised.
        ("a:cd a:cd a:c", "d:", |_| (), &[0.0, 0.0]),
        ("abc: abc", ":", |_| (), &[0.0]),
    ];
    for (text, after, change, expected) in cases {
        assert_eq!(lowered(text, after, change), expected, "{text:?} {after:?}");
    }
}

#[test]
fn breaker_may_span_tokens() {
    let with = |breaker: &str, text: &str| {
        let mut params = params(|p| (p.dry_multiplier, p.dry_allowed_length) = (1.0, 1));
        params.dry_sequence_breakers = vec![breaker.into(), "\u{e9}".into()];
        let tokenizer = tokenizer();
        let ids = ids_of(&tokenizer, text);
        let sampler = Sampler::new(params, 0, &ids, &[]).with_tokenizer(&tokenizer);
        discouraged(&sampler)[ids_of(&tokenizer, "!")[0] as usize] < 0.0
    };
    assert!(with("<end>", "x<ed>ab!x<ed>ab"));
    assert!(with("<end>", "x<end>ab!x<end>ab"));
    assert!(!with("<end>", "x<end>!x<end>"));
    assert!(!with("b", "\u{e9}!\u{e9}"));
}

#[test]
fn long_repetition_keeps_logit_finite() {
    let text = "ab".repeat(4000);
    let found = lowered(&text, "a", |p| p.dry_base = 100.0);
    assert_eq!(found, [1e30]);
    assert_eq!(lowered(&text, "a", |p| p.dry_base = 1.0), [1.0]);
}

#[test]
fn breakers_need_a_tokenizer() {
    let mut scratch = SamplerScratch::default();
    let dry = params(|p| p.dry_multiplier = 1.0);
    assert!(dry.needs_tokenizer());
    let sampled = sampler(dry.clone(), 0).sample(&mut halves(), None, None, &mut scratch);
    match sampled {
        Err(EngineError::Unsupported { field, .. }) => assert_eq!(field, "dry_sequence_breakers"),
        other => panic!("{other:?}"),
    }
    let without = SamplingParams {
        dry_sequence_breakers: Vec::new(),
        ..dry
    };
    assert!(!without.needs_tokenizer());
    let mut sampler = Sampler::new(without, 0, &[0, 1, 0, 2, 0, 1, 0], &[]);
    let found = distribution(&mut sampler, &[0.0; 4], None).expect("tokens");
    assert!(found[2].1 < found[3].1, "{found:?}");
}
