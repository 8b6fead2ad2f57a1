//! Test helpers: a constraint that admits one text, and a loop that drives a constraint.

use std::path::Path;

use loquat_engine::{AllowedTokens, Constraint, ConstraintError, TokenMask};
use loquat_text::{Special, Tokenizer};

/// A byte-level tokenizer: one token a byte.
pub fn tokenizer() -> Tokenizer {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");
    Tokenizer::from_huggingface(Path::new(dir)).expect("the golden tokenizer")
}

pub fn tokens(text: &str) -> Vec<u32> {
    let ids = tokenizer().encode(text, Special::PLAIN);
    ids.expect("tokens")
}

/// Admits one text.
#[derive(Debug, Clone)]
pub struct Script {
    left: Vec<u32>,
}

impl Script {
    pub fn new(text: &str) -> Self {
        Self { left: tokens(text) }
    }
}

impl Constraint for Script {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        match self.left.first() {
            Some(next) => mask.allow(*next),
            None => mask.allow(tokenizer().eos_ids()[0]),
        }
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.left.first() == Some(&token) {
            self.left.remove(0);
            Ok(())
        } else {
            Err(ConstraintError::failed("not in the script"))
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(self.left.clone())
    }

    fn is_complete(&self) -> bool {
        self.left.is_empty()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Generates with a model that prefers `wanted`. Forced runs are bracketed in the result. Stops when
/// the constraint is complete or `wanted` is used up.
pub fn drive(mut constraint: impl Constraint, wanted: &str) -> Result<String, String> {
    let failed = |error: ConstraintError| error.to_string();
    let tokenizer = tokenizer();
    let mut wanted = tokens(wanted).into_iter();
    let mut generated = String::new();
    while !constraint.is_complete() {
        let forced = constraint.forced().map_err(failed)?;
        if !forced.is_empty() {
            for &token in &forced {
                constraint.accept(token).map_err(failed)?;
            }
            generated.push_str(&format!("[{}]", tokenizer.decode(&forced, false)));
            continue;
        }
        let Some(next) = wanted.next() else {
            break;
        };
        let mut mask = TokenMask::none(tokenizer.vocab_size());
        let allowed = constraint.allowed(&mut mask).map_err(failed)?;
        let text = tokenizer.decode(&[next], false);
        if allowed == AllowedTokens::Masked && !mask.contains(next) {
            return Err(format!("`{text}` is forbidden"));
        }
        constraint.accept(next).map_err(failed)?;
        generated.push_str(&text);
    }
    Ok(generated)
}
