//! Real checkpoints: against transformers, under load, and with constraints.
//!
//! The models come through the store, from their Python packages, once.

mod batch_equivalence;
mod constrained_answers;
#[cfg(unix)]
mod restart;
mod transformers;
