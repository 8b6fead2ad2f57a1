//! For tests: rules that admit one text, and a model with a will of its own.

use std::path::Path;

use loquat_engine::{Allowed, Constraint, TokenMask};
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
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        match self.left.first() {
            Some(next) => mask.allow(*next),
            None => mask.allow(tokenizer().eos_ids()[0]),
        }
        Ok(Allowed::Masked)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.left.first() == Some(&token) {
            self.left.remove(0);
            Ok(())
        } else {
            Err("not in the script".into())
        }
    }

    fn forced(&mut self) -> Result<Vec<u32>, String> {
        Ok(self.left.clone())
    }

    fn is_complete(&self) -> bool {
        self.left.is_empty()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// What is said where the model wants to say `wanted`: each forced run stands in brackets. Ends
/// with the rules or with what is wanted.
pub fn drive(mut rules: impl Constraint, wanted: &str) -> Result<String, String> {
    let tokenizer = tokenizer();
    let mut wanted = tokens(wanted).into_iter();
    let mut said = String::new();
    while !rules.is_complete() {
        let forced = rules.forced()?;
        if !forced.is_empty() {
            for &token in &forced {
                rules.accept(token)?;
            }
            said.push_str(&format!("[{}]", tokenizer.decode(&forced, false)));
            continue;
        }
        let Some(next) = wanted.next() else {
            break;
        };
        let mut mask = TokenMask::none(tokenizer.vocab_size());
        let allowed = rules.allowed(&mut mask)?;
        let text = tokenizer.decode(&[next], false);
        if allowed == Allowed::Masked && !mask.contains(next) {
            return Err(format!("`{text}` is forbidden"));
        }
        rules.accept(next)?;
        said.push_str(&text);
    }
    Ok(said)
}
