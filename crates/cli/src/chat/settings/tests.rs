use loquat_engine::{ParameterKind, Parameter};

use super::*;

fn shown(settings: &Settings, params: &SamplingParams, name: &str) -> Shown {
    let mut all = settings.all(params).into_iter();
    all.find(|shown| shown.name == name).unwrap()
}

#[test]
fn every_setting_is_set_shown_and_unset() {
    let texts = |parameter: &Parameter| match parameter.kind {
        ParameterKind::Float => (parameter.min + 1.0).min(parameter.max).to_string(),
        ParameterKind::Integer => "1".to_owned(),
        ParameterKind::Biases => "42=-7.5".to_owned(),
        ParameterKind::Tokens => "4,5".to_owned(),
        ParameterKind::TokenSequences | ParameterKind::Strings => r#"["a b","\n"]"#.to_owned(),
        ParameterKind::Steps => "top_p,dry".to_owned(),
        ParameterKind::Seed => "7".to_owned(),
    };
    let others = [
        ("max-tokens", "5"),
        ("stop", r#"["a","\n"]"#),
        ("thinking", "low"),
        ("thinking-budget", "0"),
        ("show-reasoning", "folded"),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let sampling = PARAMETERS.iter().map(|each| (flag_name(each), texts(each)));
    let every: Vec<_> = others.into_iter().chain(sampling).collect();
    assert_eq!(every.len(), names().len());
    for (name, value) in every {
        let mut settings = Settings::default();
        settings.set(&name, &value).unwrap();
        assert!(
            shown(&settings, &SamplingParams::default(), &name).given,
            "{name}"
        );
        // Again, as it is shown.
        settings.set(&name.replace('-', "_"), &value).unwrap();
        assert!(settings.sampling.0.len() <= 1, "{name} is there twice");
        if OTHERS.contains(&name.replace('-', "_").as_str()) {
            assert_eq!(
                shown(&settings, &SamplingParams::default(), &name).value,
                value
            );
        }
        settings.unset(&name).unwrap();
        assert!(
            !shown(&settings, &SamplingParams::default(), &name).given,
            "{name}"
        );
    }
}

#[test]
fn values_in_force_are_shown_as_they_would_be_typed() {
    let params = SamplingParams {
        temperature: 0.6,
        logit_bias: vec![(42, -7.5), (43, 1.0)],
        allowed_tokens: vec![4, 5],
        seed: Some(7),
        ..SamplingParams::default()
    };
    let settings = Settings::default();
    for (name, value) in [
        ("temperature", "0.6"),
        ("top-p", "1"),
        ("logit-bias", r#"["42=-7.5","43=1"]"#),
        ("allowed-tokens", "4,5"),
        ("seed", "7"),
        ("bad-words", ""),
        ("max-tokens", ""),
    ] {
        let shown = shown(&settings, &params, name);
        assert_eq!(
            (shown.value.as_str(), shown.given),
            (value, false),
            "{name}"
        );
    }
    let explained = settings.explained("temperature", &params).unwrap();
    assert!(explained.starts_with("temperature: 0.6\n"), "{explained}");
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    for (name, value, words) in [
        (
            "temprature",
            "1",
            "there is no setting temprature; did you mean temperature?",
        ),
        (
            "humidity",
            "1",
            "there is no setting humidity; /set alone lists them",
        ),
        (
            "model",
            "1",
            "there is no setting model; /set alone lists them",
        ),
        ("top_p", "2", "top-p: must be a number from 0 to 1"),
        (
            "thinking",
            "loud",
            "thinking: must be one of off, on, low, medium, high",
        ),
        (
            "max-tokens",
            "0",
            "max-tokens: must be a whole number of at least 1",
        ),
        ("samplers", "tfs", "samplers: "),
    ] {
        let error = Settings::default()
            .set(name, value)
            .unwrap_err()
            .to_string();
        let said = error.strip_prefix("/set: ").unwrap();
        assert!(said.starts_with(words), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn values_may_be_json() {
    for (value, expected) in [
        ("plain", vec!["plain"]),
        ("two words", vec!["two words"]),
        (r#""\n""#, vec!["\n"]),
        (r#"["a", "b"]"#, vec!["a", "b"]),
        ("[1]", vec!["[1]"]),
        ("3", vec!["3"]),
    ] {
        assert_eq!(words(value), expected);
    }
}
