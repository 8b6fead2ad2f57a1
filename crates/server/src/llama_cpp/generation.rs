//! Generations in llama.cpp's form.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use loquat_engine::{Event, FinishReason, GenerateRequest, Timings, TokenInfo, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::probabilities::TokenProbability;
use crate::active_request::{ActiveRequest, Submission};
use crate::app::App;
use crate::caller::Caller;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::field::Field;
use crate::frames;
use crate::models::Lease;
use crate::samplers::SAMPLERS;
use crate::sampling;
use crate::wire::with_ignored_header;

/// Prompts of a request at the engine at once, so that one request does not fill the queue.
const AT_ONCE: usize = 32;

/// A text, or a chunk of it.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct LlamaCompletion {
    /// The prompt's place in the request.
    pub index: usize,
    pub content: String,
    /// The tokens of `content`: in a stream, or if requested.
    pub tokens: Vec<u32>,
    /// Whether it is the last chunk of its prompt.
    pub stop: bool,
    /// The probabilities of the tokens, with `n_probs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_probabilities: Option<Vec<TokenProbability>>,
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
    /// Whether the text has a line break.
    pub has_new_line: bool,
    pub tokens_predicted: usize,
    pub tokens_evaluated: usize,
    /// Prompt tokens that were not computed again.
    pub tokens_cached: usize,
    /// Always false: prompts that exceed the context are refused.
    pub truncated: bool,
    /// The sampling parameters and limits that applied.
    #[schema(value_type = Object)]
    pub generation_settings: Map<String, Value>,
    pub timings: LlamaTimings,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaTimings {
    pub prompt_n: usize,
    pub prompt_ms: f64,
    pub predicted_n: usize,
    pub predicted_ms: f64,
    pub predicted_per_second: Option<f64>,
    /// Tokens that were drafted and verified; omitted if none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<usize>,
    /// Those that were right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<usize>,
}

impl LlamaTimings {
    fn new(usage: Usage, timings: Timings) -> Self {
        let per_token = timings.per_token(usage.completion_tokens);
        let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        let drafts = Some(timings.drafts).filter(|drafts| drafts.tokens > 0);
        Self {
            prompt_n: usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
            prompt_ms: milliseconds(timings.first_token.saturating_sub(timings.queued)),
            predicted_n: usage.completion_tokens,
            predicted_ms: milliseconds(timings.decode),
            predicted_per_second: per_token
                .map(|time| time.as_secs_f64())
                .filter(|seconds| *seconds > 0.0)
                .map(|seconds| 1.0 / seconds),
            draft_n: drafts.map(|drafts| drafts.tokens),
            draft_n_accepted: drafts.map(|drafts| drafts.accepted),
        }
    }
}

/// A lowered request.
pub struct NativeGeneration {
    /// One for each prompt.
    pub prompts: Vec<GenerateRequest>,
    /// The most tokens to generate; the model's default if unset. 0 evaluates the prompts, so that
    /// later requests find them in the cache.
    pub n_predict: Option<usize>,
    pub output: OutputOptions,
    pub ignored: Vec<&'static str>,
}

/// What is returned.
#[derive(Debug, Clone, Default)]
pub struct OutputOptions {
    pub streams: bool,
    pub return_tokens: bool,
    /// Paths of the only fields of a whole text, or of a last chunk; all if empty.
    pub response_fields: Vec<String>,
}

impl OutputOptions {
    /// The whole text or the last chunk, with the requested fields. As in llama.cpp, a nested field's
    /// name is its path.
    fn select(&self, completion: &LlamaCompletion) -> Result<Value, ApiError> {
        let whole = serde_json::to_value(completion);
        let whole = whole.map_err(|error| ApiError::internal(&error))?;
        if self.response_fields.is_empty() {
            return Ok(whole);
        }
        let fields = self.response_fields.iter().filter_map(|path| {
            let mut steps = path.split('/');
            let found = steps.try_fold(&whole, |value, step| value.get(step))?;
            Some((path.clone(), found.clone()))
        });
        Ok(Value::Object(fields.collect()))
    }
}

impl NativeGeneration {
    /// Runs the request and writes its texts, in chunks if it streams: an object for one prompt, a
    /// list for several.
    pub async fn respond(
        self,
        app: &Arc<App>,
        caller: &Caller,
        lease: Lease,
        route: &'static str,
    ) -> Result<Response, ApiError> {
        let Self {
            prompts,
            n_predict,
            output,
            ignored,
        } = self;
        let count = prompts.len();
        let at_once = AT_ONCE.min(lease.engine().idle_capacity(1));
        let batch = PromptBatch {
            app: Arc::clone(app),
            caller: caller.clone(),
            lease,
            route,
            n_predict,
            output: output.clone(),
        };
        // The first may be refused; the others are submitted as those before them end.
        let mut prompts = prompts.into_iter().enumerate();
        let first: Vec<_> = (prompts.by_ref().take(at_once))
            .map(|(index, generate)| batch.submit(index, generate))
            .collect::<Result<_, _>>()?;
        let later = prompts.map(move |(index, generate)| batch.submit(index, generate));
        let writers = stream::iter(first.into_iter().map(Ok).chain(later)).boxed();
        let response = if output.streams {
            frames::events(frames_of(writers, at_once))
        } else {
            let whole = writers.map(|writer| async move { writer?.collect().await });
            let mut whole: Vec<Value> = whole.buffered(at_once).try_collect().await?;
            match (count, whole.pop()) {
                (1, Some(one)) => Json(one).into_response(),
                (_, last) => {
                    whole.extend(last);
                    Json(whole).into_response()
                }
            }
        };
        Ok(with_ignored_header(response, &ignored))
    }
}

