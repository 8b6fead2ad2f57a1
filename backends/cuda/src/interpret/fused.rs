//! Operations of the fast path.

use super::{Launch, Result};
use crate::fused::FusedOp;

impl Launch<'_> {
    pub(super) fn fused(&mut self, op: &FusedOp) -> Result<()> {
        Err(self.access.invalid(op.name(), "it is not interpreted yet"))
    }
}
