//! Sampling parameters of a request or a configuration, by the engine's names.

use loquat_engine::{
    BAD_WORDS, DEFAULT_ORDER, LOGIT_BIAS, PARAMETERS, ParameterSlot, SamplingParams, SamplingStep,
    word_sequences,
};
use loquat_text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::field::FieldPath;
use crate::logit_bias::LogitBias;
use crate::samplers::SAMPLERS;

/// The size of all texts of a parameter, in bytes: bounds the time to tokenize them.
pub const MAX_WORD_BYTES: usize = 65_536;

/// The names of Ollama, llama.cpp and vLLM for the engine's parameters; all others go by the engine's
/// own.
pub const ALIASES: [(&str, &str); 3] = [
    ("repeat_penalty", "repetition_penalty"),
    ("repeat_last_n", "penalty_last_n"),
    ("allowed_token_ids", "allowed_tokens"),
];

/// The parameter that this alias names.
pub fn alias(name: &str) -> Option<&'static str> {
    let mut aliases = ALIASES.iter();
    let found = aliases.find(|(theirs, _)| *theirs == name);
    found.map(|(_, ours)| *ours)
}

/// Adds the value of a parameter, which a request may send by its name and an alias.
pub fn insert(
    parameters: &mut Map<String, Value>,
    field: &str,
    parameter: String,
    value: Value,
) -> Result<(), ApiError> {
    match parameters.get(&parameter) {
        Some(other) if *other != value => {
            let problem = format!("is another name for `{parameter}` and differs; send only one");
            Err(invalid(field, &problem))
        }
        _ => {
            parameters.insert(parameter, value);
            Ok(())
        }
    }
}

/// The defaults with the values of a request or a configuration in their place.
pub fn apply(
    overrides: &Map<String, Value>,
    defaults: &SamplingParams,
    tokenizer: &Tokenizer,
) -> Result<SamplingParams, ApiError> {
    let mut params = defaults.clone();
    if let Some(order) = overrides.get("order") {
        // Steps that the order omits are switched off, even if the defaults enable them.
        let order = steps("order", order)?;
        let left_out = DEFAULT_ORDER.iter().filter(|step| !order.contains(step));
        left_out.for_each(|step| params.switch_off(*step));
    }
    let samplers = match overrides.get(SAMPLERS) {
        Some(_) if overrides.contains_key("order") => {
            return Err(invalid(SAMPLERS, "and `order` set the same; send only one"));
        }
        Some(samplers) => Some(steps(SAMPLERS, samplers)?),
        None => None,
    };
    let mut reader = ParameterReader {
        tokenizer,
        forbidden: Vec::new(),
    };
    for (parameter, slot) in params.slots() {
        if let Some(value) = overrides.get(parameter.name) {
            reader.set(parameter.name, slot, value)?;
        }
    }
    forbid(&mut params, reader.forbidden)?;
    if let Some(order) = samplers {
        // In llama.cpp other steps are off, whatever the request sets for them.
        let left_out = DEFAULT_ORDER.iter().filter(|step| !order.contains(step));
        left_out.for_each(|step| params.switch_off(*step));
        params.order = order;
    }
    let mut names = overrides.keys().filter(|name| *name != SAMPLERS);
    let unknown = names.find(|name| PARAMETERS.iter().all(|known| known.name != name.as_str()));
    match unknown {
        Some(name) => Err(invalid(name, "is not a sampling parameter")),
        None => Ok(params),
    }
}

struct ParameterReader<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens that `logit_bias` forbids.
    forbidden: Vec<u32>,
}

impl ParameterReader<'_> {
    fn set(&mut self, name: &str, slot: ParameterSlot<'_>, value: &Value) -> Result<(), ApiError> {
        match slot {
            ParameterSlot::Float(slot) => *slot = number(name, value)? as f32,
            ParameterSlot::Count(slot) => *slot = count(name, value)?,
            ParameterSlot::Window(slot) => *slot = whole(name, value)?,
            ParameterSlot::Mode(slot) => *slot = whole(name, value)?,
            ParameterSlot::Biases(slot) => {
                let LogitBias { added, forbidden } = LogitBias::read(name, value, self.tokenizer)?;
                *slot = added;
                self.forbidden.extend(forbidden);
            }
            ParameterSlot::Tokens(slot) => *slot = read(name, value, "a list of token ids")?,
            ParameterSlot::Words(slot) => {
                let words: Vec<String> = read(name, value, "a list of words")?;
                check_words(name, &words)?;
                let sequences = word_sequences(&words, self.tokenizer);
                *slot = sequences.map_err(|error| {
                    ApiError::bad_request(error.to_string()).param(FieldPath::verbatim(name))
                })?;
            }
            ParameterSlot::Texts(slot) => *slot = read(name, value, "a list of strings")?,
            ParameterSlot::Steps(slot) => *slot = steps(name, value)?,
            ParameterSlot::Seed(slot) => *slot = Some(seed(name, value)?),
        }
        Ok(())
    }
}

