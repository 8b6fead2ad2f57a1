//! A grammar's matcher as an engine constraint.

use llguidance::Matcher;
use llguidance::api::StopReason;
use loquat_engine::{AllowedTokens, Constraint, ConstraintError, TokenMask};

use crate::GrammarError;
use crate::error::reason;

/// Matches one answer against its grammar.
pub(crate) struct GrammarConstraint {
    matcher: Matcher,
}

impl GrammarConstraint {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher }
    }
}

impl Constraint for GrammarConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        let tokens = self.matcher.compute_mask_or_eos();
        let tokens = tokens.map_err(|error| cannot_continue(&error.to_string()))?;
        mask.copy_from_words(tokens.as_slice());
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let consumed = self.matcher.consume_token(token);
        consumed.map_err(|error| cannot_continue(&error.to_string()))
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        if self.matcher.is_stopped() {
            return Ok(Vec::new());
        }
        let tokens = self.matcher.compute_ff_tokens();
        match self.matcher.get_error() {
            None => Ok(tokens),
            Some(error) => Err(cannot_continue(&error)),
        }
    }

    fn is_complete(&self) -> bool {
        use StopReason::{EndOfSentence, NoExtension};
        let reason = self.matcher.stop_reason();
        matches!(reason, EndOfSentence | NoExtension)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self::new(self.matcher.deep_clone()))
    }
}

fn cannot_continue(error: &str) -> ConstraintError {
    ConstraintError::failed(GrammarError::Stuck {
        reason: reason(error),
    })
}
