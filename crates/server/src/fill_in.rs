//! Prompts for text between a prefix and a suffix.

use loquat_text::{FimPrompt, TextError};

use crate::error::ApiError;
use crate::field::Field;
use crate::lowering::{StopFlag, encoding_error};
use crate::models::Loaded;

/// A prompt that asks for what is between two texts.
pub struct FillIn {
    pub prompt: Vec<u32>,
    /// Tokens that end what is filled in.
    pub ends: Vec<u32>,
}

/// Tokenizes the prompt while the client waits. `field` is the one that asks for it.
pub fn fill_in(
    model: &Loaded,
    field: Field,
    prompt: FimPrompt<'_>,
    stop: &StopFlag,
) -> Result<FillIn, ApiError> {
    let tokenizer = model.chat_context().tokenizer();
    match tokenizer.interruptible(stop.signal()).encode_fim(prompt) {
        Ok((prompt, fim)) => Ok(FillIn {
            prompt,
            ends: fim.ends,
        }),
        Err(TextError::NoFimTokens) => {
            let reason = format!("the model `{}` has no fill-in-the-middle tokens", model.id);
            Err(ApiError::unsupported(field, reason))
        }
        Err(error) => Err(encoding_error(&error)),
    }
}
