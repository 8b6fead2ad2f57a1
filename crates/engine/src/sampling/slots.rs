//! Access to parameter fields by name, for flags, requests and reports.

use std::collections::HashSet;

use loquat_text::{Special, TextError, Tokenizer};

use super::{SamplingParams, SamplingStep};

/// A mutable reference to a parameter's value.
pub enum ParameterSlot<'a> {
    Float(&'a mut f32),
    Count(&'a mut usize),
    Window(&'a mut i32),
    Mode(&'a mut u8),
    Biases(&'a mut Vec<(u32, f32)>),
    Tokens(&'a mut Vec<u32>),
    Words(&'a mut Vec<Vec<u32>>),
    Texts(&'a mut Vec<String>),
    Steps(&'a mut Vec<SamplingStep>),
    Seed(&'a mut Option<u64>),
}

impl SamplingParams {
    /// Every field with its parameter's name.
    pub fn slots(&mut self) -> Vec<(&'static str, ParameterSlot<'_>)> {
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
            ("temperature", ParameterSlot::Float(temperature)),
            ("dynatemp_range", ParameterSlot::Float(dynatemp_range)),
            ("dynatemp_exponent", ParameterSlot::Float(dynatemp_exponent)),
            ("top_k", ParameterSlot::Count(top_k)),
            ("top_p", ParameterSlot::Float(top_p)),
            ("min_p", ParameterSlot::Float(min_p)),
            ("typical_p", ParameterSlot::Float(typical_p)),
            ("top_n_sigma", ParameterSlot::Float(top_n_sigma)),
            ("xtc_probability", ParameterSlot::Float(xtc_probability)),
            ("xtc_threshold", ParameterSlot::Float(xtc_threshold)),
            ("dry_multiplier", ParameterSlot::Float(dry_multiplier)),
            ("dry_base", ParameterSlot::Float(dry_base)),
            (
                "dry_allowed_length",
                ParameterSlot::Count(dry_allowed_length),
            ),
            (
                "dry_penalty_last_n",
                ParameterSlot::Window(dry_penalty_last_n),
            ),
            (
                "dry_sequence_breakers",
                ParameterSlot::Texts(dry_sequence_breakers),
            ),
            ("mirostat", ParameterSlot::Mode(mirostat)),
            ("mirostat_tau", ParameterSlot::Float(mirostat_tau)),
            ("mirostat_eta", ParameterSlot::Float(mirostat_eta)),
            (
                "repetition_penalty",
                ParameterSlot::Float(repetition_penalty),
            ),
            ("presence_penalty", ParameterSlot::Float(presence_penalty)),
            ("frequency_penalty", ParameterSlot::Float(frequency_penalty)),
            ("penalty_last_n", ParameterSlot::Window(penalty_last_n)),
            ("logit_bias", ParameterSlot::Biases(logit_bias)),
            ("bad_words", ParameterSlot::Words(bad_words)),
            ("allowed_tokens", ParameterSlot::Tokens(allowed_tokens)),
            ("min_tokens", ParameterSlot::Count(min_tokens)),
            ("order", ParameterSlot::Steps(order)),
            ("seed", ParameterSlot::Seed(seed)),
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
