//! Embeddings for every dialect: texts or tokens in, one vector each.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use loquat_engine::{GenerateRequest, Pooling};
use loquat_text::{Special, Tokenizer};

use crate::active_request::{ActiveRequest, Submission};
use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;
use crate::lowering;
use crate::lowering::{StopFlag, encoding_error};
use crate::models::Lease;

/// Inputs of one request at the engine at once: enough to fill its batches, few enough not to fill
/// its queue.
const AT_ONCE: usize = 16;

/// Special tokens in a text are not parsed.
const PLAIN_TEXT: Special = Special {
    add: true,
    parse: false,
};

/// How a request's inputs are embedded.
pub struct EmbeddingJob<'a> {
    pub app: &'a Arc<App>,
    pub caller: &'a Caller,
    pub lease: &'a Lease,
    /// The route: `/v1/embeddings`.
    pub route: &'static str,
    /// The model's configuration decides if unset.
    pub pooling: Option<Pooling>,
    /// Truncate inputs that exceed the context; otherwise they are refused.
    pub truncate: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
    /// Texts and tokens in turn.
    Mixed(Vec<PromptPiece>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum PromptPiece {
    Text(String),
    Token(u32),
}

impl PromptInput {
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(_) => 0,
            Self::Mixed(pieces) => {
                let texts = pieces.iter().map(|piece| match piece {
                    PromptPiece::Text(text) => text.len(),
                    PromptPiece::Token(_) => 0,
                });
                texts.sum()
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Embeddings {
    /// One for each input, not normalized.
    pub vectors: Vec<Vec<f32>>,
    pub prompt_tokens: usize,
    /// Inputs that were truncated.
    pub truncated: Vec<usize>,
}

impl EmbeddingJob<'_> {
    pub async fn run(self, inputs: Vec<PromptInput>) -> Result<Embeddings, ApiError> {
        self.check_model()?;
        let mut embedded = Embeddings::default();
        let inputs = if self.truncate {
            self.shorten(inputs)
        } else {
            self.check_texts(&inputs)?;
            inputs
        };
        let mut prompts = self.encode(inputs).await?;
        let room = self.lease.model.token_limit();
        for (index, prompt) in prompts.iter_mut().enumerate() {
            if self.truncate && prompt.len() > room {
                prompt.truncate(room);
                embedded.truncated.push(index);
            }
            let fits = self.lease.check_prompt(prompt.len(), 0);
            fits.map_err(|error| name_input(index, error))?;
            embedded.prompt_tokens += prompt.len();
        }
        let each = prompts.into_iter().enumerate();
        let each = each.map(|(index, prompt)| self.embed(index, prompt));
        let at_once = AT_ONCE.min(self.lease.engine().idle_capacity(1));
        embedded.vectors = stream::iter(each).buffered(at_once).try_collect().await?;
        Ok(embedded)
    }

    /// Cuts texts that cannot fit, before they are tokenized.
    fn shorten(&self, mut inputs: Vec<PromptInput>) -> Vec<PromptInput> {
        let shorten = |text: &mut String| text.truncate(self.lease.text_that_fits(text).len());
        for input in &mut inputs {
            match input {
                PromptInput::Text(text) => shorten(text),
                PromptInput::Tokens(_) => {}
                PromptInput::Mixed(pieces) => {
                    for piece in pieces {
                        if let PromptPiece::Text(text) = piece {
                            shorten(text);
                        }
                    }
                }
            }
        }
        inputs
    }

    fn check_texts(&self, inputs: &[PromptInput]) -> Result<(), ApiError> {
        inputs.iter().enumerate().try_for_each(|(index, input)| {
            let fits = self.lease.check_text(input.text_bytes());
            fits.map_err(|error| name_input(index, error))
        })
    }

    fn check_model(&self) -> Result<(), ApiError> {
        match self.lease.engine().capabilities().hidden_size {
            Some(_) => Ok(()),
            None => {
                let message = format!(
                    "the model `{}` has no embeddings: its backend returns no hidden states",
                    self.lease.id
                );
                let error = ApiError::bad_request(message).param(Field::Model);
                Err(error.code("embeddings_not_supported"))
            }
        }
    }

    async fn encode(&self, inputs: Vec<PromptInput>) -> Result<Vec<Vec<u32>>, ApiError> {
        let tokenizer = self.lease.chat_context().tokenizer().clone();
        let longest = inputs.iter().map(PromptInput::text_bytes).max();
        let encode_all = move |stop: &StopFlag| {
            let tokenizer = tokenizer.interruptible(stop.signal());
            let inputs = inputs.into_iter().enumerate();
            let encoded = inputs.map(|(index, input)| {
                stop.check()?;
                encode(index, input, &tokenizer)
            });
            encoded.collect()
        };
        lowering::run_text(longest.unwrap_or(0), encode_all).await
    }

    async fn embed(&self, index: usize, prompt: Vec<u32>) -> Result<Vec<f32>, ApiError> {
        let request = GenerateRequest {
            prompt,
            embed: Some(self.pooling.unwrap_or(self.lease.pooling)),
            cache_scope: self.caller.cache_scope(None),
            ..GenerateRequest::default()
        };
        let submission = Submission {
            app: self.app,
            caller: self.caller,
            lease: self.lease.clone(),
            route: self.route,
            choices: 1,
        };
        let active = ActiveRequest::submit(submission, request);
        let active = active.map_err(|error| name_input(index, error))?;
        let completions = active.collect().await?;
        let embedding = completions.into_iter().find_map(|one| one.embedding);
        embedding.ok_or_else(|| ApiError::internal(&"the engine returned no embedding"))
    }
}

fn encode(index: usize, input: PromptInput, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let text = |text: &str, special| {
        let tokens = tokenizer.encode(text, special);
        tokens.map_err(|error| encoding_error(&error))
    };
    let mut tokens = match input {
        PromptInput::Tokens(tokens) => tokens,
        PromptInput::Text(whole) => text(&whole, PLAIN_TEXT)?,
        PromptInput::Mixed(pieces) => {
            let mut tokens = Vec::new();
            for (at, piece) in pieces.into_iter().enumerate() {
                match piece {
                    PromptPiece::Token(id) => tokens.push(id),
                    // Special tokens belong to the beginning of a prompt.
                    PromptPiece::Text(part) => {
                        let add = at == 0;
                        tokens.extend(text(&part, Special { add, ..PLAIN_TEXT })?);
                    }
                }
            }
            tokens
        }
    };
    if tokens.is_empty() {
        tokens.extend(empty_prompt(tokenizer));
    }
    if tokens.is_empty() {
        let problem = "is empty, and the model has no token for that; it must have a token";
        Err(ApiError::invalid(Field::Input.index(index), problem))
    } else {
        Ok(tokens)
    }
}

/// The token that is embedded for an empty text: the end-of-text token.
fn empty_prompt(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.eos_ids().first().copied()
}

/// Names the input in place of the engine's field.
fn name_input(index: usize, error: ApiError) -> ApiError {
    match error.kind {
        ErrorKind::InvalidRequest => {
            let field = Field::Input.index(index);
            let message = format!("`{field}`: {}", error.message);
            ApiError { message, ..error }.param(field)
        }
        _ => error,
    }
}
