//! Accepted values, and refusals that name the field.

use loquat_text::GenerationConfig;

use super::*;

#[test]
fn defaults_are_valid_and_neutral() {
    let params = SamplingParams::default();
    assert_eq!(params.validate(1), Ok(()));
    assert!(!params.penalises() && !params.discourages_repetition() && !params.excludes());
    for parameter in PARAMETERS {
        assert_eq!(parameter.check(parameter.default), Ok(()), "{parameter:?}");
        assert!(!parameter.help.is_empty(), "{parameter:?}");
    }
}

#[test]
fn each_parameter_is_listed_once() {
    for (at, parameter) in PARAMETERS.iter().enumerate() {
        let same = |other: &Parameter| other.name == parameter.name;
        assert_eq!(PARAMETERS.iter().position(same), Some(at));
    }
}

#[test]
fn out_of_range_value_names_field() {
    let cases = [
        (params(|p| p.temperature = -0.1), "temperature"),
        (params(|p| p.temperature = f32::NAN), "temperature"),
        (params(|p| p.temperature = f32::INFINITY), "temperature"),
        (params(|p| p.dynatemp_range = -1.0), "dynatemp_range"),
        (params(|p| p.dynatemp_exponent = 101.0), "dynatemp_exponent"),
        (params(|p| p.top_k = usize::MAX), "top_k"),
        (params(|p| p.top_k = 16_777_217), "top_k"),
        (params(|p| p.top_p = 1.5), "top_p"),
        (params(|p| p.min_p = -1.0), "min_p"),
        (params(|p| p.typical_p = f32::NAN), "typical_p"),
        (params(|p| p.top_n_sigma = -1.0), "top_n_sigma"),
        (params(|p| p.xtc_probability = 1.1), "xtc_probability"),
        (params(|p| p.xtc_threshold = -0.1), "xtc_threshold"),
        (params(|p| p.dry_multiplier = -1.0), "dry_multiplier"),
        (params(|p| p.dry_base = 0.5), "dry_base"),
        (
            params(|p| p.dry_allowed_length = usize::MAX),
            "dry_allowed_length",
        ),
        (params(|p| p.dry_penalty_last_n = -2), "dry_penalty_last_n"),
        (params(|p| p.mirostat_tau = f32::NAN), "mirostat_tau"),
        (params(|p| p.mirostat_eta = 2.0), "mirostat_eta"),
        (params(|p| p.repetition_penalty = 0.0), "repetition_penalty"),
        (params(|p| p.presence_penalty = 2.1), "presence_penalty"),
        (params(|p| p.frequency_penalty = -2.1), "frequency_penalty"),
        (params(|p| p.penalty_last_n = -2), "penalty_last_n"),
        (params(|p| p.logit_bias = vec![(0, 101.0)]), "logit_bias"),
        (params(|p| p.min_tokens = usize::MAX), "min_tokens"),
    ];
    for (params, name) in cases {
        match params.validate(8) {
            Err(EngineError::OutOfRange {
                field, expected, ..
            }) => {
                assert_eq!(field, name);
                assert!(expected.starts_with("from "), "{expected}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn contradictory_values_name_field() {
    let cases = [
        (
            params(|p| p.mirostat = 1),
            "`mirostat` is 1; it must be 0 or 2",
        ),
        (
            params(|p| p.bad_words = vec![vec![1], vec![]]),
            "`bad_words` is a list with an empty entry; it must be a list whose entries have \
             at least a token",
        ),
        (
            params(|p| p.dry_sequence_breakers.push(String::new())),
            "`dry_sequence_breakers` is a list with an empty entry; it must be a list whose \
             entries have at least a character",
        ),
        (
            params(|p| p.dry_sequence_breakers.push("x".repeat(65))),
            "`dry_sequence_breakers` is a list with an entry of 65 bytes; it must be a list whose \
             entries have at most 64",
        ),
        (
            params(|p| p.dry_sequence_breakers = vec!["x".into(); 129]),
            "`dry_sequence_breakers` is a list of 129; it must be a list of at most 128",
        ),
        (
            params(|p| p.bad_words = vec![vec![1]; 8193]),
            "`bad_words` is a list of 8193; it must be a list of at most 8192",
        ),
        (
            params(|p| p.allowed_tokens = vec![1; 65_537]),
            "`allowed_tokens` is a list of 65537; it must be a list of at most 65536",
        ),
        (
            params(|p| p.logit_bias = vec![(1, 0.5); 65_537]),
            "`logit_bias` is a list of 65537; it must be a list of at most 65536",
        ),
        (
            params(|p| p.order = vec![SamplingStep::TopK, SamplingStep::TopP, SamplingStep::TopK]),
            "`order` is naming `top_k` twice; it must be a list that names each step at most \
             once",
        ),
        (
            params(|p| (p.order, p.min_p) = (vec![SamplingStep::Temperature], 0.05)),
            "`min_p` is 0.05; it must be 0, as `order` leaves out `min_p`",
        ),
        (
            params(|p| (p.order, p.temperature) = (vec![], 0.0)),
            "`temperature` is 0; it must be 1, as `order` leaves out `temperature`",
        ),
        (
            params(|p| (p.order, p.frequency_penalty) = (vec![SamplingStep::Dry], 1.0)),
            "`frequency_penalty` is 1; it must be 0, as `order` leaves out `penalties`",
        ),
    ];
    for (params, message) in cases {
        let error = params.validate(8).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
    let unknown = SamplingStep::from_name("tfs_z").expect_err("no such step");
    assert!(unknown.to_string().contains("`tfs_z`"), "{unknown}");
    assert!(unknown.to_string().contains("penalties, dry"), "{unknown}");
}

#[test]
fn order_may_omit_inactive_steps() {
    let orders = [
        vec![],
        vec![SamplingStep::TopK],
        DEFAULT_ORDER.iter().rev().copied().collect(),
    ];
    for order in orders {
        let params = params(|p| (p.order, p.dry_base, p.xtc_threshold) = (order, 3.0, 0.3));
        assert_eq!(params.validate(8), Ok(()), "{:?}", params.order);
    }
    for step in DEFAULT_ORDER {
        assert_eq!(SamplingStep::from_name(step.name()), Ok(step));
    }
    assert_eq!(SamplingStep::from_name("typ_p"), Ok(SamplingStep::TypicalP));
}

#[test]
fn token_outside_vocabulary_is_refused() {
    let cases = [
        (
            params(|p| p.logit_bias = vec![(7, 1.0), (8, 1.0)]),
            "logit_bias",
        ),
        (
            params(|p| p.bad_words = vec![vec![1], vec![2, 8]]),
            "bad_words",
        ),
        (params(|p| p.allowed_tokens = vec![0, 8]), "allowed_tokens"),
    ];
    for (params, field) in cases {
        assert_eq!(
            params.validate(8),
            Err(EngineError::OutOfVocabulary {
                field,
                token: 8,
                vocab_size: 8
            })
        );
        assert_eq!(params.validate(9), Ok(()));
    }
}

#[test]
fn checkpoint_defaults_are_used() {
    let config = GenerationConfig {
        temperature: Some(0.7),
        top_k: Some(20),
        bad_words: vec![vec![3]],
        ..GenerationConfig::default()
    };
    let expected = params(|p| {
        (p.temperature, p.top_k) = (0.7, 20);
        p.bad_words = vec![vec![3]];
    });
    assert_eq!(SamplingParams::from_defaults(&config), Ok(expected));

    let greedy = GenerationConfig {
        do_sample: Some(false),
        ..config.clone()
    };
    let params = SamplingParams::from_defaults(&greedy).expect("legal");
    assert_eq!(params.temperature, 0.0);

    let wrong = GenerationConfig {
        top_p: Some(1.5),
        ..config
    };
    let error = SamplingParams::from_defaults(&wrong).expect_err("out of range");
    assert_eq!(error.to_string(), "`top_p` is 1.5; it must be from 0 to 1");
}

#[test]
fn list_length_is_limited() {
    let unlimited = [
        ParameterKind::Float,
        ParameterKind::Integer,
        ParameterKind::Steps,
        ParameterKind::Seed,
    ];
    for parameter in PARAMETERS {
        let Some(most) = parameter.most else {
            assert!(unlimited.contains(&parameter.kind), "{}", parameter.name);
            continue;
        };
        let limit = format!("at most {most}");
        assert!(parameter.help.contains(&limit), "{}", parameter.name);
    }
}
