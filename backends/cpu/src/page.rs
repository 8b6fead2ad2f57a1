//! The layout of a KV page.

use loquat_cpu_kernels::{HeadPages, KvElement, PAGE, PagePtr};
use loquat_spec::{KvSource, Mixer, ModelSpec};

/// Each layer's offsets in a page.
#[derive(Clone)]
pub struct PageLayout {
    /// Layers without their own keys have an empty entry.
    layers: Vec<LayerLayout>,
    len: usize,
}

/// One layer's part: for each head its keys, its values, and the scales of both if the format has
/// them.
#[derive(Clone, Copy, Default)]
pub struct LayerLayout {
    start: usize,
    kv_heads: usize,
    key_dim: usize,
    /// 0: values are a part of the keys.
    value_dim: usize,
    /// Elements that a token's scale occupies; 0 without scales.
    scale_len: usize,
}

impl PageLayout {
    pub fn new<T: KvElement>(spec: &ModelSpec) -> Self {
        let mut layout = Self {
            layers: vec![LayerLayout::default(); spec.layers.len()],
            len: 0,
        };
        for (layer, mixer) in spec.mixers() {
            let (kv_heads, key_dim, value_dim) = match mixer {
                Mixer::Attention(a) if matches!(a.kv, KvSource::Layer(_)) => continue,
                Mixer::Attention(a) => (a.kv_heads, a.head_dim, a.value_dim),
                Mixer::Latent(latent) => (1, latent.cached_len(), 0),
                Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => continue,
            };
            let layer_layout = LayerLayout {
                start: layout.len,
                kv_heads,
                key_dim,
                value_dim,
                scale_len: if T::SCALED {
                    size_of::<f32>() / T::BYTES
                } else {
                    0
                },
            };
            layout.layers[layer] = layer_layout;
            layout.len += kv_heads * layer_layout.head_len();
        }
        layout
    }

    pub fn layer(&self, index: usize) -> LayerLayout {
        self.layers[index]
    }

    pub fn layers(&self) -> &[LayerLayout] {
        &self.layers
    }

    /// Elements of a page.
    pub fn page_len(&self) -> usize {
        self.len
    }

    /// Elements of one token over all layers.
    pub fn token_len(&self) -> usize {
        self.len / PAGE
    }
}

impl LayerLayout {
    /// Of `f32` heads on their own, which are not a model's layer. `value_dim` may be larger than
    /// that of the values, whose place is filled up with zeros.
    pub fn for_heads(heads: usize, key_dim: usize, value_dim: usize) -> Self {
        Self {
            kv_heads: heads,
            key_dim,
            value_dim,
            ..Self::default()
        }
    }

    /// Elements of a page of this layer alone.
    pub fn page_len(&self) -> usize {
        self.kv_heads * self.head_len()
    }

    fn head_len(&self) -> usize {
        (self.key_dim + self.value_dim + 2 * self.scale_len) * PAGE
    }

    fn keys(&self, head: usize) -> usize {
        self.start + head * self.head_len()
    }

    fn values(&self, head: usize) -> usize {
        self.keys(head) + self.key_dim * PAGE
    }

    fn key_scales(&self, head: usize) -> usize {
        self.values(head) + self.value_dim * PAGE
    }

    fn value_scales(&self, head: usize) -> usize {
        self.key_scales(head) + self.scale_len * PAGE
    }

    /// One head in these pages, for the kernels.
    pub fn head<'a, T>(&self, pages: &'a [PagePtr<T>], head: usize) -> HeadPages<'a, T> {
        HeadPages {
            pages,
            keys: self.keys(head),
            values: (self.value_dim > 0).then(|| self.values(head)),
            key_scales: self.key_scales(head),
            value_scales: self.value_scales(head),
        }
    }

    /// Writes one token's key for layers whose values are a part of it. Formats with scales do not
    /// support such layers.
    ///
    /// # Safety
    /// The page must be allocated, and no other thread may access the slot.
    #[inline]
    pub unsafe fn write_key<T: KvElement>(
        &self,
        page: PagePtr<T>,
        slot: usize,
        key: impl Iterator<Item = f32>,
    ) {
        for (d, key) in key.enumerate() {
            // SAFETY: as the caller promises.
            unsafe { page.write(self.start + d * PAGE + slot, T::store(key, 1.0)) };
        }
    }

    /// Writes one token's keys and values, all heads, into its page.
    ///
    /// # Safety
    /// The page must be allocated, and no other thread may access the slot.
    #[inline]
    pub unsafe fn write_token<T: KvElement>(
        &self,
        page: PagePtr<T>,
        slot: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        // SAFETY: as the caller promises.
        unsafe { self.write_unpadded(page, slot, (keys, values), self.value_dim) };
    }

    /// The same for values of `value_len` at the beginnings of their places.
    ///
    /// # Safety
    /// The page must be allocated, and no other thread may access the slot.
    #[inline]
    pub unsafe fn write_unpadded<T: KvElement>(
        &self,
        page: PagePtr<T>,
        slot: usize,
        (keys, values): (&[f32], &[f32]),
        value_len: usize,
    ) {
        let heads = keys.chunks_exact(self.key_dim);
        let heads = heads.zip(values.chunks_exact(value_len));
        for (head, (key, value)) in heads.enumerate() {
            let (key_scale, value_scale) = (T::scale_for(key), T::scale_for(value));
            // SAFETY: as the caller promises.
            unsafe {
                for (d, key) in key.iter().enumerate() {
                    page.write(self.keys(head) + d * PAGE + slot, T::store(*key, key_scale));
                }
                let at = self.values(head) + slot * self.value_dim;
                for (d, value) in value.iter().enumerate() {
                    page.write(at + d, T::store(*value, value_scale));
                }
                if T::SCALED {
                    page.write_scale(self.key_scales(head), slot, key_scale);
                    page.write_scale(self.value_scales(head), slot, value_scale);
                }
            }
        }
    }

    /// The indices of one token's elements in a page, in export order.
    pub fn token_indices(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let layout = *self;
        (0..layout.kv_heads).flat_map(move |head| {
            let keys = (0..layout.key_dim).map(move |d| layout.keys(head) + d * PAGE + slot);
            let run = move |at: usize, len: usize| at + slot * len..at + (slot + 1) * len;
            keys.chain(run(layout.values(head), layout.value_dim))
                .chain(run(layout.key_scales(head), layout.scale_len))
                .chain(run(layout.value_scales(head), layout.scale_len))
        })
    }
}
