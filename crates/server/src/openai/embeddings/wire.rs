//! The request and response of embeddings.

use loquat_engine::Pooling;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::embed::{PromptInput, PromptPiece};
use crate::error::ApiError;
use crate::field::Field;
use crate::wire::{FieldTables, WireRequest};

/// OpenAI's limit.
const MOST_INPUTS: usize = 2048;

/// What to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text, or a list of up to 2048 texts and lists. A list with a token id is one input, which
    /// may mix token ids and texts. An empty input is embedded as the model's end-of-text token.
    pub input: EmbeddingInput,
    /// `float` (a list of numbers, the default), or `base64` (little-endian 32-bit floats).
    pub encoding_format: Option<EmbeddingEncoding>,
    /// Must be the length of the model's vectors: they are not shortened.
    pub dimensions: Option<usize>,
    /// Extension: how hidden states are pooled; the configuration decides if omitted.
    pub pooling: Option<EmbeddingPooling>,
}

impl WireRequest for EmbeddingRequest {
    const IGNORED: FieldTables<&'static str> = &[&[
        ("user", "clients are identified by their keys"),
        (
            "input_type",
            "every input is embedded alike; send the model's prefix as text",
        ),
    ]];
}

/// One input or several.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingInput {
    Text(String),
    Many(Vec<EmbeddingItem>),
}

/// An input, or a token id of the only input.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingItem {
    Text(String),
    Token(u32),
    Pieces(Vec<EmbeddingPiece>),
}

/// A part of an input.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingPiece {
    Text(String),
    Token(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingEncoding {
    Float,
    Base64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingPooling {
    /// The mean over all positions.
    Mean,
    /// The last position's.
    Last,
}

/// A vector for each input, in the inputs' order.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingResponse {
    /// Always `list`.
    pub object: &'static str,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// The number of the input.
    pub index: usize,
    /// The vector, of length 1.
    pub embedding: EmbeddingVector,
}

/// In the requested encoding.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingVector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Of all inputs together.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
}

impl<'de> Deserialize<'de> for EmbeddingInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a string, or a list of strings, token ids and lists of both";
        let input = Value::deserialize(deserializer)?;
        let read = match input {
            Value::String(text) => return Ok(Self::Text(text)),
            other => serde_json::from_value(other).map(Self::Many),
        };
        read.map_err(|_| D::Error::custom(format!("must be {expected}")))
    }
}

impl EmbeddingInput {
    pub fn lower(self) -> Result<Vec<PromptInput>, ApiError> {
        let items = match self {
            Self::Text(text) => return Ok(vec![PromptInput::Text(text)]),
            Self::Many(items) => items,
        };
        let is_token = |item: &EmbeddingItem| matches!(item, EmbeddingItem::Token(_));
        if items.iter().any(is_token) {
            return Ok(vec![one_input(items)?]);
        }
        if items.len() > MOST_INPUTS {
            return Err(ApiError::invalid(
                Field::Input,
                format!(
                    "has {} inputs; at most {MOST_INPUTS} are allowed",
                    items.len()
                ),
            ));
        }
        Ok(items.into_iter().map(EmbeddingItem::lower).collect())
    }
}

/// The only input, of texts and token ids.
fn one_input(items: Vec<EmbeddingItem>) -> Result<PromptInput, ApiError> {
    let items = items.into_iter().enumerate();
    let pieces = items.map(|(index, item)| match item {
        EmbeddingItem::Text(text) => Ok(EmbeddingPiece::Text(text)),
        EmbeddingItem::Token(id) => Ok(EmbeddingPiece::Token(id)),
        EmbeddingItem::Pieces(_) => Err(ApiError::invalid(
            Field::Input.index(index),
            "is a list beside token ids; send one input or a list of inputs",
        )),
    });
    let pieces: Vec<_> = pieces.collect::<Result<_, _>>()?;
    Ok(EmbeddingItem::Pieces(pieces).lower())
}

impl EmbeddingItem {
    fn lower(self) -> PromptInput {
        let pieces = match self {
            Self::Text(text) => return PromptInput::Text(text),
            Self::Token(id) => return PromptInput::Tokens(vec![id]),
            Self::Pieces(pieces) => pieces,
        };
        let ids = pieces.iter().map(|piece| match piece {
            EmbeddingPiece::Token(id) => Some(*id),
            EmbeddingPiece::Text(_) => None,
        });
        match ids.collect() {
            Some(ids) => PromptInput::Tokens(ids),
            None => PromptInput::Mixed(pieces.into_iter().map(EmbeddingPiece::lower).collect()),
        }
    }
}

impl EmbeddingPiece {
    fn lower(self) -> PromptPiece {
        match self {
            Self::Text(text) => PromptPiece::Text(text),
            Self::Token(id) => PromptPiece::Token(id),
        }
    }
}

impl EmbeddingPooling {
    pub fn lower(self) -> Pooling {
        match self {
            Self::Mean => Pooling::Mean,
            Self::Last => Pooling::Last,
        }
    }
}
