//! The model's vocabulary as llguidance sees it: bytes in a trie, and text back into tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use loquat_text::{Special, Tokenizer};

use crate::{GrammarError, Result};

/// The trie stores a token's depth in ten bits.
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// The trie stores a token's id in 24 bits; the largest means none.
const MAX_VOCABULARY: usize = (1 << 24) - 1;

/// A tokenizer and the trie of its tokens.
pub(crate) struct TokenEnv {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl TokenEnv {
    /// `vocab_size` is the width of the model's logits.
    pub(crate) fn new(tokenizer: Tokenizer, vocab_size: usize) -> Result<Self> {
        let refuse = |reason: String| Err(GrammarError::Vocabulary { reason });
        if vocab_size == 0 || vocab_size > MAX_VOCABULARY {
            return refuse(format!(
                "it has {vocab_size} tokens; it must have between 1 and {MAX_VOCABULARY}"
            ));
        }
        // The trie panics on tokens it cannot store, and the vocabulary comes from a file.
        match catch_unwind(AssertUnwindSafe(|| trie(&tokenizer, vocab_size))) {
            Ok(trie) => Ok(Self { tokenizer, trie }),
            Err(_) => refuse("its tokens do not fit into a trie".to_string()),
        }
    }

    /// The tokens of `text`, if they spell it exactly.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.tokenizer.encode_inner(text, Special::PLAIN).ok()?;
        let known = ids.iter().all(|id| (*id as usize) < self.trie.vocab_size());
        (known && self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

/// A token without bytes is never allowed; a control token only if a grammar names it.
fn trie(tokenizer: &Tokenizer, vocab_size: usize) -> TokTrie {
    let ends: Vec<TokenId> = (tokenizer.eos_ids().iter().copied())
        .filter(|id| (*id as usize) < vocab_size)
        .collect();
    let words: Vec<Vec<u8>> = (0..vocab_size as u32)
        .map(|id| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let marked = tokenizer.is_special(id) || ends.contains(&id);
            let marker = marked.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            marker.into_iter().chain(bytes.iter().copied()).collect()
        })
        .map(|word: Vec<u8>| {
            if word.len() < MAX_TOKEN_BYTES {
                word
            } else {
                Vec::new()
            }
        })
        .collect();
    let first_end = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, first_end), &words);
    if ends.is_empty() {
        trie
    } else {
        trie.with_eos_tokens(&ends)
    }
}

impl TokenizerEnv for TokenEnv {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Forced bytes may start or end within a character. They are spelled by the longest tokens
    /// that fit, as is any text that the tokenizer does not reproduce exactly.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let mut ids = Vec::new();
        for chunk in bytes.utf8_chunks() {
            match self.encode(chunk.valid()) {
                Some(encoded) => ids.extend(encoded),
                None => ids.extend(self.trie.greedy_tokenize(chunk.valid().as_bytes())),
            }
            ids.extend(self.trie.greedy_tokenize(chunk.invalid()));
        }
        ids
    }
}
