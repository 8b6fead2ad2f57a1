//! `/api/generate`

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use loquat_chat::{ChatRequest, Message, Role, Thinking};
use loquat_engine::{GenerateRequest, Logprobs};
use loquat_grammar::GrammarSource;
use loquat_text::{FimPrompt, Special};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{LoweredPrompt, ReplyRequest};
use super::keep_alive::{self, OllamaKeepAlive};
use super::message;
use super::options::{self, Options};
use super::response::{self, OllamaLineHead, ReplyLine, ReplyPiece};
use super::think::{OllamaFormat, OllamaThink};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::fill_in::{FillIn, fill_in};
use crate::lowering::{StopFlag, encoding_error};
use crate::models::Loaded;
use crate::openai::answer_format::AnswerConstraint;
use crate::wire::{FieldTables, JsonBody, WireRequest};

const ROUTE: &str = "/api/generate";
const NO_IMAGES: &str = "this server does not generate images";

/// A prompt to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaGenerateRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// The prompt. Without it the model is loaded, or unloaded if `keep_alive` is 0.
    pub prompt: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// Continue the prompt verbatim, without the model's chat template.
    pub raw: Option<bool>,
    /// The format of the answer: `json`, or a JSON schema.
    pub format: Option<OllamaFormat>,
    /// Sampling and stop options, by Ollama's names or the engine's, and `speculative.n_max`.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// Stream lines of JSON; default true.
    pub stream: Option<bool>,
    /// Whether to think before answering, or how much.
    pub think: Option<OllamaThink>,
    /// How long the model stays loaded after the request: seconds, or a duration such as `5m`;
    /// negative: forever; 0: unload it. The configuration's value if omitted. Applies until the
    /// next request under `/api`; other dialects do not change it. A key needs the scope `manage`;
    /// without it the field is ignored, and a request that only unloads is refused.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
    /// Return the log-probabilities of the reply's tokens.
    pub logprobs: Option<bool>,
    /// Number of alternatives to each token, at most 20. Needs `logprobs`.
    pub top_logprobs: Option<usize>,
    /// The text that follows: the model writes what is between the prompt and it, without its chat
    /// template. Refused if the model has no fill-in-the-middle tokens.
    pub suffix: Option<String>,
    /// PNG, JPEG, WebP, GIF or BMP files as base64, for models that read images. They come before
    /// the prompt, and need the model's chat template.
    pub images: Option<Vec<String>>,
}

impl WireRequest for OllamaGenerateRequest {
    const IGNORED_NESTED: FieldTables<&'static str> = &[options::IGNORED, keep_alive::IGNORED];
    const REFUSED: FieldTables<Field> = &[
        &[
            (
                Field::Template,
                "the model's template is used, or none with `raw`",
            ),
            (
                Field::Context,
                "it is deprecated in Ollama; send the messages to /api/chat",
            ),
            (Field::Videos, message::NO_VIDEOS),
            (Field::Width, NO_IMAGES),
            (Field::Height, NO_IMAGES),
            (Field::Steps, NO_IMAGES),
        ],
        response::REFUSED,
    ];
    const REFUSED_NESTED: FieldTables<&'static str> = &[options::REFUSED];
}

/// An answer, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaGenerateResponse {
    #[serde(flatten)]
    pub head: OllamaLineHead,
    pub response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(generate))
}

/// Answer a prompt
///
/// A stream of JSON lines unless `stream` is false. The answer has no `context`: use `/api/chat`
/// for conversations.
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
    body: JsonBody<OllamaGenerateRequest>,
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
        images,
    } = body.value;
    let logprobs = response::logprobs(logprobs, top_logprobs)?;
    let fields = PromptFields {
        prompt: prompt.unwrap_or_default(),
        system: system.filter(|system| !system.is_empty()),
        raw: raw.unwrap_or(false),
        think,
        answer: format.and_then(OllamaFormat::lower),
        logprobs,
        suffix: suffix.filter(|suffix| !suffix.is_empty()),
        images: images.filter(|images| !images.is_empty()),
    };
    let is_empty = fields.prompt.is_empty() && fields.images.is_none();
    let text_bytes = fields.prompt.len() + fields.suffix.as_ref().map_or(0, String::len);
    let lower =
        move |model: &Loaded, options: Options, stop: &StopFlag| fields.lower(model, options, stop);
    let lower = (!is_empty).then_some(lower);
    let request = ReplyRequest {
        route: ROUTE,
        model,
        options,
        stream,
        keep_alive,
        logprobs,
        text_bytes,
        ignored: body.ignored,
    };
    request
        .answer::<OllamaGenerateResponse>(&app, caller, lower)
        .await
}

