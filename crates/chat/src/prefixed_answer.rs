//! The fixed text that some formats have between reasoning and an answer.

use loquat_engine::{AllowedTokens, Constraint, ConstraintError, RequestConstraint, TokenMask};

/// Forces the prefix, then applies the answer's constraint.
#[derive(Debug, Clone)]
pub(crate) struct PrefixedAnswer {
    prefix: Vec<u32>,
    written: usize,
    answer: RequestConstraint,
}

impl PrefixedAnswer {
    pub fn new(prefix: Vec<u32>, answer: RequestConstraint) -> Self {
        Self {
            prefix,
            written: 0,
            answer,
        }
    }
}

impl Constraint for PrefixedAnswer {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        match self.prefix.get(self.written) {
            Some(&id) => {
                mask.allow(id);
                Ok(AllowedTokens::Masked)
            }
            None => self.answer.allowed(mask),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.prefix.get(self.written) {
            Some(_) => {
                self.written += 1;
                Ok(())
            }
            None => self.answer.accept(token),
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match &self.prefix[self.written..] {
            [] => self.answer.forced(),
            rest => Ok(rest.to_vec()),
        }
    }

    fn is_complete(&self) -> bool {
        self.written == self.prefix.len() && self.answer.is_complete()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
