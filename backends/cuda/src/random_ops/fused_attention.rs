//! Attention of the fast path.

use super::attention::{Layer, Row, first_seen, place_pages, pool, set_page_runs};
use super::builder::Builder;
use super::case::{Case, Element, Operand};
use super::fused::XLayout;
use crate::fused::{FusedAttention, FusedOp, FusedPromptAttention, FusedQkvFinish};
use crate::fused_launch::has_attention;
use crate::ops::{Format, PAGE, ReachKind};

/// A layer without pages, and how many query heads share a key head.
fn layer(b: &mut Builder) -> (Layer, usize) {
    let head_dim = b.pick(&[64, 80, 96, 128, 128, 256]);
    let sharing = loop {
        let sharing = b.pick(&[1, 2, 3, 4, 5, 7, 8, 9, 16]);
        if has_attention(head_dim, sharing) {
            break sharing;
        }
    };
    let heads = loop {
        let heads = b.pick(&[1, 2, 3, 4, 8]);
        // Fragments have 32 values.
        if (heads * sharing * head_dim).is_multiple_of(32) {
            break heads;
        }
    };
    let len = heads * PAGE * head_dim * Format::Bf16.bytes();
    // Other layers' shares of a page are before, between and after.
    let [before, between, after] = [(); 3].map(|()| b.pick(&[0, 0, 16, 256]));
    let layer = Layer {
        pages: Operand::NONE,
        page_bytes: before + len + between + len + after,
        keys: before,
        values: before + len + between,
        group: b.below(3),
        heads,
        head_dim,
        value_dim: head_dim,
        format: Format::Bf16,
        values_in_keys: false,
    };
    (layer, sharing)
}

/// Rows of one token each, of which the launch covers those from the first on that is returned.
fn set_rows(b: &mut Builder, layer: &Layer, reach_len: usize) -> (Vec<Row>, usize) {
    /// Values of keys and values that all rows have.
    const MOST: usize = 3 << 20;
    let count = b.pick(&[1, 1, 2, 3, 4, 5, 8, 33]);
    b.set_count(count);
    let first_row = b.pick(&[0, 0, 1, 3]);
    let longest = MOST / (2 * layer.heads * layer.head_dim * count);
    let rows = first_row + count + b.below(2);
    let rows: Vec<Row> = (0..rows)
        .map(|row| {
            let position = b.pick(&[0, 1, 15, 62, 63, 64, 65, 127, 200, 300, 1100]) + b.below(3);
            let is_covered = (first_row..first_row + count).contains(&row);
            let next = if is_covered { position.min(longest) } else { 0 };
            let gone = match reach_len {
                0 => 0,
                len => first_seen((ReachKind::Window, len), next) / PAGE * PAGE,
            };
            Row {
                next,
                tokens: 1,
                first: if b.flag() { gone } else { gone.min(PAGE) },
                pages: Vec::new(),
            }
        })
        .collect();
    let positions: Vec<u32> = (0..b.tokens)
        .map(|token| {
            let row = (token + first_row).checked_sub(b.first);
            let row = row.and_then(|row| rows.get(row));
            row.map_or(u32::MAX, |row| row.next as u32)
        })
        .collect();
    b.tables.positions = b.words(&positions);
    b.rows = rows.len();
    (rows, first_row)
}

/// Rows of one token, then longer ones, which the launch covers. Returns them, and how many have one
/// token.
fn set_long_rows(b: &mut Builder, layer: &Layer, reach_len: usize) -> (Vec<Row>, usize) {
    /// Values of keys that all tokens attend to together.
    const MOST: usize = 1 << 23;
    let single = b.pick(&[0, 0, 1, 3]);
    let count = b.pick(&[1, 1, 2, 3, 40]);
    let most = MOST / (layer.heads * layer.head_dim * count);
    let mut rows = Vec::new();
    for row in 0..single + count {
        let tokens = b.pick(&[2, 3, 9, 31, 33, 64, 70, 128, 129, 200]);
        let tokens = if row < single {
            1
        } else {
            tokens.min(2 + most / 64)
        };
        let next = b.pick(&[0, 0, 1, 62, 63, 64, 65, 127, 200, 517, 1100]) + b.below(3);
        let next = next.min(most / tokens);
        let gone = match reach_len {
            0 => 0,
            len => first_seen((ReachKind::Window, len), next) / PAGE * PAGE,
        };
        rows.push(Row {
            next,
            tokens,
            first: if b.flag() { gone } else { gone.min(PAGE) },
            pages: Vec::new(),
        });
    }
    let (mut positions, mut token_rows, mut tables) = (Vec::new(), Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        // No recurrent states.
        let first = positions.len() as u32;
        tables.extend([first, row.tokens as u32, 0, 0, 0, 0, 0, 0]);
        positions.extend((row.next..row.next + row.tokens).map(|position| position as u32));
        token_rows.resize(positions.len(), index as u32);
    }
    b.rows = rows.len();
    b.first = single;
    b.tokens = positions.len();
    b.count = b.tokens - single;
    b.tables.positions = b.words(&positions);
    b.tables.token_row = b.words(&token_rows);
    b.tables.rows = b.words(&tables);
    (rows, single)
}

