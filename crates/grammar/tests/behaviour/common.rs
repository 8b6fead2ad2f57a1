//! Walks a constraint without a model: draws tokens from those it allows.

pub mod validate;

use std::collections::VecDeque;
use std::path::Path;

use loquat_engine::{AllowedTokens, Constraint, RequestConstraint, TokenMask};
use loquat_grammar::{Grammar, GrammarError, GrammarSource, Grammars};
use loquat_text::{Special, Tokenizer};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A byte-level tokenizer: one token a byte.
pub fn tokenizer() -> Tokenizer {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");
    Tokenizer::from_huggingface(Path::new(dir)).expect("the golden tokenizer")
}

pub fn grammars() -> Grammars {
    let tokenizer = tokenizer();
    let vocab_size = tokenizer.vocab_size();
    Grammars::new(tokenizer, vocab_size)
}

pub fn compile(source: &GrammarSource) -> Grammar {
    let compiled = grammars().compile(source);
    compiled.unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

pub fn refusal(source: &GrammarSource) -> GrammarError {
    let compiled = grammars().compile(source);
    compiled
        .err()
        .unwrap_or_else(|| panic!("{source:?} is accepted"))
}

/// Walks constraints at random.
pub struct Walker {
    tokenizer: Tokenizer,
    random: ChaCha8Rng,
    mask: TokenMask,
    /// Texts that end free text, which random choices would not find.
    exits: Vec<Vec<u32>>,
    /// The rest of the exit being written.
    plan: VecDeque<u32>,
}

impl Walker {
    pub fn new(tokenizer: Tokenizer, vocab_size: usize, seed: u64) -> Self {
        Self {
            tokenizer,
            random: ChaCha8Rng::seed_from_u64(seed),
            mask: TokenMask::none(vocab_size),
            exits: Vec::new(),
            plan: VecDeque::new(),
        }
    }

    pub fn with_exits(mut self, exits: &[&str]) -> Self {
        let tokens = |text: &&str| self.tokenizer.encode(text, Special::RENDERED);
        self.exits = exits
            .iter()
            .map(|text| tokens(text).expect("tokens"))
            .collect();
        self
    }

    pub fn bytes(seed: u64) -> Self {
        let tokenizer = tokenizer();
        let vocab_size = tokenizer.vocab_size();
        Self::new(tokenizer, vocab_size, seed)
    }

    /// Walks at most `max` tokens. Returns the text and whether the grammar considers it complete.
    pub fn walk(&mut self, constraint: &mut RequestConstraint, max: usize) -> (String, bool) {
        let ids = self.walk_ids(constraint, max);
        let complete = ids.is_some();
        let ids = ids.unwrap_or_default();
        (self.tokenizer.decode(&ids, true), complete)
    }

    /// The tokens of a complete answer, without the end token.
    pub fn walk_ids(&mut self, constraint: &mut RequestConstraint, max: usize) -> Option<Vec<u32>> {
        let mut ids = Vec::new();
        while ids.len() < max {
            if constraint.is_complete() {
                return Some(ids);
            }
            let forced = constraint.forced().expect("forced tokens");
            if forced.is_empty() {
                let id = self.draw(constraint);
                if self.tokenizer.eos_ids().contains(&id) {
                    assert!(
                        constraint.is_complete(),
                        "an end token completes the answer"
                    );
                    return Some(ids);
                }
                ids.push(id);
            }
            for id in forced {
                constraint.allowed(&mut self.mask).expect("a mask");
                assert!(self.mask.contains(id), "forced, not allowed");
                constraint.accept(id).expect("a forced token");
                ids.push(id);
            }
        }
        None
    }

    fn draw(&mut self, constraint: &mut RequestConstraint) -> u32 {
        let found = constraint.allowed(&mut self.mask).expect("a mask");
        assert_eq!(found, AllowedTokens::Masked);
        let id = self.choose();
        constraint.accept(id).expect("an allowed token");
        id
    }

    /// Half of the time a token that ends a value, so that answers end.
    fn choose(&mut self) -> u32 {
        let size = self.mask.vocab_size() as u32;
        let allowed: Vec<u32> = (0..size).filter(|id| self.mask.contains(*id)).collect();
        assert!(!allowed.is_empty(), "no token is allowed");
        let is_free = allowed.len() > 100 && self.plan.is_empty() && !self.exits.is_empty();
        if is_free && self.random.next_u32().is_multiple_of(8) {
            let exit = self.random.next_u32() as usize % self.exits.len();
            self.plan.extend(&self.exits[exit]);
        }
        match self.plan.pop_front() {
            Some(next) if self.mask.contains(next) => return next,
            _ => self.plan.clear(),
        }
        let ends: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|id| self.ends(*id))
            .collect();
        let among = if ends.is_empty() || self.random.next_u32().is_multiple_of(2) {
            &allowed
        } else {
            &ends
        };
        among[self.random.next_u32() as usize % among.len()]
    }

    fn ends(&self, id: u32) -> bool {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        self.tokenizer.eos_ids().contains(&id) || matches!(bytes, b"\"" | b"]" | b"}" | b"<" | b")")
    }
}

/// Complete answers of `grammar`, from walks with this many seeds.
pub fn answers(grammar: &Grammar, seeds: u64, max: usize) -> Vec<String> {
    let walks = (0..seeds).map(|seed| Walker::bytes(seed).walk(&mut grammar.constraint(), max));
    walks
        .filter_map(|(text, complete)| complete.then_some(text))
        .collect()
}

/// Whether the grammar accepts `text` completely, token by token.
pub fn accepts(grammar: &Grammar, text: &str) -> bool {
    let tokenizer = tokenizer();
    let mut constraint = grammar.constraint();
    let mut mask = TokenMask::none(tokenizer.vocab_size());
    let ids = tokenizer.encode(text, Special::PLAIN).expect("tokens");
    for id in ids {
        if constraint.is_complete() {
            return false;
        }
        constraint.allowed(&mut mask).expect("a mask");
        if !mask.contains(id) {
            return false;
        }
        constraint.accept(id).expect("an allowed token");
    }
    if constraint.is_complete() {
        return true;
    }
    constraint.allowed(&mut mask).expect("a mask");
    tokenizer.eos_ids().iter().any(|end| mask.contains(*end))
}
