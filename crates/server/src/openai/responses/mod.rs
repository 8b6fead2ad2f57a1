//! OpenAI's Responses: conversations of items, which the server may keep.

pub mod item;
pub mod kept;
pub mod object;
pub mod request;

mod conversation;
mod events;
mod lower;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};

pub use self::store::Responses;

use self::item::{InputText, Item, ItemReference, MessageItem, Part, Speaker};
use self::lower::{Given, Lowered, lower};
use self::object::{ResponseObject, ResponseStatus};
use self::request::ResponseRequest;
use self::store::Kept;
use self::writer::Writer;
use crate::app::App;
use crate::caller::Caller;
use crate::chat_turn::ChatTurn;
use crate::error::ApiError;
use crate::frames;
use crate::turn::Ask;
use crate::union::TextOr;
use crate::wire::{Body, name_ignored};

const RESPONSES: &str = "/v1/responses";

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(RESPONSES, post(create))
        .route(
            "/v1/responses/{id}",
            get(kept::retrieve).delete(kept::delete),
        )
        .route("/v1/responses/{id}/input_items", get(kept::input_items))
        .route("/v1/responses/{id}/cancel", post(kept::cancel))
}

/// Makes a response
///
/// With `stream`, events as OpenAI sends them, each with its `sequence_number`, from
/// `response.created` to `response.completed`, `response.incomplete` or `response.failed`.
/// Thinking is told as it was thought, by `response.reasoning_text.delta`.
#[utoipa::path(
    post, path = "/v1/responses", tag = "openai", request_body = ResponseRequest,
    responses((status = 200, description = "The response", body = ResponseObject)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<ResponseRequest>,
) -> Result<Response, ApiError> {
    let Body {
        value: mut request,
        sampling,
        mut ignored,
    } = body;
    let lease = super::lease(&app, &caller, request.model.as_deref()).await?;
    let before = previous(&app, &caller, request.previous_response_id.as_deref())?;
    let input = std::mem::replace(&mut request.input, TextOr::Many(Vec::new()));
    let input = settled(&app, &caller, input)?;
    let (model, earlier) = (lease.clone(), before.clone());
    let lowering = move || {
        let so_far = earlier.iter().flat_map(Kept::conversation);
        let given = Given {
            sampling: &sampling,
            chat: model.chat_context(),
            in_force: model.sampling(),
            model: &model.id,
            conversation: so_far.chain(&input).collect(),
        };
        lower(request, given).map(|lowered| (lowered, input))
    };
    // Words and schemas may take long.
    let lowered = tokio::task::spawn_blocking(lowering).await;
    let (lowered, input) = lowered.map_err(|error| ApiError::internal(&error))??;
    let Lowered {
        chat,
        terms,
        response,
        stream,
        ignored: further,
    } = lowered;
    ignored.extend(further);
    let writer = Writer::new(
        response,
        lease.chat_context(),
        chat.logprobs.is_some(),
        stream,
    );
    let ask = Ask {
        app: &app,
        caller: &caller,
        lease,
        route: RESPONSES,
        choices: 1,
    };
    let turn = ChatTurn::start(ask, chat, terms).await;
    let answering = Answering {
        turn: turn.map_err(in_our_words)?,
        writer,
        keeping: Keeping {
            app: Arc::clone(&app),
            owner: caller.client(),
            before,
            input,
        },
    };
    let mut response = if stream {
        frames::events(answering.stream())
    } else {
        Json(answering.whole().await?).into_response()
    };
    name_ignored(&mut response, &ignored);
    Ok(response)
}

fn previous(app: &App, caller: &Caller, id: Option<&str>) -> Result<Option<Kept>, ApiError> {
    let Some(id) = id else {
        return Ok(None);
    };
    let limits = &app.config().responses;
    match app.responses.get(&caller.client(), id, limits) {
        Some(kept) => Ok(Some(kept)),
        None => Err(ApiError::invalid(
            "previous_response_id",
            format!("Previous response with id '{id}' not found."),
        )
        .code("previous_response_not_found")),
    }
}

/// The input as it is kept, with what it refers to in the place of references.
fn settled(app: &App, caller: &Caller, input: TextOr<Item>) -> Result<Vec<Item>, ApiError> {
    let items = match input {
        TextOr::Text(text) => vec![Item::Message(MessageItem {
            id: None,
            role: Speaker::User,
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
        item => item.settled(),
    });
    Ok(items.collect())
}

/// What items refer to: each once, or a short request could grow without bounds.
fn references(items: &[Item]) -> Result<HashSet<String>, ApiError> {
    let mut ids = HashSet::new();
    for item in items {
        if let Item::ItemReference(ItemReference { id }) = item
            && !ids.insert(id.clone())
        {
            let what = format!(
                "Duplicate item found with id {id}. Remove duplicate items from your input and \
                 try again."
            );
            return Err(ApiError::invalid("input", what));
        }
    }
    Ok(ids)
}

/// A response on its way. Dropping it cancels.
struct Answering {
    turn: ChatTurn,
    writer: Writer,
    keeping: Keeping,
}

/// What a response is kept with.
struct Keeping {
    app: Arc<App>,
    owner: Option<String>,
    before: Option<Kept>,
    input: Vec<Item>,
}

impl Keeping {
    fn keep(&mut self, response: &ResponseObject) {
        let Self {
            app,
            owner,
            before,
            input,
        } = self;
        if response.store {
            app.responses.keep(
                owner.take(),
                before.take(),
                std::mem::take(input),
                response.clone(),
                &app.config().responses,
            );
        }
    }
}

impl Answering {
    async fn whole(mut self) -> Result<ResponseObject, ApiError> {
        while let Some(said) = self.turn.next().await {
            self.writer.take(said?);
        }
        let response = self.writer.response();
        self.keeping.keep(response);
        Ok(response.clone())
    }

    fn stream(mut self) -> impl Stream<Item = Bytes> + Send + 'static {
        let start = self.writer.start();
        let rest = stream::unfold(self, |mut answering| async move {
            let frame = answering.next().await?;
            Some((frame, answering))
        });
        // A token need not make for an event.
        let rest = rest.filter(|frame| std::future::ready(!frame.is_empty()));
        stream::once(std::future::ready(start)).chain(rest)
    }

    async fn next(&mut self) -> Option<Bytes> {
        let frame = match self.turn.next().await? {
            Ok(said) => self.writer.take(said),
            Err(error) => self.writer.fail(&error),
        };
        let response = self.writer.response();
        if matches!(
            response.status,
            ResponseStatus::Completed | ResponseStatus::Incomplete
        ) {
            // Before the client hears of the end, since it may go on from there at once.
            self.keeping.keep(response);
        }
        Some(frame)
    }
}

/// An error of the layers below, by the names of this dialect.
fn in_our_words(error: ApiError) -> ApiError {
    error.renamed(&[
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("thinking", "reasoning.effort"),
        ("response_format", "text.format"),
        ("logprobs", "top_logprobs"),
    ])
}
