//! `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM and llama.cpp have them.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use loquat_chat::{BoundaryTokens, ChatRequest};
use loquat_text::{Special, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering::{self, StopFlag, encoding_error};
use crate::models::Lease;
use crate::openai::completions::label;
use crate::openai::messages::{self, ChatMessage};
use crate::openai::tools::ChatTool;
use crate::openai::{lease, resolve_alias};
use crate::text_size::chat_bytes;
use crate::wire::{JsonBody, WireRequest};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(describe))
}

/// A text or a conversation to tokenize.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text; this or `messages`.
    pub prompt: Option<String>,
    /// llama.cpp's name for `prompt`.
    pub content: Option<String>,
    /// A conversation, rendered by the model's template.
    pub messages: Option<Vec<ChatMessage>>,
    /// Add the special tokens that the model expects around a text; default true for `prompt`, false
    /// for `content`. In a conversation the template adds them.
    pub add_special_tokens: Option<bool>,
    /// llama.cpp's name for `add_special_tokens`.
    pub add_special: Option<bool>,
    /// False makes special tokens in a text plain characters; default true.
    pub parse_special: Option<bool>,
    /// Start the assistant's turn after a conversation; default true.
    pub add_generation_prompt: Option<bool>,
    /// Return the tokens' texts too.
    pub return_token_strs: Option<bool>,
    /// Return each token as an object with its text, as llama.cpp does.
    pub with_pieces: Option<bool>,
    /// Tools of the conversation.
    pub tools: Option<Vec<ChatTool>>,
    /// Extra variables of the template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl WireRequest for TokenizeRequest {}

/// The tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizeResponse {
    pub count: usize,
    /// The most tokens of a prompt and its reply.
    pub max_model_len: usize,
    pub tokens: TokenList,
    /// Their texts, if requested; `bytes:\x…` for incomplete characters.
    pub token_strs: Option<Vec<String>>,
}

/// Ids, or objects if pieces are requested.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenList {
    Ids(Vec<u32>),
    Pieces(Vec<TokenPiece>),
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TokenPiece {
    pub id: u32,
    pub piece: PieceText,
}

/// A token's text, or its bytes if they are not whole characters.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PieceText {
    Text(String),
    Bytes(Vec<u8>),
}

impl TokenPiece {
    fn new(id: u32, tokenizer: &Tokenizer) -> Self {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        let piece = match String::from_utf8(bytes) {
            Ok(text) => PieceText::Text(text),
            Err(error) => PieceText::Bytes(error.into_bytes()),
        };
        Self { id, piece }
    }
}

/// Tokens to decode.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

impl WireRequest for DetokenizeRequest {}

/// The text of the tokens, special ones included.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// vLLM's name.
    pub prompt: String,
    /// llama.cpp's name for the same.
    pub content: String,
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TokenizerQuery {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
}

/// A tokenizer's special tokens and template.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizerInfo {
    /// `loquat`
    pub tokenizer_class: &'static str,
    pub vocab_size: usize,
    /// The most tokens of a prompt and its reply.
    pub model_max_length: usize,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub pad_token: Option<String>,
    /// Jinja; null if the model has none.
    pub chat_template: Option<String>,
}

/// Tokenize a text or a conversation.
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
    body: JsonBody<TokenizeRequest>,
) -> Result<Response, ApiError> {
    let request = body.value;
    let lease = lease(&app, &caller, request.model.as_deref()).await?;
    let form = TokenForm::new(&request);
    let input = lowering::run(move || lower(request)).await?;
    let bytes = input.bytes();
    lease.check_text(bytes)?;
    // A text's tokens take longer to write than the text itself.
    let tokenized = lowering::run_text(bytes, move |stop| {
        let tokens = input.encode(&lease, stop)?;
        let response = form.write(tokens, &lease);
        serde_json::to_vec(&response).map_err(|error| ApiError::internal(&error))
    });
    let json = tokenized.await?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

/// What is tokenized.
enum TokenInput {
    Text(String, Special),
    /// `reply` starts the assistant's turn.
    Chat {
        request: Box<ChatRequest>,
        reply: bool,
    },
}

impl TokenInput {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text, _) => text.len(),
            Self::Chat { request, .. } => chat_bytes(request),
        }
    }

    fn encode(&self, model: &Lease, stop: &StopFlag) -> Result<Vec<u32>, ApiError> {
        let chat = model.chat_context();
        match self {
            Self::Text(text, special) => {
                let tokenizer = chat.tokenizer().interruptible(stop.signal());
                let tokens = tokenizer.encode(text, *special);
                tokens.map_err(|error| encoding_error(&error))
            }
            Self::Chat { request, reply } => {
                Ok(chat.tokens_unless(request, *reply, stop.signal())?)
            }
        }
    }
}

/// How tokens are returned.
struct TokenForm {
    texts: bool,
    pieces: bool,
}

impl TokenForm {
    fn new(request: &TokenizeRequest) -> Self {
        Self {
            texts: request.return_token_strs.unwrap_or(false),
            pieces: request.with_pieces.unwrap_or(false),
        }
    }

