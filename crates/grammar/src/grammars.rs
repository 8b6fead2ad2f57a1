//! One model's grammars: compiled once, shared by requests.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::Matcher;
use loquat_engine::RequestConstraint;
use loquat_text::Tokenizer;

use crate::cache::Cache;
use crate::compile::Compiler;
use crate::constraint::GrammarConstraint;
use crate::{GrammarError, GrammarSource, Result};

/// A compiled grammar takes from tens of kilobytes to a few megabytes.
const CACHE_SIZE: usize = 64;

/// Compiles grammars for one model and caches the recent ones. Clones share the cache.
#[derive(Clone)]
pub struct Grammars {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Tokenizer,
    vocab_size: usize,
    compiler: OnceLock<Result<Compiler>>,
    cache: Cache<Result<Grammar>>,
}

impl Grammars {
    /// `vocab_size` is the width of the model's logits, which may exceed the tokenizer's
    /// vocabulary. Work starts with the first [`compile`](Self::compile).
    pub fn new(tokenizer: Tokenizer, vocab_size: usize) -> Self {
        let inner = Inner {
            tokenizer,
            vocab_size,
            compiler: OnceLock::new(),
            cache: Cache::new(CACHE_SIZE),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Compiles on the caller's thread, within limits. A recently compiled source is cached.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar> {
        self.inner.cache.get_or_make(source.key(), || {
            let matcher = self.compiler()?.compile(source)?;
            Ok(Grammar {
                start: Arc::new(matcher),
            })
        })
    }

    fn compiler(&self) -> Result<&Compiler> {
        let inner = &*self.inner;
        let made = inner
            .compiler
            .get_or_init(|| Compiler::new(inner.tokenizer.clone(), inner.vocab_size));
        made.as_ref().map_err(GrammarError::clone)
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammars")
    }
}

/// A compiled grammar; cloning shares it.
#[derive(Clone)]
pub struct Grammar {
    start: Arc<Matcher>,
}

impl Grammar {
    /// A request's own constraint, at the start of the grammar.
    pub fn constraint(&self) -> RequestConstraint {
        RequestConstraint::new(GrammarConstraint::new(self.start.deep_clone()))
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}
