//! The storage of a sequence, layer by layer.

use loquat_spec::{KvSource, Mixer, ModelSpec};

use crate::array::Type;

/// The storage of each layer, in the spec's order.
pub struct Layout {
    pub layers: Vec<LayerLayout>,
}

#[derive(Clone, Default)]
pub struct LayerLayout {
    pub kv: Option<KvShape>,
    pub recurrent: Option<StateShape>,
}

#[derive(Clone, Copy)]
pub struct KvShape {
    pub heads: usize,
    pub key_dim: usize,
    /// 0: values are a part of the keys.
    pub value_dim: usize,
}

#[derive(Clone, Copy)]
pub struct StateShape {
    /// Earlier inputs of the convolution, and their channels.
    pub conv: [usize; 2],
    /// The number of heads and the dimensions of each state; no heads: no state.
    pub memory: Option<[usize; 3]>,
}

impl Layout {
    pub fn new(spec: &ModelSpec) -> Self {
        let mut layers = vec![LayerLayout::default(); spec.layers.len()];
        for (layer, mixer) in spec.mixers() {
            let layer = &mut layers[layer];
            match mixer {
                Mixer::Attention(a) if matches!(a.kv, KvSource::Layer(_)) => {}
                Mixer::Attention(a) => {
                    layer.kv = Some(KvShape {
                        heads: a.kv_heads,
                        key_dim: a.head_dim,
                        value_dim: a.value_dim,
                    });
                }
                Mixer::Latent(latent) => {
                    layer.kv = Some(KvShape {
                        heads: 1,
                        key_dim: latent.cached_len(),
                        value_dim: 0,
                    });
                }
                Mixer::ShortConv(conv) => {
                    layer.recurrent = Some(StateShape {
                        conv: [conv.kernel - 1, conv.channels],
                        memory: None,
                    });
                }
                Mixer::DeltaRule(delta) => {
                    layer.recurrent = Some(StateShape {
                        conv: [delta.kernel - 1, delta.conv_len()],
                        memory: Some([delta.value_heads, delta.value_dim, delta.key_dim]),
                    });
                }
                Mixer::Mamba2(mamba) => {
                    layer.recurrent = Some(StateShape {
                        conv: [mamba.kernel - 1, mamba.conv_len()],
                        memory: Some([mamba.heads, mamba.head_dim, mamba.state]),
                    });
                }
            }
        }
        Self { layers }
    }

    /// Bytes of one token's keys and values.
    pub fn token_bytes(&self, dtype: Type) -> usize {
        let shapes = self.layers.iter().filter_map(|layer| layer.kv);
        let values = shapes.map(|kv| kv.heads * (kv.key_dim + kv.value_dim));
        values.sum::<usize>() * dtype.bytes()
    }

    /// Bytes of one recurrent state; 0 without recurrent layers.
    pub fn state_bytes(&self, dtype: Type) -> usize {
        let shapes = self.layers.iter().filter_map(|layer| layer.recurrent);
        shapes.map(|state| state.bytes(dtype)).sum()
    }
}

impl StateShape {
    fn bytes(&self, dtype: Type) -> usize {
        let memory = self.memory.map_or(0, |dims| dims.iter().product());
        self.conv[0] * self.conv[1] * dtype.bytes() + memory * Type::F32.bytes()
    }
}