/// The cosines and sines of a step's tokens, or none.
fn angles(b: &mut Builder, pairs: usize) -> [Operand; 2] {
    let angles = b.random_values(b.tokens * pairs, 3.0);
    [f32::cos, f32::sin].map(|function| {
        let values: Vec<f32> = angles.iter().map(|angle| function(*angle)).collect();
        match pairs {
            0 => Operand::NONE,
            _ => b.input(&values),
        }
    })
}

/// Adds the pages of the rows; `compared`: what they hold afterwards, if the operation writes to them.
fn add_pages(b: &mut Builder, layer: &mut Layer, rows: &mut [Row], compared: Option<Element>) {
    let pages = place_pages(b, rows);
    set_page_runs(b, layer, rows);
    let pool = pool(b, layer, rows, pages);
    layer.pages = b.add(pool, compared);
}

/// Heads of the step's tokens, and what norm and rope need.
struct HeadInputs {
    qkv: Operand,
    /// Cosines and sines.
    angles: [Operand; 2],
    /// Of queries and keys.
    gains: [Operand; 2],
    pairs: usize,
}

impl HeadInputs {
    fn random(b: &mut Builder, layer: &Layer, heads: usize) -> Self {
        let head_dim = layer.head_dim;
        let mut qkv = b.random_values(b.tokens * (heads + 2 * layer.heads) * head_dim, 2.0);
        b.spoil_seldom(&mut qkv);
        let qkv = b.input(&qkv);
        let pairs = b.pick(&[head_dim / 2, head_dim / 2, head_dim / 4, 1, 0]);
        Self {
            qkv,
            angles: angles(b, pairs),
            gains: [(); 2].map(|()| b.optional(head_dim, 2.0)),
            pairs,
        }
    }
}

pub fn qkv_finish(mut b: Builder) -> Case {
    let (mut layer, sharing) = layer(&mut b);
    let (mut rows, _) = set_long_rows(&mut b, &layer, 0);
    add_pages(&mut b, &mut layer, &mut rows, Some(Element::Bf16));
    let (heads, head_dim) = (layer.heads * sharing, layer.head_dim);
    let inputs = HeadInputs::random(&mut b, &layer, heads);
    let query = b.rounded_outputs(b.tokens * heads * head_dim);
    let eps = b.pick(&[1e-6, 1e-5]);
    b.finish(move |placed| {
        let op = FusedQkvFinish {
            kv: layer.place(placed),
            qkv: placed.at(inputs.qkv),
            cos: placed.at(inputs.angles[0]),
            sin: placed.at(inputs.angles[1]),
            query_gain: placed.at(inputs.gains[0]),
            key_gain: placed.at(inputs.gains[1]),
            query: placed.at(query),
            heads: heads as u32,
            pairs: inputs.pairs as u32,
            eps,
            flags: 0,
        };
        FusedOp::QkvFinish(op).into()
    })
}

pub fn prompt_attention(mut b: Builder) -> Case {
    let (mut layer, sharing) = layer(&mut b);
    let reach_len = b.pick(&[0, 0, 0, 1, 2, 64, 65, 100, 131]);
    let (mut rows, first_row) = set_long_rows(&mut b, &layer, reach_len);
    add_pages(&mut b, &mut layer, &mut rows, None);
    let (heads, head_dim) = (layer.heads * sharing, layer.head_dim);
    let query = b.random_values(b.tokens * heads * head_dim, 2.0);
    let query = b.rounded_input(&query);
    let layout = XLayout::random(&mut b, heads * head_dim, true);
    let out = b.rounded_outputs(layout.len);
    let softcap = b.pick(&[0.0, 0.0, 5.0]);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let row_count = b.rows - first_row;
    b.finish(move |placed| {
        let op = FusedPromptAttention {
            kv: layer.place(placed),
            query: placed.at(query),
            out: placed.at(out),
            heads: heads as u32,
            reach_len: reach_len as u32,
            first_row: first_row as u32,
            row_count: row_count as u32,
            scale,
            softcap,
            flags: layout.flags,
            groups: layout.groups,
        };
        FusedOp::PromptAttention(op).into()
    })
}

pub fn attention(mut b: Builder) -> Case {
    let (mut layer, sharing) = layer(&mut b);
    let reach_len = b.pick(&[0, 0, 0, 1, 2, 64, 65, 100, 131]);
    let (mut rows, first_row) = set_rows(&mut b, &layer, reach_len);
    add_pages(&mut b, &mut layer, &mut rows, Some(Element::Bf16));
    let (heads, head_dim) = (layer.heads * sharing, layer.head_dim);
    let inputs = HeadInputs::random(&mut b, &layer, heads);
    let layout = XLayout::random(&mut b, heads * head_dim, true);
    let out = b.rounded_outputs(layout.len);
    let softcap = b.pick(&[0.0, 0.0, 5.0]);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let eps = b.pick(&[1e-6, 1e-5]);
    b.finish(move |placed| {
        let op = FusedAttention {
            kv: layer.place(placed),
            qkv: placed.at(inputs.qkv),
            cos: placed.at(inputs.angles[0]),
            sin: placed.at(inputs.angles[1]),
            query_gain: placed.at(inputs.gains[0]),
            key_gain: placed.at(inputs.gains[1]),
            out: placed.at(out),
            heads: heads as u32,
            pairs: inputs.pairs as u32,
            reach_len: reach_len as u32,
            first_row: first_row as u32,
            scale,
            softcap,
            eps,
            flags: layout.flags,
            groups: layout.groups,
            reserved: 0,
        };
        FusedOp::Attention(op).into()
    })
}
