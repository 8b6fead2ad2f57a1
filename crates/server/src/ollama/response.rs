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
use super::time::{self, nanos};
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
fn done_reason(reason: FinishReason) -> &'static str {
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
            Ok(Some(Logprobs::for_model(top.unwrap_or(0))))
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

/// An endpoint's way of writing what a model says.
pub trait Line: Serialize + Send + 'static {
    fn new(head: Head, piece: Piece) -> Self;
}

/// What every endpoint's lines have beside the words.
pub struct Head {
    pub model: String,
    pub created_at: String,
    /// In the last line only.
    pub done_reason: Option<&'static str>,
    pub logprobs: Option<Vec<TokenLogprob>>,
    pub numbers: OllamaNumbers,
}

impl Head {
    fn of(model: String) -> Self {
        Self {
            model,
            created_at: time::now(),
            done_reason: None,
            logprobs: None,
            numbers: OllamaNumbers::default(),
        }
    }
}

/// Knows what lines say of their request.
pub struct Writer {
    /// As the request called it.
    pub model: String,
    pub caller: Caller,
    pub load: Duration,
    /// Where tokens are told.
    pub lease: Option<Lease>,
}

impl Writer {
    fn head(&self, piece: &Piece) -> Head {
        Head {
            logprobs: told_tokens(piece, self.lease.as_ref()),
            ..Head::of(self.model.clone())
        }
    }

    /// A line in the midst of a stream.
    fn line<L: Line>(&self, piece: Piece) -> L {
        L::new(self.head(&piece), piece)
    }

    /// The last line, which may say something too.
    fn last<L: Line>(&self, piece: Piece, end: End) -> L {
        let head = Head {
            done_reason: Some(done_reason(end.reason)),
            numbers: OllamaNumbers::new(&end, &self.caller, self.load),
            ..self.head(&piece)
        };
        L::new(head, piece)
    }
}

/// The answer to a request that asks for no words.
pub fn silent<L: Line>(model: String, why: &'static str, ignored: &[&'static str]) -> Response {
    let head = Head {
        done_reason: Some(why),
        ..Head::of(model)
    };
    let mut response = Json(L::new(head, Piece::default())).into_response();
    name_ignored(&mut response, ignored);
    response
}

/// Tells a reply as lines, or as one when it is whole.
pub async fn tell<L: Line>(
    speaker: Speaker,
    writer: Writer,
    stream: bool,
    ignored: &[&'static str],
) -> Result<Response, ApiError> {
    let mut response = if stream {
        frames::lines(lines::<L>(speaker, writer))
    } else {
        let mut whole = speaker.whole().await?;
        let end = whole.end.take();
        let end = end.ok_or_else(|| ApiError::internal(&"a reply ended without an end"))?;
        Json(writer.last::<L>(whole, end)).into_response()
    };
    name_ignored(&mut response, ignored);
    Ok(response)
}

fn lines<L: Line>(speaker: Speaker, writer: Writer) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(Some((speaker, writer)), |state| async {
        let (mut speaker, writer) = state?;
        loop {
            let mut piece = match speaker.next().await? {
                Ok(piece) => piece,
                Err(error) => return Some((Dialect::Ollama.error_frame(&error), None)),
            };
            let end = piece.end.take();
            let says = piece.says_something(writer.lease.is_some());
            let Some(end) = end else {
                if says {
                    let frame = frames::line(&writer.line::<L>(piece));
                    return Some((frame, Some((speaker, writer))));
                }
                continue;
            };
            // Clients look for words in lines that are not the last.
            let mut frame = Vec::new();
            if says {
                frame.extend_from_slice(&frames::line(&writer.line::<L>(piece)));
            }
            let last = writer.last::<L>(Piece::default(), end);
            frame.extend_from_slice(&frames::line(&last));
            return Some((frame.into(), None));
        }
    })
}

/// The tokens of a piece, where a model to spell them is given.
fn told_tokens(piece: &Piece, model: Option<&Lease>) -> Option<Vec<TokenLogprob>> {
    let model = model.filter(|_| !piece.tokens.is_empty())?;
    Some(ChatLogprobs::new(&piece.tokens, model.chat_context().tokenizer()).content)
}
