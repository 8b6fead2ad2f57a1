//! The request and response of embeddings.

use loquat_engine::Pooling;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::embed::PromptInput;
use crate::error::ApiError;
use crate::field::Field;
use crate::wire::WireRequest;

/// OpenAI's limit.
const MOST_INPUTS: usize = 2048;

/// What to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text, a list of up to 2048 texts, a list of token ids, or a list of such lists.
    pub input: EmbeddingInput,
    /// `float` (a list of numbers, the default), or `base64` (little-endian 32-bit floats).
    pub encoding_format: Option<EmbeddingEncoding>,
    /// Must be the length of the model's vectors: they are not shortened.
    pub dimensions: Option<usize>,
    /// Extension: how hidden states are pooled; the configuration decides if omitted.
    pub pooling: Option<EmbeddingPooling>,
}

impl WireRequest for EmbeddingRequest {
    const IGNORED: &'static [(&'static str, &'static str)] =
        &[("user", "clients are identified by their keys")];
}

/// One input or several.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
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
        let expected = "a string, a list of strings, a list of token ids, or a list of such lists";
        let input = Value::deserialize(deserializer)?;
        let first = input.as_array().and_then(|list| list.first());
        let read = match (&input, first) {
            (Value::String(text), _) => return Ok(Self::Text(text.clone())),
            (_, Some(Value::Number(_))) => serde_json::from_value(input).map(Self::Tokens),
            (_, Some(Value::Array(_))) => serde_json::from_value(input).map(Self::TokenLists),
            _ => serde_json::from_value(input).map(Self::Texts),
        };
        read.map_err(|_| D::Error::custom(format!("must be {expected}")))
    }
}

impl EmbeddingInput {
    pub fn lower(self) -> Result<Vec<PromptInput>, ApiError> {
        let inputs: Vec<PromptInput> = match self {
            Self::Text(text) => vec![PromptInput::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
            Self::Tokens(tokens) => vec![PromptInput::Tokens(tokens)],
            Self::TokenLists(lists) => lists.into_iter().map(PromptInput::Tokens).collect(),
        };
        match inputs.len() {
            1..=MOST_INPUTS => Ok(inputs),
            found => Err(ApiError::invalid(
                Field::Input,
                format!("has {found} inputs; it must have from 1 to {MOST_INPUTS}"),
            )),
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
