//! The sampling parameters. Each is defined once, in [`PARAMETERS`]: name, kind, range, default
//! and documentation, for validation, help texts and the reference page alike.

use super::order::SamplingStep;
use crate::EngineError;

/// One sampling parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The name in requests, configuration files and, with dashes, in flags.
    pub name: &'static str,
    /// What its value is.
    pub kind: ParameterKind,
    /// The step it belongs to; `None` if it is independent of the order.
    pub step: Option<SamplingStep>,
    /// Inclusive. For a list of numbers: of each entry; for other lists: 0.
    pub min: f32,
    /// Inclusive; as `min`.
    pub max: f32,
    /// The neutral value. For a list: the value of what is not listed.
    pub default: f32,
    /// For a list: the most entries, which bounds a request's cost.
    pub most: Option<usize>,
    /// A sentence for help texts and the reference page.
    pub help: &'static str,
}

/// What a parameter's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A number.
    Float,
    /// An integer.
    Integer,
    /// A number for each of some tokens.
    Biases,
    /// A list of token ids.
    Tokens,
    /// A list of token sequences.
    TokenSequences,
    /// A list of strings.
    Strings,
    /// A list of [`SamplingStep`]s.
    Steps,
    /// Any 64-bit integer.
    Seed,
}

/// More tokens than any model has.
const COUNT: f32 = 16_777_216.0;

impl Parameter {
    const fn float(name: &'static str, range: (f32, f32), default: f32) -> Self {
        Self {
            name,
            kind: ParameterKind::Float,
            step: None,
            min: range.0,
            max: range.1,
            default,
            most: None,
            help: "",
        }
    }

    const fn integer(name: &'static str, range: (f32, f32), default: f32) -> Self {
        let float = Self::float(name, range, default);
        float.with_kind(ParameterKind::Integer)
    }

    const fn list(name: &'static str, kind: ParameterKind) -> Self {
        Self::float(name, (0.0, 0.0), 0.0).with_kind(kind)
    }

    const fn with_kind(mut self, kind: ParameterKind) -> Self {
        self.kind = kind;
        self
    }

    const fn in_step(mut self, step: SamplingStep) -> Self {
        self.step = Some(step);
        self
    }

    const fn at_most(mut self, entries: usize) -> Self {
        self.most = Some(entries);
        self
    }

    const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    /// NaN is in no range.
    pub(super) fn check(&self, value: f32) -> Result<(), EngineError> {
        if (self.min..=self.max).contains(&value) {
            Ok(())
        } else {
            Err(self.out_of_range(value))
        }
    }

    pub(super) fn check_integer(&self, value: impl TryInto<i64>) -> Result<(), EngineError> {
        let value = value.try_into().unwrap_or(i64::MAX);
        if (self.min as i64..=self.max as i64).contains(&value) {
            Ok(())
        } else {
            Err(self.out_of_range(value))
        }
    }

    /// Checks the length of a list.
    pub fn check_entries(&self, count: usize) -> Result<(), EngineError> {
        match self.most {
            Some(most) if count > most => {
                let expected = format!("a list of at most {most}");
                Err(self.invalid(format!("a list of {count}"), expected))
            }
            _ => Ok(()),
        }
    }

    fn out_of_range(&self, found: impl ToString) -> EngineError {
        self.invalid(found, format!("from {} to {}", self.min, self.max))
    }

