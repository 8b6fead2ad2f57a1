//! The layout of KV pages: each group of layers has its own.

use loquat_cpu_kernels::{
    CodeFormat, CodeOperand, CodeSpan, HeadCodes, HeadLayout, HeadPages, KvElement, PAGE, PagePtr,
};
use loquat_session::{KvElementFormat, KvFormat, KvGroups, LayerGroups};
use loquat_spec::{KvSource, Mixer, ModelSpec};

/// Each layer's offsets in a page of its group.
#[derive(Clone)]
pub struct PageLayout {
    /// Layers without their own keys have an empty entry.
    layers: Vec<LayerLayout>,
    groups: LayerGroups,
    /// Elements of a page, by group.
    lens: Vec<usize>,
}

/// One layer's part: for each head its keys and its values.
#[derive(Clone, Copy, Default)]
pub struct LayerLayout {
    group: usize,
    start: usize,
    kv_heads: usize,
    /// Elements of a head.
    head_len: usize,
    /// The first head, as if the layer began the page.
    head: HeadLayout,
}

impl PageLayout {
    pub fn new(spec: &ModelSpec, format: &KvFormat) -> Self {
        let groups = LayerGroups::new(spec);
        let mut layout = Self {
            layers: vec![LayerLayout::default(); spec.layers.len()],
            lens: vec![0; groups.count()],
            groups,
        };
        let stored = spec.mixers().filter_map(|(layer, mixer)| {
            let sizes = match mixer {
                Mixer::Attention(a) if matches!(a.kv, KvSource::Layer(_)) => return None,
                Mixer::Attention(a) => (a.kv_heads, a.head_dim, a.value_dim),
                Mixer::Latent(latent) => (1, latent.cached_len(), 0),
                Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => return None,
            };
            Some((layer, sizes))
        });
        let stored: Vec<_> = stored.collect();
        for (index, (layer, sizes)) in stored.iter().enumerate() {
            let mut layer_layout = match format.layer(index, stored.len()).map(code_format) {
                [Some(key), Some(value)] => LayerLayout::of_codes(*sizes, [key, value], format),
                _ => LayerLayout::of_floats(*sizes),
            };
            let group = layout.groups.of_layer(*layer);
            layer_layout.group = group;
            layer_layout.start = layout.lens[group];
            layout.layers[*layer] = layer_layout;
            layout.lens[group] += layer_layout.page_len();
        }
        layout
    }

    pub fn layer(&self, index: usize) -> LayerLayout {
        self.layers[index]
    }

    /// How many groups of layers there are.
    pub fn groups(&self) -> usize {
        self.lens.len()
    }

    /// Elements of a group's page.
    pub fn page_len(&self, group: usize) -> usize {
        self.lens[group]
    }

    /// Bytes of one token, by group.
    pub fn kv_groups<T: KvElement>(&self) -> KvGroups {
        let bytes = |group: usize| (self.lens[group] * T::BYTES / PAGE) as u64;
        self.groups.with_bytes(bytes)
    }

    /// Every head of a group's layers.
    pub fn heads(&self, group: usize) -> impl Iterator<Item = HeadLayout> {
        let layers = self.layers.iter().filter(move |layer| layer.group == group);
        layers.flat_map(|layer| (0..layer.kv_heads).map(|head| layer.head_layout(head)))
    }

    /// Bytes of one exported token in a group.
    pub fn export_len<T: KvElement>(&self, group: usize) -> usize {
        self.heads(group).map(|head| T::export_len(&head)).sum()
    }
}

/// The codes that the format consists of, if it has any.
fn code_format(format: KvElementFormat) -> Option<CodeFormat> {
    match format {
        KvElementFormat::F32 | KvElementFormat::F16 | KvElementFormat::Bf16 => None,
        KvElementFormat::Q8 => Some(CodeFormat::Q8),
        KvElementFormat::Turbo4 => Some(CodeFormat::Turbo4),
        KvElementFormat::Turbo3 => Some(CodeFormat::Turbo3),
        KvElementFormat::Turbo2 => Some(CodeFormat::Turbo2),
    }
}

impl LayerLayout {
    /// A value without channels is a part of the key.
    fn of_floats((kv_heads, key_dim, value_dim): (usize, usize, usize)) -> Self {
        Self {
            group: 0,
            start: 0,
            kv_heads,
            head_len: (key_dim + value_dim) * PAGE,
            head: HeadLayout {
                keys: 0,
                key_dim,
                values: (value_dim > 0).then_some(key_dim * PAGE),
                value_dim,
                codes: None,
            },
        }
    }

