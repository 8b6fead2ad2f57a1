//! Log-probabilities of a text's tokens, in the format of completions.

use std::collections::HashMap;

use loquat_engine::TokenInfo;
use loquat_text::{Detokenizer, DetokenizerOptions, Tokenizer};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::openai::logprobs::finite;

/// Four lists with an entry for each token, including those of a stop string and the end-of-text
/// token.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Texts of the tokens; `bytes:\x…` for incomplete characters.
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens at each position, and the token itself.
    #[schema(value_type = Vec<Option<HashMap<String, f32>>>)]
    pub top_logprobs: Vec<Option<RankedTokens>>,
    /// Where each token begins in the choice's `text`, in characters.
    pub text_offset: Vec<usize>,
}

/// An object from tokens to log-probabilities, best first.
#[derive(Debug, PartialEq)]
pub struct RankedTokens(Vec<(String, f32)>);

impl Serialize for RankedTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// The prompt's tokens with their alternatives, by token id; null for the first token.
pub type PromptLogprobs = Vec<Option<HashMap<String, PromptLogprob>>>;

#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct PromptLogprob {
    pub logprob: f32,
    /// 1 for the likeliest; omitted for a token that is not among the alternatives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    pub decoded_token: String,
}

impl CompletionLogprobs {
    /// Adds a token with `count` alternatives.
    pub fn push(&mut self, info: &TokenInfo, count: usize, offset: usize, tokenizer: &Tokenizer) {
        self.tokens.push(label(info.id, tokenizer));
        self.token_logprobs.push(info.logprob.map(finite));
        let top = info.logprob.map(|own| {
            let others = info.top.iter().take(count).copied();
            let mut ranked: Vec<(String, f32)> = Vec::new();
            for (id, logprob) in others.chain([(info.id, own)]) {
                let token = label(id, tokenizer);
                if ranked.iter().all(|(known, _)| *known != token) {
                    ranked.push((token, finite(logprob)));
                }
            }
            RankedTokens(ranked)
        });
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
    }

    pub fn extend(&mut self, more: Self) {
        let Self {
            tokens,
            token_logprobs,
            top_logprobs,
            text_offset,
        } = more;
        self.tokens.extend(tokens);
        self.token_logprobs.extend(token_logprobs);
        self.top_logprobs.extend(top_logprobs);
        self.text_offset.extend(text_offset);
    }
}

/// The prompt's tokens with `count` alternatives each.
pub fn prompt_logprobs(infos: &[TokenInfo], count: usize, tokenizer: &Tokenizer) -> PromptLogprobs {
    let each = infos.iter().map(|info| {
        let own = info.logprob?;
        let top = info.top.iter().take(count).enumerate();
        let top = top.map(|(index, (id, logprob))| (*id, *logprob, Some(index + 1)));
        let rank = info.top.iter().position(|(id, _)| *id == info.id);
        let own = (info.id, own, rank.map(|index| index + 1));
        let entries = top.chain([own]).map(|(id, logprob, rank)| {
            let entry = PromptLogprob {
                logprob: finite(logprob),
                rank,
                decoded_token: label(id, tokenizer),
            };
            (id.to_string(), entry)
        });
        Some(entries.collect())
    });
    each.collect()
}

/// A token's text, or its bytes, so that no two tokens share a label.
pub fn label(id: u32, tokenizer: &Tokenizer) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{bytes}")
        }
    }
}

/// Counts where tokens begin in a text.
pub struct TextOffsets {
    detokenizer: Detokenizer,
    characters: usize,
}

impl TextOffsets {
    /// For a prompt that the answer repeats.
    pub fn prompt(tokenizer: &Tokenizer) -> Self {
        Self::new(tokenizer, DetokenizerOptions::default(), 0)
    }

    /// For a continuation after this many characters.
    pub fn after(characters: usize, tokenizer: &Tokenizer) -> Self {
        let options = DetokenizerOptions {
            skip_special: true,
            continues: true,
        };
        Self::new(tokenizer, options, characters)
    }

    fn new(tokenizer: &Tokenizer, options: DetokenizerOptions, characters: usize) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone(), options),
            characters,
        }
    }

    /// Where the next token begins.
    pub fn next(&mut self, id: u32) -> usize {
        let start = self.characters;
        self.characters += self.detokenizer.push(id).chars().count();
        start
    }
}
