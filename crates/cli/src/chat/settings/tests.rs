use loquat_engine::{Parameter, ParameterKind};

use super::*;

fn row(settings: &Settings, params: &SamplingParams, name: &str) -> SettingRow {
    let mut all = settings.all(params).into_iter();
    all.find(|row| row.name == name).unwrap()
}

#[test]
fn settings_can_be_set_and_unset() {
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
            row(&settings, &SamplingParams::default(), &name).is_set,
            "{name}"
        );
        // With underscores.
        settings.set(&name.replace('-', "_"), &value).unwrap();
        assert!(settings.sampling.0.len() <= 1, "{name} is there twice");
        if OTHERS.contains(&name.replace('-', "_").as_str()) {
            assert_eq!(
                row(&settings, &SamplingParams::default(), &name).value,
                value
            );
        }
        settings.unset(&name).unwrap();
        assert!(
            !row(&settings, &SamplingParams::default(), &name).is_set,
            "{name}"
        );
    }
}

#[test]
fn effective_values_are_shown_as_typed() {
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
        let row = row(&settings, &params, name);
        assert_eq!((row.value.as_str(), row.is_set), (value, false), "{name}");
    }
    let described = settings.describe("temperature", &params).unwrap();
    assert!(described.starts_with("temperature: 0.6\n"), "{described}");
}

#[test]
fn errors_are_one_sentence() {
    for (name, value, words) in [
        (
            "temprature",
            "1",
            "no setting temprature. Did you mean temperature?",
        ),
        ("humidity", "1", "no setting humidity. /set lists all"),
        ("model", "1", "no setting model. /set lists all"),
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
        let message = error.strip_prefix("/set: ").unwrap();
        assert!(message.starts_with(words), "{message}");
        assert!(!message.contains('\n'), "{message}");
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
