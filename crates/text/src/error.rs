//! Errors of this crate, and whether the request or the system is at fault.

use std::path::PathBuf;

use crate::template::{FaultKind, TemplateFault};

/// An error of the tokenizer library, whose type is opaque.
pub type LibraryError = Box<dyn std::error::Error + Send + Sync>;

/// Who is at fault if an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// This request cannot be served; others can.
    Request,
    /// The model's files, this program or its load. The message may name internals; it is for
    /// logs rather than clients.
    System,
}

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error(
        "this model's call format cannot enforce `{keyword}` in the schema of tool `{tool}`; \
         remove the keyword or `strict`"
    )]
    ToolSchema { tool: String, keyword: String },

    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },

    #[error("{origin} is not a supported tokenizer: {source}")]
    Tokenizer {
        origin: String,
        source: LibraryError,
    },

    #[error("`{field}` is missing; a tokenizer cannot be built without it")]
    MissingField { field: String },

    #[error("`{field}` is {found}; it must be {wanted}")]
    BadField {
        field: String,
        found: String,
        wanted: String,
    },

    #[error("tokenizer model `{name}` is not supported; supported: {known}")]
    UnknownTokenizerModel { name: String, known: String },

    #[error("`{name}` is not a known pre-tokenizer; known: {known}")]
    UnknownPreTokenizer { name: String, known: String },

    #[error("tokenizer decoder `{kind}` is not supported; supported: {known}")]
    UnsupportedDecoder { kind: String, known: String },

    #[error("the vocabulary has no token for {character:?}, no byte tokens and no unknown token")]
    Unencodable { character: char },

    #[error("the text cannot be encoded: {source}")]
    Encode { source: LibraryError },

    #[error("encoding the text was interrupted")]
    Interrupted,

    #[error(
        "this model has no fill-in-the-middle tokens, so it cannot write text before a suffix; use \
         a code model such as Qwen2.5-Coder"
    )]
    NoFimTokens,

    #[error("stop[{index}] is empty; a stop string needs at least one character")]
    EmptyStop { index: usize },

    #[error("`{name}` is not a reasoning format; use one of: {known}")]
    UnknownReasoningFormat { name: String, known: String },

    #[error("`{name}` is not a tool-call format; use one of: {known}")]
    UnknownCallFormat { name: String, known: String },

    #[error("the model has no chat template; write its prompts in full")]
    NoChatTemplate,

    #[error("the chat template cannot be parsed: {source}")]
    TemplateSyntax { source: TemplateFault },

    /// The template called `raise_exception`; the message is the template author's, unchanged.
    #[error("{message}")]
    TemplateRefused { message: String },

    #[error("the chat template cannot render this conversation: {source}")]
    TemplateRender { source: TemplateFault },
}

impl TextError {
    /// Whether the request or the system is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Read { .. }
            | Self::Json { .. }
            | Self::Tokenizer { .. }
            | Self::MissingField { .. }
            | Self::BadField { .. }
            | Self::UnknownTokenizerModel { .. }
            | Self::UnknownPreTokenizer { .. }
            | Self::UnsupportedDecoder { .. }
            | Self::Encode { .. }
            | Self::TemplateSyntax { .. } => Blame::System,
            Self::ToolSchema { .. }
            | Self::Unencodable { .. }
            | Self::EmptyStop { .. }
            | Self::Interrupted
            | Self::NoFimTokens
            | Self::UnknownReasoningFormat { .. }
            | Self::UnknownCallFormat { .. }
            | Self::NoChatTemplate
            | Self::TemplateRefused { .. } => Blame::Request,
            Self::TemplateRender { source } => blame_of_render(source.kind),
        }
    }
}

/// Unsupported template features and endless templates are the system's fault; other failures
/// depend on the conversation.
fn blame_of_render(kind: FaultKind) -> Blame {
    match kind {
        FaultKind::Syntax | FaultKind::Unsupported | FaultKind::Limit => Blame::System,
        FaultKind::Raised | FaultKind::Failed => Blame::Request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blame_matches_the_cause() {
        let cases = [
            (TextError::EmptyStop { index: 0 }, Blame::Request),
            (
                TextError::TemplateRefused {
                    message: "no".into(),
                },
                Blame::Request,
            ),
            (
                TextError::TemplateRender {
                    source: TemplateFault::new(FaultKind::Unsupported, "no"),
                },
                Blame::System,
            ),
            (
                TextError::TemplateRender {
                    source: TemplateFault::new(FaultKind::Failed, "no"),
                },
                Blame::Request,
            ),
            (TextError::MissingField { field: "x".into() }, Blame::System),
        ];
        for (error, blame) in cases {
            assert_eq!(error.blame(), blame, "{error}");
        }
    }
}
