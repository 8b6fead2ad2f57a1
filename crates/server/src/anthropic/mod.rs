//! Anthropic's dialect: messages, and counting their tokens.

pub mod request;
pub mod response;

mod lower;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use loquat_chat::ChatRequest;
use serde_json::{Map, Value};

use self::lower::{LoweredConversation, lower};
use self::request::{CountRequest, MessagesRequest, Thinking};
use self::response::{Message, TokenCount};
use self::writer::{MessageWriter, WriterOptions};
use crate::active_request::Submission;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::remote_media;
use crate::reply::{self, ActiveReply, ReplyOptions};
use crate::wire::{JsonBody, with_ignored_header};
use crate::{lowering, sampling};

const MESSAGES: &str = "/v1/messages";

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(MESSAGES, post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
}

/// Create a message
///
/// With `stream`, events as Anthropic sends them: `message_start`, `ping`,
/// `content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta`,
/// `message_stop`, and `error` if the reply fails.
#[utoipa::path(
    post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, description = "The reply", body = Message)),
)]
pub async fn messages(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<MessagesRequest>,
) -> Result<Response, ApiError> {
    let JsonBody {
        value,
        sampling,
        mut ignored,
        ..
    } = body;
    check_ranges(&value, &sampling)?;
    let MessagesRequest {
        model,
        messages,
        max_tokens,
        system,
        stop_sequences,
        tools,
        tool_choice,
        thinking,
        output_config,
        stream,
        draft_max,
    } = value;
    let lease = app.lease(&caller, &model).await?;
    // The prompt is the one that `count_tokens` counts.
    let mut conversation = CountRequest {
        model,
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    };
    remote_media::fetch(&app, &lease, &mut conversation).await?;
    let (model, stop) = (lease.clone(), stop_sequences.clone());
    let lowered = lowering::run(move || {
        let mut lowered = lower(conversation, model.chat_context())?;
        let tokenizer = model.chat_context().tokenizer();
        lowered.request = ChatRequest {
            stop,
            sampling: sampling::apply(&sampling, model.sampling(), tokenizer)?,
            ..lowered.request
        };
        Ok(lowered)
    });
    let LoweredConversation {
        request,
        hides_thinking,
        ignored: nested,
    } = lowered.await?;
    ignored.extend(nested);
    let submission = Submission {
        app: &app,
        caller: &caller,
        lease,
        route: MESSAGES,
        choices: 1,
    };
    let options = ReplyOptions {
        max_tokens: Some(max_tokens),
        draft_tokens: draft_max,
        ..ReplyOptions::default()
    };
    let active = ActiveReply::start(submission, request, options).await;
    let active = active.map_err(rename_fields)?;
    let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
    let message = Message::new(id, active.lease().name().to_owned(), active.usage().into());
    let options = WriterOptions {
        stop_sequences,
        hides_thinking,
        streams: stream,
    };
    let writer = MessageWriter::new(message, options);
    reply::respond(active, writer, stream, &ignored).await
}

/// Checks ranges that are narrower than the engine's.
fn check_ranges(request: &MessagesRequest, sampling: &Map<String, Value>) -> Result<(), ApiError> {
    let temperature = sampling.get("temperature").and_then(Value::as_f64);
    if let Some(found) = temperature.filter(|found| !(0.0..=1.0).contains(found)) {
        let problem = format!("is {found}; it must be from 0 to 1");
        return Err(ApiError::invalid(Field::Temperature, problem));
    }
    if let Some(Thinking::Enabled { budget_tokens, .. }) = request.thinking
        && !(1..request.max_tokens).contains(&budget_tokens)
    {
        let problem = format!(
            "is {budget_tokens}; it must be at least 1 and less than `max_tokens`, which is {}",
            request.max_tokens
        );
        let field = Field::Thinking.field(Field::BudgetTokens);
        return Err(ApiError::invalid(field, problem));
    }
    Ok(())
}

/// Count the tokens of a conversation
///
/// The length of the prompt that a request with it has.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "anthropic", request_body = CountRequest,
    responses((status = 200, description = "The number of tokens", body = TokenCount)),
)]
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<CountRequest>,
) -> Result<Response, ApiError> {
    let JsonBody {
        mut value,
        mut ignored,
        ..
    } = body;
    let lease = app.lease(&caller, &value.model).await?;
    remote_media::fetch(&app, &lease, &mut value).await?;
    let model = lease.clone();
    let lowered = lowering::run(move || lower(value, model.chat_context())).await?;
    ignored.extend(lowered.ignored);
    let tokens = lowering::run_chat(&lease, lowered.request, |chat, request, stop| {
        chat.tokens_unless(&request, true, stop.signal())
    });
    let tokens = tokens.await.map_err(rename_fields)?;
    let answer = Json(TokenCount {
        input_tokens: tokens.len(),
    });
    Ok(with_ignored_header(answer, &ignored))
}

/// Renames fields of the lower layers to those of the request.
fn rename_fields(error: ApiError) -> ApiError {
    error.renamed([
        (Field::Stop.into(), Field::StopSequences.into()),
        (
            Field::ResponseFormat.into(),
            Field::OutputConfig.field(Field::Format),
        ),
        (
            FieldPath::verbatim("thinking budget"),
            Field::Thinking.field(Field::BudgetTokens),
        ),
    ])
}
