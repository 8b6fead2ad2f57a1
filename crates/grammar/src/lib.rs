//! What a model must keep to, as a constraint on its next token: JSON schemas, regular
//! expressions, choices, and grammars in Lark's and llama.cpp's notation.
//!
//! `llguidance` does the parsing; this crate decides what reaches it. A schema is checked against
//! a table of keywords first ([`check_schema`]), so that nothing is silently ignored, and written
//! anew with only what is honoured. JSON is constrained to one spacing, `{"a": 1, "b": [2, 3]}`:
//! it is how the models' training data was mostly printed, and a small model that may write
//! white space anywhere tends to write nothing else.
//!
//! What it leaves to others: when to compute a mask and what to do with it (`engine`), which
//! grammar a request means (`chat`), how tool calls are written (`text`).

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
pub use source::GrammarSource;

/// What every fallible function here returns.
pub type Result<T, E = GrammarError> = std::result::Result<T, E>;
