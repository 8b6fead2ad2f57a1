//! Answers the requests of `/api/chat` and `/api/generate`.

use std::sync::Arc;

use axum::response::Response;
use loquat_chat::ChatRequest;
use loquat_engine::{GenerateRequest, Logprobs};
use serde_json::{Map, Value};

use super::keep_alive::OllamaKeepAlive;
use super::options::{Options, rename_fields};
use super::response::{self, ReplyContext, ReplyLine, empty_reply};
use super::{LeasedModel, lease, unload};
use crate::active_request::{ActiveRequest, Submission};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::lowering::{self, StopFlag};
use crate::models::Loaded;
use crate::reply::{ActiveReply, ReplyOptions};
use crate::unknown_fields::FieldPolicy;

/// A request for a reply, without its prompt.
pub struct ReplyRequest {
    pub route: &'static str,
    pub model: String,
    pub options: Option<Map<String, Value>>,
    pub stream: Option<bool>,
    pub keep_alive: Option<OllamaKeepAlive>,
    pub logprobs: Option<Logprobs>,
    /// The size of the text that is tokenized without a chat template.
    pub text_bytes: usize,
    /// Fields of the body that had no effect.
    pub ignored: Vec<&'static str>,
}

/// A prompt for the engine.
pub enum LoweredPrompt {
    Chat(Box<ChatRequest>),
    /// A text to continue.
    Text(Box<GenerateRequest>),
}

impl ReplyRequest {
    /// Replies to the prompt that `lower` returns. Without a prompt the model is loaded, or unloaded
    /// if `keep_alive` is 0.
    pub async fn answer<L: ReplyLine>(
        self,
        app: &Arc<App>,
        caller: Caller,
        lower: Option<
            impl FnOnce(&Loaded, Options, &StopFlag) -> Result<LoweredPrompt, ApiError> + Send + 'static,
        >,
    ) -> Result<Response, ApiError> {
        let Self {
            route,
            model,
            options,
            stream,
            keep_alive,
            logprobs,
            text_bytes,
            ignored,
        } = self;
        if lower.is_none() && keep_alive.is_some_and(OllamaKeepAlive::unloads) {
            unload(app, &caller, &model)?;
            return Ok(empty_reply::<L>(model, "unload", &[]));
        }
        let LeasedModel {
            lease,
            name,
            load,
            ignored: unused,
        } = lease(app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
        lease.check_text(text_bytes)?;
        let model = lease.clone();
        let policy = FieldPolicy::new(app.config().server.strict_fields);
        let lowered = lowering::run_text(text_bytes, move |stop| {
            let mut options = Options::lower(options, &model, policy)?;
            let nested = std::mem::take(&mut options.ignored);
            let unknown = std::mem::take(&mut options.unknown);
            let reply_options = ReplyOptions {
                max_tokens_that_fit: options.max_tokens,
                draft_tokens: options.draft_tokens,
                ..ReplyOptions::default()
            };
            let prompt = lower
                .map(|lower| lower(&model, options, stop))
                .transpose()?;
            Ok((prompt, reply_options, nested, unknown))
        });
        let (prompt, options, nested, unknown) = lowered.await?;
        caller.notes.ignore(unknown);
        let ignored = [nested, ignored, unused.into_iter().collect()].concat();
        let Some(prompt) = prompt else {
            return Ok(empty_reply::<L>(name, "load", &ignored));
        };
        let submission = Submission {
            app,
            caller: &caller,
            lease: lease.clone(),
            route,
            choices: 1,
        };
        let reply = prompt.submit(submission, options).await;
        let reply = reply.map_err(rename_fields)?;
        let context = ReplyContext {
            model: name,
            caller,
            load,
            logprobs_model: logprobs.map(|_| lease),
        };
        response::respond::<L>(reply, context, stream.unwrap_or(true), &ignored).await
    }
}

impl LoweredPrompt {
    async fn submit(
        self,
        submission: Submission<'_>,
        options: ReplyOptions,
    ) -> Result<ActiveReply, ApiError> {
        match self {
            Self::Chat(request) => ActiveReply::start(submission, *request, options).await,
            Self::Text(request) => {
                let request = GenerateRequest {
                    max_tokens: options.limit(&submission, request.prompt.len()),
                    draft_tokens: options.draft_tokens,
                    cache_scope: submission.caller.cache_scope(None),
                    ..*request
                };
                ActiveRequest::submit(submission, request).map(ActiveReply::plain_text)
            }
        }
    }
}
