//! Embeddings, whatever the dialect: texts or tokens in, a vector each.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use loquat_engine::{GenerateRequest, Pooling};
use loquat_text::{Special, Tokenizer};

use crate::app::App;
use crate::caller::Caller;
use crate::config;
use crate::error::{ApiError, ErrorKind};
use crate::models::Lease;
use crate::turn::{Ask, Turn};

/// Inputs of one request that are at the engine at once: enough to fill its steps, few enough to
/// leave the queue to others.
const AT_ONCE: usize = 16;

/// A text is words: special tokens in it are not read as such.
const WORDS: Special = Special {
    add: true,
    parse: false,
};

/// What is embedded, for whom and how.
pub struct Embed<'a> {
    pub app: &'a Arc<App>,
    pub caller: &'a Caller,
    pub lease: &'a Lease,
    /// The route: `/v1/embeddings`.
    pub route: &'static str,
    /// What the model's configuration says when left out.
    pub pooling: Option<Pooling>,
    /// Cut inputs that are too long to what fits; otherwise they are refused.
    pub cut: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Debug, Default)]
pub struct Embedded {
    /// One for each input, of the model's own length.
    pub vectors: Vec<Vec<f32>>,
    pub prompt_tokens: usize,
    /// Inputs that were too long.
    pub cut: Vec<usize>,
}

impl Embed<'_> {
    pub async fn run(self, inputs: Vec<Input>) -> Result<Embedded, ApiError> {
        self.check_model()?;
        let mut embedded = Embedded::default();
        if !self.cut {
            self.check_texts(&inputs)?;
        }
        let mut prompts = self.encode(inputs).await?;
        let room = self.lease.model.token_limit();
        for (index, prompt) in prompts.iter_mut().enumerate() {
            if self.cut && prompt.len() > room {
                prompt.truncate(room);
                embedded.cut.push(index);
            }
            let fits = self.lease.check_prompt(prompt.len(), 0);
            fits.map_err(|error| of_input(index, error))?;
            embedded.prompt_tokens += prompt.len();
        }
        let each = prompts.into_iter().enumerate();
        let each = each.map(|(index, prompt)| self.one(index, prompt));
        embedded.vectors = stream::iter(each).buffered(AT_ONCE).try_collect().await?;
        Ok(embedded)
    }

    fn check_texts(&self, inputs: &[Input]) -> Result<(), ApiError> {
        inputs
            .iter()
            .enumerate()
            .try_for_each(|(index, input)| match input {
                Input::Text(text) => {
                    let fits = self.lease.check_text(text.len());
                    fits.map_err(|error| of_input(index, error))
                }
                Input::Tokens(_) => Ok(()),
            })
    }

    fn check_model(&self) -> Result<(), ApiError> {
        match self.lease.engine().capabilities().hidden_size {
            Some(_) => Ok(()),
            None => Err(ApiError::invalid(
                "model",
                format!(
                    "the model `{}` gives no embeddings: its backend computes no hidden states",
                    self.lease.id
                ),
            )
            .code("embeddings_not_supported")),
        }
    }

    async fn encode(&self, inputs: Vec<Input>) -> Result<Vec<Vec<u32>>, ApiError> {
        let tokenizer = self.lease.chat_context().tokenizer().clone();
        // Much text takes long.
        let encoded = tokio::task::spawn_blocking(move || {
            let inputs = inputs.into_iter().enumerate();
            let encoded = inputs.map(|(index, input)| encode(index, input, &tokenizer));
            encoded.collect()
        });
        encoded.await.map_err(|error| ApiError::internal(&error))?
    }

    async fn one(&self, index: usize, prompt: Vec<u32>) -> Result<Vec<f32>, ApiError> {
        let request = GenerateRequest {
            prompt,
            embed: Some(self.pooling.unwrap_or(match self.lease.pooling {
                config::Pooling::Mean => Pooling::Mean,
                config::Pooling::Last => Pooling::Last,
            })),
            cache_scope: self.caller.cache_scope(None),
            ..GenerateRequest::default()
        };
        let ask = Ask {
            app: self.app,
            caller: self.caller,
            lease: self.lease.clone(),
            route: self.route,
            choices: 1,
        };
        let turn = Turn::start(ask, request).map_err(|error| of_input(index, error))?;
        let completions = turn.collect().await?;
        let embedding = completions.into_iter().find_map(|one| one.embedding);
        embedding.ok_or_else(|| ApiError::internal(&"the engine gave no embedding"))
    }
}

fn encode(index: usize, input: Input, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let tokens = match input {
        Input::Tokens(tokens) => tokens,
        Input::Text(text) => {
            let tokens = tokenizer.encode(&text, WORDS);
            tokens.map_err(|error| ApiError::internal(&error))?
        }
    };
    if tokens.is_empty() {
        let field = format!("input[{index}]");
        let what = format!("`{field}` is empty; there is nothing to embed");
        Err(ApiError::invalid(field, what))
    } else {
        Ok(tokens)
    }
}

/// The engine names its own fields.
fn of_input(index: usize, error: ApiError) -> ApiError {
    match error.kind {
        ErrorKind::InvalidRequest => ApiError {
            message: format!("`input[{index}]`: {}", error.message),
            param: Some(format!("input[{index}]")),
            ..error
        },
        _ => error,
    }
}
