//! A request's own code can end that request and nothing else.

use super::harness::{Harness, alone, even_steps, greedy, sampled};
use crate::{
    Allowed, Constrained, Constraint, ConstraintError, EngineError, EngineOptions, GenerateRequest,
    TokenMask,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    FailsToMask,
    FailsToAccept,
    PanicsInMask,
    PanicsInAccept,
    ForbidsAll,
    FailsToForce,
    PanicsInForce,
}

/// Does nothing for a few tokens, then makes trouble.
#[derive(Clone, Copy)]
struct Rogue {
    trouble: Trouble,
    left: usize,
}

impl Constraint for Rogue {
    fn allowed(&mut self, _mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        match self.trouble {
            _ if self.left > 0 => Ok(Allowed::All),
            Trouble::FailsToMask => Err(ConstraintError::failed("no grammar")),
            Trouble::PanicsInMask => panic!("a bug in the mask"),
            Trouble::ForbidsAll => Ok(Allowed::Masked),
            _ => Ok(Allowed::All),
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.trouble {
            _ if self.left > 0 => Ok(Vec::new()),
            Trouble::FailsToForce => Err(ConstraintError::failed("no force")),
            Trouble::PanicsInForce => panic!("a bug in forcing"),
            _ => Ok(Vec::new()),
        }
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        match self.trouble {
            Trouble::PanicsInAccept => panic!("a bug in accepting"),
            _ => Err(ConstraintError::failed("not a word")),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

#[test]
fn a_rogue_constraint_ends_its_own_request_only() {
    let cases = [
        Trouble::FailsToMask,
        Trouble::FailsToAccept,
        Trouble::PanicsInMask,
        Trouble::PanicsInAccept,
        Trouble::ForbidsAll,
        Trouble::FailsToForce,
        Trouble::PanicsInForce,
    ];
    for trouble in cases {
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        let before = harness.submit(sampled(&[1], 20, 1));
        let rogue = harness.submit(GenerateRequest {
            constraint: Some(Constrained::new(Rogue { trouble, left: 3 })),
            ..greedy(&[2], 20)
        });
        let after = harness.submit(greedy(&[3], 20));
        harness.finish_all();

        let rogue = &harness.readers[rogue];
        let expected = match trouble {
            Trouble::FailsToMask => ConstraintError::failed("no grammar").into(),
            Trouble::FailsToAccept => ConstraintError::failed("not a word").into(),
            Trouble::PanicsInMask => EngineError::Panicked {
                doing: "constraining",
                message: "a bug in the mask".into(),
            },
            Trouble::FailsToForce => ConstraintError::failed("no force").into(),
            Trouble::PanicsInForce => EngineError::Panicked {
                doing: "settling",
                message: "a bug in forcing".into(),
            },
            Trouble::PanicsInAccept => EngineError::Panicked {
                doing: "settling",
                message: "a bug in accepting".into(),
            },
            Trouble::ForbidsAll => ConstraintError::NoToken.into(),
        };
        assert_eq!(*rogue.error(), expected);
        // What panics while a token is settled takes that token with it.
        let said = 3 - usize::from(trouble == Trouble::PanicsInForce);
        assert_eq!(rogue.ids(), alone(greedy(&[2], 20))[..said], "{trouble:?}");
        let readers = &harness.readers;
        assert_eq!(readers[before].ids(), alone(sampled(&[1], 20, 1)));
        assert_eq!(readers[after].ids(), alone(greedy(&[3], 20)));
        let totals = harness.engine.stats().totals;
        assert_eq!((totals.failed, totals.finished), (1, 2), "{trouble:?}");
        harness.assert_empty();
    }
}

#[test]
fn choices_bring_a_constraint_each() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    let trouble = Trouble::FailsToAccept;
    let request = GenerateRequest {
        constraint: Some(Constrained::new(Rogue { trouble, left: 3 })),
        ..sampled(&[2], 20, 1)
    };
    let choices = harness.submit_choices(request, 3);
    harness.finish_all();
    for choice in choices {
        let reader = &harness.readers[choice];
        assert_eq!(reader.tokens.len(), 3, "its own count");
        assert!(matches!(reader.error(), EngineError::Constraint(_)));
    }
}