/// Adds the tokens that `logit_bias` forbids.
fn forbid(params: &mut SamplingParams, tokens: Vec<u32>) -> Result<(), ApiError> {
    let count = params.bad_words.len() + tokens.len();
    if !tokens.is_empty() && BAD_WORDS.check_entries(count).is_err() {
        let problem = format!("and `bad_words` forbid {count} tokens or words, which are too many");
        return Err(invalid(LOGIT_BIAS.name, &problem));
    }
    // Biased too, so that the engine's error for an unknown token names `logit_bias`.
    let biases = tokens.iter().map(|id| (*id, LOGIT_BIAS.min));
    params.logit_bias.extend(biases);
    let words = tokens.into_iter().map(|id| vec![id]);
    params.bad_words.extend(words);
    Ok(())
}

/// All parameters by name.
pub fn values(params: &SamplingParams) -> Map<String, Value> {
    let mut params = params.clone();
    let values = params.slots().into_iter().map(|(parameter, slot)| {
        let value = match slot {
            ParameterSlot::Float(value) => json!(value),
            ParameterSlot::Count(value) => json!(value),
            ParameterSlot::Window(value) => json!(value),
            ParameterSlot::Mode(value) => json!(value),
            ParameterSlot::Biases(value) => json!(value),
            ParameterSlot::Tokens(value) => json!(value),
            ParameterSlot::Words(value) => json!(value),
            ParameterSlot::Texts(value) => json!(value),
            ParameterSlot::Steps(value) => value.iter().map(|step| step.name()).collect(),
            ParameterSlot::Seed(value) => json!(value),
        };
        (parameter.name.to_owned(), value)
    });
    let mut values: Map<_, _> = values.collect();
    for (theirs, ours) in ALIASES {
        if let Some(value) = values.get(ours) {
            values.insert(theirs.to_owned(), value.clone());
        }
    }
    values
}

fn check_words(name: &str, words: &[String]) -> Result<(), ApiError> {
    BAD_WORDS.check_entries(words.len())?;
    match words.iter().map(String::len).sum() {
        0..=MAX_WORD_BYTES => Ok(()),
        bytes => {
            let problem =
                format!("has {bytes} bytes of words; at most {MAX_WORD_BYTES} are allowed");
            Err(invalid(name, &problem))
        }
    }
}

pub fn invalid(name: &str, problem: &str) -> ApiError {
    ApiError::invalid(FieldPath::verbatim(name), problem)
}

pub fn wrong_type(name: &str, value: &Value, expected: &str) -> ApiError {
    let found = match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(_) => "a string".to_owned(),
        short => short.to_string(),
    };
    invalid(name, &format!("is {found}; it must be {expected}"))
}

fn read<T: serde::de::DeserializeOwned>(
    name: &str,
    value: &Value,
    expected: &str,
) -> Result<T, ApiError> {
    serde_json::from_value(value.clone()).map_err(|_| wrong_type(name, value, expected))
}

fn number(name: &str, value: &Value) -> Result<f64, ApiError> {
    let number = value.as_f64();
    number.ok_or_else(|| wrong_type(name, value, "a number"))
}

fn whole<T: TryFrom<i64>>(name: &str, value: &Value) -> Result<T, ApiError> {
    let whole = value.as_i64().and_then(|whole| T::try_from(whole).ok());
    whole.ok_or_else(|| wrong_type(name, value, "a whole number in its range"))
}

/// Other servers use a `top_k` of -1 for no limit.
fn count(name: &str, value: &Value) -> Result<usize, ApiError> {
    match (name, value.as_i64()) {
        ("top_k", Some(-1)) => Ok(0),
        _ => {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| wrong_type(name, value, "a whole number, at least 0"))
        }
    }
}

/// Any 64-bit number, with or without a sign.
fn seed(name: &str, value: &Value) -> Result<u64, ApiError> {
    let signed = value.as_i64().map(|seed| seed as u64);
    let seed = value.as_u64().or(signed);
    seed.ok_or_else(|| wrong_type(name, value, "a whole number of 64 bits"))
}

