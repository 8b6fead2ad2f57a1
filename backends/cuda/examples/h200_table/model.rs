//! Models with random weights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_session::ModelSource;
use loquat_spec::Role;
use loquat_synthetic::Recipe;

use crate::Failure;

pub struct Model {
    pub source: ModelSource,
    /// Bytes of the matrices that every step reads: all but an embedding that is not the head.
    pub read_bytes: u64,
    /// How long it took to draw the weights.
    pub generated: Duration,
}

impl Model {
    pub fn new(name: &str) -> Result<Self, Failure> {
        let started = Instant::now();
        let recipe: Recipe = name.parse()?;
        let checkpoint = recipe.make(recipe.container(), 0)?.checkpoint()?;
        let weights = checkpoint.bind()?;
        let is_tied = weights.matrix(Role::Head).is_none();
        let read = weights
            .matrices()
            .filter(|(role, _)| is_tied || *role != Role::Embedding)
            .map(|(_, matrix)| matrix.bytes());
        let read_bytes = read.sum();
        let source = ModelSource {
            weights: Arc::new(weights),
            paths: Vec::new(),
            spec: Arc::new(checkpoint.spec),
        };
        Ok(Self {
            source,
            read_bytes,
            generated: started.elapsed(),
        })
    }
}

/// Prompts without a common prefix, the same in every run.
pub fn prompt(vocab_size: usize, len: usize, sequence: usize) -> Vec<u32> {
    let mut random = loquat_synthetic::SplitMix64::new(sequence as u64 + 1);
    (0..len).map(|_| random.below(vocab_size) as u32).collect()
}
