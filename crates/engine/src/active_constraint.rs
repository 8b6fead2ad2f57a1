//! A running sequence's constraint: its forced tokens and the mask for the next token.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::panic_message;
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
    /// Forks after each draft, in order.
    ahead: VecDeque<ForkAhead>,
}

/// A constraint as it is after a draft, if that turns out right.
#[derive(Debug)]
struct ForkAhead {
    draft: u32,
    constraint: ActiveConstraint,
}

impl ActiveConstraint {
    pub fn new(constraint: RequestConstraint) -> Self {
        Self {
            constraint,
            forced: VecDeque::new(),
            forced_known: false,
            mask: TokenMask::default(),
            found: None,
            ahead: VecDeque::new(),
        }
    }

    /// Computes the masks for the next token and for those after its drafts. What fails, fails when
    /// the mask is used.
    pub fn compute_masks(&mut self, vocab_size: usize) {
        self.compute_mask_guarded(vocab_size);
        for fork in &mut self.ahead {
            if !fork.constraint.is_complete() {
                fork.constraint.compute_mask_guarded(vocab_size);
            }
        }
    }

    fn compute_mask_guarded(&mut self, vocab_size: usize) {
        let computed = catch_unwind(AssertUnwindSafe(|| self.compute_mask(vocab_size)));
        let computed = computed.unwrap_or_else(|panic| {
            Err(EngineError::Panicked {
                doing: "constraining",
                message: panic_message(&*panic),
            })
        });
        if let Err(error) = computed {
            self.found = Some(Err(error));
        }
    }

    /// Computes the mask for the next token. Slow enough to be worth running during the step.
    fn compute_mask(&mut self, vocab_size: usize) -> Result<(), EngineError> {
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

    /// Forks the constraint along drafts, which are cut before the first that is not allowed.
    /// Tokens that are forced replace those that are not.
    pub fn look_ahead(&mut self, drafts: &mut Vec<u32>) {
        self.ahead.clear();
        let mut start = self.fork();
        for at in 0..drafts.len() {
            let last = self.ahead.back_mut().map(|fork| &mut fork.constraint);
            match last.unwrap_or(&mut start).after(drafts[at]) {
                Some(fork) => {
                    drafts[at] = fork.draft;
                    self.ahead.push_back(fork);
                }
                None => return drafts.truncate(at),
            }
        }
    }

    /// The constraint after a draft, or after the token that is forced instead.
    fn after(&mut self, draft: u32) -> Option<ForkAhead> {
        if self.is_complete() || self.compute_forced().is_err() {
            return None;
        }
        let mut constraint = self.fork();
        let draft = constraint.next_forced().unwrap_or(draft);
        constraint.accept(draft).ok()?;
        Some(ForkAhead { draft, constraint })
    }

    fn fork(&self) -> Self {
        Self {
            forced: self.forced.clone(),
            forced_known: self.forced_known,
            ..Self::new(self.constraint.clone())
        }
    }

    /// Drops the forks.
    pub fn forget_ahead(&mut self) {
        self.ahead.clear();
    }

    /// The forced tokens that are known.
    pub fn forced_ahead(&self) -> impl Iterator<Item = u32> {
        self.forced.iter().copied()
    }

    /// Whether the next token can be chosen now.
    pub fn is_ready(&self) -> bool {
        !self.forced.is_empty() || self.found.is_some()
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
        match self.ahead.pop_front() {
            Some(fork) if fork.draft == token => {
                let ahead = std::mem::take(&mut self.ahead);
                *self = Self {
                    ahead,
                    ..fork.constraint
                };
                return Ok(());
            }
            _ => self.ahead.clear(),
        }
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
