//! A loaded model.

use std::sync::Arc;

use loquat::RequestDefaults;
use loquat_chat::ChatContext;
use loquat_engine::{Engine, Pooling, SamplingParams};
use loquat_text::Tokenizer;

use super::adapters::AdapterPool;
use super::{ModelInfo, OpenFailure, Opened};
use crate::config::ModelConfig;
use crate::error::ApiError;
use crate::sampling;

/// The longest text of a request, whatever the model's context. Tokenizing it takes about a hundred
/// times its size.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// A loaded model with its configuration.
pub struct Loaded {
    /// The configuration's name for it.
    pub id: String,
    /// Its defaults are the configuration's.
    pub model: loquat::Model,
    pub info: Arc<ModelInfo>,
    pub pooling: Pooling,
    pub resident_bytes: u64,
    /// The adapters that its engine has loaded.
    pub adapters: Arc<AdapterPool>,
    /// Of the longest token.
    token_bytes: usize,
}

impl Loaded {
    /// Applies the configuration's request defaults over the model's own.
    pub fn new(config: &ModelConfig, opened: Opened) -> Result<Self, OpenFailure> {
        let Opened {
            model,
            info,
            resident_bytes,
        } = opened;
        let tokenizer = model.chat_context().tokenizer();
        let defaults = &model.defaults().sampling;
        let sampling = sampling::apply(&config.sampling, defaults, tokenizer)
            .map_err(|error| OpenFailure::Sampling(Box::new(error)))?;
        Ok(Self {
            id: config.name.clone(),
            token_bytes: longest_token(tokenizer),
            model: model.with_defaults(RequestDefaults {
                sampling,
                max_tokens: config.max_tokens,
            }),
            info: Arc::new(info),
            pooling: config.pooling,
            resident_bytes,
            adapters: Arc::default(),
        })
    }

    pub fn engine(&self) -> &Engine {
        self.model.engine()
    }

    pub fn chat_context(&self) -> &ChatContext {
        self.model.chat_context()
    }

    /// The sampling parameters of requests that set none.
    pub fn sampling(&self) -> &SamplingParams {
        &self.model.defaults().sampling
    }

    /// Refuses a text that does not fit even if every token is the longest. Tokenizing it would take
    /// hundreds of times its size in memory.
    pub fn check_text(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes > MAX_TEXT_BYTES {
            let message = format!(
                "a prompt of {bytes} bytes is too long; the limit is {MAX_TEXT_BYTES} bytes"
            );
            return Err(ApiError::bad_request(message).code("context_length_exceeded"));
        }
        let limit = self.model.token_limit();
        let least = bytes / self.token_bytes.max(1);
        if least <= limit {
            return Ok(());
        }
        let message = format!(
            "a prompt of {bytes} bytes is at least {least} tokens, and does not fit the context of \
             {limit}"
        );
        Err(ApiError::bad_request(message).code("context_length_exceeded"))
    }

    /// The part of a text that can fill the context; tokens beyond it would be truncated.
    pub fn text_that_fits<'a>(&self, text: &'a str) -> &'a str {
        let tokens = self.model.token_limit().saturating_add(1);
        let most = tokens.saturating_mul(self.token_bytes).min(MAX_TEXT_BYTES);
        let mut end = most.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[..end]
    }

    /// Refuses a prompt that leaves no room for a reply of this many tokens.
    pub fn check_prompt(&self, tokens: usize, reply: usize) -> Result<(), ApiError> {
        let limit = self.model.token_limit();
        if tokens.saturating_add(reply) <= limit {
            return Ok(());
        }
        let message = match reply {
            0 => format!("a prompt of {tokens} tokens does not fit the context of {limit}"),
            _ => format!(
                "a prompt of {tokens} tokens leaves no room for a reply in the context of {limit}"
            ),
        };
        Err(ApiError::bad_request(message).code("context_length_exceeded"))
    }
}

fn longest_token(tokenizer: &Tokenizer) -> usize {
    let ids = 0..tokenizer.vocab_size() as u32;
    let bytes = ids.filter_map(|id| tokenizer.token_bytes(id));
    bytes.map(<[u8]>::len).max().unwrap_or(1)
}
