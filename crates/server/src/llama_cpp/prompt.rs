//! `prompt` of `/completion`.

use loquat_text::{Special, Tokenizer};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::lowering::encoding_error;
use crate::models::Loaded;

const MOST_PROMPTS: usize = 1024;

/// A prompt, or a list of prompts. A list that has token ids is one prompt.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "must be a text, a list of token ids and texts, or a list of prompts"
)]
pub enum LlamaPrompts {
    One(LlamaPrompt),
    Many(Vec<LlamaPrompt>),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LlamaPrompt {
    /// Special tokens are parsed.
    Text(String),
    /// Tokens and texts that follow each other.
    Pieces(Vec<PromptPiece>),
    Object(PromptObject),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PromptPiece {
    Token(u32),
    Text(String),
}

/// A text with media, which are refused.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptObject {
    pub prompt_string: String,
    pub multimodal_data: Option<Vec<String>>,
}

impl LlamaPrompts {
    fn into_list(self) -> Vec<LlamaPrompt> {
        let pieces = match self {
            Self::One(LlamaPrompt::Pieces(pieces)) => pieces,
            Self::One(one) => return vec![one],
            Self::Many(many) => return many,
        };
        let texts = pieces.iter().map(|piece| match piece {
            PromptPiece::Text(text) => Some(LlamaPrompt::Text(text.clone())),
            PromptPiece::Token(_) => None,
        });
        match texts.collect::<Option<Vec<_>>>() {
            Some(texts) if !texts.is_empty() => texts,
            _ => vec![LlamaPrompt::Pieces(pieces)],
        }
    }

    /// The size of the longest text. Refuses texts that cannot fit, before they are tokenized.
    pub fn check_texts(&self, model: &Loaded) -> Result<usize, ApiError> {
        let prompts = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        };
        let mut longest = 0;
        for text in prompts.iter().flat_map(LlamaPrompt::texts) {
            model.check_text(text.len())?;
            longest = longest.max(text.len());
        }
        Ok(longest)
    }

    /// The tokens of each prompt.
    pub fn encode(self, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, ApiError> {
        let prompts = self.into_list();
        if prompts.len() > MOST_PROMPTS {
            let count = prompts.len();
            let problem = format!("has {count} prompts; at most {MOST_PROMPTS} are allowed");
            return Err(ApiError::invalid(Field::Prompt, problem));
        }
        let is_only = prompts.len() == 1;
        let prompts = prompts.into_iter().enumerate();
        let prompts = prompts.map(|(index, prompt)| {
            let field = if is_only {
                Field::Prompt.into()
            } else {
                Field::Prompt.index(index)
            };
            prompt.encode(&field, tokenizer)
        });
        prompts.collect()
    }
}

impl LlamaPrompt {
    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::Object(object) => vec![&object.prompt_string],
            Self::Pieces(pieces) => {
                let texts = pieces.iter().filter_map(|piece| match piece {
                    PromptPiece::Text(text) => Some(text.as_str()),
                    PromptPiece::Token(_) => None,
                });
                texts.collect()
            }
        }
    }

    fn encode(self, field: &FieldPath, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
        let encode = |text: &str, special: Special| {
            let tokens = tokenizer.encode(text, special);
            tokens.map_err(|error| encoding_error(&error))
        };
        let pieces = match self {
            Self::Text(text) => return encode(&text, Special::PROMPT),
            Self::Object(object) => {
                if object.multimodal_data.is_some_and(|data| !data.is_empty()) {
                    let field = field.clone().field(Field::MultimodalData);
                    let reason = "raw prompts are text only; send images to `/v1/chat/completions`";
                    return Err(ApiError::unsupported(field, reason));
                }
                return encode(&object.prompt_string, Special::PROMPT);
            }
            Self::Pieces(pieces) => pieces,
        };
        let mut tokens = Vec::new();
        for (index, piece) in pieces.into_iter().enumerate() {
            match piece {
                PromptPiece::Token(id) => tokens.push(id),
                PromptPiece::Text(text) if index == 0 => {
                    tokens.extend(encode(&text, Special::PROMPT)?);
                }
                PromptPiece::Text(text) => tokens.extend(encode(&text, Special::RENDERED)?),
            }
        }
        if tokens.is_empty() {
            let problem = "is empty; it must have at least one token";
            return Err(ApiError::invalid(field.clone(), problem));
        }
        Ok(tokens)
    }
}
