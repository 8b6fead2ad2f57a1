//! What may be said next: the door for grammars, schemas and budgets.

use std::fmt;

use crate::TokenMask;

/// Narrows the choice of the next token.
///
/// A constraint that fails or panics ends its own request and no other.
pub trait Constraint: Send {
    /// Says which tokens may come next. `mask` comes with every token forbidden. Called at most
    /// once before each token, while the step that it is for runs, on another thread than the
    /// engine's.
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String>;

    /// A token was chosen, or forced, and stands.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Tokens that must come next whatever the model thinks. They need no choice, so they are
    /// computed together; each is [`accept`](Self::accept)ed like any other.
    fn forced(&mut self) -> Result<Vec<u32>, String> {
        Ok(Vec::new())
    }

    /// Whether the text is whole and nothing may follow, not even an end-of-text token.
    fn is_complete(&self) -> bool {
        false
    }

    /// Another one in the same state, for another choice of the same request.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// What [`Constraint::allowed`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Every token; the mask was not touched.
    All,
    /// The tokens of the mask.
    Masked,
}

/// A request's own constraint.
pub struct Constrained(Box<dyn Constraint>);

impl Constrained {
    pub fn new(constraint: impl Constraint + 'static) -> Self {
        Self(Box::new(constraint))
    }
}

/// So that one constraint can be made of others.
impl Constraint for Constrained {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        self.0.allowed(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, String> {
        self.0.forced()
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        self.0.fork()
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
