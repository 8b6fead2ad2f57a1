//! A running sequence's constraint: its forced tokens and the mask for the next token.

use std::collections::VecDeque;

use crate::{
    AllowedTokens, Constraint, ConstraintError, EngineError, RequestConstraint, TokenMask,
};

#[derive(Debug)]
pub(crate) struct ActiveConstraint {
    constraint: RequestConstraint,
    /// Tokens that must come next, in order.
    forced: VecDeque<u32>,
    /// Whether `forced` is up to date.
    forced_known: bool,
    mask: TokenMask,
    /// The outcome of computing the mask.
    found: Option<Result<AllowedTokens, EngineError>>,
}

impl ActiveConstraint {
    pub fn new(constraint: RequestConstraint) -> Self {
        Self {
            constraint,
            forced: VecDeque::new(),
            forced_known: false,
            mask: TokenMask::default(),
            found: None,
        }
    }

    /// Computes the mask for the next token. Slow enough to be worth running during the step.
    pub fn constraint_worker(&mut self, vocab_size: usize) -> Result<(), EngineError> {
        self.compute_forced()?;
        if !self.forced.is_empty() || self.found.is_some() {
            return Ok(());
        }
        if self.mask.vocab_size() == vocab_size {
            self.mask.clear()
        } else {
            self.mask = TokenMask::none(vocab_size)
        }
        let allowed = self.constraint.allowed(&mut self.mask)?;
        self.found = Some(Ok(allowed));
        Ok(())
    }

    /// Records that the mask could not be computed.
    pub fn fail(&mut self, why: EngineError) {
        self.found = Some(Err(why));
    }

    /// Takes the next forced token.
    pub fn next_forced(&mut self) -> Option<u32> {
        self.forced.pop_front()
    }

    /// The mask for the next token; `None` if all tokens are allowed.
    pub fn allowed(&self) -> Result<Option<&TokenMask>, EngineError> {
        match &self.found {
            Some(Ok(AllowedTokens::All)) => Ok(None),
            Some(Ok(AllowedTokens::Masked)) => Ok(Some(&self.mask)),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ConstraintError::MaskMissing.into()),
        }
    }

    /// Advances the constraint by a token.
    pub fn accept(&mut self, token: u32) -> Result<(), EngineError> {
        self.found = None;
        self.forced_known = false;
        Ok(self.constraint.accept(token)?)
    }

    /// Asks the constraint for forced tokens, unless known.
    pub fn compute_forced(&mut self) -> Result<(), EngineError> {
        if self.forced.is_empty() && !self.forced_known {
            self.forced = self.constraint.forced()?.into();
            self.forced_known = true;
        }
        Ok(())
    }

    pub fn is_complete(&self) -> bool {
        self.constraint.is_complete()
    }
}
