//! The cost limit of one rendering: templates are untrusted, and some would never end.
//!
//! Everything is paid for before it is done, so that neither time nor memory exceeds the budget.
//! Costs are counted, not measured: the same rendering always costs the same.

use std::cell::Cell;

use super::error::{FaultKind, Result, TemplateFault};

/// Evaluation steps. One takes up to 0.1 µs, so that a rendering ends after about a second. Long
/// real renderings use some hundred thousand.
const STEPS: u64 = 10_000_000;
/// Bytes of the conversation that buy one more step.
const INPUT_PER_STEP: u64 = 4;
/// Bytes written or copied in all, beside `PER_INPUT` for each byte of the conversation: a template
/// that builds its text piece by piece copies it once per message.
const BYTES: u64 = 256 << 20;
const PER_INPUT: u64 = 64;
/// The most bytes that any conversation buys.
const MAX_BYTES: u64 = 1 << 30;
/// Bytes of text that count as one step when they are read or copied.
const BYTES_PER_STEP: usize = 64;
/// Bytes of text that count as one step when each character is examined.
const SCANNED_PER_STEP: usize = 8;
/// Nested evaluations, including macro calls. Each uses stack.
const DEPTH: u32 = 300;
/// Lists in lists, which are printed, compared and freed by recursion.
pub(super) const VALUE_DEPTH: u32 = 200;

/// The size of a small heap allocation: a short text, a bound method, the head of a list.
pub(super) const SMALL: usize = 96;

/// The remaining budget of one rendering.
pub(super) struct Budget {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<u32>,
}

impl Budget {
    /// The budget for a conversation of this many bytes.
    pub fn for_input(bytes: usize) -> Self {
        let input = bytes as u64;
        let bytes = BYTES.saturating_add(input.saturating_mul(PER_INPUT));
        Self {
            steps: Cell::new(STEPS.saturating_add(input / INPUT_PER_STEP)),
            bytes: Cell::new(bytes.min(MAX_BYTES)),
            depth: Cell::new(0),
        }
    }

    /// Pays for `count` steps of evaluation.
    pub fn steps(&self, count: usize) -> Result<()> {
        spend(&self.steps, count, "the template does not end")
    }

    /// Pays for text or list items before they are allocated.
    pub fn bytes(&self, count: usize) -> Result<()> {
        spend(&self.bytes, count, "the template makes too much text")?;
        self.reads(count)
    }

    /// Pays for `count` values of this size, each with `extra` bytes elsewhere.
    pub fn items<T>(&self, count: usize, extra: usize) -> Result<()> {
        self.bytes(count.saturating_mul(size_of::<T>() + extra))
    }

    /// Pays for reading text, which is much cheaper than evaluating.
    pub fn reads(&self, bytes: usize) -> Result<()> {
        self.steps(bytes / BYTES_PER_STEP)
    }

    /// Pays for examining every character of a text.
    pub fn scans(&self, bytes: usize) -> Result<()> {
        self.steps(bytes / SCANNED_PER_STEP)
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

/// A text that is paid for before it grows.
pub(super) struct PaidText<'b> {
    text: String,
    budget: &'b Budget,
}

impl<'b> PaidText<'b> {
    pub fn new(budget: &'b Budget) -> Self {
        Self {
            text: String::new(),
            budget,
        }
    }

    pub fn push_str(&mut self, text: &str) -> Result<()> {
        self.budget.bytes(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub fn push(&mut self, c: char) -> Result<()> {
        self.budget.bytes(c.len_utf8())?;
        self.text.push(c);
        Ok(())
    }

    /// Appends `text` this many times.
    pub fn push_repeated(&mut self, text: &str, count: usize) -> Result<()> {
        self.budget.bytes(text.len().saturating_mul(count))?;
        for _ in 0..count {
            self.text.push_str(text);
        }
        Ok(())
    }

    /// Removes the last character.
    pub fn pop(&mut self) {
        self.text.pop();
    }

    pub fn finish(self) -> String {
        self.text
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
        None => {
            // Nothing cheaper may follow what was refused.
            purse.set(0);
            limit(reason)
        }
    }
}
