//! Fields that chats and completions have in common.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::union::TextOr;

const MOST_CHOICES: usize = 128;
const MOST_STOPS: usize = 64;
const MOST_ALTERNATIVES: usize = 20;

/// How a stream is told.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Tell the usage in a last chunk of its own.
    pub include_usage: Option<bool>,
    /// Tell the usage so far in every chunk.
    pub continuous_usage_stats: Option<bool>,
    /// Ignored: chunks are not padded.
    pub include_obfuscation: Option<bool>,
}

/// When a stream tells its usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streaming {
    pub usage: bool,
    pub continuous_usage: bool,
}

/// How many answers.
pub fn choices(field: &'static str, count: Option<usize>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        count @ 1..=MOST_CHOICES => Ok(count),
        count => Err(ApiError::invalid(
            field,
            format!("`{field}` is {count}; it must be from 1 to {MOST_CHOICES}"),
        )),
    }
}

/// Of how many alternatives to each token log-probabilities are told.
pub fn alternatives(field: &'static str, count: Option<usize>) -> Result<Option<usize>, ApiError> {
    match count {
        Some(count) if count > MOST_ALTERNATIVES => Err(ApiError::invalid(
            field,
            format!("`{field}` is {count}; it must be from 0 to {MOST_ALTERNATIVES}"),
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
            "stop",
            format!("`stop` has {count} strings; at most {MOST_STOPS} are taken"),
        )),
    }
}

/// Whether and how to stream.
pub fn streaming(
    stream: Option<bool>,
    options: Option<StreamOptions>,
    ignored: &mut Vec<&'static str>,
) -> Result<Option<Streaming>, ApiError> {
    let stream = stream.unwrap_or(false);
    if options.is_some() && !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "`stream_options` needs `stream` to be true",
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
