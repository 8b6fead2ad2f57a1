//! The source of a grammar.

use std::fmt;

use serde_json::Value;

/// A description of every answer that is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema admits.
    JsonSchema(Value),
    /// Text that matches completely, in the syntax of Rust's `regex`.
    Regex(String),
    /// Exactly one of these.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark; its start rule is `start`. A `%json` block is a
    /// schema like any other.
    Lark(String),
    /// A grammar in llama.cpp's notation; its start rule is `root`.
    Gbnf(String),
}

impl GrammarSource {
    /// Identifies a source in the cache. The order of a schema's properties is the order in the
    /// answer, so it counts here, unlike in `==`.
    pub(crate) fn key(&self) -> String {
        let text = match self {
            Self::JsonObject => String::new(),
            Self::JsonSchema(schema) => schema.to_string(),
            Self::Choice(choices) => Value::from(choices.as_slice()).to_string(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.clone(),
        };
        let tag = match self {
            Self::JsonObject => "object",
            other => other.notation().tag(),
        };
        format!("{tag}:{text}")
    }

    pub(crate) fn notation(&self) -> Notation {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => Notation::Schema,
            Self::Regex(_) => Notation::Regex,
            Self::Choice(_) => Notation::Choice,
            Self::Lark(_) => Notation::Lark,
            Self::Gbnf(_) => Notation::Gbnf,
        }
    }
}

/// How a grammar was written, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// A JSON schema.
    Schema,
    /// A regular expression.
    Regex,
    /// A list of strings.
    Choice,
    /// llguidance's dialect of Lark.
    Lark,
    /// llama.cpp's GBNF.
    Gbnf,
}

impl Notation {
    fn tag(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Regex => "regex",
            Self::Choice => "choice",
            Self::Lark => "lark",
            Self::Gbnf => "gbnf",
        }
    }
}

impl fmt::Display for Notation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Schema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Choice => "choice",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
        })
    }
}
