//! Fields that chat completions and completions share.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::Field;
use crate::union::TextOr;

const MOST_CHOICES: usize = 128;
const MOST_STOPS: usize = 64;
const MOST_ALTERNATIVES: usize = 20;

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
