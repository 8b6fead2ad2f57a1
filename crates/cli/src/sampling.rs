//! How tokens are chosen: as flags say, then as the checkpoint says, then neutrally.

use std::fmt;

use loquat_engine::{DEFAULT_ORDER, Parameter, SamplingParams, ParameterSlot, SamplingStep, word_sequences};
use loquat_text::{GenerationConfig, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{Given, SamplingArgs};
use crate::error::CliError;
use crate::show::number;

/// Who decided on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Flag,
    Checkpoint,
    Loquat,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "given",
            Self::Checkpoint => "the model's",
            Self::Loquat => "loquat's",
        })
    }
}

/// What is in force for a request.
#[derive(Debug)]
pub struct Sampling {
    pub params: SamplingParams,
    /// Of the values that are not the checkpoint's.
    origins: Vec<(&'static str, Origin)>,
}

impl Sampling {
    /// What the checkpoint asks for, or what it gets where it asks for nothing.
    pub fn of(config: &GenerationConfig) -> Result<Self, CliError> {
        let (params, ours) = loquat::sampling::defaults(config)?;
        let origins = ours.iter().map(|name| (*name, Origin::Loquat));
        Ok(Self {
            params,
            origins: origins.collect(),
        })
    }

    /// The same but for what flags say.
    pub fn with(mut self, args: &SamplingArgs, tokenizer: &Tokenizer) -> Result<Self, CliError> {
        for (_, given) in &args.0 {
            if let Given::Steps(order) = given {
                self.leave_out(order);
            }
        }
        for (parameter, given) in &args.0 {
            set(&mut self.params, parameter, given, tokenizer)?;
            self.origins.retain(|(name, _)| *name != parameter.name);
            self.origins.push((parameter.name, Origin::Flag));
        }
        Ok(self)
    }

    /// An order that was given wins over values that were not.
    fn leave_out(&mut self, order: &[SamplingStep]) {
        for step in DEFAULT_ORDER.iter().filter(|step| !order.contains(step)) {
            self.params.switch_off(*step);
        }
    }

    /// Every parameter that is not neutral, with its value.
    fn moved(&self) -> Vec<(&'static str, Value)> {
        let values = |mut params: SamplingParams| {
            let slots = params.slots().into_iter();
            let values = slots.map(|(name, slot)| (name, value(&slot)));
            values.collect::<Vec<_>>()
        };
        let neutral = values(SamplingParams::default());
        let found = values(self.params.clone()).into_iter();
        found.filter(|value| !neutral.contains(value)).collect()
    }

    /// In one line, each value with who decided on it.
    pub fn told(&self) -> String {
        let told = self.moved().into_iter().map(|(name, value)| {
            let origin = self.origins.iter().find(|(known, _)| *known == name);
            let origin = origin.map_or(Origin::Checkpoint, |(_, origin)| *origin);
            format!("{name} {value} ({origin})")
        });
        let told: Vec<String> = told.collect();
        if told.is_empty() {
            "the model's own distribution".to_owned()
        } else {
            told.join(", ")
        }
    }