    /// The error of a value other than the expected.
    pub(super) fn invalid(&self, found: impl ToString, expected: impl Into<String>) -> EngineError {
        EngineError::OutOfRange {
            field: self.name,
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// Defines [`SamplingParams::repetition_penalty`](crate::SamplingParams::repetition_penalty).
pub const REPETITION_PENALTY: Parameter =
    Parameter::float("repetition_penalty", (0.01, 100.0), 1.0)
        .in_step(SamplingStep::Penalties)
        .help(
            "Divides positive and multiplies negative logits of tokens in the prompt or the \
             output; above 1 discourages repetition",
        );

/// Defines [`SamplingParams::presence_penalty`](crate::SamplingParams::presence_penalty).
pub const PRESENCE_PENALTY: Parameter = Parameter::float("presence_penalty", (-2.0, 2.0), 0.0)
    .in_step(SamplingStep::Penalties)
    .help("Subtracted from the logit of every token that is in the output");

/// Defines [`SamplingParams::frequency_penalty`](crate::SamplingParams::frequency_penalty).
pub const FREQUENCY_PENALTY: Parameter = Parameter::float("frequency_penalty", (-2.0, 2.0), 0.0)
    .in_step(SamplingStep::Penalties)
    .help("Subtracted from a token's logit once for each occurrence in the output");

/// Defines [`SamplingParams::penalty_last_n`](crate::SamplingParams::penalty_last_n).
pub const PENALTY_LAST_N: Parameter = Parameter::integer("penalty_last_n", (-1.0, COUNT), -1.0)
    .in_step(SamplingStep::Penalties)
    .help(
        "How many of the last tokens, prompt and output together, the penalties count; -1 means \
         all, 0 none",
    );

/// Defines [`SamplingParams::dry_multiplier`](crate::SamplingParams::dry_multiplier).
pub const DRY_MULTIPLIER: Parameter = Parameter::float("dry_multiplier", (0.0, 100.0), 0.0)
    .in_step(SamplingStep::Dry)
    .help("Strength of the penalty on a token that would extend a repetition; 0 disables DRY");

/// Defines [`SamplingParams::dry_base`](crate::SamplingParams::dry_base).
pub const DRY_BASE: Parameter = Parameter::float("dry_base", (1.0, 100.0), 1.75)
    .in_step(SamplingStep::Dry)
    .help("Factor by which the DRY penalty grows with each further token of the repetition");

/// Defines [`SamplingParams::dry_allowed_length`](crate::SamplingParams::dry_allowed_length).
pub const DRY_ALLOWED_LENGTH: Parameter =
    Parameter::integer("dry_allowed_length", (0.0, COUNT), 2.0)
        .in_step(SamplingStep::Dry)
        .help("Repetitions shorter than this many tokens are not penalised");

/// Defines [`SamplingParams::dry_penalty_last_n`](crate::SamplingParams::dry_penalty_last_n).
pub const DRY_PENALTY_LAST_N: Parameter =
    Parameter::integer("dry_penalty_last_n", (-1.0, COUNT), -1.0)
        .in_step(SamplingStep::Dry)
        .help(
            "How many of the last tokens, prompt and output together, are searched for \
             repetitions; -1 means all, 0 none",
        );

/// Defines [`SamplingParams::dry_sequence_breakers`](crate::SamplingParams::dry_sequence_breakers).
pub const DRY_SEQUENCE_BREAKERS: Parameter =
    Parameter::list("dry_sequence_breakers", ParameterKind::Strings)
        .in_step(SamplingStep::Dry)
        .at_most(128)
        .help("Strings that end a repetition; at most 128, each of at most 64 bytes");

/// In bytes. Bounds the search around every token.
pub(super) const LONGEST_BREAKER: usize = 64;

/// The default of `dry_sequence_breakers`.
pub const DEFAULT_DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Defines [`SamplingParams::temperature`](crate::SamplingParams::temperature).
pub const TEMPERATURE: Parameter = Parameter::float("temperature", (0.0, 100.0), 1.0)
    .in_step(SamplingStep::Temperature)
    .help(
        "Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the \
         likeliest token",
    );

/// Defines [`SamplingParams::dynatemp_range`](crate::SamplingParams::dynatemp_range).
pub const DYNATEMP_RANGE: Parameter = Parameter::float("dynatemp_range", (0.0, 100.0), 0.0)
    .in_step(SamplingStep::Temperature)
    .help(
        "The temperature varies by up to this much below and above its value: lower when the model \
         is sure, higher when it is not",
    );

/// Defines [`SamplingParams::dynatemp_exponent`](crate::SamplingParams::dynatemp_exponent).
pub const DYNATEMP_EXPONENT: Parameter = Parameter::float("dynatemp_exponent", (0.0, 100.0), 1.0)
    .in_step(SamplingStep::Temperature)
    .help("Above 1, the varying temperature stays low until the model is quite unsure");

/// Defines [`SamplingParams::top_n_sigma`](crate::SamplingParams::top_n_sigma).
pub const TOP_N_SIGMA: Parameter = Parameter::float("top_n_sigma", (0.0, 100.0), 0.0)
    .in_step(SamplingStep::TopNSigma)
    .help(
        "Drop tokens whose logits are more than this many standard deviations below the largest; \
         0 keeps all",
    );

/// Defines [`SamplingParams::top_k`](crate::SamplingParams::top_k).
pub const TOP_K: Parameter = Parameter::integer("top_k", (0.0, COUNT), 0.0)
    .in_step(SamplingStep::TopK)
    .help("Draw only from this many of the likeliest tokens; 0 draws from all");

/// Defines [`SamplingParams::typical_p`](crate::SamplingParams::typical_p).
pub const TYPICAL_P: Parameter = Parameter::float("typical_p", (0.0, 1.0), 1.0)
    .in_step(SamplingStep::TypicalP)
    .help(
        "Draw from the fewest most typical tokens (those about as surprising as the next token \
         is on average) that together have this probability; 1 keeps all",
    );

/// Defines [`SamplingParams::top_p`](crate::SamplingParams::top_p).
pub const TOP_P: Parameter = Parameter::float("top_p", (0.0, 1.0), 1.0)
    .in_step(SamplingStep::TopP)
    .help(
        "Draw from the fewest likeliest tokens that together have this probability; at least one \
         is kept, 1 keeps all",
    );

/// Defines [`SamplingParams::min_p`](crate::SamplingParams::min_p).
pub const MIN_P: Parameter = Parameter::float("min_p", (0.0, 1.0), 0.0)
    .in_step(SamplingStep::MinP)
    .help(
        "Drop tokens less likely than this share of the likeliest one's probability; 0 keeps all",
    );

/// Defines [`SamplingParams::xtc_probability`](crate::SamplingParams::xtc_probability).
pub const XTC_PROBABILITY: Parameter = Parameter::float("xtc_probability", (0.0, 1.0), 0.0)
    .in_step(SamplingStep::Xtc)
    .help("How often the likeliest tokens are dropped; 0 is never");

/// Defines [`SamplingParams::xtc_threshold`](crate::SamplingParams::xtc_threshold).
pub const XTC_THRESHOLD: Parameter = Parameter::float("xtc_threshold", (0.0, 1.0), 0.1)
    .in_step(SamplingStep::Xtc)
    .help(
        "Of the tokens at least this probable, the least likely one is kept and the others are \
         dropped; above 0.5 nothing is dropped",
    );

/// One entry of `logit_bias`; the default applies to tokens not listed.
pub const LOGIT_BIAS: Parameter = Parameter::float("logit_bias", (-100.0, 100.0), 0.0)
    .with_kind(ParameterKind::Biases)
    .at_most(65_536)
    .help(
        "Added to the logits of the listed tokens, at most 65536; 100 and -100 nearly force and \
         forbid a token",
    );

/// Defines [`SamplingParams::bad_words`](crate::SamplingParams::bad_words).
pub const BAD_WORDS: Parameter = Parameter::list("bad_words", ParameterKind::TokenSequences)
    .at_most(8192)
    .help(
        "Sequences that are never completed: the last token is forbidden after the others; at most \
         8192, and a word may count as two",
    );

/// Defines [`SamplingParams::allowed_tokens`](crate::SamplingParams::allowed_tokens).
pub const ALLOWED_TOKENS: Parameter = Parameter::list("allowed_tokens", ParameterKind::Tokens)
    .at_most(65_536)
    .help("Draw only from these tokens, at most 65536; an empty list allows all");

/// Defines [`SamplingParams::min_tokens`](crate::SamplingParams::min_tokens).
pub const MIN_TOKENS: Parameter = Parameter::integer("min_tokens", (0.0, COUNT), 0.0)
    .help("Stop tokens are forbidden until this many tokens are generated");

/// Defines [`SamplingParams::mirostat`](crate::SamplingParams::mirostat).
pub const MIROSTAT: Parameter = Parameter::integer("mirostat", (0.0, 2.0), 0.0).help(
    "2 drops tokens that are too surprising, so that the average surprise is `mirostat_tau`; 0 \
     disables mirostat",
);

/// Defines [`SamplingParams::mirostat_tau`](crate::SamplingParams::mirostat_tau).
pub const MIROSTAT_TAU: Parameter = Parameter::float("mirostat_tau", (0.0, 100.0), 5.0)
    .help("Target for the average surprise of tokens, in bits");

/// Defines [`SamplingParams::mirostat_eta`](crate::SamplingParams::mirostat_eta).
pub const MIROSTAT_ETA: Parameter = Parameter::float("mirostat_eta", (0.0, 1.0), 0.1)
    .help("Learning rate: how fast mirostat corrects deviations from `mirostat_tau`");

/// Defines [`SamplingParams::order`](crate::SamplingParams::order).
pub const ORDER: Parameter = Parameter::list("order", ParameterKind::Steps)
    .help("The steps to take, in order; steps that are not listed are skipped");

/// Defines [`SamplingParams::seed`](crate::SamplingParams::seed).
pub const SEED: Parameter = Parameter::list("seed", ParameterKind::Seed)
    .help("The same request with the same seed gives the same tokens; random when omitted");

/// Every parameter, in the order of application.
pub const PARAMETERS: [Parameter; 28] = [
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    PENALTY_LAST_N,
    LOGIT_BIAS,
    BAD_WORDS,
    ALLOWED_TOKENS,
    MIN_TOKENS,
    DRY_MULTIPLIER,
    DRY_BASE,
    DRY_ALLOWED_LENGTH,
    DRY_PENALTY_LAST_N,
    DRY_SEQUENCE_BREAKERS,
    TEMPERATURE,
    DYNATEMP_RANGE,
    DYNATEMP_EXPONENT,
    TOP_N_SIGMA,
    TOP_K,
    TYPICAL_P,
    TOP_P,
    MIN_P,
    XTC_PROBABILITY,
    XTC_THRESHOLD,
    MIROSTAT,
    MIROSTAT_TAU,
    MIROSTAT_ETA,
    ORDER,
    SEED,
];
