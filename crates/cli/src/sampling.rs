//! Effective sampling parameters: flags, then the checkpoint's defaults, then Loquat's.

use std::fmt;

use loquat_engine::{
    DEFAULT_ORDER, Parameter, ParameterSlot, SamplingParams, SamplingStep, word_sequences,
};
use loquat_text::{GenerationConfig, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{FlagValue, SamplingArgs};
use crate::error::CliError;
use crate::show::number;

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueOrigin {
    Flag,
    Checkpoint,
    Loquat,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "set by flag",
            Self::Checkpoint => "the model's default",
            Self::Loquat => "Loquat's default",
        })
    }
}

/// The effective sampling parameters of a request.
#[derive(Debug)]
pub struct Sampling {
    pub params: SamplingParams,
    /// Origins of the values that do not come from the checkpoint.
    origins: Vec<(&'static str, ValueOrigin)>,
}

impl Sampling {
    /// The checkpoint's defaults, or Loquat's if it has none.
    pub fn from_config(config: &GenerationConfig) -> Result<Self, CliError> {
        let (params, ours) = loquat::sampling::defaults(config)?;
        let origins = ours.iter().map(|name| (*name, ValueOrigin::Loquat));
        Ok(Self {
            params,
            origins: origins.collect(),
        })
    }

    /// Overrides parameters with flags.
    pub fn with_flags(
        mut self,
        args: &SamplingArgs,
        tokenizer: &Tokenizer,
    ) -> Result<Self, CliError> {
        for (_, given) in &args.0 {
            if let FlagValue::Steps(order) = given {
                self.disable_missing(order);
            }
        }
        for (parameter, given) in &args.0 {
            set(&mut self.params, parameter, given, tokenizer)?;
            self.origins.retain(|(name, _)| *name != parameter.name);
            self.origins.push((parameter.name, ValueOrigin::Flag));
        }
        Ok(self)
    }

    /// An explicit order disables the steps that it does not list.
    fn disable_missing(&mut self, order: &[SamplingStep]) {
        for step in DEFAULT_ORDER.iter().filter(|step| !order.contains(step)) {
            self.params.switch_off(*step);
        }
    }

    /// Every parameter that is not neutral, with its value.
    fn active(&self) -> Vec<(&'static str, Value)> {
        let values = |mut params: SamplingParams| {
            let slots = params.slots().into_iter();
            let values = slots.map(|(parameter, slot)| (parameter.name, value(&slot)));
            values.collect::<Vec<_>>()
        };
        let neutral = values(SamplingParams::default());
        let found = values(self.params.clone()).into_iter();
        found.filter(|value| !neutral.contains(value)).collect()
    }

    /// One line: each value with its origin.
    pub fn describe(&self) -> String {
        let described = self.active().into_iter().map(|(name, value)| {
            let origin = self.origins.iter().find(|(known, _)| *known == name);
            let origin = origin.map_or(ValueOrigin::Checkpoint, |(_, origin)| *origin);
            format!("{name} {value} ({origin})")
        });
        let described: Vec<String> = described.collect();
        if described.is_empty() {
            "the model's unmodified distribution".to_owned()
        } else {
            described.join(", ")
        }
    }

