//! A model that is open.

use std::sync::Arc;

use loquat_chat::Chat;
use loquat_engine::{Engine, SamplingParams};

use super::{ModelInfo, OpenFailure, Opened};
use crate::config::{Model, Pooling};
use crate::sampling;

/// An open model under its name.
pub struct Loaded {
    /// The configuration's name for it.
    pub id: String,
    pub engine: Engine,
    pub chat: Chat,
    /// In force where a request does not say otherwise.
    pub sampling: SamplingParams,
    pub info: Arc<ModelInfo>,
    pub pooling: Pooling,
    pub resident_bytes: u64,
    default_max_tokens: usize,
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