    fn write(&self, tokens: Vec<u32>, model: &Lease) -> TokenizeResponse {
        let tokenizer = model.chat_context().tokenizer();
        let texts = |tokens: &[u32]| tokens.iter().map(|id| label(*id, tokenizer)).collect();
        TokenizeResponse {
            count: tokens.len(),
            max_model_len: model.model.token_limit(),
            token_strs: self.texts.then(|| texts(&tokens)),
            tokens: if self.pieces {
                let pieces = tokens.into_iter().map(|id| TokenPiece::new(id, tokenizer));
                TokenList::Pieces(pieces.collect())
            } else {
                TokenList::Ids(tokens)
            },
        }
    }
}

/// How special tokens of a text are treated.
fn special_tokens(request: &TokenizeRequest) -> Result<Special, ApiError> {
    let add = resolve_alias(
        (Field::AddSpecialTokens, request.add_special_tokens),
        (Field::AddSpecial, request.add_special),
    )?;
    Ok(Special {
        // As vLLM and llama.cpp have it.
        add: add.unwrap_or(request.prompt.is_some()),
        parse: request.parse_special.unwrap_or(true),
    })
}

fn lower(request: TokenizeRequest) -> Result<TokenInput, ApiError> {
    let special = special_tokens(&request)?;
    let TokenizeRequest {
        model: _,
        prompt,
        content,
        messages,
        add_special_tokens: _,
        add_special: _,
        parse_special: _,
        add_generation_prompt,
        return_token_strs: _,
        with_pieces: _,
        tools,
        chat_template_kwargs,
    } = request;
    let text = resolve_alias((Field::Prompt, prompt), (Field::Content, content))?;
    match (text, messages) {
        (Some(text), None) => {
            let chat_only = [
                (Field::AddGenerationPrompt, add_generation_prompt.is_some()),
                (Field::Tools, tools.is_some()),
                (Field::ChatTemplateKwargs, chat_template_kwargs.is_some()),
            ];
            if let Some((field, _)) = chat_only.iter().find(|(_, present)| *present) {
                let problem = "is for `messages`, not for `prompt`";
                return Err(ApiError::invalid(*field, problem));
            }
            Ok(TokenInput::Text(text, special))
        }
        (None, Some(messages)) => {
            if special.add {
                let reason = "the template adds a conversation's special tokens";
                return Err(ApiError::unsupported(Field::AddSpecialTokens, reason));
            }
            if !special.parse {
                let problem = "is for `prompt`, not for `messages`";
                return Err(ApiError::invalid(Field::ParseSpecial, problem));
            }
            let tools = tools.unwrap_or_default().into_iter();
            let request = ChatRequest {
                messages: messages::lower(messages)?,
                tools: tools.map(ChatTool::lower).collect(),
                template_variables: chat_template_kwargs.unwrap_or_default(),
                ..ChatRequest::default()
            };
            Ok(TokenInput::Chat {
                request: Box::new(request),
                reply: add_generation_prompt.unwrap_or(true),
            })
        }
        _ => {
            let message = "send either `prompt` or `messages`";
            Err(ApiError::bad_request(message).param(Field::Prompt))
        }
    }
}

/// Decode tokens to a text.
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
    body: JsonBody<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let DetokenizeRequest { model, tokens } = body.value;
    let lease = lease(&app, &caller, model.as_deref()).await?;
    lease.check_prompt(tokens.len(), 0)?;
    let decode = move || decode(&tokens, &lease);
    let prompt = lowering::run(decode).await?;
    let content = prompt.clone();
    Ok(Json(DetokenizeResponse { prompt, content }))
}

fn decode(tokens: &[u32], model: &Lease) -> Result<String, ApiError> {
    let vocabulary = model.engine().capabilities().vocab_size;
    let mut ids = tokens.iter().enumerate();
    if let Some((index, id)) = ids.find(|(_, id)| **id as usize >= vocabulary) {
        let problem = format!("is {id}; the vocabulary has {vocabulary} tokens");
        return Err(ApiError::invalid(Field::Tokens.index(index), problem));
    }
    Ok(model.chat_context().tokenizer().decode(tokens, false))
}

/// Describe a model's tokenizer.
#[utoipa::path(
    get,
    path = "/tokenizer_info",
    tag = "tokens",
    params(TokenizerQuery),
    responses((status = 200, description = "The tokenizer", body = TokenizerInfo)),
)]
pub async fn describe(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Result<Query<TokenizerQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<TokenizerInfo>, ApiError> {
    let Query(query) = query.map_err(|error| {
        let message = error.body_text();
        ApiError::bad_request(message).param(Field::Model)
    })?;
    let lease = lease(&app, &caller, query.model.as_deref()).await?;
    let tokenizer = lease.chat_context().tokenizer();
    let BoundaryTokens {
        bos_token,
        eos_token,
    } = BoundaryTokens::from_tokenizer(tokenizer);
    let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
    let template = lease.chat_context().template();
    Ok(Json(TokenizerInfo {
        tokenizer_class: "loquat",
        vocab_size: tokenizer.vocab_size(),
        model_max_length: lease.model.token_limit(),
        bos_token: non_empty(bos_token),
        eos_token: non_empty(eos_token),
        pad_token: tokenizer.pad().and_then(|id| tokenizer.token_text(id)),
        chat_template: template.map(|template| template.source(false).to_owned()),
    }))
}

#[cfg(test)]
mod tests;