    /// Every parameter that is not neutral.
    pub fn to_json(&self) -> Value {
        let active = self.active().into_iter();
        let fields: Map<_, _> = active
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Value::Object(fields)
    }
}

fn set(
    params: &mut SamplingParams,
    parameter: &Parameter,
    given: &FlagValue,
    tokenizer: &Tokenizer,
) -> Result<(), CliError> {
    let mut slots = params.slots().into_iter();
    let slot = slots.find(|(known, _)| known.name == parameter.name);
    match (slot.map(|(_, slot)| slot), given) {
        (Some(ParameterSlot::Float(slot)), FlagValue::Float(value)) => *slot = *value,
        // Flags have their parameters' ranges, so that the numbers fit.
        (Some(ParameterSlot::Count(slot)), FlagValue::Integer(value)) => *slot = *value as usize,
        (Some(ParameterSlot::Window(slot)), FlagValue::Integer(value)) => *slot = *value as i32,
        (Some(ParameterSlot::Mode(slot)), FlagValue::Integer(value)) => *slot = *value as u8,
        (Some(ParameterSlot::Biases(slot)), FlagValue::Biases(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Tokens(slot)), FlagValue::Tokens(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Words(slot)), FlagValue::Texts(words)) => {
            *slot = word_sequences(words, tokenizer)?
        }
        (Some(ParameterSlot::Texts(slot)), FlagValue::Texts(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Steps(slot)), FlagValue::Steps(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Seed(slot)), FlagValue::Seed(value)) => *slot = Some(*value),
        // A flag's kind is its parameter's, and a test sets each.
        (_, _) => {}
    }
    Ok(())
}

fn value(slot: &ParameterSlot<'_>) -> Value {
    match slot {
        ParameterSlot::Float(value) => number(**value),
        ParameterSlot::Count(value) => json!(value),
        ParameterSlot::Window(value) => json!(value),
        ParameterSlot::Mode(value) => json!(value),
        ParameterSlot::Biases(biases) => {
            let biases = biases.iter();
            biases
                .map(|(id, bias)| json!([id, number(*bias)]))
                .collect()
        }
        ParameterSlot::Tokens(value) => json!(value),
        ParameterSlot::Words(value) => json!(value),
        ParameterSlot::Texts(value) => json!(value),
        ParameterSlot::Steps(steps) => steps.iter().map(|step| step.name()).collect(),
        ParameterSlot::Seed(value) => json!(value),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use loquat_engine::{PARAMETERS, ParameterKind};
    use loquat_text::Special;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama");
        Tokenizer::from_huggingface(&model).unwrap()
    }

    fn with(config: &GenerationConfig, given: Vec<(Parameter, FlagValue)>) -> Sampling {
        let sampling = Sampling::from_config(config).unwrap();
        sampling
            .with_flags(&SamplingArgs(given), &tokenizer())
            .unwrap()
    }

    fn named(name: &str) -> Parameter {
        let mut parameters = PARAMETERS.into_iter();
        parameters.find(|parameter| parameter.name == name).unwrap()
    }

    #[test]
    fn every_flag_reaches_its_parameter() {
        for parameter in PARAMETERS {
            let given = match parameter.kind {
                ParameterKind::Float => {
                    FlagValue::Float(parameter.min + (parameter.max - parameter.min) / 3.0)
                }
                ParameterKind::Integer => FlagValue::Integer(parameter.max as i64),
                ParameterKind::Biases => FlagValue::Biases(vec![(4, 1.0)]),
                ParameterKind::Tokens => FlagValue::Tokens(vec![4]),
                ParameterKind::TokenSequences | ParameterKind::Strings => {
                    FlagValue::Texts(vec!["a".into()])
                }
                ParameterKind::Steps => {
                    FlagValue::Steps(vec![SamplingStep::Temperature, SamplingStep::TopP])
                }
                ParameterKind::Seed => FlagValue::Seed(7),
            };
            let sampling = with(&GenerationConfig::default(), vec![(parameter, given)]);
            let described = sampling.describe();
            let given = format!("{} ", parameter.name);
            let given = described.split(", ").find(|part| part.starts_with(&given));
            assert!(described.contains("(set by flag)"), "{described}");
            assert!(
                given.is_some() || parameter.kind == ParameterKind::Steps,
                "{described}"
            );
        }
    }

    #[test]
    fn flags_override_checkpoint_and_defaults() {
        let silent = GenerationConfig::default();
        let says = GenerationConfig {
            top_k: Some(20),
            repetition_penalty: Some(1.1),
            ..silent.clone()
        };
        let penalty = GenerationConfig {
            repetition_penalty: Some(1.1),
            ..silent.clone()
        };
        let temperature = || vec![(named("temperature"), FlagValue::Float(1.5))];
        for (config, given, described) in [
            (
                &silent,
                vec![],
                "temperature 0.6 (Loquat's default), top_p 0.95 (Loquat's default)",
            ),
            (
                &silent,
                temperature(),
                "temperature 1.5 (set by flag), top_p 0.95 (Loquat's default)",
            ),
            (
                &says,
                vec![],
                "top_k 20 (the model's default), repetition_penalty 1.1 (the model's default)",
            ),
            (
                &says,
                temperature(),
                "temperature 1.5 (set by flag), top_k 20 (the model's default), repetition_penalty 1.1 (the \
                 model's default)",
            ),
            (
                &penalty,
                vec![],
                "temperature 0.6 (Loquat's default), top_p 0.95 (Loquat's default), repetition_penalty 1.1 (the \
                 model's default)",
            ),
            (
                &says,
                vec![(named("top_k"), FlagValue::Integer(0))],
                "repetition_penalty 1.1 (the model's default)",
            ),
        ] {
            assert_eq!(with(config, given).describe(), described);
        }
        let own = GenerationConfig {
            do_sample: Some(true),
            ..silent
        };
        assert_eq!(
            with(&own, vec![]).describe(),
            "the model's unmodified distribution"
        );
    }

    #[test]
    fn explicit_order_disables_missing_steps() {
        let order = (named("order"), FlagValue::Steps(vec![SamplingStep::TopK]));
        let silent = GenerationConfig::default();
        let described = with(&silent, vec![order.clone()]).describe();
        assert_eq!(described, "order [\"top_k\"] (set by flag)");
        // A parameter set by a flag stays, and the engine refuses it.
        let asked = (named("top_p"), FlagValue::Float(0.5));
        let described = with(&silent, vec![order, asked]).describe();
        assert_eq!(
            described,
            "top_p 0.5 (set by flag), order [\"top_k\"] (set by flag)"
        );
    }

    #[test]
    fn bad_words_match_inside_text() {
        let words = ["no".into(), " no".into()];
        let sequences = word_sequences(&words, &tokenizer()).unwrap();
        let spaced = tokenizer().encode(" no", Special::PLAIN).unwrap();
        let bare = tokenizer().encode("no", Special::PLAIN).unwrap();
        assert_eq!(sequences, [bare, spaced]);
    }

    #[test]
    fn invalid_checkpoint_defaults_are_refused() {
        let config = GenerationConfig {
            top_p: Some(1.5),
            ..GenerationConfig::default()
        };
        let error = Sampling::from_config(&config).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("`top_p` is 1.5"), "{error}");
    }
}
