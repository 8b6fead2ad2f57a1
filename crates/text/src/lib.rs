//! Text in, tokens out, and back: tokenizers, incremental detokenizing, stop strings, chat
//! templates, and the formats in which models think and call tools.
//!
//! It does not read GGUF or safetensors containers (`weights`), interpret conversations (`chat`) or
//! sample (`engine`).
#![deny(missing_docs)]

mod detokenizer;
mod end_tokens;
mod error;
mod fim;
pub mod format;
mod generation_config;
mod gguf_vocab;
mod huggingface;
mod interrupt;
mod limited_normalizer;
pub mod pretokenizer;
mod sentencepiece;
mod stop;
mod template;
mod tokenizer;
mod tokenizer_limits;
mod vocabulary;

pub use detokenizer::{Detokenizer, DetokenizerOptions};
pub use error::{Blame, TextError};
pub use fim::{FimPrompt, FimTokens};
pub use generation_config::GenerationConfig;
pub use stop::{StopMatch, StopMatcher};
pub use template::{ChatInput, ChatTemplate, Clock, TemplateFault, ThinkingSwitch, ThinkingValues};
pub use tokenizer::{Special, Tokenizer};

/// The result type of this crate.
pub type Result<T, E = TextError> = std::result::Result<T, E>;
