//! Recurrent state: buffers that sequences hold beside their pages, shared until written.

use std::ops::Range;

use loquat_session::SessionError;
use loquat_spec::{Mixer, ModelSpec};

use crate::shared::PagePtr;

/// Where each layer's recurrent state lies inside a buffer.
#[derive(Clone)]
pub struct StateLayout {
    layers: Vec<Option<LayerState>>,
    len: usize,
}

#[derive(Clone)]
pub struct LayerState {
    /// The convolutions' last inputs.
    pub conv: Range<usize>,
    /// The heads' memories, one after another.
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

    /// Values of one state; 0 where the model has no recurrent layer.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.len as u64 * 4
    }

    /// The state of a layer that has one.
    pub fn layer(&self, index: usize) -> LayerState {
        let nothing = LayerState {
            conv: 0..0,
            memory: 0..0,
        };
        self.layers[index].clone().unwrap_or(nothing)
    }
}

/// Names a buffer of the pool; whoever keeps one counts as a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateId(u32);

impl StateId {
    /// Below [`StatePool::allocated`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All state buffers of a session, allocated when first used and kept for reuse.
pub struct StatePool {
    len: usize,
    capacity: usize,
    states: Vec<State>,
    free: Vec<StateId>,
}

struct State {
    data: PagePtr<f32>,
    holders: u32,
}

impl StatePool {
    pub fn new(len: usize, capacity: usize) -> Self {
        Self {
            len,
            capacity,
            states: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Buffers that were ever needed at once.
    pub fn allocated(&self) -> usize {
        self.states.len()
    }

    pub fn in_use(&self) -> usize {
        self.states.len() - self.free.len()
    }

    pub fn available(&self) -> usize {
        self.capacity - self.in_use()
    }

    /// A buffer for its taker alone; what it holds is what the last holder left.
    pub fn take(&mut self) -> Result<StateId, SessionError> {
        if self.available() == 0 {
            return Err(SessionError::StatesExhausted { max: self.capacity });
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.states.push(State {
                data: PagePtr::allocate(self.len),
                holders: 0,
            });
            StateId(self.states.len() as u32 - 1)
        });
        self.states[id.index()].holders = 1;
        Ok(id)
    }

    pub fn hold(&mut self, id: StateId) {
        self.states[id.index()].holders += 1;
    }

    pub fn drop_hold(&mut self, id: StateId) {
        let holders = &mut self.states[id.index()].holders;
        *holders -= 1;
        if *holders == 0 {
            self.free.push(id);
        }
    }

    pub fn data(&self, id: StateId) -> PagePtr<f32> {
        self.states[id.index()].data
    }
}

impl Drop for StatePool {
    fn drop(&mut self) {
        for state in self.states.drain(..) {
            // SAFETY: pointers to states are used only inside a step, which borrows the pool.
            unsafe { state.data.free() };
        }
    }
}
