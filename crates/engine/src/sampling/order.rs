//! The steps between logits and a draw, and the order they come in.

use std::fmt;

use super::SamplingParams;
use super::parameter::{
    DRY_MULTIPLIER, DYNATEMP_RANGE, FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, Parameter,
    REPETITION_PENALTY, TEMPERATURE, TOP_K, TOP_N_SIGMA, TOP_P, TYPICAL_P, XTC_PROBABILITY,
};
use crate::EngineError;

/// One step of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingStep {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY: penalises tokens that would extend a repetition.
    Dry,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Drops logits far below the largest.
    TopNSigma,
    /// Keeps the `top_k` likeliest tokens.
    TopK,
    /// Keeps tokens about as surprising as expected.
    TypicalP,
    /// Keeps the likeliest tokens up to a total probability.
    TopP,
    /// Drops tokens much less likely than the likeliest.
    MinP,
    /// XTC: sometimes drops the likeliest tokens.
    Xtc,
}

/// The default order: llama.cpp's, with the temperature before the truncations as in transformers
/// and vLLM, which `generation_config.json` files expect.
pub const DEFAULT_ORDER: [SamplingStep; 9] = [
    SamplingStep::Penalties,
    SamplingStep::Dry,
    SamplingStep::Temperature,
    SamplingStep::TopNSigma,
    SamplingStep::TopK,
    SamplingStep::TypicalP,
    SamplingStep::TopP,
    SamplingStep::MinP,
    SamplingStep::Xtc,
];

const FIELD: &str = "order";

impl SamplingStep {
    /// As in llama.cpp's `samplers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::Temperature => "temperature",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typical_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// Parses a step's name or llama.cpp's short name.
    pub fn from_name(name: &str) -> Result<Self, EngineError> {
        let canonical = match name {
            "typ_p" => Self::TypicalP.name(),
            other => other,
        };
        let step = DEFAULT_ORDER.iter().find(|step| step.name() == canonical);
        step.copied().ok_or_else(|| EngineError::OutOfRange {
            field: FIELD,
            found: format!("naming `{name}`"),
            expected: format!("a list of {}", DEFAULT_ORDER.map(Self::name).join(", ")),
        })
    }

    /// The parameters that switch the step on, with their values in `params`. Its other parameters
    /// may have any value while it is off.
    fn switches(self, params: &SamplingParams) -> Vec<(Parameter, f32)> {
        match self {
            Self::Penalties => vec![
                (REPETITION_PENALTY, params.repetition_penalty),
                (PRESENCE_PENALTY, params.presence_penalty),
                (FREQUENCY_PENALTY, params.frequency_penalty),
            ],
            Self::Dry => vec![(DRY_MULTIPLIER, params.dry_multiplier)],
            Self::Temperature => vec![
                (TEMPERATURE, params.temperature),
                (DYNATEMP_RANGE, params.dynatemp_range),
            ],
            Self::TopNSigma => vec![(TOP_N_SIGMA, params.top_n_sigma)],
            Self::TopK => vec![(TOP_K, params.top_k as f32)],
            Self::TypicalP => vec![(TYPICAL_P, params.typical_p)],
            Self::TopP => vec![(TOP_P, params.top_p)],
            Self::MinP => vec![(MIN_P, params.min_p)],
            Self::Xtc => vec![(XTC_PROBABILITY, params.xtc_probability)],
        }
    }
}

impl fmt::Display for SamplingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Each step occurs at most once, and every active step is listed.
pub(super) fn check(params: &SamplingParams) -> Result<(), EngineError> {
    let order = &params.order;
    for (at, step) in order.iter().enumerate() {
        if order[..at].contains(step) {
            return Err(EngineError::OutOfRange {
                field: FIELD,
                found: format!("naming `{step}` twice"),
                expected: "a list that names each step at most once".into(),
            });
        }
    }
    for step in DEFAULT_ORDER.iter().filter(|step| !order.contains(step)) {
        for (parameter, value) in step.switches(params) {
            if value != parameter.default {
                return Err(EngineError::OutOfRange {
                    field: parameter.name,
                    found: value.to_string(),
                    expected: format!("{}, as `order` leaves out `{step}`", parameter.default),
                });
            }
        }
    }
    Ok(())
}
