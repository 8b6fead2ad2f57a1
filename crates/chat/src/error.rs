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

    #[error(transparent)]
    Text(#[from] TextError),
}

impl ChatError {
    /// Whether the request or the system is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoTemplate | Self::NoMessages => Blame::Request,
            Self::Text(error) => error.blame(),
        }
    }
}
