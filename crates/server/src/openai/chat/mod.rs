//! `/v1/chat/completions`

mod chunk;
pub mod lower;
mod reply;
#[cfg(test)]
mod tests;
pub mod wire;
mod writer;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;

use self::lower::{LoweredChatCompletion, lower};
use self::writer::ChatWriter;
use super::lease;
use crate::active_request::Submission;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::llama_cpp::adapters;
use crate::lowering;
use crate::remote_media;
use crate::reply::{self as replies, ActiveReply};
use crate::wire::JsonBody;

pub use chunk::ChatCompletionChunk;
pub use reply::ChatCompletion;
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
    mut body: JsonBody<ChatCompletionRequest>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &caller, body.value.model.as_deref()).await?;
    let lease = adapters::apply(&app, &caller, lease, body.value.lora.as_deref()).await?;
    remote_media::fetch(&app, &lease, &mut body.value).await?;
    let model = lease.clone();
    let lower = move || lower(body, model.chat_context(), model.sampling());
    let LoweredChatCompletion {
        chat,
        options,
        choices,
        streaming,
        answer_field,
        ignored,
    } = lowering::run(lower).await?;
    let writer = ChatWriter::new(&lease, choices, chat.logprobs.is_some(), streaming);
    let submission = Submission {
        app: &app,
        caller: &caller,
        lease,
        route: ROUTE,
        choices,
    };
    let reply = ActiveReply::start(submission, chat, options).await;
    let reply = reply.map_err(|error| rename_fields(error, answer_field))?;
    replies::respond(reply, writer, streaming.is_some(), &ignored).await
}

/// Renames fields of the lower layers to those of the request.
fn rename_fields(error: ApiError, answer_field: Option<FieldPath>) -> ApiError {
    let answer_field = answer_field.unwrap_or(Field::ResponseFormat.into());
    error.renamed([
        (Field::ResponseFormat.into(), answer_field),
        (Field::Thinking.into(), Field::ReasoningEffort.into()),
        (FieldPath::verbatim("stop_ids"), Field::StopTokenIds.into()),
        (
            FieldPath::verbatim("thinking budget"),
            Field::ThinkingBudget.into(),
        ),
        (
            Field::TemplateVariables.into(),
            Field::ChatTemplateKwargs.into(),
        ),
    ])
}
