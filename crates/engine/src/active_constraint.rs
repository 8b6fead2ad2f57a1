//! A sequence's constraint between its tokens: what is forced next, and what may be chosen.

use std::collections::VecDeque;

use crate::{
    AllowedTokens, Constraint, ConstraintError, EngineError, RequestConstraint, TokenMask,
};

#[derive(Debug)]
pub(crate) struct ActiveConstraint {
    constraint: RequestConstraint,
    /// Come next, in this order.
    forced: VecDeque<u32>,
    /// Whether the constraint said what it forces since the last token.
    forced_known: bool,
    mask: TokenMask,
    /// What was found out for the next token.
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

    /// Finds out what the next token may be, which takes long enough to be worth doing while
    /// the step runs.
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

    /// Looking ahead came to nothing.
    pub fn fail(&mut self, why: EngineError) {
        self.found = Some(Err(why));
    }

    /// The next token where there is no choice.
    pub fn next_forced(&mut self) -> Option<u32> {
        self.forced.pop_front()
    }

    /// What the next token may be; `None` for anything.
    pub fn allowed(&self) -> Result<Option<&TokenMask>, EngineError> {
        match &self.found {
            Some(Ok(AllowedTokens::All)) => Ok(None),
            Some(Ok(AllowedTokens::Masked)) => Ok(Some(&self.mask)),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ConstraintError::MaskMissing.into()),
        }
    }

    /// A token stands.
    pub fn accept(&mut self, token: u32) -> Result<(), EngineError> {
        self.found = None;
        self.forced_known = false;
        Ok(self.constraint.accept(token)?)
    }

    /// Finds out what is forced, unless that is known.
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
