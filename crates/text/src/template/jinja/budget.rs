//! The cost limit of one rendering: templates are untrusted, and some would never end.

use std::cell::Cell;

use super::error::{FaultKind, Result, TemplateFault};

/// Evaluation steps, in addition to `PER_INPUT` for each byte of the conversation. Long real
/// renderings use some hundred thousand.
const STEPS: u64 = 20_000_000;
/// Bytes written or copied in all, beside `PER_INPUT` for each byte of the conversation: a template
/// that builds its text piece by piece copies it once per message.
const BYTES: u64 = 256 << 20;
const PER_INPUT: u64 = 64;
/// Bytes of text that count as one step.
const BYTES_PER_STEP: usize = 64;
/// Nested evaluations, including macro calls. Each uses stack.
const DEPTH: u32 = 300;
/// Lists in lists, which are printed, compared and freed by recursion.
pub(super) const VALUE_DEPTH: u32 = 200;

/// The remaining budget of one rendering.
pub(super) struct Budget {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<u32>,
}

impl Budget {
    /// The budget for a conversation of this many bytes.
    pub fn for_input(bytes: usize) -> Self {
        let more = (bytes as u64).saturating_mul(PER_INPUT);
        Self {
            steps: Cell::new(STEPS.saturating_add(more)),
            bytes: Cell::new(BYTES.saturating_add(more)),
            depth: Cell::new(0),
        }
    }

    /// Pays for `count` steps of evaluation.
    pub fn steps(&self, count: usize) -> Result<()> {
        spend(&self.steps, count, "the template does not end")
    }

    /// Pays for text or list items before they are allocated.
    pub fn bytes(&self, count: usize) -> Result<()> {
        spend(&self.bytes, count, "the template makes too much text")
    }

    /// Pays for reading text, which is much cheaper than evaluating.
    pub fn reads(&self, bytes: usize) -> Result<()> {
        self.steps(bytes / BYTES_PER_STEP)
    }

    /// Runs `inner` one level deeper.
    pub fn nested<T>(&self, inner: impl FnOnce() -> Result<T>) -> Result<T> {
        let depth = self.depth.get();
        if depth >= DEPTH {
            return limit("the template nests too deep");
        }
        self.depth.set(depth + 1);
        let result = inner();
        self.depth.set(depth);
        result
    }
}

pub(super) fn limit<T>(reason: &str) -> Result<T> {
    Err(TemplateFault::new(FaultKind::Limit, reason))
}

fn spend(purse: &Cell<u64>, count: usize, reason: &str) -> Result<()> {
    match purse.get().checked_sub(count as u64) {
        Some(left) => {
            purse.set(left);
            Ok(())
        }
        None => limit(reason),
    }
}
