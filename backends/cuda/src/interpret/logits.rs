//! After the head.

use super::{Launch, Result, at, vector};
use crate::ops::{FinishLogits, Largest, NOT_A_NUMBER};

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
            let mut best = 0;
            for (token, logit) in logits.iter().enumerate() {
                if *logit > logits[best] {
                    best = token;
                }
            }
            let found = if logits.iter().any(|logit| logit.is_nan()) {
                NOT_A_NUMBER
            } else {
                best as u32
            };
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
