//! Constraints on the next token, such as grammars and schemas.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::TokenMask;

/// Why a constraint cannot continue.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConstraintError {
    /// The constraint forbids every token.
    #[error("it leaves no token to choose")]
    NoToken,

    /// Constraint and sampling parameters together forbid every token.
    #[error("with `bad_words`, `allowed_tokens` and `min_tokens` it leaves no token to choose")]
    AllTokensExcluded,

    /// The next token was needed before the constraint's mask was ready.
    #[error("its mask was not computed in time")]
    MaskMissing,

    /// The thread that computed its masks panicked.
    #[error("it was lost after a panic")]
    Lost,

    /// The constraint's own failure.
    #[error(transparent)]
    Failed(Arc<dyn Error + Send + Sync>),
}

impl ConstraintError {
    /// A failure of the constraint's own kind.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(cause.into().into())
    }
}

/// Failures are equal if they read the same.
impl PartialEq for ConstraintError {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Failed(one), Self::Failed(other)) => one.to_string() == other.to_string(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Limits the choice of the next token. A constraint that fails or panics ends only its own
/// request.
pub trait Constraint: Send {
    /// Computes which tokens may come next. `mask` starts with every token forbidden. Called at
    /// most once per token, during the step, on another thread than the engine's.
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError>;

    /// Accepts a chosen or forced token.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Tokens that must come next whatever the model predicts. They are computed together; each is
    /// [`accept`](Self::accept)ed like any other.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(Vec::new())
    }

    /// Whether the text is complete and nothing may follow, not even an end-of-text token.
    fn is_complete(&self) -> bool {
        false
    }

    /// A copy in the same state, for another choice of the same request.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// The result of [`Constraint::allowed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedTokens {
    /// Every token; the mask is unchanged.
    All,
    /// The tokens in the mask.
    Masked,
}

/// A request's constraint; cloning forks it.
pub struct RequestConstraint(Box<dyn Constraint>);

impl RequestConstraint {
    /// A request's constraint around a [`Constraint`].
    pub fn new(constraint: impl Constraint + 'static) -> Self {
        Self(Box::new(constraint))
    }
}

/// Lets constraints wrap each other.
impl Constraint for RequestConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        self.0.allowed(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.0.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        self.0.forced()
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        self.0.fork()
    }
}

impl Clone for RequestConstraint {
    fn clone(&self) -> Self {
        Self(self.0.fork())
    }
}

impl fmt::Debug for RequestConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constrained")
    }
}
