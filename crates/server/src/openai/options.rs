//! Fields that chat completions and completions share.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use crate::active_request::UNLIMITED;
use crate::error::ApiError;
use crate::field::Field;
use crate::union::TextOr;

const MOST_CHOICES: usize = 128;
const MOST_STOPS: usize = 64;
const MOST_ALTERNATIVES: usize = 20;

/// Fields of vLLM and llama.cpp that have no effect, with the reason.
pub const IGNORED: &[(&str, &str)] = &[
    ("user", "clients are identified by their keys"),
    ("guided_decoding_backend", "there is only one"),
    ("cache_prompt", "prompts share every common prefix"),
    ("id_slot", "requests are scheduled together"),
    ("slot_id", "requests are scheduled together"),
    ("timings_per_token", "see /metrics"),
    ("request_id", "send it in the header `x-request-id`"),
    ("length_penalty", "it is for beam search, which is refused"),
    (
        "spaces_between_special_tokens",
        "special tokens are written as they are",
    ),
    ("return_progress", "see /metrics"),
];

/// Fields of vLLM and llama.cpp that are not implemented, with the reason.
pub const REFUSED: &[(Field, &str)] = &[
    (Field::NPredict, "use `max_tokens`"),
    (Field::UseBeamSearch, "use `n` or `best_of`"),
    (
        Field::IncludeStopStrInOutput,
        "stop strings are not part of an answer",
    ),
    (
        Field::TruncatePromptTokens,
        "prompts that exceed the context are refused",
    ),
];

/// Nested fields that have no effect, with the reason.
pub const IGNORED_NESTED: &[(&str, &str)] = &[
    (
        "response_format.json_schema.description",
        "the model does not see it",
    ),
    (
        "stream_options.include_obfuscation",
        "chunks are not padded",
    ),
];

/// Why a field about thinking has no effect.
pub const NO_SETTING: &str =
    "only if the model does not think, or its template has no such setting";

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send the usage in an extra last chunk.
    pub include_usage: Option<bool>,
    /// Send the usage so far in every chunk.
    pub continuous_usage_stats: Option<bool>,
    /// Ignored: chunks are not padded.
    pub include_obfuscation: Option<bool>,
}

/// When a stream reports usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streaming {
    pub usage: bool,
    pub continuous_usage: bool,
}

/// Reads the longest reply in tokens. llama.cpp's clients write -1 for all that fit.
pub fn token_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let limit = match Option::<i64>::deserialize(deserializer)? {
        Some(-1) => Some(UNLIMITED),
        Some(limit) => Some(usize::try_from(limit).map_err(|_| {
            let expected = "a number of tokens, or -1 for all that fit";
            D::Error::invalid_value(Unexpected::Signed(limit), &expected)
        })?),
        None => None,
    };
    Ok(limit)
}

/// The number of answers.
pub fn choices(field: Field, count: Option<usize>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        count @ 1..=MOST_CHOICES => Ok(count),
        count => Err(ApiError::invalid(
            field,
            format!("is {count}; it must be from 1 to {MOST_CHOICES}"),
        )),
    }
}

/// The number of alternatives to each token that log-probabilities list.
pub fn alternatives(field: Field, count: Option<usize>) -> Result<Option<usize>, ApiError> {
    match count {
        Some(count) if count > MOST_ALTERNATIVES => Err(ApiError::invalid(
            field,
            format!("is {count}; it must be from 0 to {MOST_ALTERNATIVES}"),
        )),
        count => Ok(count),
    }
}

/// The strings that end an answer.
pub fn stops(stop: Option<TextOr<String>>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        Some(TextOr::Text(one)) => vec![one],
        Some(TextOr::Many(many)) => many,
        None => Vec::new(),
    };
    match stops.len() {
        0..=MOST_STOPS => Ok(stops),
        count => Err(ApiError::invalid(
            Field::Stop,
            format!("has {count} strings; at most {MOST_STOPS} are allowed"),
        )),
    }
}

/// `None` for an answer in one piece.
pub fn streaming(
    stream: Option<bool>,
    options: Option<StreamOptions>,
    ignored: &mut Vec<&'static str>,
) -> Result<Option<Streaming>, ApiError> {
    let stream = stream.unwrap_or(false);
    if options.is_some() && !stream {
        return Err(ApiError::invalid(
            Field::StreamOptions,
            "needs `stream` to be true",
        ));
    }
    let StreamOptions {
        include_usage,
        continuous_usage_stats,
        include_obfuscation,
    } = options.unwrap_or_default();
    if include_obfuscation.is_some() {
        ignored.push("stream_options.include_obfuscation");
    }
    let continuous_usage = continuous_usage_stats.unwrap_or(false);
    Ok(stream.then_some(Streaming {
        usage: include_usage.unwrap_or(false) || continuous_usage,
        continuous_usage,
    }))
}
