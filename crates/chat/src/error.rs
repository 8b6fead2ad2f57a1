//! Errors of this crate.

use loquat_grammar::GrammarError;
use loquat_text::{Blame, TextError};

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(
        "the model has no chat template, so it cannot chat; raw completion works: write the \
         prompt out in full and use `generate`"
    )]
    NoTemplate,

    #[error("`messages` is empty; a chat needs at least one message")]
    NoMessages,

    #[error("`messages` must end with an assistant message without tool calls to be continued")]
    NothingToContinue,

    #[error(
        "`messages[{message}].tool_calls[{call}].arguments` must be a JSON object as text: {source}"
    )]
    Arguments {
        message: usize,
        call: usize,
        source: serde_json::Error,
    },

    #[error("`tool_choice` asks for a tool, but `tools` is empty")]
    NoTools,

    #[error("`tool_choice` names `{name}`, which `tools` does not have; it has {known}")]
    UnknownTool { name: String, known: String },

    #[error("`tools[{index}].name` is `{name}`, {why}")]
    ToolName {
        index: usize,
        name: String,
        why: &'static str,
    },

    #[error(
        "`tools[{index}].parameters` must be a JSON schema of an object: `\"type\": \"object\"`"
    )]
    ToolParameters { index: usize },

    #[error("`template_variables` sets `{name}`, which is reserved for the request")]
    ReservedVariable { name: &'static str },

    #[error("this model does not support `{field}`: {why}")]
    Unsupported { field: &'static str, why: String },

    #[error("`{field}`: {source}")]
    Grammar { field: String, source: GrammarError },

    #[error(transparent)]
    Text(#[from] TextError),
}

impl ChatError {
    /// Whether the request or the system is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Text(error) => error.blame(),
            Self::Grammar { source, .. } if !source.is_request_fault() => Blame::System,
            _ => Blame::Request,
        }
    }
}
