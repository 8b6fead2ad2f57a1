//! Generations in llama.cpp's form.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use loquat_engine::{Event, FinishReason, GenerateRequest, Timings, TokenInfo, Usage};
use serde::Serialize;
use utoipa::ToSchema;

use crate::active_request::{ActiveRequest, Submission};
use crate::app::App;
use crate::caller::Caller;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::field::Field;
use crate::frames;
use crate::models::{Lease, Loaded};
use crate::wire::with_ignored_header;

/// A text, or a chunk of it.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct LlamaCompletion {
    /// Always 0.
    pub index: usize,
    pub content: String,
    /// The tokens of `content`, if requested.
    pub tokens: Vec<u32>,
    /// Whether it is the last chunk.
    pub stop: bool,
    #[serde(flatten)]
    #[schema(inline)]
    pub end: Option<LlamaEnd>,
}

/// What the last chunk adds.
#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaEnd {
    pub model: String,
    /// `eos`, `word` or `limit`
    pub stop_type: &'static str,
    /// The stop string that ended the text.
    pub stopping_word: String,
    pub tokens_predicted: usize,
    pub tokens_evaluated: usize,
    /// Prompt tokens that were not computed again.
    pub tokens_cached: usize,
    /// Always false: prompts that exceed the context are refused.
    pub truncated: bool,
    pub timings: LlamaTimings,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaTimings {
    pub prompt_n: usize,
    pub prompt_ms: f64,
    pub predicted_n: usize,
    pub predicted_ms: f64,
    pub predicted_per_second: Option<f64>,
}

impl LlamaTimings {
    fn new(usage: Usage, timings: Timings) -> Self {
        let per_token = timings.per_token(usage.completion_tokens);
        let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        Self {
            prompt_n: usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
            prompt_ms: milliseconds(timings.first_token.saturating_sub(timings.queued)),
            predicted_n: usage.completion_tokens,
            predicted_ms: milliseconds(timings.decode),
            predicted_per_second: per_token
                .map(|time| time.as_secs_f64())
                .filter(|seconds| *seconds > 0.0)
                .map(|seconds| 1.0 / seconds),
        }
    }
}

/// A lowered request.
pub struct NativeGeneration {
    pub generate: GenerateRequest,
    pub streams: bool,
    pub return_tokens: bool,
    pub ignored: Vec<&'static str>,
}

/// The most tokens to generate: `n_predict`, reduced to the room there is. -1, and none, is all of
/// it up to the model's default.
pub fn max_tokens(
    n_predict: Option<i64>,
    model: &Loaded,
    prompt_tokens: usize,
) -> Result<usize, ApiError> {
    let wanted = match n_predict {
        None | Some(-1) => model.model.defaults().max_tokens,
        Some(count) => match usize::try_from(count) {
            Ok(count) if count > 0 => count,
            _ => {
                let problem = format!("is {count}; it must be at least 1, or -1 for no limit");
                return Err(ApiError::invalid(Field::NPredict, problem));
            }
        },
    };
    Ok(model.model.fit_tokens(wanted, prompt_tokens))
}

impl NativeGeneration {
    /// Runs the request and writes its text, in chunks if it streams.
    pub async fn respond(
        self,
        app: &Arc<App>,
        caller: &Caller,
        lease: Lease,
        route: &'static str,
    ) -> Result<Response, ApiError> {
        let mut generate = self.generate;
        lease.check_prompt(generate.prompt.len(), 1)?;
        generate.cache_scope = caller.cache_scope(None);
        let submission = Submission {
            app,
            caller,
            lease,
            route,
            choices: 1,
        };
        let stops = generate.stop.clone();
        let request = ActiveRequest::submit(submission, generate)?;
        let writer = ChunkWriter {
            request,
            stops,
            return_tokens: self.return_tokens,
        };
        let response = if self.streams {
            writer.stream()
        } else {
            Json(writer.collect().await?).into_response()
        };
        Ok(with_ignored_header(response, &self.ignored))
    }
}

struct ChunkWriter {
    request: ActiveRequest,
    stops: Vec<String>,
    return_tokens: bool,
}

impl ChunkWriter {
    /// The next chunk; `None` after the last.
    async fn next(&mut self) -> Option<Result<LlamaCompletion, ApiError>> {
        loop {
            match self.request.next().await? {
                Err(error) => return Some(Err(error)),
                Ok((_, Event::Tokens { tokens, text })) => {
                    return Some(Ok(LlamaCompletion {
                        content: text,
                        tokens: self.ids(&tokens),
                        ..LlamaCompletion::default()
                    }));
                }
                Ok((
                    _,
                    Event::Finished {
                        reason,
                        text,
                        usage,
                        timings,
                        seed: _,
                    },
                )) => {
                    return Some(Ok(LlamaCompletion {
                        content: text,
                        stop: true,
                        end: Some(self.end(&reason, usage, timings)),
                        ..LlamaCompletion::default()
                    }));
                }
                Ok((_, Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_))) => {}
            }
        }
    }

    fn ids(&self, tokens: &[TokenInfo]) -> Vec<u32> {
        let tokens = tokens.iter().filter(|_| self.return_tokens);
        tokens.map(|token| token.id).collect()
    }

    fn end(&self, reason: &FinishReason, usage: Usage, timings: Timings) -> LlamaEnd {
        let (stop_type, stopping_word) = match reason {
            FinishReason::Length => ("limit", String::new()),
            FinishReason::Stop => ("eos", String::new()),
            FinishReason::StopString(index) => {
                let word = self.stops.get(*index).cloned();
                ("word", word.unwrap_or_default())
            }
        };
        LlamaEnd {
            model: self.request.lease().id.clone(),
            stop_type,
            stopping_word,
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            tokens_cached: usage.cached_tokens,
            truncated: false,
            timings: LlamaTimings::new(usage, timings),
        }
    }

    async fn collect(mut self) -> Result<LlamaCompletion, ApiError> {
        let mut whole = LlamaCompletion::default();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            whole.content.push_str(&chunk.content);
            whole.tokens.extend(chunk.tokens);
            whole.stop |= chunk.stop;
            whole.end = whole.end.or(chunk.end);
        }
        Ok(whole)
    }

    fn stream(self) -> Response {
        let frames = stream::unfold(Some(self), |writer| async move {
            let mut writer = writer?;
            let (frame, ended): (Bytes, bool) = match writer.next().await? {
                Ok(chunk) => (frames::event(None, &chunk), chunk.stop),
                Err(error) => (Dialect::OpenAi.error_frame(&error), true),
            };
            Some((frame, (!ended).then_some(writer)))
        });
        frames::events(frames)
    }
}
