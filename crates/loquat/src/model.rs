//! A loaded model.

use std::sync::Arc;

use loquat_chat::{ChatContext, MediaReader, MediaRoom, Message, ReplyDecoder};
use loquat_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams};
use loquat_session::{AppliedAdapter, Session};
use loquat_text::Special;
use loquat_weights::AdapterBase;

use crate::{Answer, Chat, Continuation, Error, ModelOptions};

/// The longest answer of a request that does not set `max_tokens`, unless [`RequestDefaults`] or a
/// server's configuration set another. An answer reserves KV memory for all its tokens when it
/// starts, so a bound lets concurrent requests share the memory.
pub const DEFAULT_MAX_TOKENS: usize = 4096;

/// A loaded model, which answers many requests at once. Clones share it; dropping the last one
/// cancels its unfinished answers.
#[derive(Clone)]
pub struct Model {
    shared: Arc<SharedModel>,
    defaults: Arc<RequestDefaults>,
    adapter_base: Option<Arc<AdapterBase>>,
    adapters: Arc<[AppliedAdapter]>,
}

struct SharedModel {
    name: String,
    engine: Engine,
    chat_context: ChatContext,
}

/// What applies to requests that do not set it themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestDefaults {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Longest answer in tokens; less if the context has less room.
    pub max_tokens: usize,
}

/// What a model reads besides text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelInputs {
    /// [`Image`](crate::Image)
    pub images: bool,
    /// [`Video`](crate::Video)
    pub videos: bool,
}

impl Default for RequestDefaults {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: DEFAULT_MAX_TOKENS,
        }
    }
}

impl Model {
    /// Loads a model by path, catalog name or a hub's `owner/name`, with default options. See
    /// [`ModelOptions`] for others.
    pub fn load(reference: &str) -> Result<Self, Error> {
        ModelOptions::default().load(reference)
    }

    /// [`load`](Self::load) without blocking the thread.
    pub async fn load_async(reference: &str) -> Result<Self, Error> {
        ModelOptions::default().load_async(reference).await
    }

    /// Starts an engine on an open session. The session must use the context's tokenizer.
    pub fn from_session(
        name: impl Into<String>,
        session: Box<dyn Session>,
        chat_context: ChatContext,
        options: EngineOptions,
    ) -> Result<Self, Error> {
        let tokenizer = chat_context.tokenizer().clone();
        let capabilities = session.capabilities();
        let chat_context = match chat_context.media_reader() {
            Some(reader) if capabilities.media.images => {
                let room = MediaRoom {
                    item: capabilities.media_positions,
                    prompt: session.memory().longest_sequence(capabilities.max_context),
                };
                chat_context.with_media(reader.clone().with_room(room))
            }
            Some(_) => {
                let device = &capabilities.device;
                chat_context.without_media(format!("the session on {device} reads text only"))
            }
            None => chat_context,
        };
        let engine = Engine::start(session, Some(tokenizer), options)?;
        Ok(Self {
            shared: Arc::new(SharedModel {
                name: name.into(),
                engine,
                chat_context,
            }),
            defaults: Arc::default(),
            adapter_base: None,
            adapters: Arc::default(),
        })
    }

    /// The same model with other defaults for the requests made through this handle.
    pub fn with_defaults(&self, defaults: RequestDefaults) -> Self {
        Self {
            defaults: Arc::new(defaults),
            ..self.clone()
        }
    }

    /// The same model with adapters for the requests made through this handle that name none.
    pub fn with_adapters(&self, adapters: &[AppliedAdapter]) -> Self {
        Self {
            adapters: adapters.into(),
            ..self.clone()
        }
    }

    /// The adapters of requests that name none.
    pub fn adapters(&self) -> &[AppliedAdapter] {
        &self.adapters
    }

    pub(crate) fn adapter_base(&self) -> Option<&AdapterBase> {
        self.adapter_base.as_deref()
    }

    pub(crate) fn set_adapter_base(&mut self, base: AdapterBase) {
        self.adapter_base = Some(Arc::new(base));
    }

    /// What applies to requests that do not set it themselves.
    pub fn defaults(&self) -> &RequestDefaults {
        &self.defaults
    }

    /// The name it was found by; for a path, its last component.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What the model reads besides text.
    pub fn inputs(&self) -> ModelInputs {
        let media = &self.engine().capabilities().media;
        let reader = self.chat_context().media_reader();
        ModelInputs {
            images: reader.is_some() && media.images,
            videos: reader.is_some_and(MediaReader::takes_video) && media.videos,
        }
    }

    /// A question by itself.
    pub fn chat(&self, question: impl Into<String>) -> Chat {
        self.converse(vec![Message::user(question.into())])
    }

    /// A conversation: [`Conversation::messages`](crate::Conversation::messages), or any list of
    /// messages.
    pub fn converse(&self, messages: Vec<Message>) -> Chat {
        Chat::new(self.clone(), messages)
    }

    /// A text to continue verbatim, without a chat template.
    pub fn complete(&self, text: impl Into<String>) -> Continuation {
        Continuation::new(self.clone(), text.into())
    }

    /// The token ids of a text. Special tokens in it are read as such; none are added.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self
            .chat_context()
            .tokenizer()
            .encode(text, Special::RENDERED)?)
    }

    /// The text of token ids, special tokens included.
    pub fn detokenize(&self, tokens: &[u32]) -> String {
        self.chat_context().tokenizer().decode(tokens, false)
    }

    /// The most tokens that a prompt and its answer can have together.
    pub fn token_limit(&self) -> usize {
        let engine = self.engine();
        let context = engine.capabilities().max_context;
        engine.memory().longest_sequence(context)
    }

    /// The length limit of an answer: the requested one or the default, reduced to the room that the
    /// prompt leaves.
    pub fn max_tokens(&self, requested: Option<usize>, prompt_tokens: usize) -> usize {
        let tokens = requested.unwrap_or(self.defaults.max_tokens);
        self.fit_tokens(tokens, prompt_tokens)
    }

    /// `tokens`, reduced to the room that a prompt leaves. If it leaves none, this is 1, and the
    /// engine refuses the prompt.
    pub fn fit_tokens(&self, tokens: usize, prompt_tokens: usize) -> usize {
        let room = self.token_limit().saturating_sub(prompt_tokens);
        tokens.min(room.max(1))
    }

    /// Submits a request that [`ChatContext::lower`] or
    /// [`ContinuationRequest::lower`](crate::ContinuationRequest::lower) prepared. `max_tokens`
    /// replaces the request's own, reduced to the room that the prompt leaves;
    /// [`Answer::max_tokens`] is the result.
    pub fn submit(
        &self,
        mut request: GenerateRequest,
        decoder: ReplyDecoder,
        max_tokens: Option<usize>,
    ) -> Result<Answer, Error> {
        request.max_tokens = self.max_tokens(max_tokens, request.prompt.len());
        let max_tokens = request.max_tokens;
        if request.adapters.is_empty() {
            request.adapters = self.adapters.to_vec();
        }
        let generation = self.engine().submit(request)?;
        Ok(Answer::new(generation, decoder, max_tokens, self.clone()))
    }

    /// The engine, for what has no method here: priorities, deadlines, several choices, statistics.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The model's tokenizer, chat template, output formats and grammars.
    pub fn chat_context(&self) -> &ChatContext {
        &self.shared.chat_context
    }
}
