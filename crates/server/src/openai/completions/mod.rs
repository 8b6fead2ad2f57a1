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
use futures_util::stream::{self as streams, StreamExt, TryStreamExt};
use loquat_engine::{Completion as Generated, GenerateRequest};

use super::usage::TokenUsage;
use super::{Head, lease};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::Lease;
use crate::turn::{Ask, Turn, together};
use crate::wire::{Body, name_ignored};
use choice::Choice;
use lower::{Lowered, Prompt};

pub use logprobs::label;
pub use reply::Completion;
pub use wire::CompletionRequest;

const ROUTE: &str = "/v1/completions";

/// Choices of a batch that are at the engine together, so that one batch does not fill the queue.
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
    lower::check_texts(&request.prompt, &lease)?;
    let bounded = request.max_tokens.is_some();
    let model = lease.clone();
    let lowering = move || lower::lower(request, &sampling, model.chat_context(), model.sampling());
    let lowered = tokio::task::spawn_blocking(lowering).await;
    let lowered = lowered.map_err(|error| ApiError::internal(&error))??;
    ignored.extend(lowered.ignored.iter());
    let asking = Asking {
        cache_scope: caller.cache_scope(lowered.cache_salt.as_deref()),
        app,
        caller,
        lease,
        choices: lowered.best_of,
        bounded,
    };
    let mut response = match lowered.stream {
        Some(streaming) => asking.stream(lowered, streaming)?,
        None => Json(asking.gather(lowered).await?).into_response(),
    };
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// In whose name all prompts of a request are asked.
struct Asking {
    app: Arc<App>,
    caller: Caller,
    lease: Lease,
    cache_scope: Option<String>,
    choices: usize,
    /// Whether the request says how long continuations may be.
    bounded: bool,
}

impl Asking {
    /// How many prompts are at the engine together.
    fn at_once(&self) -> usize {
        (AT_ONCE / self.choices).max(1)
    }

    fn start(&self, generate: GenerateRequest) -> Result<Turn, ApiError> {
        let ask = Ask {
            app: &self.app,
            caller: &self.caller,
            lease: self.lease.clone(),
            route: ROUTE,
            choices: self.choices,
        };
        let prompt_len = generate.prompt.len();
        let least = usize::from(generate.max_tokens > 0);
        self.lease.check_prompt(prompt_len, least)?;
        let generate = GenerateRequest {
            cache_scope: self.cache_scope.clone(),
            max_tokens: if self.bounded {
                generate.max_tokens
            } else {
                self.lease.model.fit_tokens(generate.max_tokens, prompt_len)
            },
            ..generate
        };
        Turn::start(ask, generate)
    }

    /// The first prompts may be refused; the others are started as those before them end.
    fn stream(
        self,
        lowered: Lowered,
        streaming: super::options::Streaming,
    ) -> Result<Response, ApiError> {
        let head = Head::new("cmpl-", &self.lease);
        let tokenizer = self.lease.chat_context().tokenizer();
        let mut choices = Vec::new();
        let mut requests = Vec::new();
        for (at, Prompt { text, generate }) in lowered.prompts.into_iter().enumerate() {
            let choice =
                |choice| Choice::new(at * lowered.n + choice, &text, lowered.telling, tokenizer);
            choices.push((0..lowered.n).map(choice).collect());
            requests.push(generate);
        }
        let at_once = self.at_once();
        let mut requests = requests.into_iter();
        let first = requests.by_ref().take(at_once);
        let first: Vec<_> = first
            .map(|each| self.start(each))
            .collect::<Result<_, _>>()?;
        let later = requests.map(move |generate| self.start(generate));
        let turns = streams::iter(first.into_iter().map(Ok).chain(later));
        Ok(stream::respond(turns, at_once, choices, head, streaming))
    }

    async fn gather(&self, lowered: Lowered) -> Result<Completion, ApiError> {
        let head = Head::new("cmpl-", &self.lease);
        let (texts, requests): (Vec<_>, Vec<_>) = lowered
            .prompts
            .into_iter()
            .map(|Prompt { text, generate }| (text, generate))
            .unzip();
        let generated = streams::iter(requests)
            .map(async |generate| self.start(generate)?.collect().await)
            .buffered(self.at_once());
        let generated: Vec<Vec<Generated>> = generated.try_collect().await?;
        let usage = TokenUsage::of_all(generated.iter().map(|choices| {
            let usages = choices.iter().map(|each| each.usage);
            together(usages).unwrap_or_default()
        }));
        let tokenizer = self.lease.chat_context().tokenizer();
        let mut choices = Vec::new();
        for (text, generated) in texts.iter().zip(generated) {
            let told = if lowered.n < lowered.best_of {
                Generated::best(lowered.n, generated)?
            } else {
                generated
            };
            choices.extend(told.into_iter().zip(choices.len()..).map(|(each, index)| {
                Choice::new(index, text, lowered.telling, tokenizer).whole(each)
            }));
        }
        Ok(Completion::new(head, choices, Some(Some(usage))))
    }
}
