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
    /// A strict tool has a schema that the model's call format cannot enforce.
    #[error(
        "this model's call format cannot enforce `{keyword}` in the schema of tool `{tool}`; \
         remove the keyword or `strict`"
    )]
    ToolSchema {
        /// The tool's name.
        tool: String,
        /// The schema's keyword.
        keyword: String,
    },

    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A file is not JSON.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why it does not parse.
        source: serde_json::Error,
    },

    /// The tokenizer's definition is invalid or of an unsupported kind.
    #[error("{origin} is not a supported tokenizer: {source}")]
    Tokenizer {
        /// The file or field it comes from.
        origin: String,
        /// The library's error.
        source: LibraryError,
    },

    /// A field that the tokenizer needs is missing.
    #[error("`{field}` is missing; a tokenizer cannot be built without it")]
    MissingField {
        /// The field's name.
        field: String,
    },

    /// A field has an invalid value.
    #[error("`{field}` is {found}; it must be {wanted}")]
    BadField {
        /// The field's name, with its file.
        field: String,
        /// Its value, for display.
        found: String,
        /// What it must be.
        wanted: String,
    },

    /// A GGUF file names a tokenizer model that is not supported.
    #[error("tokenizer model `{name}` is not supported; supported: {known}")]
    UnknownTokenizerModel {
        /// The name.
        name: String,
        /// Supported names, for display.
        known: String,
    },

    /// A GGUF file names a pre-tokenizer that is not known.
    #[error("`{name}` is not a known pre-tokenizer; known: {known}")]
    UnknownPreTokenizer {
        /// The name.
        name: String,
        /// Known names, for display.
        known: String,
    },

    /// `tokenizer.json` has a decoder that is not supported.
    #[error("tokenizer decoder `{kind}` is not supported; supported: {known}")]
    UnsupportedDecoder {
        /// The decoder's type.
        kind: String,
        /// Supported types, for display.
        known: String,
    },

    /// A character has no token.
    #[error("the vocabulary has no token for {character:?}, no byte tokens and no unknown token")]
    Unencodable {
        /// The character.
        character: char,
    },

    /// The tokenizer library failed.
    #[error("the text cannot be encoded: {source}")]
    Encode {
        /// The library's error.
        source: LibraryError,
    },

    /// The caller of [`Tokenizer::interruptible`](crate::Tokenizer::interruptible) stopped it.
    #[error("encoding the text was interrupted")]
    Interrupted,

    /// The vocabulary has no fill-in-the-middle tokens.
    #[error(
        "this model has no fill-in-the-middle tokens, so it cannot write text before a suffix; use \
         a code model such as Qwen2.5-Coder"
    )]
    NoFimTokens,

    /// A stop string is empty.
    #[error("stop[{index}] is empty; a stop string needs at least one character")]
    EmptyStop {
        /// Index in the list of stop strings.
        index: usize,
    },

    /// No reasoning format has this name.
    #[error("`{name}` is not a reasoning format; use one of: {known}")]
    UnknownReasoningFormat {
        /// The name.
        name: String,
        /// Known names, for display.
        known: String,
    },

    /// No tool-call format has this name.
    #[error("`{name}` is not a tool-call format; use one of: {known}")]
    UnknownCallFormat {
        /// The name.
        name: String,
        /// Known names, for display.
        known: String,
    },

    /// The model's files have no chat template.
    #[error("the model has no chat template; write its prompts in full")]
    NoChatTemplate,

    /// The chat template does not parse.
    #[error("the chat template cannot be parsed: {source}")]
    TemplateSyntax {
        /// Where and why.
        source: TemplateFault,
    },

    /// The template called `raise_exception`; the message is the template author's, unchanged.
    #[error("{message}")]
    TemplateRefused {
        /// The template's message.
        message: String,
    },

    /// Rendering the chat template failed.
    #[error("the chat template cannot render this conversation: {source}")]
    TemplateRender {
        /// Where and why.
        source: TemplateFault,
    },
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
