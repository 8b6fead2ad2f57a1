//! Sampling parameters of a request.

use loquat_text::GenerationConfig;

use super::order::{self, DEFAULT_ORDER, SamplingStep};
use super::parameter::*;
use crate::EngineError;

/// How the next token is chosen; [`PARAMETERS`] has each field's range and default.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 takes the likeliest token.
    pub temperature: f32,
    /// How far the temperature varies with the model's certainty; 0 is not at all.
    pub dynatemp_range: f32,
    /// How the temperature varies: above 1, it stays low until the model is quite unsure.
    pub dynatemp_exponent: f32,
    /// Draw only from this many of the likeliest tokens; 0 draws from all.
    pub top_k: usize,
    /// Draw from the fewest likeliest tokens that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Draw from the most typical tokens that together have this probability; 1 keeps all.
    pub typical_p: f32,
    /// Drop logits more than this many standard deviations below the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// How often XTC drops the likeliest tokens; 0 is never.
    pub xtc_probability: f32,
    /// XTC drops all but the least likely of the tokens with at least this probability.
    pub xtc_threshold: f32,
    /// Strength of the penalty on tokens that extend a repetition; 0 disables DRY.
    pub dry_multiplier: f32,
    /// Factor by which the DRY penalty grows with each token of the repetition.
    pub dry_base: f32,
    /// DRY does not penalise repetitions shorter than this many tokens.
    pub dry_allowed_length: usize,
    /// How many of the last tokens DRY searches; -1 means all, 0 none.
    pub dry_penalty_last_n: i32,
    /// Strings that end a repetition for DRY. Matched in the text, so they need a tokenizer.
    pub dry_sequence_breakers: Vec<String>,
    /// 2 keeps the average surprise of tokens at `mirostat_tau`; 0 disables mirostat.
    pub mirostat: u8,
    /// The average surprise that mirostat aims for, in bits.
    pub mirostat_tau: f32,
    /// How fast mirostat corrects deviations from `mirostat_tau`.
    pub mirostat_eta: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the output.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that is in the output.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each occurrence in the output.
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties count; -1 means all, 0 none.
    pub penalty_last_n: i32,
    /// Added to the logits of these tokens. A token listed twice gets both biases.
    pub logit_bias: Vec<(u32, f32)>,
    /// Token sequences that are never completed.
    pub bad_words: Vec<Vec<u32>>,
    /// Draw only from these tokens; an empty list allows all.
    pub allowed_tokens: Vec<u32>,
    /// Stop tokens are forbidden until this many tokens are generated.
    pub min_tokens: usize,
    /// The steps to take, in order; steps that are not listed are skipped.
    pub order: Vec<SamplingStep>,
    /// The same request with the same seed gives the same tokens. Without one a random seed is
    /// used, and reported at the end.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: TEMPERATURE.default,
            dynatemp_range: DYNATEMP_RANGE.default,
            dynatemp_exponent: DYNATEMP_EXPONENT.default,
            top_k: TOP_K.default as usize,
            top_p: TOP_P.default,
            min_p: MIN_P.default,
            typical_p: TYPICAL_P.default,
            top_n_sigma: TOP_N_SIGMA.default,
            xtc_probability: XTC_PROBABILITY.default,
            xtc_threshold: XTC_THRESHOLD.default,
            dry_multiplier: DRY_MULTIPLIER.default,
            dry_base: DRY_BASE.default,
            dry_allowed_length: DRY_ALLOWED_LENGTH.default as usize,
            dry_penalty_last_n: DRY_PENALTY_LAST_N.default as i32,
            dry_sequence_breakers: DEFAULT_DRY_SEQUENCE_BREAKERS.map(String::from).to_vec(),
            mirostat: MIROSTAT.default as u8,
            mirostat_tau: MIROSTAT_TAU.default,
            mirostat_eta: MIROSTAT_ETA.default,
            repetition_penalty: REPETITION_PENALTY.default,
            presence_penalty: PRESENCE_PENALTY.default,
            frequency_penalty: FREQUENCY_PENALTY.default,
            penalty_last_n: PENALTY_LAST_N.default as i32,
            logit_bias: Vec::new(),
            bad_words: Vec::new(),
            allowed_tokens: Vec::new(),
            min_tokens: MIN_TOKENS.default as usize,
            order: DEFAULT_ORDER.to_vec(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token, without adjustments.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// A checkpoint's defaults, neutral for missing values. Invalid values are errors that name the
    /// field.
    pub fn from_defaults(config: &GenerationConfig) -> Result<Self, EngineError> {
        let neutral = Self::default();
        let GenerationConfig {
            do_sample,
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            penalty_last_n,
            xtc_probability,
            xtc_threshold,
            mirostat,
            mirostat_tau,
            mirostat_eta,
            min_tokens,
            bad_words,
            order,
        } = config;
        let params = Self {
            temperature: match do_sample {
                Some(false) => 0.0,
                _ => temperature.unwrap_or(neutral.temperature),
            },
            top_k: top_k.unwrap_or(neutral.top_k),
            top_p: top_p.unwrap_or(neutral.top_p),
            min_p: min_p.unwrap_or(neutral.min_p),
            typical_p: typical_p.unwrap_or(neutral.typical_p),
            repetition_penalty: repetition_penalty.unwrap_or(neutral.repetition_penalty),
            presence_penalty: presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: frequency_penalty.unwrap_or(neutral.frequency_penalty),
            penalty_last_n: penalty_last_n.unwrap_or(neutral.penalty_last_n),
            xtc_probability: xtc_probability.unwrap_or(neutral.xtc_probability),
            xtc_threshold: xtc_threshold.unwrap_or(neutral.xtc_threshold),
            mirostat: mirostat.unwrap_or(neutral.mirostat),
            mirostat_tau: mirostat_tau.unwrap_or(neutral.mirostat_tau),
            mirostat_eta: mirostat_eta.unwrap_or(neutral.mirostat_eta),
            min_tokens: min_tokens.unwrap_or(neutral.min_tokens),
            bad_words: bad_words.clone(),
            order: match order {
                Some(names) => names
                    .iter()
                    .map(|name| SamplingStep::from_name(name))
                    .collect::<Result<_, _>>()?,
                None => neutral.order,
            },
            ..neutral
        };
        params.check_values()?;
        Ok(params)
    }

    /// Checks every field against its range, the fields against each other, and the ids against
    /// the vocabulary.
    pub fn validate(&self, vocab_size: usize) -> Result<(), EngineError> {
        self.check_values()?;
        let biased = self.logit_bias.iter().map(|(token, _)| (LOGIT_BIAS, token));
        let bad = self.bad_words.iter().flatten();
        let allowed = self.allowed_tokens.iter();
        let named = biased
            .chain(bad.map(|token| (BAD_WORDS, token)))
            .chain(allowed.map(|token| (ALLOWED_TOKENS, token)));
        for (parameter, &token) in named {
            check_token(parameter.name, token, vocab_size)?;
        }
        Ok(())
    }

    fn check_values(&self) -> Result<(), EngineError> {
        for (parameter, slot) in self.clone().slots() {
            slot.check(&parameter)?;
        }
        order::check(self)
    }

    /// Whether the choice is the largest of the model's logits, so that the logits need not be
    /// read.
    pub(crate) fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && self.is_plain()
    }

    /// Whether sampling uses only a temperature and the usual truncations in the usual order, so
    /// that a device can draw itself.
    pub(crate) fn is_plain_draw(&self) -> bool {
        let truncations = [
            SamplingStep::Temperature,
            SamplingStep::TopK,
            SamplingStep::TopP,
            SamplingStep::MinP,
        ];
        let order = self.order.iter().filter(|step| truncations.contains(step));
        self.temperature > 0.0
            && self.top_n_sigma == TOP_N_SIGMA.default
            && self.mirostat == 0
            && self.is_plain()
            && order.eq(&truncations)
    }

    /// Whether no logit changes, no token is forbidden, the temperature is constant, and the most
    /// likely token is always kept.
    fn is_plain(&self) -> bool {
        self.dynatemp_range == 0.0
            && !self.penalises()
            && !self.discourages_repetition()
            && !self.excludes()
            && self.logit_bias.is_empty()
            && self.typical_p == TYPICAL_P.default
            && self.xtc_probability == XTC_PROBABILITY.default
    }

    /// Whether a penalty depends on earlier tokens.
    pub(super) fn penalises(&self) -> bool {
        let moved = self.repetition_penalty != REPETITION_PENALTY.default
            || self.presence_penalty != PRESENCE_PENALTY.default
            || self.frequency_penalty != FREQUENCY_PENALTY.default;
        moved && self.penalty_last_n != 0
    }

    /// Whether DRY does anything.
    pub(super) fn discourages_repetition(&self) -> bool {
        self.dry_multiplier != DRY_MULTIPLIER.default && self.dry_penalty_last_n != 0
    }

    /// Whether some tokens may be forbidden.
    pub(super) fn excludes(&self) -> bool {
        !self.bad_words.is_empty() || !self.allowed_tokens.is_empty() || self.min_tokens > 0
    }

    /// Whether sampling needs a tokenizer.
    pub fn needs_tokenizer(&self) -> bool {
        self.discourages_repetition() && !self.dry_sequence_breakers.is_empty()
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

/// Tokens in a window of `last_n`; -1 means all.
pub(super) fn window(last_n: i32) -> usize {
    usize::try_from(last_n).unwrap_or(usize::MAX)
}
