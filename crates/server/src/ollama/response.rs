//! Replies: lines of a stream, and the counters of the last line.

use std::marker::PhantomData;
use std::time::Duration;

use axum::Json;
use axum::response::Response;
use bytes::Bytes;
use loquat_chat::Finish;
use loquat_engine::{FinishReason, Logprobs, TokenInfo, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::message::{OllamaCalledFunction, OllamaToolCall};
use super::time::{self, nanos};
use crate::caller::Caller;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::field::Field;
use crate::frames;
use crate::models::Lease;
use crate::openai::logprobs::{ChatLogprobs, TokenLogprob};
use crate::reply::{
    self, ActiveReply, ChoiceDelta, ReplySegments, ReplyWriter, Segment, SegmentEvent, SegmentKind,
};
use crate::wire::with_ignored_header;

/// Ollama's limit.
const MOST_ALTERNATIVES: usize = 20;

/// Durations in nanoseconds and token counts; in the last line, and before an error.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct OllamaNumbers {
    /// From the request's arrival to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Until the model was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Prompt tokens, including cached ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<usize>,
    /// From the start of prefill to the first token.
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
    pub fn new(finish: &Finish, caller: &Caller, load: Duration) -> Self {
        let Finish { usage, timings, .. } = finish;
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

/// Ollama's name for why a reply ended.
fn done_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
        FinishReason::Length => "length",
    }
}

/// Which log-probabilities a request asks for.
pub fn logprobs(enabled: Option<bool>, top: Option<usize>) -> Result<Option<Logprobs>, ApiError> {
    match (enabled.unwrap_or(false), top) {
        (false, None | Some(0)) => Ok(None),
        (true, top) if top.unwrap_or(0) <= MOST_ALTERNATIVES => {
            Ok(Some(Logprobs::for_model(top.unwrap_or(0))))
        }
        (_, found) => Err(ApiError::invalid(
            Field::TopLogprobs,
            format!(
                "is {}; it must be from 0 to {MOST_ALTERNATIVES}, and needs `logprobs`",
                found.unwrap_or(0)
            ),
        )),
    }
}

/// Fields of requests for replies that are refused, with the reason.
pub const REFUSED: &[(Field, &str)] = &[
    (Field::Truncate, NO_TRUNCATION),
    (Field::Shift, NO_TRUNCATION),
    (Field::DraftMax, "send it in `options`"),
];

const NO_TRUNCATION: &str = "prompts that exceed the context are refused";

/// A line of an endpoint's stream, or its whole reply.
pub trait ReplyLine: Serialize + Send + 'static {
    fn new(head: OllamaLineHead, piece: ReplyPiece) -> Self;
}

/// The fields that lines of every endpoint share.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaLineHead {
    /// As the request spells it.
    pub model: String,
    /// In RFC 3339.
    pub created_at: String,
    /// Whether it is the last line.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`; in the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    #[serde(flatten)]
    pub numbers: OllamaNumbers,
}

impl OllamaLineHead {
    fn new(model: String) -> Self {
        Self {
            model,
            created_at: time::now(),
            done: false,
            done_reason: None,
            logprobs: None,
            numbers: OllamaNumbers::default(),
        }
    }

    fn last(self, reason: &'static str) -> Self {
        Self {
            done: true,
            done_reason: Some(reason),
            ..self
        }
    }
}

/// The content of a line.
#[derive(Debug, Default)]
pub struct ReplyPiece {
    pub thinking: String,
    pub content: String,
    /// Complete calls: the arguments of others are not an object.
    pub calls: Vec<OllamaToolCall>,
    pub tokens: Vec<TokenInfo>,
}

impl ReplyPiece {
    fn is_empty(&self, with_tokens: bool) -> bool {
        let no_text = self.thinking.is_empty() && self.content.is_empty();
        let no_tokens = !with_tokens || self.tokens.is_empty();
        no_text && no_tokens && self.calls.is_empty()
    }
}

/// What lines report of their request.
pub struct ReplyContext {
    /// As the request spells it.
    pub model: String,
    pub caller: Caller,
    pub load: Duration,
    /// The model, if log-probabilities are requested.
    pub logprobs_model: Option<Lease>,
}

impl ReplyContext {
    fn head(&self, piece: &ReplyPiece) -> OllamaLineHead {
        let model = self.logprobs_model.as_ref();
        let model = model.filter(|_| !piece.tokens.is_empty());
        OllamaLineHead {
            logprobs: model.map(|model| {
                ChatLogprobs::new(&piece.tokens, model.chat_context().tokenizer()).content
            }),
            ..OllamaLineHead::new(self.model.clone())
        }
    }

