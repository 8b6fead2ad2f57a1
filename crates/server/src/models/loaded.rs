//! A model that is open.

use std::sync::Arc;

use loquat_chat::ChatContext;
use loquat_engine::{Engine, SamplingParams};
use loquat_text::Tokenizer;

use super::{ModelInfo, OpenFailure, Opened};
use crate::config::{Model, Pooling};
use crate::error::{ApiError, ErrorKind};
use crate::sampling;

/// An open model under its name.
pub struct Loaded {
    /// The configuration's name for it.
    pub id: String,
    pub engine: Engine,
    pub chat: ChatContext,
    /// In force where a request does not say otherwise.
    pub sampling: SamplingParams,
    pub info: Arc<ModelInfo>,
    pub pooling: Pooling,
    pub resident_bytes: u64,
    default_max_tokens: usize,
    /// Of the longest token.
    token_bytes: usize,
}

impl Loaded {
    /// An opened model with what its configuration says over what it brings itself.
    pub fn new(model: &Model, opened: Opened) -> Result<Self, OpenFailure> {
        let Opened {
            engine,
            chat,
            mut sampling,
            info,
            resident_bytes,
        } = opened;
        sampling::apply(&model.sampling, &mut sampling, chat.tokenizer())
            .map_err(|error| OpenFailure(format!("its sampling parameters: {}", error.message)))?;
        Ok(Self {
            id: model.name.clone(),
            token_bytes: longest_token(chat.tokenizer()),
            engine,
            chat,
            sampling,
            info: Arc::new(info),
            pooling: model.pooling,
            resident_bytes,
            default_max_tokens: model.max_tokens,
        })
    }

    /// The most tokens that a prompt and its reply can have together.
    pub fn room(&self) -> usize {
        let context = self.engine.capabilities().max_context;
        context.min(self.engine.memory().kv_capacity)
    }

    /// Refuses a text that cannot fit even if it were made of nothing but the longest tokens:
    /// tokenizing it would take hundreds of times its size, only to find that out.
    pub fn check_text(&self, bytes: usize) -> Result<(), ApiError> {
        let room = self.room();
        let least = bytes / self.token_bytes.max(1);
        if least <= room {
            return Ok(());
        }
        let what = format!(
            "a prompt of {bytes} bytes is at least {least} tokens, and does not fit the context of \
             {room}"
        );
        Err(ApiError::new(ErrorKind::InvalidRequest, what).code("context_length_exceeded"))
    }

    /// Refuses a prompt that leaves no room for a reply of at least this many tokens.
    pub fn check_prompt(&self, tokens: usize, reply: usize) -> Result<(), ApiError> {
        let room = self.room();
        if tokens.saturating_add(reply) <= room {
            return Ok(());
        }
        let what = match reply {
            0 => format!("a prompt of {tokens} tokens does not fit the context of {room}"),
            _ => format!(
                "a prompt of {tokens} tokens leaves no room for a reply in the context of {room}"
            ),
        };
        Err(ApiError::new(ErrorKind::InvalidRequest, what).code("context_length_exceeded"))
    }

    /// As many as there is room for behind the prompt, but no more than `most`.
    pub fn up_to(&self, most: usize, prompt: usize) -> usize {
        most.min(self.room().saturating_sub(prompt)).max(1)
    }

    /// What a request asks for, which the engine refuses where it does not fit; otherwise what the
    /// configuration says, or what there is room for.
    pub fn max_tokens(&self, asked: Option<usize>, prompt: usize) -> usize {
        asked.unwrap_or_else(|| {
            let room = self.room().saturating_sub(prompt);
            self.default_max_tokens.min(room.max(1))
        })
    }
}

fn longest_token(tokenizer: &Tokenizer) -> usize {
    let ids = 0..tokenizer.vocab_size() as u32;
    let bytes = ids.filter_map(|id| tokenizer.token_bytes(id));
    bytes.map(<[u8]>::len).max().unwrap_or(1)
}
