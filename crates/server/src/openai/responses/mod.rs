//! `/v1/responses`: conversations of items, which the server may store.

pub mod item;
pub mod object;
pub mod request;
pub mod stored;

mod conversation;
mod events;
mod lower;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};

pub use self::store::Responses;

use self::item::{InputText, Item, ItemReference, ItemRole, MessageItem, Part};
use self::lower::{LoweredResponse, LoweringContext, lower};
use self::object::ResponseObject;
use self::request::ResponseRequest;
use self::store::StoredResponse;
use self::writer::{ResponseStorage, ResponseWriter};
use crate::active_request::Submission;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::reply::{self, ActiveReply};
use crate::union::TextOr;
use crate::wire::JsonBody;
use crate::{lowering, remote_media};

const RESPONSES: &str = "/v1/responses";

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(RESPONSES, post(create))
        .route(
            "/v1/responses/{id}",
            get(stored::retrieve).delete(stored::delete),
        )
        .route("/v1/responses/{id}/input_items", get(stored::input_items))
        .route("/v1/responses/{id}/cancel", post(stored::cancel))
}

/// Create a response
///
/// With `stream`, events as OpenAI sends them, each with its `sequence_number`, from
/// `response.created` to `response.completed`, `response.incomplete` or `response.failed`.
/// Reasoning is streamed in full, by `response.reasoning_text.delta`.
#[utoipa::path(
    post, path = "/v1/responses", tag = "openai", request_body = ResponseRequest,
    responses((status = 200, description = "The response", body = ResponseObject)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<ResponseRequest>,
) -> Result<Response, ApiError> {
    let JsonBody {
        value: mut request,
        sampling,
        mut ignored,
        ..
    } = body;
    let lease = super::lease(&app, &caller, request.model.as_deref()).await?;
    remote_media::fetch(&app, &lease, &mut request).await?;
    let previous = previous(&app, &caller, request.previous_response_id.as_deref())?;
    let input = std::mem::replace(&mut request.input, TextOr::Many(Vec::new()));
    let input = normalized(&app, &caller, input)?;
    let (model, earlier) = (lease.clone(), previous.clone());
    let lower = move || {
        let earlier = earlier.iter().flat_map(StoredResponse::conversation);
        let context = LoweringContext {
            overrides: &sampling,
            defaults: model.sampling(),
            chat: model.chat_context(),
            model: model.name(),
            conversation: earlier.chain(&input).collect(),
        };
        lower(request, context).map(|lowered| (lowered, input))
    };
    let (lowered, input) = lowering::run(lower).await?;
    let LoweredResponse {
        chat,
        options,
        response,
        stream,
        ignored: nested,
    } = lowered;
    ignored.extend(nested);
    let storage = ResponseStorage {
        app: Arc::clone(&app),
        owner: caller.client(),
        previous,
        input,
    };
    let logprobs = chat.logprobs.is_some();
    let writer = ResponseWriter::new(response, lease.chat_context(), logprobs, stream, storage);
    let submission = Submission {
        app: &app,
        caller: &caller,
        lease,
        route: RESPONSES,
        choices: 1,
    };
    let active = ActiveReply::start(submission, chat, options).await;
    let active = active.map_err(rename_fields)?;
    reply::respond(active, writer, stream, &ignored).await
}

fn previous(
    app: &App,
    caller: &Caller,
    id: Option<&str>,
) -> Result<Option<StoredResponse>, ApiError> {
    let Some(id) = id else {
        return Ok(None);
    };
    let limits = &app.config().responses;
    match app.responses.get(&caller.client(), id, limits) {
        Some(stored) => Ok(Some(stored)),
        None => {
            let message = format!("Previous response with id '{id}' not found.");
            let error = ApiError::bad_request(message).param(Field::PreviousResponseId);
            Err(error.code("previous_response_not_found"))
        }
    }
}

/// The input as it is stored, with references replaced by their items.
fn normalized(app: &App, caller: &Caller, input: TextOr<Item>) -> Result<Vec<Item>, ApiError> {
    let items = match input {
        TextOr::Text(text) => vec![Item::Message(MessageItem {
            id: None,
            role: ItemRole::User,
            content: TextOr::Many(vec![Part::InputText(InputText { text })]),
            status: None,
            phase: None,
        })],
        TextOr::Many(items) => items,
    };
    let referred = references(&items)?;
    let mut found = if referred.is_empty() {
        HashMap::new()
    } else {
        let limits = &app.config().responses;
        app.responses.items(&caller.client(), &referred, limits)
    };
    let items = items.into_iter().map(|item| match item {
        Item::ItemReference(reference) => {
            let item = found.remove(&reference.id);
            item.unwrap_or(Item::ItemReference(reference))
        }
        item => item.normalized(),
    });
    Ok(items.collect())
}

/// The ids of references. Each may occur once: a short request must not grow without bounds.
fn references(items: &[Item]) -> Result<HashSet<String>, ApiError> {
    let mut ids = HashSet::new();
    for item in items {
        if let Item::ItemReference(ItemReference { id }) = item
            && !ids.insert(id.clone())
        {
            let message = format!(
                "Duplicate item found with id {id}. Remove duplicate items from your input and \
                 try again."
            );
            return Err(ApiError::bad_request(message).param(Field::Input));
        }
    }
    Ok(ids)
}

/// Renames fields of the lower layers to those of the request.
fn rename_fields(error: ApiError) -> ApiError {
    error.renamed([
        (Field::Messages.into(), Field::Input.into()),
        (Field::MaxTokens.into(), Field::MaxOutputTokens.into()),
        (
            Field::Thinking.into(),
            Field::Reasoning.field(Field::Effort),
        ),
        (
            Field::ResponseFormat.into(),
            Field::Text.field(Field::Format),
        ),
        (Field::Logprobs.into(), Field::TopLogprobs.into()),
    ])
}
