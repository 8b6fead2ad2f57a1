//! Constraints on a model's next token: JSON schemas, regular expressions, choices, and grammars in
//! Lark's and llama.cpp's notation.
//!
//! `llguidance` does the parsing; this crate decides what reaches it. A schema is first checked
//! against a table of keywords ([`check_schema`]), so that none is silently ignored, and rewritten
//! with supported keywords only. JSON is constrained to one spacing, `{"a": 1, "b": [2, 3]}`: most
//! training data is printed this way, and a small model that may write white space anywhere tends
//! to write nothing else.
//!
//! It does not decide when to compute a mask or how to use it (`engine`), which grammar a request
//! means (`chat`), or how tool calls are written (`text`).
#![deny(missing_docs)]

mod cache;
mod compile;
mod constraint;
mod error;
mod gbnf;
mod grammars;
mod lark;
mod schema;
mod source;
mod tokens;

pub use error::GrammarError;
pub use grammars::{Grammar, Grammars};
pub use schema::check_schema;
pub use source::{GrammarSource, Notation};

/// The result type of this crate.
pub type Result<T, E = GrammarError> = std::result::Result<T, E>;
