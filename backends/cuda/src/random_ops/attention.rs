//! Attention, over pages and without.

use super::builder::Builder;
use super::case::{Case, Element, Operand, Placed, encode};
use crate::ops::{Attend, AttendDense, Format, KvRef, PAGE, ReachKind, WriteKv};

/// A layer's keys and values.
#[derive(Clone, Copy)]
pub(super) struct Layer {
    pub pages: Operand,
    pub page_bytes: usize,
    pub keys: usize,
    pub values: usize,
    pub group: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub value_dim: usize,
    pub format: Format,
    pub values_in_keys: bool,
}

impl Layer {
    /// A layer's shape, without pages.
    fn random(b: &mut Builder) -> Self {
        let is_latent = b.below(4) == 0;
        let format = b.format();
        let (head_dim, value_dim) = if is_latent {
            b.pick(&[(576, 512), (40, 33), (5, 5)])
        } else {
            b.pick(&[
                (64, 64),
                (128, 128),
                (80, 80),
                (192, 128),
                (256, 256),
                (33, 7),
                (1, 1),
            ])
        };
        let heads = if is_latent { 1 } else { b.pick(&[1, 2, 3, 8]) };
        let len = |dim: usize| heads * PAGE * dim * format.bytes();
        // Other layers' shares of a page are before, between and after.
        let [before, between, after] = [(); 3].map(|()| b.pick(&[0, 0, 16, 256]));
        let keys = before;
        let values = keys + len(head_dim) + between;
        Self {
            pages: Operand::NONE,
            page_bytes: values + if is_latent { 0 } else { len(value_dim) } + after,
            keys,
            values,
            group: b.below(3),
            heads,
            head_dim,
            value_dim,
            format,
            values_in_keys: is_latent,
        }
    }

    pub fn place(&self, placed: &Placed) -> KvRef {
        KvRef {
            pages: placed.at(self.pages),
            page_bytes: self.page_bytes as u64,
            keys: self.keys as u64,
            values: self.values as u64,
            group: self.group as u32,
            heads: self.heads as u32,
            head_dim: self.head_dim as u32,
            value_dim: self.value_dim as u32,
            format: self.format,
            values_in_keys: self.values_in_keys.into(),
        }
    }
}

/// A row's positions in the step, and the page run that holds them.
#[derive(Clone)]
pub(super) struct Row {
    pub next: usize,
    pub tokens: usize,
    /// The first position of the run.
    pub first: usize,
    pub pages: Vec<usize>,
}

/// The first position in reach.
pub(super) fn first_seen(reach: (ReachKind, usize), position: usize) -> usize {
    match reach {
        (ReachKind::All, _) => 0,
        (ReachKind::Window, len) => (position + 1).saturating_sub(len),
        (ReachKind::Chunk, len) => position / len * len,
    }
}

/// Makes rows and their tables, and returns the rows and the number of pages.
fn set_rows(b: &mut Builder, layer: &Layer, reach: (ReachKind, usize)) -> (Vec<Row>, usize) {
    let count = b.pick(&[1, 1, 2, 3, 5]);
    let mut rows: Vec<Row> = (0..count)
        .map(|_| {
            let next = b.pick(&[0, 0, 1, 63, 64, 65, 200, 517, 1100]) + b.below(3);
            let tokens = b.pick(&[1, 1, 2, 3, 9, 33, 70]);
            // What is out of reach for the first token may be gone.
            let gone = first_seen(reach, next) / PAGE * PAGE;
            Row {
                next,
                tokens,
                first: if b.flag() { gone } else { gone.min(PAGE) },
                pages: Vec::new(),
            }
        })
        .collect();
    let total = place_pages(b, &mut rows);
    set_page_runs(b, layer, &rows);
    set_tokens(b, &rows);
    (rows, total)
}

/// Gives each row its pages in any order, with some that belong to nobody. Returns how many there
/// are.
pub(super) fn place_pages(b: &mut Builder, rows: &mut [Row]) -> usize {
    let wanted = |row: &Row| (row.next + row.tokens - row.first).div_ceil(PAGE);
    let total = rows.iter().map(wanted).sum::<usize>() + b.below(3);
    let mut free: Vec<usize> = (0..total).collect();
    for row in rows {
        for _ in 0..wanted(row) {
            row.pages.push(free.swap_remove(b.below(free.len())));
        }
    }
    total
}

pub(super) fn set_page_runs(b: &mut Builder, layer: &Layer, rows: &[Row]) {
    let stride = rows.len() + b.below(3);
    let mut pages = vec![u32::MAX; b.below(3)];
    // The runs of other groups are of no use.
    let mut runs = vec![u32::MAX; 3 * stride * 2];
    for (index, row) in rows.iter().enumerate() {
        let run = 2 * (layer.group * stride + index);
        runs[run] = pages.len() as u32;
        runs[run + 1] = row.first as u32;
        pages.extend(row.pages.iter().map(|page| *page as u32));
    }
    b.tables.page_runs = b.words(&runs);
    b.tables.run_stride = stride as u64;
    b.tables.pages = b.words(&pages);
}

/// The tokens of the step, of which the launch covers some.
fn set_tokens(b: &mut Builder, rows: &[Row]) {
    let (mut positions, mut token_rows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        let end = row.next + row.tokens;
        for position in row.next..end {
            positions.push(position as u32);
            token_rows.push(index as u32);
            let ahead = b.below(end - position);
            ends.push((position + 1 + ahead) as u32);
        }
    }
    b.rows = rows.len();
    b.tokens = positions.len();
    if b.flag() {
        (b.first, b.count) = (0, b.tokens);
    } else {
        b.first = b.below(b.tokens);
        b.count = 1 + b.below(b.tokens - b.first);
    }
    b.tables.positions = b.words(&positions);
    b.tables.token_row = b.words(&token_rows);
    b.tables.seen_end = b.words(&ends);
}

