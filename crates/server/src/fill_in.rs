//! Prompts for text between a prefix and a suffix.

use loquat_text::{FimPrompt, TextError};

use crate::error::ApiError;
use crate::field::Field;
use crate::models::Loaded;

/// The prompt's tokens. Adds the tokens that end what is filled in. `field` is the one that asks for
/// it.
pub fn fill_in(
    model: &Loaded,
    field: Field,
    prompt: FimPrompt<'_>,
    stop_ids: &mut Vec<u32>,
) -> Result<Vec<u32>, ApiError> {
    match model.chat_context().tokenizer().encode_fim(prompt) {
        Ok((tokens, fim)) => {
            stop_ids.extend(fim.ends);
            Ok(tokens)
        }
        Err(TextError::NoFimTokens) => {
            let reason = format!("the model `{}` has no fill-in-the-middle tokens", model.id);
            Err(ApiError::unsupported(field, reason))
        }
        Err(error) => Err(ApiError::internal(&error)),
    }
}
