//! What stands between thinking and an answer, where a format has something there.

use loquat_engine::{Allowed, Constrained, Constraint, TokenMask};

/// An answer that begins with certain tokens.
#[derive(Debug, Clone)]
pub(crate) struct Prefixed {
    prefix: Vec<u32>,
    said: usize,
    answer: Constrained,
}

impl Prefixed {
    pub fn new(prefix: Vec<u32>, answer: Constrained) -> Self {
        Self {
            prefix,
            said: 0,
            answer,
        }
    }
}

impl Constraint for Prefixed {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        match self.prefix.get(self.said) {
            Some(&id) => {
                mask.allow(id);
                Ok(Allowed::Masked)
            }
            None => self.answer.allowed(mask),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        match self.prefix.get(self.said) {
            Some(_) => {
                self.said += 1;
                Ok(())
            }
            None => self.answer.accept(token),
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, String> {
        match &self.prefix[self.said..] {
            [] => self.answer.forced(),
            rest => Ok(rest.to_vec()),
        }
    }

    fn is_complete(&self) -> bool {
        self.said == self.prefix.len() && self.answer.is_complete()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
