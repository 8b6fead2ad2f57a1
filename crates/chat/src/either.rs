//! One of two: a tool call or an answer, whichever the model begins.

use loquat_engine::{Allowed, Constrained, Constraint, TokenMask};

#[derive(Debug, Clone)]
pub(crate) struct Either {
    branches: Vec<Branch>,
    /// A branch that was whole was ended.
    ended: bool,
}

#[derive(Debug, Clone)]
struct Branch {
    rules: Constrained,
    mask: TokenMask,
    found: Allowed,
}

impl Either {
    pub fn new(one: Constrained, other: Constrained) -> Self {
        let branch = |rules| Branch {
            rules,
            mask: TokenMask::default(),
            found: Allowed::All,
        };
        Self {
            branches: vec![branch(one), branch(other)],
            ended: false,
        }
    }
}

impl Branch {
    fn look(&mut self, vocab_size: usize) -> Result<(), String> {
        self.mask = TokenMask::none(vocab_size);
        self.found = self.rules.allowed(&mut self.mask)?;
        Ok(())
    }

    fn admits(&self, token: u32) -> bool {
        self.found == Allowed::All || self.mask.contains(token)
    }
}

impl Constraint for Either {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        if let [only] = self.branches.as_mut_slice() {
            return only.rules.allowed(mask);
        }
        let mut found = Allowed::Masked;
        for branch in &mut self.branches {
            branch.look(mask.vocab_size())?;
            match branch.found {
                Allowed::All => found = Allowed::All,
                Allowed::Masked => mask.merge(&branch.mask),
            }
        }
        Ok(found)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.branches.len() > 1 {
            self.branches.retain(|branch| branch.admits(token));
            // Nothing but an end can follow what is whole.
            let is_whole = |branch: &Branch| branch.rules.is_complete();
            if self.branches.iter().any(is_whole) {
                self.ended = true;
                return Ok(());
            }
        }
        for branch in &mut self.branches {
            branch.rules.accept(token)?;
        }
        Ok(())
    }

    /// Nothing is forced while there is a choice.
    fn forced(&mut self) -> Result<Vec<u32>, String> {
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
    fn the_model_picks_by_beginning_one() {
        let either = || {
            let script = |text| Constrained::new(Script::new(text));
            Either::new(script("call(1)"), script("cab"))
        };
        let cases = [
            ("cal", Ok("cal[l(1)]")),
            ("cab", Ok("cab")),
            ("ca", Ok("ca")),
            ("d", Err("`d` is forbidden")),
            ("cax", Err("`x` is forbidden")),
        ];
        for (wanted, said) in cases {
            let said = said.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(drive(either(), wanted), said, "{wanted}");
        }
    }

    #[test]
    fn what_is_whole_may_end_though_the_other_could_go_on() {
        let script = |text| Constrained::new(Script::new(text));
        let end = tokenizer().eos_ids()[0];
        let mut either = Either::new(script("ca"), script("cab"));
        for token in tokens("ca") {
            let mut mask = TokenMask::none(tokenizer().vocab_size());
            either.allowed(&mut mask).expect("a mask");
            either.accept(token).expect("allowed");
        }
        assert!(!either.is_complete(), "it may go on");
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        either.allowed(&mut mask).expect("a mask");
        assert!(mask.contains(end) && mask.contains(tokens("b")[0]));
        either.accept(end).expect("an end");
        assert!(either.is_complete());
    }
}
