//! A sequence's constraint between its tokens: what is forced next, and what may be chosen.

use std::collections::VecDeque;

use crate::{Allowed, Constrained, Constraint, ConstraintError, EngineError, TokenMask};

#[derive(Debug)]
pub(crate) struct Guide {
    constraint: Constrained,
    /// Come next, in this order.
    forced: VecDeque<u32>,
    /// Whether the constraint said what it forces since the last token.
    asked: bool,
    mask: TokenMask,
    /// What was found out for the next token.
    found: Option<Result<Allowed, EngineError>>,
}

impl Guide {
    pub fn new(constraint: Constrained) -> Self {
        Self {
            constraint,
            forced: VecDeque::new(),
            asked: false,
            mask: TokenMask::default(),
            found: None,
        }
    }

    /// Finds out what the next token may be, which takes long enough to be worth doing while
    /// the step runs.
    pub fn look_ahead(&mut self, vocab_size: usize) -> Result<(), EngineError> {
        self.ask()?;
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
    pub fn give_up(&mut self, why: EngineError) {
        self.found = Some(Err(why));
    }

    /// The next token where there is no choice.
    pub fn next_forced(&mut self) -> Option<u32> {
        self.forced.pop_front()
    }

    /// What the next token may be; `None` for anything.
    pub fn allowed(&self) -> Result<Option<&TokenMask>, EngineError> {
        match &self.found {
            Some(Ok(Allowed::All)) => Ok(None),
            Some(Ok(Allowed::Masked)) => Ok(Some(&self.mask)),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ConstraintError::MaskMissing.into()),
        }
    }

    /// A token stands.
    pub fn accept(&mut self, token: u32) -> Result<(), EngineError> {
        self.found = None;
        self.asked = false;
        Ok(self.constraint.accept(token)?)
    }

    /// Finds out what is forced, unless that is known.
    pub fn ask(&mut self) -> Result<(), EngineError> {
        if self.forced.is_empty() && !self.asked {
            self.forced = self.constraint.forced()?.into();
            self.asked = true;
        }
        Ok(())
    }

    pub fn is_complete(&self) -> bool {
        self.constraint.is_complete()
    }
}
