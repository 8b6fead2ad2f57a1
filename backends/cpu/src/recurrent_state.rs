//! Recurrent state: buffers that sequences hold in addition to their pages, shared until written.

use loquat_cpu_kernels::PagePtr;
use loquat_session::sequences::Slot;

/// The state buffers of a session, allocated when first used and kept for reuse.
pub struct StateBuffers {
    len: usize,
    buffers: Vec<PagePtr<f32>>,
}

impl StateBuffers {
    pub fn new(len: usize) -> Self {
        Self {
            len,
            buffers: Vec::new(),
        }
    }

    /// Allocates the buffers up to this one.
    pub fn allocate(&mut self, state: Slot) {
        while self.buffers.len() <= state.index() {
            self.buffers.push(PagePtr::allocate(self.len));
        }
    }

    pub fn data(&self, state: Slot) -> PagePtr<f32> {
        self.buffers[state.index()]
    }
}

impl Drop for StateBuffers {
    fn drop(&mut self) {
        for buffer in self.buffers.drain(..) {
            // SAFETY: pointers to states are used only inside a step, which borrows the buffers.
            unsafe { buffer.free() };
        }
    }
}