fn steps(name: &str, value: &Value) -> Result<Vec<SamplingStep>, ApiError> {
    let names: Vec<String> = read(name, value, "a list of sampling steps")?;
    let steps = names.iter().map(|step| SamplingStep::from_name(step));
    Ok(steps.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use loquat_engine::ParameterKind;

    use super::*;
    use crate::testing::tokenizer;

    fn apply_one(name: &str, value: Value) -> Result<SamplingParams, ApiError> {
        let given = Map::from_iter([(name.to_owned(), value)]);
        apply(&given, &SamplingParams::default(), &tokenizer())
    }

    /// The value of a parameter; of words, their number.
    fn value_of(params: &SamplingParams, name: &str) -> Value {
        match (name, &values(params)[name]) {
            ("bad_words", Value::Array(words)) => json!(words.len()),
            (_, value) => value.clone(),
        }
    }

    #[test]
    fn every_parameter_sets_only_its_field() {
        for parameter in PARAMETERS {
            let (given, expected) = match parameter.kind {
                ParameterKind::Float => (json!(parameter.max), json!(parameter.max)),
                ParameterKind::Integer => {
                    (json!(parameter.max as i64), json!(parameter.max as i64))
                }
                ParameterKind::Biases => (json!({ "5": 1.5 }), json!([[5, 1.5]])),
                ParameterKind::Tokens => (json!([1, 2]), json!([1, 2])),
                // With and without a leading space.
                ParameterKind::TokenSequences => (json!(["word"]), json!(2)),
                ParameterKind::Strings => (json!(["a"]), json!(["a"])),
                ParameterKind::Steps => (
                    json!(["temperature", "top_p"]),
                    json!(["temperature", "top_p"]),
                ),
                ParameterKind::Seed => (json!(7), json!(7)),
            };
            let name = parameter.name;
            let params = apply_one(name, given).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(value_of(&params, name), expected, "{name}");
            let neutral = SamplingParams::default();
            for other in PARAMETERS.iter().filter(|other| other.name != name) {
                let unchanged = value_of(&neutral, other.name);
                assert_eq!(
                    value_of(&params, other.name),
                    unchanged,
                    "{name} {}",
                    other.name
                );
            }
        }
    }

    #[test]
    fn wrong_type_is_refused_by_name() {
        for parameter in PARAMETERS {
            for wrong in [json!(true), json!("x"), json!([[]]), json!({ "x": "y" })] {
                let error = apply_one(parameter.name, wrong.clone()).expect_err(parameter.name);
                assert_eq!(
                    error.param,
                    Some(FieldPath::verbatim(parameter.name)),
                    "{wrong}"
                );
                assert!(error.message.contains(parameter.name), "{}", error.message);
            }
        }
    }

    #[test]
    fn numbers_are_range_checked() {
        let cases = [
            ("top_k", json!(-1), Some(json!(0))),
            ("top_k", json!(-2), None),
            ("top_k", json!(1.5), None),
            ("min_tokens", json!(-1), None),
            ("penalty_last_n", json!(-1), Some(json!(-1))),
            ("penalty_last_n", json!(i64::MAX), None),
            ("mirostat", json!(256), None),
            ("seed", json!(-1), Some(json!(u64::MAX))),
            ("seed", json!(u64::MAX), Some(json!(u64::MAX))),
            ("seed", json!(0.5), None),
            ("temperature", json!(1), Some(json!(1.0))),
            ("logit_bias", json!({ "-1": 1 }), None),
            ("order", json!(["nothing"]), None),
            ("unheard_of", json!(1), None),
        ];
        for (name, given, expected) in cases {
            let found = apply_one(name, given.clone()).ok();
            let found = found.map(|params| value_of(&params, name));
            assert_eq!(found, expected, "{name} {given}");
        }
    }

    #[test]
    fn oversized_word_lists_are_refused() {
        let distinct: Vec<String> = (0..1_000_000).map(|word| word.to_string()).collect();
        let cases = [
            (
                json!(distinct),
                "`bad_words` is a list of 1000000; it must be a list of at most 8192",
            ),
            (
                json!(["a".repeat(70_000)]),
                "`bad_words` has 70000 bytes of words; at most 65536 are allowed",
            ),
        ];
        for (words, message) in cases {
            let error = apply_one("bad_words", words).expect_err(message);
            assert_eq!(error.message, message);
            assert_eq!(error.param, Some(FieldPath::verbatim("bad_words")));
        }
        // Each with and without a leading space.
        let params = apply_one("bad_words", json!(["a", "b", "a"])).expect("few");
        assert_eq!(value_of(&params, "bad_words"), json!(4));
    }

    #[test]
    fn false_bias_forbids_the_token() {
        let given = json!({ "logit_bias": [[5, false], [6, 1]], "bad_words": ["a"] });
        let given = given.as_object().expect("an object");
        let params = apply(given, &SamplingParams::default(), &tokenizer()).expect("valid");
        assert_eq!(params.logit_bias, [(6, 1.0), (5, -100.0)]);
        assert_eq!(params.bad_words.len(), 3);
        assert!(params.bad_words.contains(&vec![5]));

        let all: Vec<_> = (0..9000).map(|id| json!([id, false])).collect();
        let error = apply_one("logit_bias", all.into()).expect_err("too many");
        assert_eq!(error.param, Some(FieldPath::verbatim("logit_bias")));
    }

    #[test]
    fn order_disables_omitted_steps() {
        let defaults = SamplingParams {
            top_k: 40,
            min_p: 0.1,
            ..SamplingParams::default()
        };
        let given = json!({ "order": ["min_p"], "temperature": 0.5 });
        let given = given.as_object().expect("an object");
        let params = apply(given, &defaults, &tokenizer()).expect("known");
        assert_eq!((params.top_k, params.min_p), (0, 0.1));
        assert_eq!(params.temperature, 0.5);
    }
}