pub fn write_kv(mut b: Builder) -> Case {
    let mut layer = Layer::random(&mut b);
    let (_, pages) = set_rows(&mut b, &layer, (ReachKind::Window, 70));
    let elements = pages * layer.page_bytes / layer.format.bytes();
    let pool = b.random_values(elements, 1.0);
    layer.pages = b.add(
        encode(&pool, layer.format),
        Some(Element::from(layer.format)),
    );
    let keys = b.vectors(layer.heads * layer.head_dim, 2.0);
    let values = b.vectors(layer.heads * layer.value_dim, 2.0);
    b.finish(move |placed| {
        let op = WriteKv {
            kv: layer.place(placed),
            keys: placed.at(keys.at),
            values: placed.at(if layer.values_in_keys {
                Operand::NONE
            } else {
                values.at
            }),
            key_stride: keys.stride,
            value_stride: values.stride,
        };
        op.into()
    })
}

pub fn attend(mut b: Builder) -> Case {
    use ReachKind as R;
    let mut layer = Layer::random(&mut b);
    let reaches = [
        (R::All, 0),
        (R::All, 0),
        (R::Window, 1),
        (R::Window, 64),
        (R::Window, 131),
        (R::Chunk, 7),
        (R::Chunk, 128),
        (R::Chunk, 300),
    ];
    let reach = b.pick(&reaches);
    let (rows, pages) = set_rows(&mut b, &layer, reach);
    let pool = pool(&mut b, &layer, &rows, pages);
    layer.pages = b.add(pool, None);
    let sharing = b.pick(&[1, 2, 3, 4, 7, 8, 16]);
    // The interpreter should be done in a moment.
    let cost = layer.heads * layer.head_dim * b.count * 1000;
    let sharing = sharing.min((20_000_000 / cost).max(1));
    let heads = layer.heads * sharing;
    let query = b.vectors(heads * layer.head_dim, 3.0);
    let out = b.output_vectors(heads * layer.value_dim, 1.0);
    let sinks = b.optional(heads, 2.0);
    let looks_ahead = (b.below(4) == 0).into();
    let softcap = b.pick(&[0.0, 0.0, 5.0]);
    let scale = 1.0 / (layer.head_dim as f32).sqrt();
    b.finish(move |placed| {
        let op = Attend {
            kv: layer.place(placed),
            query: placed.at(query.at),
            out: placed.at(out.at),
            query_stride: query.stride,
            out_stride: out.stride,
            heads: heads as u32,
            reach: reach.0,
            reach_len: reach.1 as u32,
            looks_ahead,
            scale,
            softcap,
            sinks: placed.at(sinks),
        };
        op.into()
    })
}

/// The bytes of all pages. What no token has written is NaN in half of the cases: a GPU's memory
/// may hold anything, which zero weights do not remove.
pub(super) fn pool(b: &mut Builder, layer: &Layer, rows: &[Row], pages: usize) -> Vec<u8> {
    let size = layer.format.bytes();
    let page_len = layer.page_bytes / size;
    let written = b.random_values(pages * page_len, 1.0);
    if b.flag() {
        return encode(&written, layer.format);
    }
    let mut pool = vec![f32::NAN; pages * page_len];
    for row in rows {
        for position in row.first..row.next + row.tokens {
            let index = position - row.first;
            let page = row.pages[index / PAGE] * page_len;
            let slot = index % PAGE;
            for head in 0..layer.heads {
                let key = page + layer.keys / size + (head * PAGE + slot) * layer.head_dim;
                let key = key..key + layer.head_dim;
                pool[key.clone()].copy_from_slice(&written[key]);
                if layer.values_in_keys {
                    continue;
                }
                for dim in 0..layer.value_dim {
                    let row = head * layer.value_dim + dim;
                    let value = page + layer.values / size + row * PAGE + slot;
                    pool[value] = written[value];
                }
            }
        }
    }
    encode(&pool, layer.format)
}

pub fn attend_dense(mut b: Builder) -> Case {
    let tokens = b.pick(&[1, 2, 17, 64, 130, 257]);
    b.tokens = tokens;
    b.first = b.below(tokens.min(4));
    b.count = 1 + b.below(tokens - b.first);
    let (heads, head_dim) = (b.pick(&[1, 2, 5]), b.pick(&[1, 7, 32, 64, 72, 80, 128]));
    let stride = heads * head_dim + b.pick(&[0, 1, 8]);
    let ranges: Vec<u32> = (0..tokens)
        .flat_map(|_| {
            let first = b.below(tokens);
            [first as u32, (first + 1 + b.below(tokens - first)) as u32]
        })
        .collect();
    let ranges = b.words(&ranges);
    let [query, key, value] = [3.0, 1.0, 1.0].map(|scale| b.inputs(tokens * stride, scale));
    let out = b.outputs(tokens * stride);
    let scale = 1.0 / (head_dim as f32).sqrt();
    b.finish(move |placed| {
        let op = AttendDense {
            query: placed.at(query),
            key: placed.at(key),
            value: placed.at(value),
            out: placed.at(out),
            ranges: placed.at(ranges),
            stride: stride as u32,
            heads: heads as u32,
            head_dim: head_dim as u32,
            scale,
        };
        op.into()
    })
}
