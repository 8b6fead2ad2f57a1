//! The sampling parameters. Each is defined once, in [`PARAMETERS`]: name, range, default and
//! documentation, for validation, help texts and reference pages alike.

use crate::EngineError;

/// One numeric sampling parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    pub name: &'static str,
    /// Inclusive.
    pub min: f32,
    /// Inclusive.
    pub max: f32,
    /// Also the value that leaves the distribution as the model gave it.
    pub default: f32,
    pub help: &'static str,
}

pub const TEMPERATURE: Parameter = Parameter {
    name: "temperature",
    min: 0.0,
    max: 100.0,
    default: 1.0,
    help: "Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the \
           likeliest token",
};

pub const TOP_K: Parameter = Parameter {
    name: "top_k",
    min: 0.0,
    max: 16_777_216.0,
    default: 0.0,
    help: "Draw from this many of the likeliest tokens only; 0 draws from all",
};

pub const TOP_P: Parameter = Parameter {
    name: "top_p",
    min: 0.0,
    max: 1.0,
    default: 1.0,
    help: "Draw from the fewest likeliest tokens that together have this probability; at least \
           one is kept, 1 keeps all",
};

pub const MIN_P: Parameter = Parameter {
    name: "min_p",
    min: 0.0,
    max: 1.0,
    default: 0.0,
    help: "Drop tokens less likely than this share of the likeliest one's probability; 0 keeps \
           all",
};

pub const REPETITION_PENALTY: Parameter = Parameter {
    name: "repetition_penalty",
    min: 0.01,
    max: 100.0,
    default: 1.0,
    help: "Divides the positive and multiplies the negative logits of tokens that the prompt or \
           the output holds; above 1 discourages repetition",
};

pub const PRESENCE_PENALTY: Parameter = Parameter {
    name: "presence_penalty",
    min: -2.0,
    max: 2.0,
    default: 0.0,
    help: "Subtracted from the logit of every token that the output holds",
};

pub const FREQUENCY_PENALTY: Parameter = Parameter {
    name: "frequency_penalty",
    min: -2.0,
    max: 2.0,
    default: 0.0,
    help: "Subtracted from a token's logit once for each time that the output holds it",
};

/// What one entry of `logit_bias` may add; its default is the bias of a token not named.
pub const LOGIT_BIAS: Parameter = Parameter {
    name: "logit_bias",
    min: -100.0,
    max: 100.0,
    default: 0.0,
    help: "Added to the logits of the tokens named; 100 and -100 all but force and forbid one",
};

/// Every parameter, in the order of application.
pub const PARAMETERS: [Parameter; 8] = [
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    LOGIT_BIAS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
];

/// How the next token is chosen; see [`PARAMETERS`] for what each field means.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    pub temperature: f32,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// A token named twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same request with the same seed gives the same tokens. Without one a fresh seed is
    /// taken, and told at the end.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: TEMPERATURE.default,
            top_k: TOP_K.default as usize,
            top_p: TOP_P.default,
            min_p: MIN_P.default,
            repetition_penalty: REPETITION_PENALTY.default,
            presence_penalty: PRESENCE_PENALTY.default,
            frequency_penalty: FREQUENCY_PENALTY.default,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token, nothing adjusted.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks every field against its range, and the ids against the vocabulary.
    pub fn validate(&self, vocab_size: usize) -> Result<(), EngineError> {
        let Self {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            seed: _,
        } = self;
        TEMPERATURE.check(*temperature)?;
        TOP_K.check(*top_k as f32)?;
        TOP_P.check(*top_p)?;
        MIN_P.check(*min_p)?;
        REPETITION_PENALTY.check(*repetition_penalty)?;
        PRESENCE_PENALTY.check(*presence_penalty)?;
        FREQUENCY_PENALTY.check(*frequency_penalty)?;
        for &(token, bias) in logit_bias {
            LOGIT_BIAS.check(bias)?;
            check_token(LOGIT_BIAS.name, token, vocab_size)?;
        }
        Ok(())
    }

    /// Whether the choice is the largest of the model's own logits, so that these need not be
    /// read.
    pub(crate) fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.penalises() && self.logit_bias.is_empty()
    }

    /// Whether the choice depends on tokens that stand already.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != REPETITION_PENALTY.default
            || self.presence_penalty != PRESENCE_PENALTY.default
            || self.frequency_penalty != FREQUENCY_PENALTY.default
    }
}

impl Parameter {
    /// NaN is in no range.
    fn check(&self, value: f32) -> Result<(), EngineError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(EngineError::OutOfRange {
            field: self.name,
            found: value.to_string(),
            expected: format!("from {} to {}", self.min, self.max),
        })
    }
}

pub(crate) fn check_token(
    field: &'static str,
    token: u32,
    vocab_size: usize,
) -> Result<(), EngineError> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    Err(EngineError::OutOfVocabulary {
        field,
        token,
        vocab_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    }

    #[test]
    fn the_default_is_legal_and_neutral() {
        let params = SamplingParams::default();
        assert_eq!(params.validate(1), Ok(()));
        assert!(!params.penalises());
        for parameter in PARAMETERS {
            assert_eq!(parameter.check(parameter.default), Ok(()), "{parameter:?}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        let cases = [
            (with(|p| p.temperature = -0.1), "temperature"),
            (with(|p| p.temperature = f32::NAN), "temperature"),
            (with(|p| p.temperature = f32::INFINITY), "temperature"),
            (with(|p| p.top_k = usize::MAX), "top_k"),
            (with(|p| p.top_p = 1.5), "top_p"),
            (with(|p| p.min_p = -1.0), "min_p"),
            (with(|p| p.repetition_penalty = 0.0), "repetition_penalty"),
            (with(|p| p.presence_penalty = 2.1), "presence_penalty"),
            (with(|p| p.frequency_penalty = -2.1), "frequency_penalty"),
            (with(|p| p.logit_bias = vec![(0, 101.0)]), "logit_bias"),
        ];
        for (params, name) in cases {
            match params.validate(8) {
                Err(EngineError::OutOfRange {
                    field, expected, ..
                }) => {
                    assert_eq!(field, name);
                    assert!(expected.starts_with("from "), "{expected}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_bias_for_no_token_is_refused() {
        let params = with(|p| p.logit_bias = vec![(7, 1.0), (8, 1.0)]);
        assert_eq!(
            params.validate(8),
            Err(EngineError::OutOfVocabulary {
                field: "logit_bias",
                token: 8,
                vocab_size: 8
            })
        );
    }
}
