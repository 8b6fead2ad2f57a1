//! Access to parameter fields by name, for flags, requests, validation and reports.

use std::collections::HashSet;

use loquat_text::{Special, TextError, Tokenizer};

use super::parameter::*;
use super::{SamplingParams, SamplingStep};
use crate::EngineError;

/// A mutable reference to a parameter's value.
pub enum ParameterSlot<'a> {
    /// Any number.
    Float(&'a mut f32),
    /// A count of tokens.
    Count(&'a mut usize),
    /// How many of the last tokens count; -1 means all.
    Window(&'a mut i32),
    /// `mirostat`'s version.
    Mode(&'a mut u8),
    /// Token ids and what is added to their logits.
    Biases(&'a mut Vec<(u32, f32)>),
    /// Token ids.
    Tokens(&'a mut Vec<u32>),
    /// Token sequences.
    Words(&'a mut Vec<Vec<u32>>),
    /// Strings.
    Texts(&'a mut Vec<String>),
    /// Steps, first to last.
    Steps(&'a mut Vec<SamplingStep>),
    /// The seed; `None` is random.
    Seed(&'a mut Option<u64>),
}

impl ParameterSlot<'_> {
    /// Checks the value against its parameter's range and limits.
    pub(super) fn check(&self, parameter: &Parameter) -> Result<(), EngineError> {
        match self {
            Self::Float(value) => parameter.check(**value),
            Self::Count(value) => parameter.check_integer(**value),
            Self::Window(value) => parameter.check_integer(**value),
            Self::Mode(value) => match **value {
                0 | 2 => Ok(()),
                other => Err(parameter.invalid(other, "0 or 2")),
            },
            Self::Biases(biases) => {
                parameter.check_entries(biases.len())?;
                let mut biases = biases.iter();
                biases.try_for_each(|(_, bias)| parameter.check(*bias))
            }
            Self::Tokens(tokens) => parameter.check_entries(tokens.len()),
            Self::Words(words) => {
                parameter.check_entries(words.len())?;
                check_filled(parameter, words.iter().map(Vec::len), "a token")
            }
            Self::Texts(texts) => {
                parameter.check_entries(texts.len())?;
                check_filled(parameter, texts.iter().map(String::len), "a character")?;
                let longest = texts.iter().map(String::len).max().unwrap_or(0);
                if longest <= LONGEST_BREAKER {
                    return Ok(());
                }
                let found = format!("a list with an entry of {longest} bytes");
                let expected = format!("a list whose entries have at most {LONGEST_BREAKER}");
                Err(parameter.invalid(found, expected))
            }
            Self::Steps(_) | Self::Seed(_) => Ok(()),
        }
    }
}

/// Refuses a list with an empty entry; each needs at least `least`.
fn check_filled(
    parameter: &Parameter,
    mut lengths: impl Iterator<Item = usize>,
    least: &str,
) -> Result<(), EngineError> {
    if lengths.all(|length| length > 0) {
        return Ok(());
    }
    let expected = format!("a list whose entries have at least {least}");
    Err(parameter.invalid("a list with an empty entry", expected))
}

impl SamplingParams {
    /// Every field with its parameter.
    pub fn slots(&mut self) -> Vec<(Parameter, ParameterSlot<'_>)> {
        let SamplingParams {
            temperature,
            dynatemp_range,
            dynatemp_exponent,
            top_k,
            top_p,
            min_p,
            typical_p,
            top_n_sigma,
            xtc_probability,
            xtc_threshold,
            dry_multiplier,
            dry_base,
            dry_allowed_length,
            dry_penalty_last_n,
            dry_sequence_breakers,
            mirostat,
            mirostat_tau,
            mirostat_eta,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            penalty_last_n,
            logit_bias,
            bad_words,
            allowed_tokens,
            min_tokens,
            order,
            seed,
        } = self;
        vec![
            (TEMPERATURE, ParameterSlot::Float(temperature)),
            (DYNATEMP_RANGE, ParameterSlot::Float(dynatemp_range)),
            (DYNATEMP_EXPONENT, ParameterSlot::Float(dynatemp_exponent)),
            (TOP_K, ParameterSlot::Count(top_k)),
            (TOP_P, ParameterSlot::Float(top_p)),
            (MIN_P, ParameterSlot::Float(min_p)),
            (TYPICAL_P, ParameterSlot::Float(typical_p)),
            (TOP_N_SIGMA, ParameterSlot::Float(top_n_sigma)),
            (XTC_PROBABILITY, ParameterSlot::Float(xtc_probability)),
            (XTC_THRESHOLD, ParameterSlot::Float(xtc_threshold)),
            (DRY_MULTIPLIER, ParameterSlot::Float(dry_multiplier)),
            (DRY_BASE, ParameterSlot::Float(dry_base)),
            (DRY_ALLOWED_LENGTH, ParameterSlot::Count(dry_allowed_length)),
            (
                DRY_PENALTY_LAST_N,
                ParameterSlot::Window(dry_penalty_last_n),
            ),
            (
                DRY_SEQUENCE_BREAKERS,
                ParameterSlot::Texts(dry_sequence_breakers),
            ),
            (MIROSTAT, ParameterSlot::Mode(mirostat)),
            (MIROSTAT_TAU, ParameterSlot::Float(mirostat_tau)),
            (MIROSTAT_ETA, ParameterSlot::Float(mirostat_eta)),
            (REPETITION_PENALTY, ParameterSlot::Float(repetition_penalty)),
            (PRESENCE_PENALTY, ParameterSlot::Float(presence_penalty)),
            (FREQUENCY_PENALTY, ParameterSlot::Float(frequency_penalty)),
            (PENALTY_LAST_N, ParameterSlot::Window(penalty_last_n)),
            (LOGIT_BIAS, ParameterSlot::Biases(logit_bias)),
            (BAD_WORDS, ParameterSlot::Words(bad_words)),
            (ALLOWED_TOKENS, ParameterSlot::Tokens(allowed_tokens)),
            (MIN_TOKENS, ParameterSlot::Count(min_tokens)),
            (ORDER, ParameterSlot::Steps(order)),
            (SEED, ParameterSlot::Seed(seed)),
        ]
    }

    /// Resets a step's parameters to neutral values.
    pub fn switch_off(&mut self, step: SamplingStep) {
        let neutral = SamplingParams::default();
        match step {
            SamplingStep::Penalties => {
                self.repetition_penalty = neutral.repetition_penalty;
                self.presence_penalty = neutral.presence_penalty;
                self.frequency_penalty = neutral.frequency_penalty;
            }
            SamplingStep::Dry => self.dry_multiplier = neutral.dry_multiplier,
            SamplingStep::Temperature => {
                self.temperature = neutral.temperature;
                self.dynatemp_range = neutral.dynatemp_range;
            }
            SamplingStep::TopNSigma => self.top_n_sigma = neutral.top_n_sigma,
            SamplingStep::TopK => self.top_k = neutral.top_k,
            SamplingStep::TypicalP => self.typical_p = neutral.typical_p,
            SamplingStep::TopP => self.top_p = neutral.top_p,
            SamplingStep::MinP => self.min_p = neutral.min_p,
            SamplingStep::Xtc => self.xtc_probability = neutral.xtc_probability,
        }
    }
}

/// Token sequences for `bad_words`: each word with and without a leading space.
pub fn word_sequences(words: &[String], tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, TextError> {
    let mut sequences = Vec::new();
    let mut known = HashSet::new();
    for word in words {
        for text in [word.clone(), format!(" {}", word.trim_start())] {
            let ids = tokenizer.encode(&text, Special::PLAIN)?;
            if known.insert(ids.clone()) {
                sequences.push(ids);
            }
        }
    }
    Ok(sequences)
}
