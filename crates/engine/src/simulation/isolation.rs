//! A request's own code can end that request and nothing else.

use super::harness::{Harness, alone, even_steps, greedy, sampled};
use crate::{
    AllowedTokens, Constraint, ConstraintError, EngineError, EngineOptions, GenerateRequest,
    RequestConstraint, TokenMask,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConstraintFault {
    FailsToMask,
    FailsToAccept,
    PanicsInMask,
    PanicsInAccept,
    ForbidsAll,
    FailsToForce,
    PanicsInForce,
}

/// Does nothing for a few tokens, then fails.
#[derive(Clone, Copy)]
struct FaultyConstraint {
    fault: ConstraintFault,
    left: usize,
}

impl Constraint for FaultyConstraint {
    fn allowed(&mut self, _mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        match self.fault {
            _ if self.left > 0 => Ok(AllowedTokens::All),
            ConstraintFault::FailsToMask => Err(ConstraintError::failed("no grammar")),
            ConstraintFault::PanicsInMask => panic!("a bug in the mask"),
            ConstraintFault::ForbidsAll => Ok(AllowedTokens::Masked),
            _ => Ok(AllowedTokens::All),
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.fault {
            _ if self.left > 0 => Ok(Vec::new()),
            ConstraintFault::FailsToForce => Err(ConstraintError::failed("no force")),
            ConstraintFault::PanicsInForce => panic!("a bug in forcing"),
            _ => Ok(Vec::new()),
        }
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        match self.fault {
            ConstraintFault::PanicsInAccept => panic!("a bug in accepting"),
            _ => Err(ConstraintError::failed("not a word")),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

#[test]
fn faulty_constraint_ends_only_its_request() {
    let cases = [
        ConstraintFault::FailsToMask,
        ConstraintFault::FailsToAccept,
        ConstraintFault::PanicsInMask,
        ConstraintFault::PanicsInAccept,
        ConstraintFault::ForbidsAll,
        ConstraintFault::FailsToForce,
        ConstraintFault::PanicsInForce,
    ];
    for fault in cases {
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        let before = harness.submit(sampled(&[1], 20, 1));
        let rogue = harness.submit(GenerateRequest {
            constraint: Some(RequestConstraint::new(FaultyConstraint { fault, left: 3 })),
            ..greedy(&[2], 20)
        });
        let after = harness.submit(greedy(&[3], 20));
        harness.finish_all();

        let rogue = &harness.readers[rogue];
        let expected = match fault {
            ConstraintFault::FailsToMask => ConstraintError::failed("no grammar").into(),
            ConstraintFault::FailsToAccept => ConstraintError::failed("not a word").into(),
            ConstraintFault::PanicsInMask => EngineError::Panicked {
                doing: "constraining",
                message: "a bug in the mask".into(),
            },
            ConstraintFault::FailsToForce => ConstraintError::failed("no force").into(),
            ConstraintFault::PanicsInForce => EngineError::Panicked {
                doing: "settling",
                message: "a bug in forcing".into(),
            },
            ConstraintFault::PanicsInAccept => EngineError::Panicked {
                doing: "settling",
                message: "a bug in accepting".into(),
            },
            ConstraintFault::ForbidsAll => ConstraintError::NoToken.into(),
        };
        assert_eq!(*rogue.error(), expected);
        // A panic while a token is being settled loses that token.
        let kept = 3 - usize::from(fault == ConstraintFault::PanicsInForce);
        assert_eq!(rogue.ids(), alone(greedy(&[2], 20))[..kept], "{fault:?}");
        let readers = &harness.readers;
        assert_eq!(readers[before].ids(), alone(sampled(&[1], 20, 1)));
        assert_eq!(readers[after].ids(), alone(greedy(&[3], 20)));
        let totals = harness.engine.stats().totals;
        assert_eq!((totals.failed, totals.finished), (1, 2), "{fault:?}");
        harness.assert_empty();
    }
}

#[test]
fn each_choice_has_its_constraint() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    let fault = ConstraintFault::FailsToAccept;
    let request = GenerateRequest {
        constraint: Some(RequestConstraint::new(FaultyConstraint { fault, left: 3 })),
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
