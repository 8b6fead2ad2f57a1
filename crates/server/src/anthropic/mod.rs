//! Anthropic's dialect: messages, and the counting of their tokens.

pub mod request;
pub mod response;

mod lower;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use loquat_chat::ChatRequest;
use serde_json::{Map, Value};

use self::lower::{Conversation, Lowered, lower};
use self::request::{CountRequest, MessagesRequest, Thinking};
use self::response::{Message, TokenCount};
use self::writer::{Manner, Writer};
use crate::app::App;
use crate::caller::Caller;
use crate::chat_turn::{ChatTurn, Terms};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::models::Lease;
use crate::turn::Ask;
use crate::wire::{Body, name_ignored};
use crate::{frames, sampling};

const MESSAGES: &str = "/v1/messages";

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(MESSAGES, post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
}

/// Goes on with a conversation
///
/// Anthropic's Messages. With `stream`, events as Anthropic sends them: `message_start`, `ping`,
/// `content_block_start`, `content_block_delta`, `content_block_stop`, `message_delta`,
/// `message_stop`, and `error` where something fails on the way.
#[utoipa::path(
    post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, description = "The reply", body = Message)),
)]
pub async fn messages(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let Body {
        value,
        sampling,
        mut ignored,
    } = body;
    check(&value, &sampling)?;
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
    } = value;
    let lease = app.lease(&caller, &model).await?;
    let conversation = Conversation {
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    };
    let Lowered {
        request,
        hides_thinking,
        ignored: further,
    } = lower(conversation, lease.chat_context())?;
    ignored.extend(further);
    let manner = Manner {
        stop_sequences: stop_sequences.clone(),
        hides_thinking,
        streams: stream,
    };
    let mut request = ChatRequest {
        stop: stop_sequences,
        sampling: lease.sampling().clone(),
        ..request
    };
    sampling::apply(
        &sampling,
        &mut request.sampling,
        lease.chat_context().tokenizer(),
    )?;
    let turn = start(&app, &caller, lease, request, max_tokens).await;
    let turn = turn.map_err(in_our_words)?;
    let mut response = answer(turn, manner).await?;
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// What Anthropic bounds more closely than the engine.
fn check(request: &MessagesRequest, sampling: &Map<String, Value>) -> Result<(), ApiError> {
    let temperature = sampling.get("temperature").and_then(Value::as_f64);
    if let Some(found) = temperature.filter(|found| !(0.0..=1.0).contains(found)) {
        let what = format!("`temperature` is {found}; it must be from 0 to 1");
        return Err(ApiError::invalid("temperature", what));
    }
    if let Some(Thinking::Enabled { budget_tokens, .. }) = request.thinking
        && !(1..request.max_tokens).contains(&budget_tokens)
    {
        let what = format!(
            "`thinking.budget_tokens` is {budget_tokens}; it must be at least 1 and less than \
             `max_tokens`, which is {}",
            request.max_tokens
        );
        return Err(ApiError::invalid("thinking.budget_tokens", what));
    }
    Ok(())
}

async fn start(
    app: &Arc<App>,
    caller: &Caller,
    lease: Lease,
    request: ChatRequest,
    max_tokens: usize,
) -> Result<ChatTurn, ApiError> {
    let ask = Ask {
        app,
        caller,
        lease,
        route: MESSAGES,
        choices: 1,
    };
    let terms = Terms {
        max_tokens: Some(max_tokens),
        ..Terms::default()
    };
    ChatTurn::start(ask, request, terms).await
}

async fn answer(turn: ChatTurn, manner: Manner) -> Result<Response, ApiError> {
    let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
    let model = turn.turn().lease().id.clone();
    let message = Message::new(id, model, turn.turn().usage().into());
    let streams = manner.streams;
    let writer = Writer::new(message, manner);
    if streams {
        Ok(frames::events(stream(turn, writer)))
    } else {
        Ok(Json(whole(turn, writer).await?).into_response())
    }
}

async fn whole(mut turn: ChatTurn, mut writer: Writer) -> Result<Message, ApiError> {
    while let Some(said) = turn.next().await {
        writer.take(said?);
    }
    Ok(writer.into_message())
}

fn stream(turn: ChatTurn, writer: Writer) -> impl Stream<Item = bytes::Bytes> + Send + 'static {
    let start = writer.start();
    let rest = stream::unfold((turn, writer), |(mut turn, mut writer)| async move {
        let frame = match turn.next().await? {
            Ok(said) => writer.take(said),
            Err(error) => Dialect::Anthropic.error_frame(&error),
        };
        Some((frame, (turn, writer)))
    });
    // A token need not make for an event.
    let rest = rest.filter(|frame| std::future::ready(!frame.is_empty()));
    stream::once(std::future::ready(start)).chain(rest)
}

/// Counts a conversation's tokens
///
/// As a request with it would have them as its prompt.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "anthropic", request_body = CountRequest,
    responses((status = 200, description = "How many", body = TokenCount)),
)]
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<CountRequest>,
) -> Result<Response, ApiError> {
    let Body {
        value,
        sampling: _,
        mut ignored,
    } = body;
    let CountRequest {
        model,
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    } = value;
    let lease = app.lease(&caller, &model).await?;
    let conversation = Conversation {
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    };
    let Lowered {
        request,
        hides_thinking: _,
        ignored: further,
    } = lower(conversation, lease.chat_context())?;
    ignored.extend(further);
    let chat = lease.chat_context().clone();
    let counted = tokio::task::spawn_blocking(move || chat.tokens(&request, true)).await;
    let tokens = counted.map_err(|error| ApiError::internal(&error))?;
    let tokens = tokens.map_err(|error| in_our_words(error.into()))?;
    let count = TokenCount {
        input_tokens: tokens.len(),
    };
    let mut response = Json(count).into_response();
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// An error of the layers below, by the names of this dialect.
fn in_our_words(error: ApiError) -> ApiError {
    error.renamed(&[
        ("stop", "stop_sequences"),
        ("response_format", "output_config.format"),
        ("thinking budget", "thinking.budget_tokens"),
    ])
}