/// What the prompts of a request share.
struct PromptBatch {
    app: Arc<App>,
    caller: Caller,
    lease: Lease,
    route: &'static str,
    n_predict: Option<usize>,
    output: OutputOptions,
}

impl PromptBatch {
    fn submit(&self, index: usize, mut generate: GenerateRequest) -> Result<ChunkWriter, ApiError> {
        let prompt_len = generate.prompt.len();
        self.lease.check_prompt(prompt_len, 1)?;
        generate.cache_scope = self.caller.cache_scope(None);
        let submission = Submission {
            app: &self.app,
            caller: &self.caller,
            lease: self.lease.clone(),
            route: self.route,
            choices: 1,
        };
        // The engine generates at least one token, which the writer drops.
        let limit = self.n_predict.map(|count| count.max(1));
        generate.max_tokens = match limit {
            Some(limit) => submission.limit_tokens(limit, prompt_len),
            None => self.lease.model.max_tokens(None, prompt_len),
        };
        let drops_output = self.n_predict == Some(0);
        let limit = if drops_output { 0 } else { generate.max_tokens };
        let rename = |error: ApiError| {
            let limit = (Field::MaxTokens.into(), Field::NPredict.into());
            error.renamed([limit])
        };
        Ok(ChunkWriter {
            index,
            stops: generate.stop.clone(),
            settings: settings(&generate, limit, &self.output),
            has_probabilities: generate.logprobs.is_some(),
            output: self.output.clone(),
            drops_output,
            has_new_line: false,
            request: ActiveRequest::submit(submission, generate).map_err(rename)?,
        })
    }
}

