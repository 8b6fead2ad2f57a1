//! Probabilities of tokens in llama.cpp's form.

use loquat_engine::TokenInfo;
use loquat_text::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

use crate::openai::logprobs::finite;

/// A generated token.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenProbability {
    #[serde(flatten)]
    #[schema(inline)]
    pub token: RankedToken,
    /// The likeliest tokens at its position, best first.
    pub top_logprobs: Vec<RankedToken>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RankedToken {
    pub id: u32,
    /// Its text; a character that spans several tokens is U+FFFD in each.
    pub token: String,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

impl TokenProbability {
    pub fn new(info: &TokenInfo, tokenizer: &Tokenizer) -> Self {
        let ranked = |id: u32, logprob: f32| RankedToken {
            id,
            token: tokenizer.token_text(id).unwrap_or_default(),
            bytes: tokenizer.token_bytes(id).unwrap_or_default().to_vec(),
            logprob: finite(logprob),
        };
        let top = info.top.iter();
        Self {
            token: ranked(info.id, info.logprob.unwrap_or(f32::NEG_INFINITY)),
            top_logprobs: top.map(|(id, logprob)| ranked(*id, *logprob)).collect(),
        }
    }
}
