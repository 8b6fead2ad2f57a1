//! Recurrent state: buffers that sequences hold in addition to their pages, shared until written.

use std::ops::Range;

use loquat_cpu_kernels::PagePtr;
use loquat_session::sequences::Slot;
use loquat_spec::{Mixer, ModelSpec};

/// The offset of each layer's recurrent state in a buffer.
#[derive(Clone)]
pub struct StateLayout {
    layers: Vec<Option<LayerState>>,
    len: usize,
}

#[derive(Clone)]
pub struct LayerState {
    /// The convolutions' last inputs.
    pub conv: Range<usize>,
    /// The states of the heads, one after another.
    pub memory: Range<usize>,
}

impl StateLayout {
    pub fn new(spec: &ModelSpec) -> Self {
        let mut layout = Self {
            layers: vec![None; spec.layers.len()],
            len: 0,
        };
        for (layer, mixer) in spec.mixers() {
            let (conv, memory) = match mixer {
                Mixer::Attention(_) | Mixer::Latent(_) => continue,
                Mixer::ShortConv(conv) => ((conv.kernel - 1) * conv.channels, 0),
                Mixer::DeltaRule(delta) => (
                    (delta.kernel - 1) * delta.conv_len(),
                    delta.value_heads * delta.key_dim * delta.value_dim,
                ),
                Mixer::Mamba2(mamba) => (
                    (mamba.kernel - 1) * mamba.conv_len(),
                    mamba.heads * mamba.head_dim * mamba.state,
                ),
            };
            let start = layout.len;
            layout.len += conv + memory;
            layout.layers[layer] = Some(LayerState {
                conv: start..start + conv,
                memory: start + conv..layout.len,
            });
        }
        layout
    }

    /// Values of one state; 0 if the model has no recurrent layers.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.len as u64 * 4
    }

    /// The state of a layer that has one.
    pub fn layer(&self, index: usize) -> LayerState {
        let empty = LayerState {
            conv: 0..0,
            memory: 0..0,
        };
        self.layers[index].clone().unwrap_or(empty)
    }
}

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