    fn last_head(&self, piece: &ReplyPiece, finish: &Finish) -> OllamaLineHead {
        OllamaLineHead {
            numbers: OllamaNumbers::new(finish, &self.caller, self.load),
            ..self.head(piece).last(done_reason(finish.reason))
        }
    }
}

/// Renders a reply as lines, or as one line.
struct LineWriter<L> {
    context: ReplyContext,
    segments: ReplySegments,
    /// Calls so far.
    calls: usize,
    streams: bool,
    /// What no line has yet.
    pending: ReplyPiece,
    finish: Option<Finish>,
    line: PhantomData<fn() -> L>,
}

impl<L: ReplyLine> LineWriter<L> {
    fn add(&mut self, event: SegmentEvent) {
        match event {
            SegmentEvent::Begin { .. } => {}
            SegmentEvent::Delta { kind, text, .. } => match kind {
                SegmentKind::Reasoning => self.pending.thinking.push_str(&text),
                SegmentKind::Text => self.pending.content.push_str(&text),
                SegmentKind::ToolCall { .. } => {}
            },
            SegmentEvent::End(segment) if segment.complete => {
                let call = self.call(segment);
                self.pending.calls.extend(call);
            }
            SegmentEvent::End(_) => {}
        }
    }

    fn call(&mut self, segment: Segment) -> Option<OllamaToolCall> {
        let SegmentKind::ToolCall { id, name } = segment.kind else {
            return None;
        };
        let arguments: Map<String, Value> = serde_json::from_str(&segment.text).ok()?;
        let index = self.calls;
        self.calls += 1;
        Some(OllamaToolCall {
            id: Some(id),
            kind: None,
            function: OllamaCalledFunction {
                index: Some(index),
                name,
                arguments,
            },
        })
    }

    /// The pending piece as a line, and the last line if the reply has ended. Clients look for
    /// content in lines before the last.
    fn lines(&mut self) -> Bytes {
        let mut lines = Vec::new();
        let with_tokens = self.context.logprobs_model.is_some();
        if !self.pending.is_empty(with_tokens) {
            let piece = std::mem::take(&mut self.pending);
            let line = L::new(self.context.head(&piece), piece);
            lines.extend_from_slice(&frames::line(&line));
        }
        if let Some(finish) = &self.finish {
            let piece = ReplyPiece::default();
            let line = L::new(self.context.last_head(&piece, finish), piece);
            lines.extend_from_slice(&frames::line(&line));
        }
        lines.into()
    }
}

impl<L: ReplyLine> ReplyWriter for LineWriter<L> {
    type Answer = L;
    const LINES: bool = true;

    fn write(&mut self, delta: ChoiceDelta) -> Bytes {
        let mut reply = delta.reply;
        self.finish = reply.finish.clone();
        let tokens = std::mem::take(&mut reply.tokens);
        self.pending.tokens.extend(tokens);
        for event in self.segments.consume(reply) {
            self.add(event);
        }
        if self.streams {
            self.lines()
        } else {
            Bytes::new()
        }
    }

    fn fail(&mut self, error: &ApiError, usage: Usage) -> Bytes {
        let piece = std::mem::take(&mut self.pending);
        let head = OllamaLineHead {
            numbers: OllamaNumbers {
                total_duration: Some(nanos(self.context.caller.received.elapsed())),
                prompt_eval_count: Some(usage.prompt_tokens),
                eval_count: Some(usage.completion_tokens),
                ..OllamaNumbers::default()
            },
            ..self.context.head(&piece)
        };
        let delivered = frames::line(&L::new(head, piece));
        let error = Dialect::Ollama.error_frame(error);
        [delivered, error].concat().into()
    }

    fn into_answer(self) -> Result<L, ApiError> {
        let finish = self.finish;
        let finish = finish.ok_or_else(|| ApiError::internal(&"a reply has no end"))?;
        let head = self.context.last_head(&self.pending, &finish);
        Ok(L::new(head, self.pending))
    }
}

/// The answer to a request that generates nothing.
pub fn empty_reply<L: ReplyLine>(
    model: String,
    reason: &'static str,
    ignored: &[&'static str],
) -> Response {
    let head = OllamaLineHead::new(model).last(reason);
    with_ignored_header(Json(L::new(head, ReplyPiece::default())), ignored)
}

/// Answers with the reply, as a stream of lines or in one piece.
pub async fn respond<L: ReplyLine>(
    active: ActiveReply,
    context: ReplyContext,
    streams: bool,
    ignored: &[&'static str],
) -> Result<Response, ApiError> {
    let writer = LineWriter::<L> {
        context,
        segments: ReplySegments::default().with_blank_text(),
        calls: 0,
        streams,
        pending: ReplyPiece::default(),
        finish: None,
        line: PhantomData,
    };
    reply::respond(active, writer, streams, ignored).await
}
