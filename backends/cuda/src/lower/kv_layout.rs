//! Where a layer's keys and values are in a page of its group, and its state in a sequence's.

use loquat_session::recurrent_state::{LayerState, StateLayout};
use loquat_session::{KvGroups, LayerGroups, Reach};
use loquat_spec::{KvSource, Mixer, ModelSpec};

use crate::ops::{Address, Format, KvRef, PAGE};

/// The layout of pages and states.
#[derive(Clone)]
pub struct KvLayout {
    groups: LayerGroups,
    /// Of layers with keys of their own; page pools have no addresses yet.
    layers: Vec<Option<KvRef>>,
    /// By group.
    page_bytes: Vec<usize>,
    states: StateLayout,
}

impl KvLayout {
    pub fn new(spec: &ModelSpec, format: Format) -> Self {
        let groups = LayerGroups::new(spec);
        let mut layout = Self {
            layers: vec![None; spec.layers.len()],
            page_bytes: vec![0; groups.count()],
            states: StateLayout::new(spec),
            groups,
        };
        for (layer, mixer) in spec.mixers() {
            let (heads, head_dim, value_dim, in_keys) = match mixer {
                Mixer::Attention(a) if matches!(a.kv, KvSource::Layer(_)) => continue,
                Mixer::Attention(a) => (a.kv_heads, a.head_dim, a.value_dim, false),
                Mixer::Latent(latent) => (1, latent.cached_len(), latent.latent_dim, true),
                Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => continue,
            };
            let group = layout.groups.of_layer(layer);
            let bytes = |dim: usize| heads * dim * PAGE * format.bytes();
            let keys = layout.page_bytes[group];
            let values = keys + bytes(head_dim);
            layout.page_bytes[group] = values + if in_keys { 0 } else { bytes(value_dim) };
            layout.layers[layer] = Some(KvRef {
                pages: Address::NONE,
                page_bytes: 0,
                keys: keys as u64,
                values: values as u64,
                group: group as u32,
                heads: heads as u32,
                head_dim: head_dim as u32,
                value_dim: value_dim as u32,
                format,
                values_in_keys: in_keys.into(),
            });
        }
        layout
    }

    /// Gives each group's pages their address.
    pub fn place(&mut self, pools: &[Address]) {
        for kv in self.layers.iter_mut().flatten() {
            let group = kv.group as usize;
            kv.pages = pools[group];
            kv.page_bytes = self.page_bytes[group] as u64;
        }
    }

    /// The keys and values of a layer that has its own; validated specs refer to no others.
    pub fn layer(&self, layer: usize) -> KvRef {
        self.layers[layer].unwrap_or(KvRef {
            pages: Address::NONE,
            page_bytes: 0,
            keys: 0,
            values: 0,
            group: 0,
            heads: 0,
            head_dim: 0,
            value_dim: 0,
            format: Format::F32,
            values_in_keys: 0,
        })
    }

    /// The layers of a group that have keys of their own.
    pub fn of_group(&self, group: usize) -> impl Iterator<Item = KvRef> {
        let layers = self.layers.iter().flatten().copied();
        layers.filter(move |kv| kv.group as usize == group)
    }

    /// How many groups of layers there are.
    pub fn groups(&self) -> usize {
        self.page_bytes.len()
    }

    /// What a group's layers attend to at most.
    pub fn reach(&self, group: usize) -> Reach {
        self.groups.reaches()[group]
    }

    /// Bytes of a group's page.
    pub fn page_bytes(&self, group: usize) -> usize {
        self.page_bytes[group]
    }

    /// Bytes of one token, by group.
    pub fn kv_groups(&self) -> KvGroups {
        self.groups
            .with_bytes(|group| (self.page_bytes[group] / PAGE) as u64)
    }

    /// The state of a layer that has one.
    pub fn state(&self, layer: usize) -> LayerState {
        self.states.layer(layer)
    }

    /// Bytes of a sequence's state; 0 without recurrent layers.
    pub fn state_bytes(&self) -> usize {
        4 * self.states.len()
    }
}
