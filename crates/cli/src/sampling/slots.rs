//! The fields of the engine's parameters, so that flags and reports can go through all of them.

use loquat_engine::{SamplingParams, Step};
use serde_json::{Value, json};

use crate::show::number;

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

impl Slot<'_> {
    pub fn value(&self) -> Value {
        match self {
            Self::Float(value) => number(**value),
            Self::Count(value) => json!(value),
            Self::Window(value) => json!(value),
            Self::Mode(value) => json!(value),
            Self::Biases(biases) => {
                let biases = biases.iter();
                biases
                    .map(|(id, bias)| json!([id, number(*bias)]))
                    .collect()
            }
            Self::Tokens(value) => json!(value),
            Self::Words(value) => json!(value),
            Self::Texts(value) => json!(value),
            Self::Steps(steps) => steps.iter().map(|step| step.name()).collect(),
            Self::Seed(value) => json!(value),
        }
    }
}

/// Every field, by its parameter's name.
pub fn slots(params: &mut SamplingParams) -> Vec<(&'static str, Slot<'_>)> {
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
    } = params;
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
