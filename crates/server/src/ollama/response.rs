//! What answers have in common: lines of a stream, and the numbers that come with the last.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use loquat_engine::{FinishReason, Logprobs};
use serde::Serialize;
use utoipa::ToSchema;

use super::speaker::{Piece, Speaker};
use super::time::nanos;
use crate::caller::Caller;
use crate::chat_turn::End;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::frames;
use crate::models::Lease;
use crate::openai::logprobs::{ChatLogprobs, TokenLogprob};
use crate::wire::name_ignored;

/// As many as Ollama tells.
const MOST_ALTERNATIVES: usize = 20;

/// Where the time went, in nanoseconds, and how many tokens there were; in the last line only.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct OllamaNumbers {
    /// From the request's arrival to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Until the model was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens of the prompt, those that were cached among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<usize>,
    /// From when it began to be computed until the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Tokens of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<usize>,
    /// From the first token to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

impl OllamaNumbers {
    pub fn new(end: &End, caller: &Caller, load: Duration) -> Self {
        let End {
            reason: _,
            usage,
            timings,
        } = end;
        Self {
            total_duration: Some(nanos(caller.received.elapsed())),
            load_duration: Some(nanos(load)),
            prompt_eval_count: Some(usage.prompt_tokens),
            prompt_eval_duration: Some(nanos(timings.first_token.saturating_sub(timings.queued))),
            eval_count: Some(usage.completion_tokens),
            eval_duration: Some(nanos(timings.decode)),
        }
    }
}

/// Why a reply ended, in Ollama's words.
pub fn done_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
        FinishReason::Length => "length",
    }
}

/// Which log-probabilities are told.
pub fn logprobs(wanted: Option<bool>, top: Option<usize>) -> Result<Option<Logprobs>, ApiError> {
    match (wanted.unwrap_or(false), top) {
        (false, None | Some(0)) => Ok(None),
        (true, top) if top.unwrap_or(0) <= MOST_ALTERNATIVES => {
            Ok(Some(Logprobs::of_model(top.unwrap_or(0))))
        }
        (_, found) => Err(ApiError::invalid(
            "top_logprobs",
            format!(
                "`top_logprobs` is {}; it must be from 0 to {MOST_ALTERNATIVES}, with `logprobs`",
                found.unwrap_or(0)
            ),
        )),
    }
}

/// Refuses to cut a conversation or to shift a context.
pub fn check_whole(truncate: Option<bool>, shift: Option<bool>) -> Result<(), ApiError> {
    let wants = [("truncate", truncate), ("shift", shift)];
    match wants.iter().find(|(_, wanted)| *wanted == Some(true)) {
        None => Ok(()),
        Some((field, _)) => Err(ApiError::unsupported(
            *field,
            "what does not fit the context is refused, never cut",
        )),
    }
}

/// How an endpoint writes what a model says.
pub trait Write: Send + 'static {
    type Line: Serialize + Send;

    /// Whether tokens are told beside text.
    fn tells_tokens(&self) -> bool;
    /// A line in the midst of a stream.
    fn line(&self, piece: Piece) -> Self::Line;
    /// The last line, which may say something too.
    fn last(&self, piece: Piece, end: End) -> Self::Line;
}

/// Tells a reply as lines, or as one when it is whole.
pub async fn tell(
    speaker: Speaker,
    writer: impl Write,
    stream: bool,
    ignored: &[&'static str],
) -> Result<Response, ApiError> {
    let mut response = match stream {
        true => frames::lines(lines(speaker, writer)),
        false => {
            let mut whole = speaker.whole().await?;
            let end = whole.end.take();
            let end = end.ok_or_else(|| ApiError::internal(&"a reply ended without an end"))?;
            Json(writer.last(whole, end)).into_response()
        }
    };
    name_ignored(&mut response, ignored);
    Ok(response)
}

fn lines<W: Write>(speaker: Speaker, writer: W) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(Some((speaker, writer)), |state| async {
        let (mut speaker, writer) = state?;
        loop {
            let mut piece = match speaker.next().await? {
                Ok(piece) => piece,
                Err(error) => return Some((Dialect::Ollama.error_frame(&error), None)),
            };
            let end = piece.end.take();
            let says = piece.says_something(writer.tells_tokens());
            let Some(end) = end else {
                if says {
                    return Some((frames::line(&writer.line(piece)), Some((speaker, writer))));
                }
                continue;
            };
            // Clients look for words in lines that are not the last.
            let mut frame = Vec::new();
            if says {
                frame.extend_from_slice(&frames::line(&writer.line(piece)));
            }
            frame.extend_from_slice(&frames::line(&writer.last(Piece::default(), end)));
            return Some((frame.into(), None));
        }
    })
}

/// The tokens of a piece, where a model to spell them is given.
pub fn told_tokens(piece: &Piece, model: Option<&Lease>) -> Option<Vec<TokenLogprob>> {
    let model = model.filter(|_| !piece.tokens.is_empty())?;
    Some(ChatLogprobs::new(&piece.tokens, model.chat.tokenizer()).content)
}
