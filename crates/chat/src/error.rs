//! Errors of this crate.

use loquat_grammar::GrammarError;
use loquat_media::MediaError;
use loquat_text::{Blame, TextError};

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model has neither its own chat template nor a built-in one.
    #[error(
        "the model has no chat template, so it cannot chat; raw completion works: write the \
         prompt out in full and use `generate`"
    )]
    NoTemplate,

    /// The request has no message.
    #[error("`messages` is empty; a chat needs at least one message")]
    NoMessages,

    /// [`ReplyOpening::ContinueLast`](crate::ReplyOpening::ContinueLast) without an assistant
    /// message to continue.
    #[error("`messages` must end with an assistant message without tool calls to be continued")]
    NothingToContinue,

    /// A tool call in the conversation has arguments that are not a JSON object.
    #[error(
        "`messages[{message}].tool_calls[{call}].arguments` must be a JSON object as text: {source}"
    )]
    Arguments {
        /// Index in `messages`.
        message: usize,
        /// Index in the message's `tool_calls`.
        call: usize,
        /// Why the arguments do not parse.
        source: serde_json::Error,
    },

    /// The tool choice requires a call, but the request has no tools.
    #[error("`tool_choice` asks for a tool, but `tools` is empty")]
    NoTools,

    /// The tool choice names a tool that the request does not have.
    #[error("`tool_choice` names `{name}`, which `tools` does not have; it has {known}")]
    UnknownTool {
        /// The name in the tool choice.
        name: String,
        /// The names of the request's tools, for display.
        known: String,
    },

    /// A tool's name is invalid or used twice.
    #[error("`tools[{index}].name` is `{name}`, {why}")]
    ToolName {
        /// Index in `tools`.
        index: usize,
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },

    /// A tool's parameters are not the JSON schema of an object.
    #[error(
        "`tools[{index}].parameters` must be a JSON schema of an object: `\"type\": \"object\"`"
    )]
    ToolParameters {
        /// Index in `tools`.
        index: usize,
    },

    /// A template variable has a name that Loquat sets itself.
    #[error("`template_variables` sets `{name}`, which is reserved for the request")]
    ReservedVariable {
        /// The variable's name.
        name: &'static str,
    },

    /// The model or its template cannot do what a field asks for.
    #[error("this model does not support `{field}`: {why}")]
    Unsupported {
        /// The request's field.
        field: &'static str,
        /// Why it is not supported.
        why: String,
    },

    /// The model does not read images or videos.
    #[error("`{field}` is {kind}, and {why}")]
    MediaUnsupported {
        /// The field, or the place among the messages.
        field: String,
        /// `an image` or `a video`.
        kind: &'static str,
        /// What the model lacks.
        why: String,
    },

    /// An image or a video cannot be used.
    #[error("`{field}`: {source}")]
    Media {
        /// The field, or the place among the messages.
        field: String,
        /// What is wrong with it.
        source: MediaError,
    },

    /// An image or a video takes more positions than the model's context or its memory for media
    /// has.
    #[error(
        "`{field}`: the prompt's media take {positions} tokens up to here, and there is room for {room}; \
         send smaller or fewer images, or a shorter video"
    )]
    MediaTooLong {
        /// The field, or the place among the messages.
        field: String,
        /// Of the media and those before it.
        positions: usize,
        /// How many there are.
        room: usize,
    },

    /// A constraint does not compile.
    #[error("`{field}`: {source}")]
    Grammar {
        /// The request's field.
        field: String,
        /// What is wrong with the constraint.
        source: GrammarError,
    },

    /// The tokenizer or the chat template failed.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl ChatError {
    /// Whether the request or the system is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Text(error) => error.blame(),
            Self::Grammar { source, .. } if !source.is_request_fault() => Blame::System,
            Self::Media { source, .. } if source.blame() == loquat_media::Blame::Model => {
                Blame::System
            }
            _ => Blame::Request,
        }
    }
}
