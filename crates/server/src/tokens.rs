//! `/tokenize`, `/detokenize`, `/tokenizer_info`: how a model cuts texts, in vLLM's words.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use loquat_chat::{BoundaryTokens, ChatRequest};
use loquat_text::Special;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::Lease;
use crate::openai::completions::label;
use crate::openai::lease;
use crate::openai::message::{self, ChatMessage};
use crate::openai::tool::ChatTool;
use crate::wire::{Body, Wire};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(describe))
}

/// A text or a conversation to cut into tokens.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// Whose tokens. May be left out where only one model is served.
    pub model: Option<String>,
    /// A text; this or `messages`.
    pub prompt: Option<String>,
    /// Another name for `prompt`.
    pub content: Option<String>,
    /// A conversation, which the model's template writes out.
    pub messages: Option<Vec<ChatMessage>>,
    /// Put the tokens before and after a text that the model expects there; true when left out.
    /// In a conversation they are the template's business.
    pub add_special_tokens: Option<bool>,
    /// Open the assistant's turn behind a conversation; true when left out.
    pub add_generation_prompt: Option<bool>,
    /// Tell the tokens' texts too.
    pub return_token_strs: Option<bool>,
    /// Tools that the conversation offers.
    pub tools: Option<Vec<ChatTool>>,
    /// Further variables of the template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl Wire for TokenizeRequest {}

/// The tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizeResponse {
    pub count: usize,
    /// The most tokens of a prompt and its answer.
    pub max_model_len: usize,
    pub tokens: Vec<u32>,
    /// Their texts, where asked for; `bytes:\x…` where they are not whole characters.
    pub token_strs: Option<Vec<String>>,
}

/// Tokens to put together.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// Whose tokens. May be left out where only one model is served.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

impl Wire for DetokenizeRequest {}

/// The text of the tokens, special ones included.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizeResponse {
    pub prompt: String,
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TokenizerQuery {
    /// Whose tokenizer. May be left out where only one model is served.
    pub model: Option<String>,
}

/// What clients need to know to write prompts themselves.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizerInfo {
    /// `loquat`
    pub tokenizer_class: &'static str,
    pub vocab_size: usize,
    /// The most tokens of a prompt and its answer.
    pub model_max_length: usize,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub pad_token: Option<String>,
    /// Jinja; null where the model has none.
    pub chat_template: Option<String>,
}

/// Cut a text or a conversation into tokens.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "tokens",
    request_body = TokenizeRequest,
    responses((status = 200, description = "The tokens", body = TokenizeResponse)),
)]
pub async fn tokenize(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<TokenizeRequest>,
) -> Result<Json<TokenizeResponse>, ApiError> {
    let request = body.value;
    let lease = lease(&app, &caller, request.model.as_deref()).await?;
    // Templates and tokenizers may take long over a large text.
    let cut = tokio::task::spawn_blocking(move || cut(request, &lease)).await;
    cut.map_err(|error| ApiError::internal(&error))?.map(Json)
}

fn cut(request: TokenizeRequest, model: &Lease) -> Result<TokenizeResponse, ApiError> {
    let TokenizeRequest {
        model: _,
        prompt,
        content,
        messages,
        add_special_tokens,
        add_generation_prompt,
        return_token_strs,
        tools,
        chat_template_kwargs,
    } = request;
    let tokenizer = model.chat_context().tokenizer();
    let text = crate::openai::agree(("prompt", prompt), ("content", content))?;
    let tokens = match (text, messages) {
        (Some(text), None) => {
            let only_chats = [
                ("add_generation_prompt", add_generation_prompt.is_some()),
                ("tools", tools.is_some()),
                ("chat_template_kwargs", chat_template_kwargs.is_some()),
            ];
            if let Some((field, _)) = only_chats.iter().find(|(_, given)| *given) {
                let what = format!("`{field}` is for `messages`, not for `prompt`");
                return Err(ApiError::invalid(*field, what));
            }
            let special = Special {
                add: add_special_tokens.unwrap_or(true),
                ..Special::PROMPT
            };
            let tokens = tokenizer.encode(&text, special);
            tokens.map_err(|error| ApiError::internal(&error))?
        }
        (None, Some(messages)) => {
            if add_special_tokens.is_some_and(|add| add) {
                let why = "the template writes a conversation's special tokens";
                return Err(ApiError::unsupported("add_special_tokens", why));
            }
            let tools = tools.unwrap_or_default().into_iter();
            let chat = ChatRequest {
                messages: message::lower(messages)?,
                tools: tools.map(ChatTool::lower).collect(),
                template_variables: chat_template_kwargs.unwrap_or_default(),
                ..ChatRequest::default()
            };
            let reply = add_generation_prompt.unwrap_or(true);
            model.chat_context().tokens(&chat, reply)?
        }
        _ => {
            let what = "give either `prompt` or `messages`";
            return Err(ApiError::invalid("prompt", what));
        }
    };
    let texts = |tokens: &[u32]| tokens.iter().map(|id| label(*id, tokenizer)).collect();
    Ok(TokenizeResponse {
        count: tokens.len(),
        max_model_len: model.model.token_limit(),
        token_strs: return_token_strs.unwrap_or(false).then(|| texts(&tokens)),
        tokens,
    })
}

/// Put tokens together to a text.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "tokens",
    request_body = DetokenizeRequest,
    responses((status = 200, description = "The text", body = DetokenizeResponse)),
)]
pub async fn detokenize(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let DetokenizeRequest { model, tokens } = body.value;
    let lease = lease(&app, &caller, model.as_deref()).await?;
    let tokenizer = lease.chat_context().tokenizer();
    let vocabulary = lease.engine().capabilities().vocab_size;
    let unknown = tokens.iter().enumerate();
    if let Some((index, id)) = unknown.clone().find(|(_, id)| **id as usize >= vocabulary) {
        let field = format!("tokens[{index}]");
        let what = format!("`{field}` is {id}; the vocabulary has {vocabulary}, counted from 0");
        return Err(ApiError::invalid(field, what));
    }
    Ok(Json(DetokenizeResponse {
        prompt: tokenizer.decode(&tokens, false),
    }))
}

/// Describe a model's tokenizer.
#[utoipa::path(
    get,
    path = "/tokenizer_info",
    tag = "tokens",
    params(TokenizerQuery),
    responses((status = 200, description = "What it is like", body = TokenizerInfo)),
)]
pub async fn describe(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Result<Query<TokenizerQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<TokenizerInfo>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::invalid("model", error.body_text()))?;
    let lease = lease(&app, &caller, query.model.as_deref()).await?;
    let tokenizer = lease.chat_context().tokenizer();
    let BoundaryTokens {
        bos_token,
        eos_token,
    } = BoundaryTokens::from_tokenizer(tokenizer);
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let template = lease.chat_context().template();
    Ok(Json(TokenizerInfo {
        tokenizer_class: "loquat",
        vocab_size: tokenizer.vocab_size(),
        model_max_length: lease.model.token_limit(),
        bos_token: given(bos_token),
        eos_token: given(eos_token),
        pad_token: tokenizer.pad().and_then(|id| tokenizer.token_text(id)),
        chat_template: template.map(|template| template.source(false).to_owned()),
    }))
}

#[cfg(test)]
mod tests;
