//! `POST /api/generate`

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use loquat_chat::{ChatRequest, Message, Role, Thinking};
use loquat_engine::{GenerateRequest, Logprobs};
use loquat_grammar::GrammarSource;
use loquat_text::Special;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::keep_alive::OllamaKeepAlive;
use super::message::check_images;
use super::options::{self, Options, in_our_words};
use super::response::{self, Head, Line, OllamaNumbers, Writer, silent};
use super::speaker::{Piece, Speaker};
use super::think::{OllamaFormat, OllamaThink};
use super::{Held, hold, unload};
use crate::app::App;
use crate::caller::Caller;
use crate::chat_turn::{ChatTurn, Terms};
use crate::error::ApiError;
use crate::openai::answer::AnswerRule;
use crate::openai::logprobs::TokenLogprob;
use crate::turn::{Ask, Turn};
use crate::wire::{Body, Wire};

const ROUTE: &str = "/api/generate";

/// A prompt to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaGenerateRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// What to answer. Without any, the model is loaded, or unloaded where `keep_alive` is 0.
    pub prompt: Option<String>,
    /// How the model is to behave.
    pub system: Option<String>,
    /// Go on with the prompt as it stands, without the model's chat template.
    pub raw: Option<bool>,
    /// What the answer must be: `json`, or a JSON schema.
    pub format: Option<OllamaFormat>,
    /// How to sample and when to stop, by Ollama's names or the engine's.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// As lines of JSON while it comes (the default), or in one piece.
    pub stream: Option<bool>,
    /// Whether to think before answering, or how hard.
    pub think: Option<OllamaThink>,
    /// How long the model stays loaded after the request: seconds or a duration such as `5m`;
    /// negative: for good; 0: not at all. What the configuration says when left out. Counts until
    /// the next request under `/api`; those of other dialects leave it as it is.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
    /// Tell the log-probabilities of the reply's tokens.
    pub logprobs: Option<bool>,
    /// And of so many of the likeliest in each one's place, at most 20.
    pub top_logprobs: Option<usize>,
    /// Must be empty: nothing is filled in between two texts.
    pub suffix: Option<String>,
    /// Must be empty: the model's own template is used, or none with `raw`.
    pub template: Option<String>,
    /// Must be empty: a conversation goes on at `/api/chat`.
    pub context: Option<Vec<u32>>,
    /// Must be empty: this server reads text only.
    pub images: Option<Vec<String>>,
    /// Must not be true: what does not fit the context is refused, never cut.
    pub truncate: Option<bool>,
    /// Must not be true: contexts are not shifted.
    pub shift: Option<bool>,
}

impl Wire for OllamaGenerateRequest {
    const WITHIN: &'static [(&'static str, &'static str)] = options::IGNORED;
    const REFUSED: &'static [(&'static str, &'static str)] = &[
        ("width", "no images are made here"),
        ("height", "no images are made here"),
        ("steps", "no images are made here"),
    ];
}

/// An answer, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaGenerateResponse {
    /// As the request called it.
    pub model: String,
    /// In RFC 3339.
    pub created_at: String,
    pub response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// Whether it is the last line.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`; in the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    #[serde(flatten)]
    pub numbers: OllamaNumbers,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(generate))
}