    fn of_codes(
        (kv_heads, key_dim, value_dim): (usize, usize, usize),
        [key_format, value_format]: [CodeFormat; 2],
        format: &KvFormat,
    ) -> Self {
        let key = CodeSpan {
            at: 0,
            operand: CodeOperand::Key,
            format: key_format,
            dim: key_dim,
        };
        let value = CodeSpan {
            at: key.page_bytes(),
            operand: CodeOperand::Value,
            format: value_format,
            dim: value_dim,
        };
        Self {
            group: 0,
            start: 0,
            kv_heads,
            head_len: value.at + value.page_bytes(),
            head: HeadLayout {
                keys: key.at,
                key_dim,
                values: Some(value.at),
                value_dim,
                codes: Some(HeadCodes {
                    key,
                    value,
                    skip_below: format.skip_below(),
                }),
            },
        }
    }

    /// Elements of a page of this layer alone.
    pub fn page_len(&self) -> usize {
        self.kv_heads * self.head_len
    }

    /// The group whose pages it is in.
    pub fn group(&self) -> usize {
        self.group
    }

    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Queries, keys and values are rotated.
    pub fn is_rotated(&self) -> bool {
        self.head.codes.is_some()
    }

    /// Where a head is in a page.
    pub fn head_layout(&self, head: usize) -> HeadLayout {
        let at = self.start + head * self.head_len;
        let moved = |span: CodeSpan| CodeSpan {
            at: at + span.at,
            ..span
        };
        HeadLayout {
            keys: at + self.head.keys,
            values: self.head.values.map(|values| at + values),
            codes: self.head.codes.map(|codes| HeadCodes {
                key: moved(codes.key),
                value: moved(codes.value),
                ..codes
            }),
            ..self.head
        }
    }

    /// One head in these pages, for the kernels.
    pub fn head<'a, T>(&self, pages: &'a [PagePtr<T>], head: usize) -> HeadPages<'a, T> {
        HeadPages {
            pages,
            layout: self.head_layout(head),
        }
    }

    /// Writes a part of one token's key, for layers whose values are a part of it.
    ///
    /// # Safety
    /// The page must be allocated, and no other thread may access the slot.
    #[inline]
    pub unsafe fn write_key<T: KvElement>(
        &self,
        page: PagePtr<T>,
        slot: usize,
        first: usize,
        key: &[f32],
    ) {
        let part = HeadLayout {
            keys: self.start + first * PAGE,
            key_dim: key.len(),
            ..HeadLayout::default()
        };
        // SAFETY: as the caller promises.
        unsafe { T::write_head(page, &part, slot, key, &[]) };
    }

    /// Writes one token's keys and values, all heads, into its page.
    ///
    /// # Safety
    /// The page must be allocated, and no other thread may access the slot, or the page if its
    /// elements are shared.
    #[inline]
    pub unsafe fn write_token<T: KvElement>(
        &self,
        page: PagePtr<T>,
        slot: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let heads = keys.chunks_exact(self.head.key_dim);
        let heads = heads.zip(values.chunks_exact(self.head.value_dim));
        for (head, (key, value)) in heads.enumerate() {
            // SAFETY: as the caller promises.
            unsafe { T::write_head(page, &self.head_layout(head), slot, key, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-3-8B's heads: 32 layers, 8 heads of 128.
    fn page_bytes(format: &KvFormat) -> usize {
        let sizes = (8, 128, 128);
        let layers = (0..32).map(|layer| {
            let [keys, values] = format.layer(layer, 32);
            match [keys, values].map(code_format) {
                [Some(key), Some(value)] => {
                    LayerLayout::of_codes(sizes, [key, value], format).page_len()
                }
                _ if keys == KvElementFormat::F32 => 4 * LayerLayout::of_floats(sizes).page_len(),
                _ => 2 * LayerLayout::of_floats(sizes).page_len(),
            }
        });
        layers.sum()
    }

    #[test]
    fn documented_memory_is_current() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kv.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (name, format) in KvFormat::PRESETS {
            let share = page_bytes(&format) as f64 / page_bytes(&KvFormat::F16) as f64;
            let row = format!("| `{name}` | {share:.2} |");
            assert!(page.contains(&row), "docs/kv.md has no row {row}");
        }
    }

    #[test]
    fn small_formats_keep_their_memory_bounds() {
        for (format, most) in [
            (KvFormat::Q8, 0.53),
            (KvFormat::TURBO4, 0.29),
            (KvFormat::TURBO3, 0.23),
        ] {
            let share = page_bytes(&format) as f64 / page_bytes(&KvFormat::F16) as f64;
            assert!(share <= most, "{format}: {share}");
        }
    }
}
