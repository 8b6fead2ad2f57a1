//! What may be said next: the door for grammars and schemas.

use std::fmt;

use crate::EngineError;

/// Narrows the choice of the next token. It runs on the engine's thread, between two steps.
///
/// A constraint that fails or panics ends its own request and no other.
pub trait Constraint: Send {
    /// Makes the logits of forbidden tokens minus infinity.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// A token was chosen and stands.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Another one in the same state, for another choice of the same request.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// A request's own constraint.
pub struct Constrained(Box<dyn Constraint>);

impl Constrained {
    pub fn new(constraint: impl Constraint + 'static) -> Self {
        Self(Box::new(constraint))
    }

    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        self.0.mask(logits).map_err(EngineError::Constraint)
    }

    pub(crate) fn accept(&mut self, token: u32) -> Result<(), EngineError> {
        self.0.accept(token).map_err(EngineError::Constraint)
    }
}

impl Clone for Constrained {
    fn clone(&self) -> Self {
        Self(self.0.fork())
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constrained")
    }
}
