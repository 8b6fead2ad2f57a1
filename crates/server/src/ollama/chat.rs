//! `/api/chat`

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use loquat_chat::{ChatRequest, Message, ReplyOpening, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{LoweredPrompt, ReplyRequest};
use super::keep_alive::{self, OllamaKeepAlive};
use super::message::{self, OllamaMessage, OllamaTool, OllamaToolCall};
use super::options::{self, Options};
use super::response::{self, OllamaLineHead, ReplyLine, ReplyPiece};
use super::think::{OllamaFormat, OllamaThink};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering::StopFlag;
use crate::models::Loaded;
use crate::wire::{FieldTables, JsonBody, WireRequest};

const ROUTE: &str = "/api/chat";

/// A conversation to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaChatRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// The conversation so far. If it ends with the assistant's message, the reply continues that.
    /// Without messages the model is loaded, or unloaded if `keep_alive` is
    /// 0.
    pub messages: Option<Vec<OllamaMessage>>,
    /// Tools that the model may call.
    pub tools: Option<Vec<OllamaTool>>,
    /// The format of the answer: `json`, or a JSON schema.
    pub format: Option<OllamaFormat>,
    /// Sampling and stop options, by Ollama's names or the engine's, and `speculative.n_max`.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// Stream lines of JSON; default true.
    pub stream: Option<bool>,
    /// Whether to think before answering, or how much.
    pub think: Option<OllamaThink>,
    /// How long the model stays loaded after the request: seconds, or a duration such as `5m`;
    /// negative: forever; 0: unload it. The configuration's value if omitted. Applies until the
    /// next request under `/api`; other dialects do not change it. A key needs the scope `manage`;
    /// without it the field is ignored, and a request that only unloads is refused.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
    /// Return the log-probabilities of the reply's tokens.
    pub logprobs: Option<bool>,
    /// Number of alternatives to each token, at most 20. Needs `logprobs`.
    pub top_logprobs: Option<usize>,
}

impl WireRequest for OllamaChatRequest {
    const IGNORED_NESTED: FieldTables<&'static str> = &[options::IGNORED, keep_alive::IGNORED];
    const REFUSED: FieldTables<Field> = &[response::REFUSED];
    const REFUSED_NESTED: FieldTables<&'static str> = &[options::REFUSED];
}

/// A reply, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaChatResponse {
    #[serde(flatten)]
    pub head: OllamaLineHead,
    pub message: OllamaReply,
}

/// The assistant's message.
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

/// Answer a conversation
///
/// A stream of JSON lines unless `stream` is false. Tool calls that were cut are omitted, since
/// their arguments are not an object.
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
    body: JsonBody<OllamaChatRequest>,
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
    } = body.value;
    let logprobs = response::logprobs(logprobs, top_logprobs)?;
    let messages = messages.filter(|messages| !messages.is_empty());
    let lower = messages.map(|messages| {
        move |model: &Loaded, options: Options, _: &StopFlag| -> Result<LoweredPrompt, ApiError> {
            let messages = message::lower(messages)?;
            let continues =
                |last: &Message| last.role == Role::Assistant && last.tool_calls.is_empty();
            let request = ChatRequest {
                opening: if messages.last().is_some_and(continues) {
                    ReplyOpening::ContinueLast
                } else {
                    ReplyOpening::NewTurn
                },
                messages,
                tools: message::lower_tools(tools.unwrap_or_default())?,
                thinking: think.map_or(Ok(Default::default()), |think| think.lower(model))?,
                answer: format.and_then(OllamaFormat::lower),
                sampling: options.sampling,
                stop: options.stop,
                logprobs,
                ..ChatRequest::default()
            };
            Ok(LoweredPrompt::Chat(Box::new(request)))
        }
    });
    let request = ReplyRequest {
        route: ROUTE,
        model,
        options,
        stream,
        keep_alive,
        logprobs,
        text_bytes: 0,
        ignored: body.ignored,
    };
    request
        .answer::<OllamaChatResponse>(&app, caller, lower)
        .await
}

impl ReplyLine for OllamaChatResponse {
    fn new(head: OllamaLineHead, piece: ReplyPiece) -> Self {
        Self {
            head,
            message: OllamaReply {
                role: "assistant",
                content: piece.content,
                thinking: piece.thinking,
                tool_calls: piece.calls,
            },
        }
    }
}
