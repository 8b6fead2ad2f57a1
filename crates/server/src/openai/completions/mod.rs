//! `/v1/completions`

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
use super::{CompletionHead, lease};
use crate::active_request::{ActiveRequest, Submission, total_usage};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::llama_cpp::adapters;
use crate::lowering::{self, StopFlag};
use crate::models::Lease;
use crate::wire::{JsonBody, with_ignored_header};
use choice::ChoiceWriter;
use lower::{LoweredCompletion, Prompt};

pub use logprobs::label;
pub use reply::Completion;
pub use wire::CompletionRequest;

const ROUTE: &str = "/v1/completions";

/// Choices of a batch at the engine at once, so that one batch does not fill the queue.
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
    body: JsonBody<CompletionRequest>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &caller, body.value.model.as_deref()).await?;
    let lease = adapters::apply(&app, &caller, lease, body.value.lora.as_deref()).await?;
    let mut bytes = match &body.value.prompt {
        Some(prompt) => lower::check_texts(prompt, &lease)?,
        None => 0,
    };
    let has_limit = body.value.max_tokens.is_some();
    let model = lease.clone();
    if let Some(suffix) = &body.value.suffix {
        bytes += suffix.len();
        lease.check_text(bytes)?;
    }
    let lower = move |stop: &StopFlag| lower::lower(body, &model, stop);
    let lowered = lowering::run_text(bytes, lower).await?;
    let ignored = lowered.ignored.clone();
    let batch = PromptBatch {
        cache_scope: caller.cache_scope(lowered.cache_salt.as_deref()),
        app,
        caller,
        lease,
        choices: lowered.best_of,
        has_limit,
    };
    let response = match lowered.streaming {
        Some(streaming) => batch.stream(lowered, streaming)?,
        None => Json(batch.collect(lowered).await?).into_response(),
    };
    Ok(with_ignored_header(response, &ignored))
}

/// What the prompts of a request share.
struct PromptBatch {
    app: Arc<App>,
    caller: Caller,
    lease: Lease,
    cache_scope: Option<String>,
    choices: usize,
    /// Whether the request sets `max_tokens`.
    has_limit: bool,
}

impl PromptBatch {
    /// Prompts at the engine at once.
    fn at_once(&self) -> usize {
        let most = (AT_ONCE / self.choices).max(1);
        most.min(self.lease.engine().idle_capacity(self.choices))
    }

    fn submit(&self, generate: GenerateRequest) -> Result<ActiveRequest, ApiError> {
        let submission = Submission {
            app: &self.app,
            caller: &self.caller,
            lease: self.lease.clone(),
            route: ROUTE,
            choices: self.choices,
        };
        let prompt_len = generate.prompt.len();
        let least = usize::from(generate.max_tokens > 0);
        self.lease.check_prompt(prompt_len, least)?;
        let limit = generate.max_tokens;
        let generate = GenerateRequest {
            cache_scope: self.cache_scope.clone(),
            max_tokens: if self.has_limit {
                submission.limit_tokens(limit, prompt_len)
            } else {
                self.lease.model.fit_tokens(limit, prompt_len)
            },
            ..generate
        };
        let submitted = ActiveRequest::submit(submission, generate);
        submitted.map_err(|error| {
            let names = (FieldPath::verbatim("stop_ids"), Field::StopTokenIds.into());
            error.renamed([names])
        })
    }

    /// Submits the first prompts, which may be refused, and the others as those before them end.
    fn stream(
        self,
        lowered: LoweredCompletion,
        streaming: super::options::Streaming,
    ) -> Result<Response, ApiError> {
        let head = CompletionHead::new("cmpl-", &self.lease);
        let tokenizer = self.lease.chat_context().tokenizer();
        let mut choices = Vec::new();
        let mut requests = Vec::new();
        for (at, Prompt { text, generate }) in lowered.prompts.into_iter().enumerate() {
            let first = at * lowered.n;
            let writer =
                |choice| ChoiceWriter::new(first + choice, &text, lowered.output, tokenizer);
            choices.push((0..lowered.n).map(writer).collect());
            requests.push(generate);
        }
        let at_once = self.at_once();
        let mut requests = requests.into_iter();
        let first = requests.by_ref().take(at_once);
        let first: Vec<_> = first
            .map(|generate| self.submit(generate))
            .collect::<Result<_, _>>()?;
        let later = requests.map(move |generate| self.submit(generate));
        let requests = streams::iter(first.into_iter().map(Ok).chain(later));
        Ok(stream::respond(requests, at_once, choices, head, streaming))
    }

    async fn collect(&self, lowered: LoweredCompletion) -> Result<Completion, ApiError> {
        let head = CompletionHead::new("cmpl-", &self.lease);
        let (texts, requests): (Vec<_>, Vec<_>) = lowered
            .prompts
            .into_iter()
            .map(|Prompt { text, generate }| (text, generate))
            .unzip();
        let generated = streams::iter(requests)
            .map(async |generate| self.submit(generate)?.collect().await)
            .buffered(self.at_once());
        let generated: Vec<Vec<Generated>> = generated.try_collect().await?;
        let usage = TokenUsage::sum(generated.iter().map(|choices| {
            let usages = choices.iter().map(|each| each.usage);
            total_usage(usages).unwrap_or_default()
        }));
        let tokenizer = self.lease.chat_context().tokenizer();
        let mut choices = Vec::new();
        for (text, generated) in texts.iter().zip(generated) {
            let best = if lowered.n < lowered.best_of {
                Generated::best(lowered.n, generated)?
            } else {
                generated
            };
            choices.extend(best.into_iter().zip(choices.len()..).map(|(each, index)| {
                ChoiceWriter::new(index, text, lowered.output, tokenizer).finish(each)
            }));
        }
        Ok(Completion::new(head, choices, Some(Some(usage))))
    }
}
