//! Constraints: masks are requested in time, forced tokens are computed together, and neither
//! changes the tokens.

use super::harness::{End, Harness, alone, even_steps, greedy, prompt, recurrent, sampled};
use crate::{
    AllowedTokens, Constraint, ConstraintError, EngineError, EngineOptions, FinishReason,
    GenerateRequest, Logprobs, RequestConstraint, TokenMask,
};

/// Lets every third token be chosen, from a third of the vocabulary that depends on the token
/// before, and forces a run after it.
#[derive(Debug, Clone)]
pub struct PatternConstraint {
    pub run: usize,
    /// Nothing may follow this many tokens.
    pub end: Option<usize>,
    said: Vec<u32>,
    forced: usize,
    queried: bool,
}

impl PatternConstraint {
    pub fn new(run: usize, end: Option<usize>) -> Self {
        Self {
            run,
            end,
            said: Vec::new(),
            forced: 0,
            queried: false,
        }
    }

    pub fn constrained(self) -> Option<RequestConstraint> {
        Some(RequestConstraint::new(self))
    }

    fn last(&self) -> u32 {
        self.said.last().copied().unwrap_or(0)
    }

    fn is_chosen(&self, at: usize) -> bool {
        at.is_multiple_of(self.run + 1)
    }
}

impl Constraint for PatternConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        if std::mem::replace(&mut self.queried, true) {
            return Err(ConstraintError::failed("asked twice"));
        }
        if self.last() % 5 == 4 {
            return Ok(AllowedTokens::All);
        }
        let mine = |id: &u32| id % 3 == self.last() % 3;
        (0..mask.vocab_size() as u32)
            .filter(mine)
            .for_each(|id| mask.allow(id));
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.is_chosen(self.said.len()) {
            if self.forced == 0 {
                return Err(ConstraintError::failed("a token came before it was forced"));
            }
            self.forced -= 1;
        }
        self.queried = false;
        self.said.push(token);
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        let at = self.said.len();
        if self.is_chosen(at) {
            return Ok(Vec::new());
        }
        self.forced = self.run;
        Ok((1..=self.run as u32)
            .map(|n| (self.last() + n) % 8)
            .collect())
    }

    fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.said.len() >= end)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn guided(run: usize, end: Option<usize>, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        constraint: PatternConstraint::new(run, end).constrained(),
        ..request
    }
}

#[test]
fn forced_run_takes_one_step() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    let reader = harness.submit(guided(3, None, sampled(&prompt(1, 8), 12, 5)));
    let tokens = harness.finish(reader).ids();
    assert_eq!(tokens.len(), 12);
    for run in tokens.chunks(4) {
        let expected: Vec<u32> = (1..=3).map(|n| (run[0] + n) % 8).collect();
        assert_eq!(run[1..], expected);
    }
    // The prompt, and the runs of four; the last of them is never computed.
    let times = &harness.readers[reader].times;
    let steps: Vec<usize> = [0, 4, 8]
        .map(|at| times[at].as_millis() as usize / 10)
        .into();
    assert_eq!(steps, [1, 2, 3]);
}

#[test]
fn logprobs_change_no_tokens() {
    for seed in 0..20 {
        let request = guided(2, None, sampled(&prompt(1, 8), 20, seed));
        let told = GenerateRequest {
            logprobs: Some(Logprobs::for_model(1)),
            ..request.clone()
        };
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        let reader = harness.submit(told);
        let reader = harness.finish(reader);
        assert_eq!(reader.ids(), alone(request), "seed {seed}");
        assert!(reader.tokens.iter().all(|token| token.logprob.is_some()));
    }
}

#[test]
fn complete_constraint_ends_request() {
    let cases = [
        (Some(5), 20, 5, FinishReason::Stop),
        (Some(5), 5, 5, FinishReason::Stop),
        (Some(6), 5, 5, FinishReason::Length),
        (None, 5, 5, FinishReason::Length),
    ];
    for (end, max_tokens, tokens, why) in cases {
        let mut harness = Harness::new(even_steps(), EngineOptions::default());
        let reader = harness.submit(guided(1, end, greedy(&[1], max_tokens)));
        let reader = harness.finish(reader);
        assert_eq!(reader.tokens.len(), tokens, "{end:?} {max_tokens}");
        assert!(matches!(reader.ends[0], End::Finished { reason, .. } if reason == why));
        harness.assert_empty();
    }
}

#[test]
fn stop_token_ends_forced_run() {
    let plain = guided(3, None, greedy(&[1], 12));
    let tokens = alone(plain.clone());
    let stopped = GenerateRequest {
        stop_ids: vec![tokens[2]],
        ..plain
    };
    let at = tokens
        .iter()
        .position(|token| *token == tokens[2])
        .expect("it is there");
    assert_eq!(alone(stopped), tokens[..=at]);
}

#[test]
fn long_forced_run_spans_steps() {
    for fake in [even_steps(), recurrent()] {
        let mut harness = Harness::new(
            fake,
            EngineOptions {
                step_tokens: Some(8),
                ..EngineOptions::default()
            },
        );
        let request = guided(50, None, sampled(&prompt(1, 20), 150, 3));
        let others: Vec<usize> = (2..5)
            .map(|kind| harness.submit(greedy(&prompt(kind, 30), 40)))
            .collect();
        let reader = harness.submit(request.clone());
        assert_eq!(harness.finish(reader).ids(), alone(request));
        for (kind, other) in (2..5).zip(others) {
            let expected = alone(greedy(&prompt(kind, 30), 40));
            assert_eq!(harness.finish(other).ids(), expected);
        }
        harness.assert_empty();
    }
}

#[test]
fn forbidden_token_cannot_be_forced() {
    let plain = guided(3, None, greedy(&[1], 8));
    let tokens = alone(plain.clone());
    type Change = fn(&mut GenerateRequest, &[u32]);
    let changes: [Change; 3] = [
        |request, tokens| request.sampling.bad_words = vec![vec![tokens[2]]],
        |request, tokens| request.sampling.bad_words = vec![tokens[1..3].to_vec()],
        |request, tokens| request.sampling.allowed_tokens = tokens[..2].to_vec(),
    ];
    for change in changes {
        for logprobs in [None, Some(Logprobs::for_model(0))] {
            let mut request = plain.clone();
            request.logprobs = logprobs;
            change(&mut request, &tokens);
            let mut harness = Harness::new(even_steps(), EngineOptions::default());
            let reader = harness.submit(request);
            let reader = harness.finish(reader);
            assert!(matches!(reader.error(), EngineError::Constraint(_)));
            assert_eq!(reader.ids(), tokens[..2], "earlier tokens are kept");
        }
    }
}