/// Answer a prompt
///
/// A stream of JSON lines unless `stream` is false. There is no `context` in the answer: a
/// conversation goes on at `/api/chat`.
#[utoipa::path(
    post,
    path = "/api/generate",
    tag = "ollama",
    request_body = OllamaGenerateRequest,
    responses((status = 200, description = "The answer", body = OllamaGenerateResponse)),
)]
pub async fn generate(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<OllamaGenerateRequest>,
) -> Result<Response, ApiError> {
    let OllamaGenerateRequest {
        model,
        prompt,
        system,
        raw,
        format,
        options,
        stream,
        think,
        keep_alive,
        logprobs,
        top_logprobs,
        suffix,
        template,
        context,
        images,
        truncate,
        shift,
    } = body.value;
    check_images("images", images)?;
    check_empty(
        "suffix",
        suffix,
        "nothing is filled in between two texts here",
    )?;
    check_empty(
        "template",
        template,
        "the model's own is used, or none with `raw`",
    )?;
    if context.is_some_and(|context| !context.is_empty()) {
        let why = "Ollama gave it up; send the conversation's messages to /api/chat";
        return Err(ApiError::unsupported("context", why));
    }
    response::check_whole(truncate, shift)?;
    let logprobs = response::logprobs(logprobs, top_logprobs)?;
    let prompt = prompt.unwrap_or_default();
    if prompt.is_empty() && keep_alive.is_some_and(OllamaKeepAlive::unloads) {
        unload(&app, &caller, &model)?;
        return Ok(silent::<OllamaGenerateResponse>(model, "unload", &[]));
    }
    let Held { lease, name, load } =
        hold(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let mut options = Options::lower(options, &lease)?;
    let mut ignored = std::mem::take(&mut options.ignored);
    ignored.extend(body.ignored);
    if prompt.is_empty() {
        return Ok(silent::<OllamaGenerateResponse>(name, "load", &ignored));
    }
    let asked = Asked {
        prompt,
        system: system.filter(|system| !system.is_empty()),
        think,
        answer: format.and_then(OllamaFormat::lower),
        options,
        logprobs,
    };
    let ask = Ask {
        app: &app,
        caller: &caller,
        lease: lease.clone(),
        route: ROUTE,
        choices: 1,
    };
    let raw = raw.unwrap_or(false);
    let speaker =
        (if raw || (lease.chat_context().template().is_none() && asked.system.is_none()) {
            asked.go_on(ask, raw).await
        } else {
            asked.answer(ask).await
        })
        .map_err(in_our_words)?;
    let writer = Writer {
        model: name,
        caller,
        load,
        lease: logprobs.map(|_| lease),
    };
    let stream = stream.unwrap_or(true);
    response::tell::<OllamaGenerateResponse>(speaker, writer, stream, &ignored).await
}

fn check_empty(field: &str, value: Option<String>, why: &str) -> Result<(), ApiError> {
    if value.is_none_or(|value| value.is_empty()) {
        Ok(())
    } else {
        Err(ApiError::unsupported(field, why))
    }
}

/// What is asked of the model.
struct Asked {
    prompt: String,
    system: Option<String>,
    think: Option<OllamaThink>,
    answer: Option<GrammarSource>,
    options: Options,
    logprobs: Option<Logprobs>,
}

impl Asked {
    /// As the first words of a conversation.
    async fn answer(self, ask: Ask<'_>) -> Result<Speaker, ApiError> {
        let system = self.system.map(|system| Message::new(Role::System, system));
        let user = Message::new(Role::User, self.prompt);
        let think = self.think.map(|think| think.lower(&ask.lease));
        let request = ChatRequest {
            messages: system.into_iter().chain([user]).collect(),
            thinking: think.unwrap_or(Ok(Thinking::default()))?,
            answer: self.answer,
            sampling: self.options.sampling,
            stop: self.options.stop,
            logprobs: self.logprobs,
            ..ChatRequest::default()
        };
        let terms = Terms {
            up_to: self.options.up_to,
            ..Terms::default()
        };
        ChatTurn::start(ask, request, terms)
            .await
            .map(Speaker::reply)
    }

    /// As a text that is not finished. `wanted`, or for want of a template.
    async fn go_on(self, ask: Ask<'_>, wanted: bool) -> Result<Speaker, ApiError> {
        let useless = [
            ("system", self.system.is_some()),
            (
                "think",
                self.think
                    .is_some_and(|think| think != OllamaThink::Whether(false)),
            ),
        ];
        if let Some((field, _)) = useless.iter().find(|(_, given)| *given) {
            let why = if wanted {
                "with `raw` the prompt is all that the model is given"
            } else {
                "the model has no chat template"
            };
            return Err(ApiError::unsupported(*field, why));
        }
        let Self { prompt, answer, .. } = self;
        ask.lease.check_text(prompt.len())?;
        let chat = ask.lease.chat_context().clone();
        // Tokenizers and grammars may take long over a large request.
        let lowered = tokio::task::spawn_blocking(move || {
            let tokens = chat.tokenizer().encode(&prompt, Special::PROMPT);
            let rule = answer.map(|source| AnswerRule {
                field: "format",
                source,
            });
            (tokens, rule.map(|rule| rule.compile(&chat)).transpose())
        });
        let (tokens, grammar) = lowered.await.map_err(|error| ApiError::internal(&error))?;
        let prompt = tokens.map_err(|error| ApiError::internal(&error))?;
        let grammar = grammar?;
        let lease = &ask.lease;
        lease.check_prompt(prompt.len(), 1)?;
        let request = GenerateRequest {
            max_tokens: match self.options.up_to {
                Some(most) => lease.model.fit_tokens(most, prompt.len()),
                None => lease.model.max_tokens(None, prompt.len()),
            },
            prompt,
            sampling: self.options.sampling,
            stop_ids: lease.chat_context().tokenizer().eos_ids().to_vec(),
            stop: self.options.stop,
            logprobs: self.logprobs,
            skip_special: true,
            constraint: grammar.map(|grammar| grammar.constraint()),
            cache_scope: ask.caller.cache_scope(None),
            ..GenerateRequest::default()
        };
        Ok(Speaker::Text(Box::new(Turn::start(ask, request)?)))
    }
}

impl Line for OllamaGenerateResponse {
    fn new(head: Head, piece: Piece) -> Self {
        let Head {
            model,
            created_at,
            done_reason,
            logprobs,
            numbers,
        } = head;
        Self {
            model,
            created_at,
            response: piece.content,
            thinking: piece.thinking,
            done: done_reason.is_some(),
            done_reason,
            logprobs,
            numbers,
        }
    }
}
