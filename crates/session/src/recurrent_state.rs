//! Where the layers' recurrent states are in a sequence's state, for backends that keep it in one
//! buffer of `f32`.

use std::ops::Range;

use loquat_spec::{Mixer, ModelSpec};

/// The offset of each layer's recurrent state in a buffer.
#[derive(Debug, Clone)]
pub struct StateLayout {
    layers: Vec<Option<LayerState>>,
    len: usize,
}

/// A layer's part of a state.
#[derive(Debug, Clone)]
pub struct LayerState {
    /// The convolutions' last inputs.
    pub conv: Range<usize>,
    /// The states of the heads, one after another.
    pub memory: Range<usize>,
}

impl StateLayout {
    /// Convolutions' inputs first, then heads, layer after layer.
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

    /// Whether the model has no recurrent layers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of one state.
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