    /// Every parameter that is not neutral.
    pub fn to_json(&self) -> Value {
        let moved = self.moved().into_iter();
        let fields: Map<_, _> = moved
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Value::Object(fields)
    }
}

fn set(
    params: &mut SamplingParams,
    parameter: &Parameter,
    given: &Given,
    tokenizer: &Tokenizer,
) -> Result<(), CliError> {
    let mut slots = params.slots().into_iter();
    let slot = slots.find(|(name, _)| *name == parameter.name);
    match (slot.map(|(_, slot)| slot), given) {
        (Some(ParameterSlot::Float(slot)), Given::Float(value)) => *slot = *value,
        // Flags have their parameters' ranges, so that the numbers fit.
        (Some(ParameterSlot::Count(slot)), Given::Integer(value)) => *slot = *value as usize,
        (Some(ParameterSlot::Window(slot)), Given::Integer(value)) => *slot = *value as i32,
        (Some(ParameterSlot::Mode(slot)), Given::Integer(value)) => *slot = *value as u8,
        (Some(ParameterSlot::Biases(slot)), Given::Biases(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Tokens(slot)), Given::Tokens(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Words(slot)), Given::Texts(words)) => *slot = word_sequences(words, tokenizer)?,
        (Some(ParameterSlot::Texts(slot)), Given::Texts(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Steps(slot)), Given::Steps(value)) => slot.clone_from(value),
        (Some(ParameterSlot::Seed(slot)), Given::Seed(value)) => *slot = Some(*value),
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

    use loquat_engine::{ParameterKind, PARAMETERS};
    use loquat_text::Special;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama");
        Tokenizer::from_huggingface(&model).unwrap()
    }

    fn with(config: &GenerationConfig, given: Vec<(Parameter, Given)>) -> Sampling {
        let sampling = Sampling::of(config).unwrap();
        sampling.with(&SamplingArgs(given), &tokenizer()).unwrap()
    }

    fn named(name: &str) -> Parameter {
        let mut parameters = PARAMETERS.into_iter();
        parameters.find(|parameter| parameter.name == name).unwrap()
    }

    #[test]
    fn every_flag_reaches_its_parameter() {
        for parameter in PARAMETERS {
            let given = match parameter.kind {
                ParameterKind::Float => Given::Float(parameter.min + (parameter.max - parameter.min) / 3.0),
                ParameterKind::Integer => Given::Integer(parameter.max as i64),
                ParameterKind::Biases => Given::Biases(vec![(4, 1.0)]),
                ParameterKind::Tokens => Given::Tokens(vec![4]),
                ParameterKind::TokenSequences | ParameterKind::Strings => Given::Texts(vec!["a".into()]),
                ParameterKind::Steps => Given::Steps(vec![SamplingStep::Temperature, SamplingStep::TopP]),
                ParameterKind::Seed => Given::Seed(7),
            };
            let sampling = with(&GenerationConfig::default(), vec![(parameter, given)]);
            let told = sampling.told();
            let given = format!("{} ", parameter.name);
            let given = told.split(", ").find(|part| part.starts_with(&given));
            assert!(told.contains("(given)"), "{told}");
            assert!(given.is_some() || parameter.kind == ParameterKind::Steps, "{told}");
        }
    }

    #[test]
    fn flags_go_before_the_checkpoint_and_that_before_us() {
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
        let temperature = || vec![(named("temperature"), Given::Float(1.5))];
        for (config, given, told) in [
            (
                &silent,
                vec![],
                "temperature 0.6 (loquat's), top_p 0.95 (loquat's)",
            ),
            (
                &silent,
                temperature(),
                "temperature 1.5 (given), top_p 0.95 (loquat's)",
            ),
            (
                &says,
                vec![],
                "top_k 20 (the model's), repetition_penalty 1.1 (the model's)",
            ),
            (
                &says,
                temperature(),
                "temperature 1.5 (given), top_k 20 (the model's), repetition_penalty 1.1 (the \
                 model's)",
            ),
            (
                &penalty,
                vec![],
                "temperature 0.6 (loquat's), top_p 0.95 (loquat's), repetition_penalty 1.1 (the \
                 model's)",
            ),
            (
                &says,
                vec![(named("top_k"), Given::Integer(0))],
                "repetition_penalty 1.1 (the model's)",
            ),
        ] {
            assert_eq!(with(config, given).told(), told);
        }
        let own = GenerationConfig {
            do_sample: Some(true),
            ..silent
        };
        assert_eq!(with(&own, vec![]).told(), "the model's own distribution");
    }

    #[test]
    fn an_order_leaves_out_what_nobody_asked_for() {
        let order = (named("order"), Given::Steps(vec![SamplingStep::TopK]));
        let silent = GenerationConfig::default();
        let told = with(&silent, vec![order.clone()]).told();
        assert_eq!(told, "order [\"top_k\"] (given)");
        // What was asked for stays, for the engine to refuse.
        let asked = (named("top_p"), Given::Float(0.5));
        let told = with(&silent, vec![order, asked]).told();
        assert_eq!(told, "top_p 0.5 (given), order [\"top_k\"] (given)");
    }

    #[test]
    fn a_bad_word_is_bad_inside_a_text_too() {
        let words = ["no".into(), " no".into()];
        let sequences = word_sequences(&words, &tokenizer()).unwrap();
        let spaced = tokenizer().encode(" no", Special::PLAIN).unwrap();
        let bare = tokenizer().encode("no", Special::PLAIN).unwrap();
        assert_eq!(sequences, [bare, spaced]);
    }

    #[test]
    fn a_checkpoint_that_asks_for_the_impossible_is_refused() {
        let config = GenerationConfig {
            top_p: Some(1.5),
            ..GenerationConfig::default()
        };
        let error = Sampling::of(&config).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("`top_p` is 1.5"), "{error}");
    }
}
