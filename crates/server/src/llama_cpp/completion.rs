//! `/completion`

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use loquat_engine::GenerateRequest;
use loquat_grammar::Grammar;
use loquat_text::Special;
use serde::Deserialize;
use utoipa::ToSchema;

use super::generation::{LlamaCompletion, NativeGeneration, max_tokens};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering;
use crate::models::Loaded;
use crate::openai::completions::PromptItem;
use crate::openai::{lease, options};
use crate::sampling;
use crate::union::TextOr;
use crate::wire::{FieldTables, JsonBody, WireRequest};

const ROUTE: &str = "/completion";

/// A text to continue, in llama.cpp's form. The engine's sampling parameters are accepted beside
/// these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LlamaCompletionRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text, or its tokens and texts in order. Special tokens in a text are parsed.
    #[schema(value_type = TextOr<PromptItem>)]
    pub prompt: TextOr<PromptItem>,
    /// The longest continuation in tokens; -1, the default, is the room there is, up to the model's
    /// default.
    pub n_predict: Option<i64>,
    /// Up to 64 strings that end the continuation; they are not part of it.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Stream chunks as server-sent events.
    pub stream: Option<bool>,
    /// Return the tokens too.
    pub return_tokens: Option<bool>,
    /// Continue past the model's end-of-text tokens.
    pub ignore_eos: Option<bool>,
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
    responses((status = 200, description = "The continuation", body = LlamaCompletion)),
)]
pub async fn complete(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<LlamaCompletionRequest>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &caller, body.value.model.as_deref()).await?;
    let model = lease.clone();
    let lowered = lowering::run(move || lower(body, &model)).await?;
    lowered.respond(&app, &caller, lease, ROUTE).await
}

fn lower(
    body: JsonBody<LlamaCompletionRequest>,
    model: &Loaded,
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
        prompt,
        n_predict,
        stop,
        stream,
        return_tokens,
        ignore_eos,
    } = value;
    let tokenizer = model.chat_context().tokenizer();
    let grammar = match answer_format.lower(&mut ignored)? {
        Some(constraint) => Some(constraint.compile(model.chat_context())?),
        None => None,
    };
    let prompt = tokens(prompt, model)?;
    Ok(NativeGeneration {
        generate: GenerateRequest {
            max_tokens: max_tokens(n_predict, model, prompt.len())?,
            prompt,
            sampling: sampling::apply(&overrides, model.sampling(), tokenizer)?,
            stop_ids: if ignore_eos.unwrap_or(false) {
                Vec::new()
            } else {
                tokenizer.eos_ids().to_vec()
            },
            stop: options::stops(stop)?,
            skip_special: true,
            constraint: grammar.as_ref().map(Grammar::constraint),
            ..GenerateRequest::default()
        },
        streams: stream.unwrap_or(false),
        return_tokens: return_tokens.unwrap_or(false),
        ignored,
    })
}

/// One prompt: a text, or tokens and texts that follow each other.
fn tokens(prompt: TextOr<PromptItem>, model: &Loaded) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.chat_context().tokenizer();
    let encode = |text: &str, special: Special| {
        model.check_text(text.len())?;
        let tokens = tokenizer.encode(text, special);
        tokens.map_err(|error| ApiError::internal(&error))
    };
    let items = match prompt {
        TextOr::Text(text) => return encode(&text, Special::PROMPT),
        TextOr::Many(items) => items,
    };
    let mut tokens = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match item {
            PromptItem::Token(id) => tokens.push(id),
            PromptItem::Text(text) if index == 0 => {
                tokens.extend(encode(&text, Special::PROMPT)?);
            }
            PromptItem::Text(text) => tokens.extend(encode(&text, Special::RENDERED)?),
            PromptItem::Tokens(_) => {
                return Err(ApiError::invalid(
                    Field::Prompt.index(index),
                    "is a list; /completion continues one prompt, /v1/completions several",
                ));
            }
        }
    }
    if tokens.is_empty() {
        let problem = "is empty; it must have at least one token";
        return Err(ApiError::invalid(Field::Prompt, problem));
    }
    Ok(tokens)
}
