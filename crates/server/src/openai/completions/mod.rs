//! `/v1/completions`: texts to go on from.

mod choice;
mod logprobs;
mod lower;
mod reply;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream::{StreamExt, TryStreamExt};
use loquat_engine::{Completion as Generated, GenerateRequest, Usage};

use super::usage::TokenUsage;
use super::{Head, lease};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::Lease;
use crate::turn::{Ask, Turn};
use crate::wire::{Body, name_ignored};
use choice::Choice;
use lower::{Lowered, Prompt};

pub use logprobs::label;
pub use reply::Completion;
pub use wire::CompletionRequest;

const ROUTE: &str = "/v1/completions";

/// Prompts of a batch that are at the engine together, so that one batch does not fill the queue.
const AT_ONCE: usize = 32;

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(create))
}

/// Continue texts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "openai",
    request_body = CompletionRequest,
    responses((status = 200, description = "The continuations", body = Completion)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let Body {
        value: request,
        sampling,
        mut ignored,
    } = body;
    let lease = lease(&app, &caller, request.model.as_deref()).await?;
    let model = lease.clone();
    let lowering = move || lower::lower(request, &sampling, &model.chat, &model.sampling);
    let lowered = tokio::task::spawn_blocking(lowering).await;
    let lowered = lowered.map_err(|error| ApiError::internal(&error))??;
    ignored.extend(lowered.ignored.iter());
    let asking = Asking {
        app: &app,
        caller: &caller,
        lease,
        cache_scope: caller.cache_scope(lowered.cache_salt.as_deref()),
        choices: lowered.best_of,
    };
    let mut response = match lowered.stream {
        Some(streaming) => asking.stream(lowered, streaming)?,
        None => Json(asking.gather(lowered).await?).into_response(),
    };
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// In whose name all prompts of a request are asked.
struct Asking<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    lease: Lease,
    cache_scope: Option<String>,
    choices: usize,
}

impl Asking<'_> {
    fn start(&self, generate: GenerateRequest) -> Result<Turn, ApiError> {
        let ask = Ask {
            app: self.app,
            caller: self.caller,
            lease: self.lease.clone(),
            route: ROUTE,
            choices: self.choices,
        };
        let generate = GenerateRequest {
            cache_scope: self.cache_scope.clone(),
            ..generate
        };
        Turn::start(ask, generate)
    }

    fn stream(
        &self,
        lowered: Lowered,
        streaming: super::options::Streaming,
    ) -> Result<Response, ApiError> {
        let head = Head::new("cmpl-", &self.lease);
        let tokenizer = self.lease.chat.tokenizer();
        let prompts = lowered.prompts.into_iter().enumerate();
        let asked = prompts.map(|(at, Prompt { text, generate })| {
            let choice =
                |choice| Choice::new(at * lowered.n + choice, &text, lowered.telling, tokenizer);
            Ok(stream::Asked {
                choices: (0..lowered.n).map(choice).collect(),
                turn: self.start(generate)?,
            })
        });
        let asked = asked.collect::<Result<_, ApiError>>()?;
        Ok(stream::respond(asked, head, streaming))
    }

    async fn gather(&self, lowered: Lowered) -> Result<Completion, ApiError> {
        let head = Head::new("cmpl-", &self.lease);
        let (texts, requests): (Vec<_>, Vec<_>) = lowered
            .prompts
            .into_iter()
            .map(|Prompt { text, generate }| (text, generate))
            .unzip();
        let generated = futures_util::stream::iter(requests)
            .map(async |generate| self.start(generate)?.collect().await)
            .buffered(AT_ONCE);
        let generated: Vec<Vec<Generated>> = generated.try_collect().await?;
        let usage = TokenUsage::of_all(generated.iter().map(|choices| together(choices)));
        let tokenizer = self.lease.chat.tokenizer();
        let mut choices = Vec::new();
        for (text, generated) in texts.iter().zip(generated) {
            let told = match lowered.n < lowered.best_of {
                true => Generated::best(lowered.n, generated)?,
                false => generated,
            };
            choices.extend(told.into_iter().zip(choices.len()..).map(|(each, index)| {
                Choice::new(index, text, lowered.telling, tokenizer).whole(each)
            }));
        }
        Ok(Completion::new(head, choices, Some(Some(usage))))
    }
}

/// What a prompt's choices cost together. The prompt counts once.
fn together(choices: &[Generated]) -> Usage {
    let usages = choices.iter().map(|each| each.usage);
    let sum = usages.reduce(|sum, each| Usage {
        completion_tokens: sum.completion_tokens + each.completion_tokens,
        cached_tokens: sum.cached_tokens.min(each.cached_tokens),
        ..sum
    });
    sum.unwrap_or_default()
}
