//! The storage of a sequence, layer by layer.

use loquat_session::{KvGroup, KvGroups, LayerGroups};
use loquat_spec::{KvSource, Mixer, ModelSpec, Reach};

use crate::array::Type;

/// The storage of each layer, in the spec's order.
pub struct Layout {
    pub layers: Vec<LayerLayout>,
    /// Layers of equal reach.
    pub groups: LayerGroups,
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
        Self {
            layers,
            groups: LayerGroups::new(spec),
        }
    }

    /// The groups of layers, with the reach that pages of `page` tokens keep.
    pub fn kv_groups(&self, dtype: Type, page: usize) -> KvGroups {
        let groups = self.groups.with_bytes(|group| {
            let layers = self.layers.iter().enumerate();
            let own = layers.filter(|(layer, _)| self.groups.of_layer(*layer) == group);
            let values = own.filter_map(|(_, layer)| layer.kv.map(KvShape::values));
            (values.sum::<usize>() * dtype.bytes()) as u64
        });
        let groups = groups.iter().map(|group| KvGroup {
            reach: paged_reach(group.reach, page),
            ..*group
        });
        KvGroups::new(&groups.collect::<Vec<_>>())
    }

    /// Bytes of one recurrent state; 0 without recurrent layers.
    pub fn state_bytes(&self, dtype: Type) -> usize {
        let shapes = self.layers.iter().filter_map(|layer| layer.recurrent);
        shapes.map(|state| state.bytes(dtype)).sum()
    }
}

impl KvShape {
    /// Values of a token.
    fn values(self) -> usize {
        self.heads * (self.key_dim + self.value_dim)
    }
}

/// The shortest reach that includes this one and with which a growing sequence frees a page
/// exactly when it acquires one: its arrays are then copied once, and sequences whose arrays end at
/// the same position have arrays that begin at the same positions.
fn paged_reach(reach: Reach, page: usize) -> Reach {
    match reach {
        Reach::Chunk(chunk) if chunk.is_multiple_of(page) => reach,
        Reach::Window(span) | Reach::Chunk(span) => {
            let pages = span.saturating_sub(1).div_ceil(page);
            Reach::Window(pages.saturating_mul(page).saturating_add(1))
        }
        Reach::All => Reach::All,
    }
}

impl StateShape {
    fn bytes(&self, dtype: Type) -> usize {
        let memory = self.memory.map_or(0, |dims| dims.iter().product());
        self.conv[0] * self.conv[1] * dtype.bytes() + memory * Type::F32.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_freed_when_pages_are_acquired() {
        const PAGE: usize = 8;
        let reaches = [1, 2, 7, 8, 9, 16, 20].into_iter();
        for reach in reaches.flat_map(|span| [Reach::Window(span), Reach::Chunk(span)]) {
            let group = KvGroup {
                reach: paged_reach(reach, PAGE),
                bytes_per_token: 1,
            };
            for len in 0..100 {
                assert!(group.reach.first_seen(len) <= reach.first_seen(len));
                let same_page = len - len % PAGE;
                assert_eq!(
                    group.first_page(len, PAGE),
                    group.first_page(same_page, PAGE),
                    "{reach:?} at {len}"
                );
            }
        }
    }
}
