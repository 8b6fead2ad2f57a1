//! `prompt` of `/completion`.

use loquat_chat::{ChatContext, MEDIA_MARKER};
use loquat_engine::PromptMedia;
use loquat_text::{Special, Tokenizer};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::lowering::{StopFlag, encoding_error};
use crate::media_data;
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

/// A text with images. A list of prompts has none.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptObject {
    /// `<__media__>` stands for an image.
    pub prompt_string: String,
    /// PNG, JPEG, WebP, GIF or BMP files in base64, one for each `<__media__>`.
    pub multimodal_data: Option<Vec<String>>,
}

/// A prompt as the engine takes it.
pub struct EncodedPrompt {
    pub tokens: Vec<u32>,
    pub media: Vec<PromptMedia>,
}

impl From<Vec<u32>> for EncodedPrompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            media: Vec::new(),
        }
    }
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

    /// Whether a prompt has images.
    pub fn has_media(&self) -> bool {
        let prompts = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        };
        prompts.iter().any(LlamaPrompt::has_media)
    }

    /// The tokens and the images of each prompt.
    pub fn encode(
        self,
        chat: &ChatContext,
        stop: &StopFlag,
    ) -> Result<Vec<EncodedPrompt>, ApiError> {
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
            if prompt.has_media() && !is_only {
                let field = field.field(Field::MultimodalData);
                let reason = "lists of prompts are text only; send a request for each";
                return Err(ApiError::unsupported(field, reason));
            }
            prompt.encode(&field, chat, stop)
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

    fn has_media(&self) -> bool {
        match self {
            Self::Object(object) => object.media().next().is_some(),
            Self::Text(_) | Self::Pieces(_) => false,
        }
    }

    fn encode(
        self,
        field: &FieldPath,
        chat: &ChatContext,
        stop: &StopFlag,
    ) -> Result<EncodedPrompt, ApiError> {
        let tokenizer = chat.tokenizer().interruptible(stop.signal());
        let encode = |text: &str, special: Special| {
            let tokens = tokenizer.encode(text, special);
            tokens.map_err(|error| encoding_error(&error))
        };
        let pieces = match self {
            Self::Text(text) => return Ok(encode(&text, Special::PROMPT)?.into()),
            Self::Object(object) => return object.encode(field, chat, (&tokenizer, stop)),
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
        Ok(tokens.into())
    }
}

impl PromptObject {
    fn media(&self) -> impl Iterator<Item = &String> {
        self.multimodal_data.iter().flatten()
    }

    fn encode(
        &self,
        field: &FieldPath,
        chat: &ChatContext,
        (tokenizer, stop): (&Tokenizer, &StopFlag),
    ) -> Result<EncodedPrompt, ApiError> {
        let field = field.clone().field(Field::MultimodalData);
        let (media, markers) = (
            self.media().count(),
            self.prompt_string.matches(MEDIA_MARKER).count(),
        );
        if media > 0 && media != markers {
            let problem = format!(
                "has {media} images, but `prompt_string` has `{MEDIA_MARKER}` {markers} times"
            );
            return Err(ApiError::invalid(field, problem));
        }
        let images = self.media().enumerate().map(|(index, data)| {
            let field = field.clone().index(index);
            Ok(media_data::image_from_base64(field, data, None)?.into())
        });
        let images = images.collect::<Result<Vec<_>, ApiError>>()?;
        let (tokens, media) =
            chat.encode_raw(&self.prompt_string, &images, tokenizer, &stop.signal())?;
        Ok(EncodedPrompt { tokens, media })
    }
}