/// The settings of a request, by llama.cpp's names where it has them.
fn settings(
    generate: &GenerateRequest,
    limit: usize,
    output: &OutputOptions,
) -> Map<String, Value> {
    let mut settings = sampling::values(&generate.sampling);
    let order = settings.get("order").cloned();
    settings.extend(order.map(|order| (SAMPLERS.to_owned(), order)));
    let n_probs = generate
        .logprobs
        .map_or(0, |logprobs| logprobs.alternatives);
    let others = [
        ("n_predict", limit.into()),
        ("max_tokens", limit.into()),
        ("n_probs", n_probs.into()),
        ("ignore_eos", generate.stop_ids.is_empty().into()),
        ("stop", generate.stop.clone().into()),
        ("stream", output.streams.into()),
    ];
    settings.extend(others.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
    settings
}

/// A chunk of a prompt, or the error that ends it.
struct PromptFrame {
    index: usize,
    /// So far; `None` if the prompt was refused.
    usage: Option<Usage>,
    frame: Result<Bytes, ApiError>,
    is_last: bool,
}

/// What was delivered of a prompt before its stream failed.
#[derive(Debug, Serialize)]
struct DeliveredCounts {
    index: usize,
    content: &'static str,
    stop: bool,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    tokens_cached: usize,
}

impl DeliveredCounts {
    fn new(index: usize, usage: Usage) -> Self {
        Self {
            index,
            content: "",
            stop: false,
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            tokens_cached: usage.cached_tokens,
        }
    }
}

/// Frames of all prompts as they come. Dropping the stream cancels them, and so does an error: the
/// counts of the prompts that have not ended precede it, and an empty last chunk follows.
fn frames_of(
    writers: impl Stream<Item = Result<ChunkWriter, ApiError>> + Send + 'static,
    at_once: usize,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let frames = writers.enumerate().map(|(index, writer)| match writer {
        Ok(writer) => writer.frames().boxed(),
        Err(error) => stream::once(std::future::ready(PromptFrame {
            index,
            usage: None,
            frame: Err(error.in_stream()),
            is_last: true,
        }))
        .boxed(),
    });
    let frames = frames.flatten_unordered(at_once).boxed();
    let running = BTreeMap::new();
    stream::unfold(Some((frames, running)), |state| async move {
        let (mut frames, mut running) = state?;
        let PromptFrame {
            index,
            usage,
            frame,
            is_last,
        } = frames.next().await?;
        if let Some(usage) = usage {
            running.insert(index, usage);
        }
        match frame {
            Ok(frame) => {
                if is_last {
                    running.remove(&index);
                }
                Some((frame, Some((frames, running))))
            }
            Err(error) => Some((failure(index, &error, &running), None)),
        }
    })
}

/// The final frames of a stream that failed.
fn failure(index: usize, error: &ApiError, running: &BTreeMap<usize, Usage>) -> Bytes {
    let counts = running.iter().map(|(index, usage)| {
        let counts = DeliveredCounts::new(*index, *usage);
        frames::event(None, &counts)
    });
    let last = LlamaCompletion {
        index,
        stop: true,
        ..LlamaCompletion::default()
    };
    let ends = [
        Dialect::OpenAi.error_frame(error),
        frames::event(None, &last),
    ];
    counts.chain(ends).collect::<Vec<_>>().concat().into()
}

/// Writes the chunks of a prompt.
struct ChunkWriter {
    request: ActiveRequest,
    index: usize,
    stops: Vec<String>,
    settings: Map<String, Value>,
    has_probabilities: bool,
    output: OutputOptions,
    /// Whether only the prompt was to be evaluated.
    drops_output: bool,
    /// Of the text so far.
    has_new_line: bool,
}

impl ChunkWriter {
    /// The next chunk; `None` after the last.
    async fn next(&mut self) -> Option<Result<LlamaCompletion, ApiError>> {
        loop {
            match self.request.next().await? {
                Err(error) => return Some(Err(error)),
                Ok((_, Event::Tokens { .. })) if self.drops_output => {}
                Ok((_, Event::Tokens { tokens, text })) => {
                    self.has_new_line |= text.contains('\n');
                    return Some(Ok(self.chunk(text, &tokens)));
                }
                Ok((
                    _,
                    Event::Finished {
                        mut reason,
                        mut text,
                        mut usage,
                        timings,
                        seed: _,
                    },
                )) => {
                    if self.drops_output {
                        (reason, text) = (FinishReason::Length, String::new());
                        usage.completion_tokens = 0;
                    }
                    self.has_new_line |= text.contains('\n');
                    return Some(Ok(LlamaCompletion {
                        stop: true,
                        end: Some(self.end(&reason, usage, timings)),
                        ..self.chunk(text, &[])
                    }));
                }
                Ok((_, Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_))) => {}
            }
        }
    }

    fn chunk(&self, content: String, tokens: &[TokenInfo]) -> LlamaCompletion {
        let tokenizer = self.request.lease().chat_context().tokenizer();
        let probabilities = || {
            let each = tokens.iter();
            each.map(|token| TokenProbability::new(token, tokenizer))
                .collect()
        };
        LlamaCompletion {
            index: self.index,
            content,
            tokens: if self.output.streams || self.output.return_tokens {
                tokens.iter().map(|token| token.id).collect()
            } else {
                Vec::new()
            },
            completion_probabilities: self.has_probabilities.then(probabilities),
            ..LlamaCompletion::default()
        }
    }

    fn end(&mut self, reason: &FinishReason, usage: Usage, timings: Timings) -> LlamaEnd {
        let (stop_type, stopping_word) = match reason {
            FinishReason::Length => ("limit", String::new()),
            FinishReason::Stop => ("eos", String::new()),
            FinishReason::StopString(index) => {
                let word = self.stops.get(*index).cloned();
                ("word", word.unwrap_or_default())
            }
        };
        LlamaEnd {
            model: self.request.lease().name().to_owned(),
            stop_type,
            stopping_word,
            has_new_line: self.has_new_line,
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            tokens_cached: usage.cached_tokens,
            truncated: false,
            generation_settings: std::mem::take(&mut self.settings),
            timings: LlamaTimings::new(usage, timings),
        }
    }

    async fn collect(mut self) -> Result<Value, ApiError> {
        let mut whole = self.chunk(String::new(), &[]);
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            whole.content.push_str(&chunk.content);
            whole.tokens.extend(chunk.tokens);
            if let Some(probabilities) = &mut whole.completion_probabilities {
                probabilities.extend(chunk.completion_probabilities.unwrap_or_default());
            }
            whole.stop |= chunk.stop;
            whole.end = whole.end.or(chunk.end);
        }
        self.output.select(&whole)
    }

    fn frame(&self, chunk: &LlamaCompletion) -> Result<Bytes, ApiError> {
        if chunk.stop {
            let last = self.output.select(chunk)?;
            Ok(frames::event(None, &last))
        } else {
            Ok(frames::event(None, chunk))
        }
    }

    fn frames(self) -> impl Stream<Item = PromptFrame> + Send + 'static {
        stream::unfold(Some(self), |writer| async move {
            let mut writer = writer?;
            let next = writer.next().await?.map_err(ApiError::in_stream);
            let is_last = next.as_ref().map_or(true, |chunk| chunk.stop);
            let frame = PromptFrame {
                index: writer.index,
                usage: Some(writer.request.usage()),
                frame: next.and_then(|chunk| writer.frame(&chunk)),
                is_last,
            };
            Some((frame, (!is_last).then_some(writer)))
        })
    }
}
