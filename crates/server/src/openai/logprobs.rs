//! Log-probabilities of a reply's tokens, in the format of chat completions.

use loquat_engine::TokenInfo;
use loquat_text::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

/// OpenAI's value for a probability close to zero, since JSON has no infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// Log-probabilities of the answer's tokens; reasoning and tool calls have none.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// Its text; a character that spans several tokens is U+FFFD in each.
    pub token: String,
    pub logprob: f32,
    /// Its bytes, to be joined with those of adjacent tokens.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens at its position, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
}

impl ChatLogprobs {
    pub fn new(tokens: &[TokenInfo], tokenizer: &Tokenizer) -> Self {
        let content = tokens.iter().map(|info| TokenLogprob {
            token: text(info.id, tokenizer),
            logprob: finite(info.logprob.unwrap_or(MIN_LOGPROB)),
            bytes: bytes(info.id, tokenizer),
            top_logprobs: top(info, tokenizer),
        });
        Self {
            content: content.collect(),
            refusal: None,
        }
    }
}

fn top(info: &TokenInfo, tokenizer: &Tokenizer) -> Vec<TopLogprob> {
    let top = info.top.iter().map(|(id, logprob)| TopLogprob {
        token: text(*id, tokenizer),
        logprob: finite(*logprob),
        bytes: bytes(*id, tokenizer),
    });
    top.collect()
}

/// A token as text; empty for ids without a token.
fn text(id: u32, tokenizer: &Tokenizer) -> String {
    tokenizer.token_text(id).unwrap_or_default()
}

fn bytes(id: u32, tokenizer: &Tokenizer) -> Option<Vec<u8>> {
    tokenizer.token_bytes(id).map(<[u8]>::to_vec)
}

/// A log-probability that JSON can represent.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(MIN_LOGPROB)
}