/// The fields that make up the prompt.
struct PromptFields {
    prompt: String,
    system: Option<String>,
    raw: bool,
    think: Option<OllamaThink>,
    answer: Option<GrammarSource>,
    logprobs: Option<Logprobs>,
    suffix: Option<String>,
    images: Option<Vec<String>>,
}

impl PromptFields {
    fn lower(
        self,
        model: &Loaded,
        options: Options,
        stop: &StopFlag,
    ) -> Result<LoweredPrompt, ApiError> {
        let has_template = model.chat_context().template().is_some();
        if self.raw || self.suffix.is_some() || (!has_template && self.system.is_none()) {
            self.lower_text(model, options, stop)
        } else {
            self.lower_chat(model, options)
        }
    }

    fn lower_chat(self, model: &Loaded, options: Options) -> Result<LoweredPrompt, ApiError> {
        let system = self.system.map(|system| Message::new(Role::System, system));
        let content = message::with_images(Field::Images.into(), self.images, self.prompt)?;
        let user = Message::new(Role::User, content);
        let think = self.think.map(|think| think.lower(model));
        let request = ChatRequest {
            messages: system.into_iter().chain([user]).collect(),
            thinking: think.unwrap_or(Ok(Thinking::default()))?,
            answer: self.answer,
            sampling: options.sampling,
            stop: options.stop,
            logprobs: self.logprobs,
            ..ChatRequest::default()
        };
        Ok(LoweredPrompt::Chat(Box::new(request)))
    }

    fn lower_text(
        self,
        model: &Loaded,
        options: Options,
        stop: &StopFlag,
    ) -> Result<LoweredPrompt, ApiError> {
        let thinks = self.think;
        let thinks = thinks.is_some_and(|think| think != OllamaThink::Enabled(false));
        let chat_only = [
            (Field::System, self.system.is_some()),
            (Field::Think, thinks),
            (Field::Images, self.images.is_some()),
        ];
        if let Some((field, _)) = chat_only.iter().find(|(_, present)| *present) {
            let reason = if self.raw {
                "`raw` sends the prompt verbatim"
            } else if self.suffix.is_some() {
                "`suffix` is used without a chat template"
            } else {
                "the model has no chat template"
            };
            return Err(ApiError::unsupported(*field, reason));
        }
        let tokenizer = model.chat_context().tokenizer();
        let mut stop_ids = tokenizer.eos_ids().to_vec();
        let prompt = match &self.suffix {
            Some(suffix) => {
                let prompt = FimPrompt {
                    prefix: &self.prompt,
                    suffix,
                    files: &[],
                };
                let FillIn { prompt, ends } = fill_in(model, Field::Suffix, prompt, stop)?;
                stop_ids.extend(ends);
                prompt
            }
            None => {
                let tokenizer = tokenizer.interruptible(stop.signal());
                let prompt = tokenizer.encode(&self.prompt, Special::PROMPT);
                prompt.map_err(|error| encoding_error(&error))?
            }
        };
        let answer = self.answer;
        let answer = answer.map(|source| AnswerConstraint::new(Field::Format, source));
        let grammar = match answer {
            Some(answer) => Some(answer.compile(model.chat_context())?),
            None => None,
        };
        model.check_prompt(prompt.len(), 1)?;
        let request = GenerateRequest {
            prompt,
            sampling: options.sampling,
            stop_ids,
            stop: options.stop,
            logprobs: self.logprobs,
            skip_special: true,
            constraint: grammar.map(|grammar| grammar.constraint()),
            ..GenerateRequest::default()
        };
        Ok(LoweredPrompt::Text(Box::new(request)))
    }
}

impl ReplyLine for OllamaGenerateResponse {
    fn new(head: OllamaLineHead, piece: ReplyPiece) -> Self {
        Self {
            head,
            response: piece.content,
            thinking: piece.thinking,
        }
    }
}
