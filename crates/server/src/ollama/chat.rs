//! `POST /api/chat`

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use loquat_chat::ChatRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::keep_alive::OllamaKeepAlive;
use super::message::{self, OllamaMessage, OllamaTool, OllamaToolCall};
use super::options::{self, Options, in_our_words};
use super::response::{self, Head, Line, OllamaNumbers, Writer, silent};
use super::speaker::{Piece, Speaker};
use super::think::{OllamaFormat, OllamaThink};
use super::{Held, hold, unload};
use crate::app::App;
use crate::caller::Caller;
use crate::chat_turn::{ChatTurn, Terms};
use crate::error::ApiError;
use crate::openai::logprobs::TokenLogprob;
use crate::turn::Ask;
use crate::wire::{Body, Wire};

const ROUTE: &str = "/api/chat";

/// A conversation to go on with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaChatRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// What was said so far. Without any, the model is loaded, or unloaded where `keep_alive` is 0.
    pub messages: Option<Vec<OllamaMessage>>,
    /// Tools that the model may call.
    pub tools: Option<Vec<OllamaTool>>,
    /// What the answer must be: `json`, or a JSON schema.
    pub format: Option<OllamaFormat>,
    /// How to sample and when to stop, by Ollama's names or the engine's.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// As lines of JSON while it comes (the default), or in one piece.
    pub stream: Option<bool>,
    /// Whether to think before answering, or how hard.
    pub think: Option<OllamaThink>,
    /// How long the model stays loaded after the request: seconds or a duration such as `5m`;
    /// negative: for good; 0: not at all. What the configuration says when left out. Counts until
    /// the next request under `/api`; those of other dialects leave it as it is.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
    /// Tell the log-probabilities of the reply's tokens.
    pub logprobs: Option<bool>,
    /// And of so many of the likeliest in each one's place, at most 20.
    pub top_logprobs: Option<usize>,
    /// Must not be true: what does not fit the context is refused, never cut.
    pub truncate: Option<bool>,
    /// Must not be true: contexts are not shifted.
    pub shift: Option<bool>,
}

impl Wire for OllamaChatRequest {
    const WITHIN: &'static [(&'static str, &'static str)] = options::IGNORED;
}

/// A reply, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaChatResponse {
    /// As the request called it.
    pub model: String,
    /// In RFC 3339.
    pub created_at: String,
    pub message: OllamaReply,
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

/// What the assistant says.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaReply {
    /// Always `assistant`.
    pub role: &'static str,
    pub content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaToolCall>,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(chat))
}

/// Go on with a conversation
///
/// A stream of JSON lines unless `stream` is false. A tool call that the reply's end cut short is
/// left out, since its arguments are no object.
#[utoipa::path(
    post,
    path = "/api/chat",
    tag = "ollama",
    request_body = OllamaChatRequest,
    responses((status = 200, description = "The reply", body = OllamaChatResponse)),
)]
pub async fn chat(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<OllamaChatRequest>,
) -> Result<Response, ApiError> {
    let OllamaChatRequest {
        model,
        messages,
        tools,
        format,
        options,
        stream,
        think,
        keep_alive,
        logprobs,
        top_logprobs,
        truncate,
        shift,
    } = body.value;
    response::check_whole(truncate, shift)?;
    let messages = message::lower(messages.unwrap_or_default())?;
    let tools = message::lower_tools(tools.unwrap_or_default())?;
    let logprobs = response::logprobs(logprobs, top_logprobs)?;
    if messages.is_empty() && keep_alive.is_some_and(OllamaKeepAlive::unloads) {
        unload(&app, &caller, &model)?;
        return Ok(silent::<OllamaChatResponse>(model, "unload", &[]));
    }
    let Held { lease, name, load } =
        hold(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let Options {
        sampling,
        stop,
        up_to,
        mut ignored,
    } = Options::lower(options, &lease)?;
    ignored.extend(body.ignored);
    if messages.is_empty() {
        return Ok(silent::<OllamaChatResponse>(name, "load", &ignored));
    }
    let request = ChatRequest {
        messages,
        tools,
        thinking: think.map_or(Ok(Default::default()), |think| think.lower(&lease))?,
        answer: format.and_then(OllamaFormat::lower),
        sampling,
        stop,
        logprobs,
        ..ChatRequest::default()
    };
    let terms = Terms {
        up_to,
        ..Terms::default()
    };
    let ask = Ask {
        app: &app,
        caller: &caller,
        lease: lease.clone(),
        route: ROUTE,
        choices: 1,
    };
    let turn = ChatTurn::start(ask, request, terms)
        .await
        .map_err(in_our_words)?;
    let writer = Writer {
        model: name,
        caller,
        load,
        lease: logprobs.map(|_| lease),
    };
    let (speaker, stream) = (Speaker::reply(turn), stream.unwrap_or(true));
    response::tell::<OllamaChatResponse>(speaker, writer, stream, &ignored).await
}

impl Line for OllamaChatResponse {
    fn new(head: Head, piece: Piece) -> Self {
        let Head {
            model,
            created_at,
            done_reason,
            logprobs,
            numbers,
        } = head;
        Self {
            model,
            created_at,
            message: OllamaReply {
                role: "assistant",
                content: piece.content,
                thinking: piece.thinking,
                tool_calls: piece.calls,
            },
            done: done_reason.is_some(),
            done_reason,
            logprobs,
            numbers,
        }
    }
}
