//! The fields of the parameters by name, so that flags, requests and reports can go through all of
//! them.

use std::collections::HashSet;

use loquat_text::{Special, TextError, Tokenizer};

use super::{SamplingParams, Step};

/// Where a parameter's value stands.
pub enum Slot<'a> {
    Float(&'a mut f32),
    Count(&'a mut usize),
    Window(&'a mut i32),
    Mode(&'a mut u8),
    Biases(&'a mut Vec<(u32, f32)>),
    Tokens(&'a mut Vec<u32>),
    Words(&'a mut Vec<Vec<u32>>),
    Texts(&'a mut Vec<String>),
    Steps(&'a mut Vec<Step>),
    Seed(&'a mut Option<u64>),
}

impl SamplingParams {
    /// Every field, by its parameter's name.
    pub fn slots(&mut self) -> Vec<(&'static str, Slot<'_>)> {
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
            ("temperature", Slot::Float(temperature)),
            ("dynatemp_range", Slot::Float(dynatemp_range)),
            ("dynatemp_exponent", Slot::Float(dynatemp_exponent)),
            ("top_k", Slot::Count(top_k)),
            ("top_p", Slot::Float(top_p)),
            ("min_p", Slot::Float(min_p)),
            ("typical_p", Slot::Float(typical_p)),
            ("top_n_sigma", Slot::Float(top_n_sigma)),
            ("xtc_probability", Slot::Float(xtc_probability)),
            ("xtc_threshold", Slot::Float(xtc_threshold)),
            ("dry_multiplier", Slot::Float(dry_multiplier)),
            ("dry_base", Slot::Float(dry_base)),
            ("dry_allowed_length", Slot::Count(dry_allowed_length)),
            ("dry_penalty_last_n", Slot::Window(dry_penalty_last_n)),
            ("dry_sequence_breakers", Slot::Texts(dry_sequence_breakers)),
            ("mirostat", Slot::Mode(mirostat)),
            ("mirostat_tau", Slot::Float(mirostat_tau)),
            ("mirostat_eta", Slot::Float(mirostat_eta)),
            ("repetition_penalty", Slot::Float(repetition_penalty)),
            ("presence_penalty", Slot::Float(presence_penalty)),
            ("frequency_penalty", Slot::Float(frequency_penalty)),
            ("penalty_last_n", Slot::Window(penalty_last_n)),
            ("logit_bias", Slot::Biases(logit_bias)),
            ("bad_words", Slot::Words(bad_words)),
            ("allowed_tokens", Slot::Tokens(allowed_tokens)),
            ("min_tokens", Slot::Count(min_tokens)),
            ("order", Slot::Steps(order)),
            ("seed", Slot::Seed(seed)),
        ]
    }

    /// Puts what a step goes by at values that leave it without effect.
    pub fn switch_off(&mut self, step: Step) {
        let neutral = SamplingParams::default();
        match step {
            Step::Penalties => {
                self.repetition_penalty = neutral.repetition_penalty;
                self.presence_penalty = neutral.presence_penalty;
                self.frequency_penalty = neutral.frequency_penalty;
            }
            Step::Dry => self.dry_multiplier = neutral.dry_multiplier,
            Step::Temperature => {
                self.temperature = neutral.temperature;
                self.dynatemp_range = neutral.dynatemp_range;
            }
            Step::TopNSigma => self.top_n_sigma = neutral.top_n_sigma,
            Step::TopK => self.top_k = neutral.top_k,
            Step::TypicalP => self.typical_p = neutral.typical_p,
            Step::TopP => self.top_p = neutral.top_p,
            Step::MinP => self.min_p = neutral.min_p,
            Step::Xtc => self.xtc_probability = neutral.xtc_probability,
        }
    }
}

/// Words as sequences that `bad_words` takes. A word is another token inside a text than at its
/// beginning.
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
