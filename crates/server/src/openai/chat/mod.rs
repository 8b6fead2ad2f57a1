//! `/v1/chat/completions`: a conversation's next turn.

mod choice;
pub mod lower;
mod reply;
mod stream;
#[cfg(test)]
mod tests;
pub mod wire;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use super::{Head, lease};
use crate::app::App;
use crate::caller::Caller;
use crate::chat_turn::ChatTurn;
use crate::error::ApiError;
use crate::turn::Ask;
use crate::wire::{Body, name_ignored};

pub use reply::ChatCompletion;
pub use stream::ChatCompletionChunk;
pub use wire::ChatCompletionRequest;

const ROUTE: &str = "/v1/chat/completions";

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(create))
}

/// Answer a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "openai",
    request_body = ChatCompletionRequest,
    responses((status = 200, description = "The answers", body = ChatCompletion)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<ChatCompletionRequest>,
) -> Result<Response, ApiError> {
    let Body {
        value: request,
        sampling,
        mut ignored,
    } = body;
    let lease = lease(&app, &caller, request.model.as_deref()).await?;
    let model = lease.clone();
    let lowering = move || lower::lower(request, &sampling, model.chat_context(), model.sampling());
    // Words and schemas may take long.
    let lowered = tokio::task::spawn_blocking(lowering).await;
    let lowered = lowered.map_err(|error| ApiError::internal(&error))??;
    let lower::Lowered {
        chat,
        terms,
        choices,
        stream,
        answer_field,
        ignored: further,
    } = lowered;
    ignored.extend(further);
    let head = Head::new("chatcmpl-", &lease);
    let logprobs = chat.logprobs.is_some();
    let ask = Ask {
        app: &app,
        caller: &caller,
        lease,
        route: ROUTE,
        choices,
    };
    let turn = ChatTurn::start(ask, chat, terms).await;
    let turn = turn.map_err(|error| in_our_words(error, answer_field))?;
    let mut response = match stream {
        Some(streaming) => stream::respond(turn, head, choices, logprobs, streaming),
        None => Json(reply::gather(turn, head, choices, logprobs).await?).into_response(),
    };
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// What the layers below name by their own names, by those that the request has.
fn in_our_words(error: ApiError, answer_field: Option<&'static str>) -> ApiError {
    error.renamed(&[
        ("response_format", answer_field.unwrap_or("response_format")),
        ("thinking", "reasoning_effort"),
        ("thinking budget", "thinking_budget"),
        ("template_variables", "chat_template_kwargs"),
    ])
}
