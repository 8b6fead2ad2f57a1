//! After the head.

use super::{Launch, Result, at, vector};
use crate::draw::DrawTable;
use crate::ops::{DrawTokens, FinishLogits, Largest};

impl Launch<'_> {
    pub(super) fn finish_logits(&mut self, op: &FinishLogits) -> Result<()> {
        for index in self.covered() {
            self.access.set_unit(index);
            let from = vector(op.logits, index, op.vocab);
            let mut logits = self
                .access
                .f32s_in_place("logits", from, op.vocab as usize)?;
            for logit in &mut logits {
                *logit = softcap(*logit * op.scale, op.softcap);
            }
            self.access.write("logits", from, &logits)?;
        }
        Ok(())
    }

    pub(super) fn largest(&mut self, op: &Largest) -> Result<()> {
        for index in self.covered() {
            self.access.set_unit(index);
            let from = vector(op.logits, index, op.vocab);
            let logits = self.access.f32s("logits", from, op.vocab as usize)?;
            let found = DrawTable::GREEDY.choose(&logits);
            self.access.write_u32s("out", at(op.out, index), &[found])?;
        }
        Ok(())
    }

    pub(super) fn draw_tokens(&mut self, op: &DrawTokens) -> Result<()> {
        for index in self.covered() {
            self.access.set_unit(index);
            let from = vector(op.logits, index, op.vocab);
            let logits = self.access.f32s("logits", from, op.vocab as usize)?;
            let found = self.draw_table(index)?.choose(&logits);
            self.access.write_u32s("out", at(op.out, index), &[found])?;
        }
        Ok(())
    }
}

/// `tanh(x / cap) * cap`; 0: as it is.
pub(super) fn softcap(x: f32, cap: f32) -> f32 {
    if cap == 0.0 {
        x
    } else {
        (x / cap).tanh() * cap
    }
}
