//! `/completion`

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use loquat_engine::{Distribution, GenerateRequest, Logprobs};
use loquat_grammar::Grammar;
use serde::Deserialize;
use utoipa::ToSchema;

use super::adapters::{self, LoraScale};
use super::generation::{LlamaCompletion, NativeGeneration, OutputOptions};
use super::prompt::LlamaPrompts;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering::{self, StopFlag};
use crate::models::Loaded;
use crate::openai::{lease, options, resolve_alias};
use crate::sampling;
use crate::union::TextOr;
use crate::wire::{FieldTables, JsonBody, WireRequest};

pub const COMPLETION: &str = "/completion";

/// A text to continue, in llama.cpp's form. The engine's sampling parameters are accepted beside
/// these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LlamaCompletionRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text, its tokens and texts in order, or a list of up to 1024 prompts, which are answered by
    /// a list. Special tokens in a text are parsed. `{"prompt_string": "<__media__> What is this?",
    /// "multimodal_data": ["…"]}` is a text with images in base64.
    pub prompt: LlamaPrompts,
    /// The longest continuation in tokens; -1 for all that fit, 0 to only evaluate the prompt, so that later
    /// requests find it in the cache. The default is the model's `max_tokens`. One that exceeds the
    /// room in the context is reduced to it, and the header `x-loquat-max-tokens` has the limit.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub n_predict: Option<usize>,
    /// OpenAI's name for `n_predict`.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_tokens: Option<usize>,
    /// Up to 64 strings that end the continuation; they are not part of it.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Stream chunks as server-sent events.
    pub stream: Option<bool>,
    /// Return the tokens too; streams always do.
    pub return_tokens: Option<bool>,
    /// Continue past the model's end-of-text tokens.
    pub ignore_eos: Option<bool>,
    /// Return log-probabilities with this many alternatives to each token, from 0 to 20; 0, the
    /// default, returns none.
    pub n_probs: Option<usize>,
    /// Return those of the distribution that was sampled from, not the model's own. They are
    /// log-probabilities too.
    pub post_sampling_probs: Option<bool>,
    /// Most tokens to draft and verify in one step; 0 for none. Drafts change the speed, not the text.
    #[serde(rename = "speculative.n_max")]
    pub draft_max: Option<usize>,
    /// The only fields of the response, or of a stream's last chunk: `content`,
    /// `generation_settings/n_predict`.
    pub response_fields: Option<Vec<String>>,
    /// Exactly these adapters, by their numbers, as llama.cpp takes them.
    pub lora: Option<Vec<LoraScale>>,
}

/// Fields that llama.cpp's clients send and that have no effect.
pub const IGNORED: &[(&str, &str)] = &[
    ("cache_prompt", "prompts share every common prefix"),
    ("id_slot", "requests are not bound to slots"),
    ("n_keep", "contexts are not shifted"),
    ("timings_per_token", "times are in the last chunk"),
    ("return_progress", "progress is not streamed"),
];

impl WireRequest for LlamaCompletionRequest {
    const IGNORED: FieldTables<&'static str> = &[IGNORED];
    const SAMPLING: bool = true;
    const ANSWER_FORMAT: bool = true;
}

/// Continue a text.
#[utoipa::path(
    post,
    path = "/completion",
    tag = "llama.cpp",
    request_body = LlamaCompletionRequest,
    responses((status = 200, description = "The continuation, or a list", body = LlamaCompletion)),
)]
pub async fn complete(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<LlamaCompletionRequest>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &caller, body.value.model.as_deref()).await?;
    let lease = adapters::apply(&app, &caller, lease, body.value.lora.as_deref()).await?;
    let bytes = body.value.prompt.check_texts(&lease)?;
    let model = lease.clone();
    let has_media = body.value.prompt.has_media();
    let lower = move |stop: &StopFlag| lower(body, &model, stop);
    let lowered = lowering::run_media(has_media, bytes, lower).await?;
    lowered.respond(&app, &caller, lease, COMPLETION).await
}

fn lower(
    body: JsonBody<LlamaCompletionRequest>,
    model: &Loaded,
    stop_flag: &StopFlag,
) -> Result<NativeGeneration, ApiError> {
    let JsonBody {
        value,
        sampling: overrides,
        answer_format,
        mut ignored,
        ..
    } = body;
    let LlamaCompletionRequest {
        model: _,
        lora: _,
        prompt,
        n_predict,
        max_tokens,
        stop,
        stream,
        return_tokens,
        ignore_eos,
        n_probs,
        post_sampling_probs,
        draft_max,
        response_fields,
    } = value;
    let tokenizer = model.chat_context().tokenizer();
    let grammar = match answer_format.lower(&mut ignored)? {
        Some(constraint) => Some(constraint.compile(model.chat_context())?),
        None => None,
    };
    let shared = GenerateRequest {
        sampling: sampling::apply(&overrides, model.sampling(), tokenizer)?,
        stop_ids: if ignore_eos.unwrap_or(false) {
            Vec::new()
        } else {
            tokenizer.eos_ids().to_vec()
        },
        stop: options::stops(stop)?,
        logprobs: logprobs(n_probs, post_sampling_probs.unwrap_or(false))?,
        skip_special: true,
        draft_tokens: draft_max,
        ..GenerateRequest::default()
    };
    let prompts = prompt.encode(model.chat_context(), stop_flag)?;
    let prompts = prompts.into_iter().map(|prompt| GenerateRequest {
        prompt: prompt.tokens,
        media: prompt.media,
        constraint: grammar.as_ref().map(Grammar::constraint),
        ..shared.clone()
    });
    Ok(NativeGeneration {
        prompts: prompts.collect(),
        n_predict: resolve_alias((Field::NPredict, n_predict), (Field::MaxTokens, max_tokens))?,
        output: OutputOptions {
            streams: stream.unwrap_or(false),
            return_tokens: return_tokens.unwrap_or(false),
            response_fields: response_fields.unwrap_or_default(),
        },
        ignored,
    })
}

/// 0 alternatives are none.
fn logprobs(n_probs: Option<usize>, after_sampling: bool) -> Result<Option<Logprobs>, ApiError> {
    let alternatives = options::alternatives(Field::NProbs, n_probs)?;
    let alternatives = alternatives.filter(|count| *count > 0);
    Ok(alternatives.map(|alternatives| Logprobs {
        alternatives,
        distribution: if after_sampling {
            Distribution::Sampled
        } else {
            Distribution::Model
        },
    }))
}
