//! Lets the model choose between a tool call and an answer by starting one.

use loquat_engine::{AllowedTokens, Constraint, ConstraintError, RequestConstraint, TokenMask};

#[derive(Debug, Clone)]
pub(crate) struct CallOrAnswer {
    branches: Vec<Branch>,
    /// The model ended a complete branch.
    ended: bool,
}

#[derive(Debug, Clone)]
struct Branch {
    rules: RequestConstraint,
    mask: TokenMask,
    allowed: AllowedTokens,
}

impl CallOrAnswer {
    pub fn new(calls: RequestConstraint, answer: RequestConstraint) -> Self {
        let branch = |rules| Branch {
            rules,
            mask: TokenMask::default(),
            allowed: AllowedTokens::All,
        };
        Self {
            branches: vec![branch(calls), branch(answer)],
            ended: false,
        }
    }
}

impl Branch {
    fn compute_mask(&mut self, vocab_size: usize) -> Result<(), ConstraintError> {
        self.mask = TokenMask::none(vocab_size);
        self.allowed = self.rules.allowed(&mut self.mask)?;
        Ok(())
    }

    fn admits(&self, token: u32) -> bool {
        self.allowed == AllowedTokens::All || self.mask.contains(token)
    }
}

impl Constraint for CallOrAnswer {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        if let [only] = self.branches.as_mut_slice() {
            return only.rules.allowed(mask);
        }
        let mut allowed = AllowedTokens::Masked;
        for branch in &mut self.branches {
            branch.compute_mask(mask.vocab_size())?;
            match branch.allowed {
                AllowedTokens::All => allowed = AllowedTokens::All,
                AllowedTokens::Masked => mask.merge(&branch.mask),
            }
        }
        Ok(allowed)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.branches.len() > 1 {
            self.branches.retain(|branch| branch.admits(token));
            // Only an end token can follow a complete branch.
            let is_complete = |branch: &Branch| branch.rules.is_complete();
            if self.branches.iter().any(is_complete) {
                self.ended = true;
                return Ok(());
            }
        }
        for branch in &mut self.branches {
            branch.rules.accept(token)?;
        }
        Ok(())
    }

    /// Forces nothing while both branches are open.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.branches.as_mut_slice() {
            [only] => only.rules.forced(),
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        let mut branches = self.branches.iter();
        self.ended || branches.all(|branch| branch.rules.is_complete())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, drive, tokenizer, tokens};

    #[test]
    fn first_tokens_choose_the_branch() {
        let both = || {
            let script = |text| RequestConstraint::new(Script::new(text));
            CallOrAnswer::new(script("call(1)"), script("cab"))
        };
        let cases = [
            ("cal", Ok("cal[l(1)]")),
            ("cab", Ok("cab")),
            ("ca", Ok("ca")),
            ("d", Err("`d` is forbidden")),
            ("cax", Err("`x` is forbidden")),
        ];
        for (wanted, expected) in cases {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(drive(both(), wanted), expected, "{wanted}");
        }
    }

    #[test]
    fn complete_branch_may_end_while_other_continues() {
        let script = |text| RequestConstraint::new(Script::new(text));
        let end = tokenizer().eos_ids()[0];
        let mut both = CallOrAnswer::new(script("ca"), script("cab"));
        for token in tokens("ca") {
            let mut mask = TokenMask::none(tokenizer().vocab_size());
            both.allowed(&mut mask).expect("a mask");
            both.accept(token).expect("allowed");
        }
        assert!(!both.is_complete(), "it may continue");
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        both.allowed(&mut mask).expect("a mask");
        assert!(mask.contains(end) && mask.contains(tokens("b")[0]));
        both.accept(end).expect("an end");
        assert!(both.is_complete());
    }
}
