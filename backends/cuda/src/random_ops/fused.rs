//! Operations of the fast path but attention, within what its kernels can do.

use super::builder::Builder;
use super::case::{Case, Operand, Placed};
use super::positions::set_ids;
use crate::fused::{
    Advance, AngleSet, Epilogue, FusedEmbed, FusedLinear, FusedOp, GELU_TANH, PACKED,
    PackFragments, SILU, TILED, fragment_index, parts,
};
use crate::fused_launch::{MAX_TILED_CHOICES, MAX_TOKENS, TILE_TOKENS};

/// How vectors of bf16 are laid out.
#[derive(Clone, Copy)]
pub(super) struct XLayout {
    pub flags: u32,
    pub groups: u32,
    /// Values of the buffer.
    pub len: usize,
}

impl XLayout {
    pub fn random(b: &mut Builder, width: usize, may_tile: bool) -> Self {
        if !(may_tile && b.flag()) {
            return Self {
                flags: 0,
                groups: 0,
                len: b.tokens * width,
            };
        }
        let groups = b.tokens.div_ceil(8) + b.below(2);
        Self::tiled(groups, width)
    }

    /// For a step of more than eight tokens, whose kernels read whole tiles.
    fn of_many(b: &mut Builder, width: usize) -> Self {
        let tiles = b.tokens.div_ceil(TILE_TOKENS) + b.below(2);
        Self::tiled(tiles * TILE_TOKENS / 8, width)
    }

    fn tiled(groups: usize, width: usize) -> Self {
        Self {
            flags: TILED,
            groups: groups as u32,
            len: groups * 8 * width.next_multiple_of(64),
        }
    }
}

/// An [`AngleSet`] with places.
#[derive(Clone, Copy, Default)]
struct AnglePlaces {
    cos: Operand,
    sin: Operand,
    frequencies: Operand,
    axes: Operand,
    pairs: usize,
    factor: f32,
}

impl AnglePlaces {
    fn random(b: &mut Builder) -> Self {
        let pairs = b.pick(&[1, 20, 32, 64, 300]);
        let axes: Vec<u32> = (0..pairs).map(|_| b.below(3) as u32).collect();
        Self {
            cos: b.outputs(b.tokens * pairs),
            sin: b.outputs(b.tokens * pairs),
            frequencies: b.inputs(pairs, 1.0),
            axes: if b.flag() {
                b.words(&axes)
            } else {
                Operand::NONE
            },
            pairs,
            factor: b.pick(&[1.0, 1.3]),
        }
    }

    fn place(&self, placed: &Placed) -> AngleSet {
        AngleSet {
            cos: placed.at(self.cos),
            sin: placed.at(self.sin),
            frequencies: placed.at(self.frequencies),
            axes: placed.at(self.axes),
            pairs: self.pairs as u32,
            factor: self.factor,
        }
    }
}

pub fn embed(mut b: Builder) -> Case {
    let vocab: usize = b.pick(&[1, 16, 19, 64, 251]);
    let hidden = b.pick(&[32, 64, 96, 160, 1024, 1056, 4096]);
    set_ids(&mut b, vocab, hidden, 1);
    if b.below(4) == 0 {
        b.tables.features = Operand::NONE;
    }
    let is_packed = b.flag();
    let rows = if is_packed {
        vocab.next_multiple_of(16)
    } else {
        vocab
    };
    let table = b.random_values(rows * hidden, 1.0);
    let table = b.rounded_input(&table);
    let gain = b.inputs(hidden, 2.0);
    let stream = b.outputs(b.tokens * hidden);
    let layout = XLayout::random(&mut b, hidden, true);
    let x = b.rounded_outputs(layout.len);
    let sum_count = b.pick(&[1, hidden / 16, 300]);
    let sums = b.outputs(b.tokens * sum_count);
    let most = b.pick(&[100, 5000, 1_000_000]);
    b.set_positions(most);
    let rope: Vec<u32> = (0..3 * b.tokens).map(|_| b.below(most) as u32).collect();
    b.tables.rope = b.words(&rope);
    let mut angles = [AnglePlaces::default(); 2];
    for set in angles.iter_mut().take(b.below(3)) {
        *set = AnglePlaces::random(&mut b);
    }
    let scale = b.pick(&[1.0, 22.5]);
    b.finish(move |placed| {
        let op = FusedEmbed {
            table: placed.at(table),
            gain: placed.at(gain),
            stream: placed.at(stream),
            x: placed.at(x),
            sums: placed.at(sums),
            angles: angles.map(|set| set.place(placed)),
            hidden: hidden as u32,
            sum_count: sum_count as u32,
            scale,
            flags: layout.flags | if is_packed { PACKED } else { 0 },
            groups: layout.groups,
            reserved: 0,
        };
        FusedOp::Embed(op).into()
    })
}

pub fn store(b: Builder) -> Case {
    linear(b, Epilogue::Store)
}

pub fn residual(b: Builder) -> Case {
    linear(b, Epilogue::Residual)
}

pub fn gated(b: Builder) -> Case {
    linear(b, Epilogue::Gated)
}

pub fn largest(b: Builder) -> Case {
    linear(b, Epilogue::Largest)
}

fn linear(mut b: Builder, epilogue: Epilogue) -> Case {
    use Epilogue as E;
    let few = b.pick(&[1, 1, 1, 2, 3, 4, 5, 7, 8]);
    let many = b.pick(&[9, 10, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200]);
    let is_many = b.flag();
    let count = match epilogue {
        _ if !is_many => few,
        E::Largest => many.min(MAX_TILED_CHOICES as usize),
        _ => many,
    };
    if is_many {
        // A launch over tiles covers the step.
        b.first = 0;
    }
    b.set_count(count);
    let (rows, cols) = matrix_size(&mut b, epilogue);
    let tiles = rows.div_ceil(16);
    let distinct = if epilogue == E::Largest && b.flag() {
        // Many equal logits.
        b.pick(&[1, 7, 100])
    } else {
        16 * tiles
    };
    let weights = weights(&mut b, 16 * tiles, cols, distinct);
    let layout = if is_many {
        XLayout::of_many(&mut b, cols)
    } else {
        XLayout::random(&mut b, cols, matches!(epilogue, E::Store | E::Largest))
    };
    let mut x = b.random_values(layout.len, 1.0);
    b.spoil_seldom(&mut x);
    let x = b.rounded_input(&x);
    let sum_count = b.pick(&[1, 2, 33, 64, 300]);
    let sums = if b.flag() {
        let most = 2.0 * cols as f32 / sum_count as f32;
        let sums: Vec<f32> = (0..b.tokens * sum_count)
            .map(|_| b.between(0.0, most))
            .collect();
        b.input(&sums)
    } else {
        Operand::NONE
    };
    let mut bias = b.random_values(distinct, 3.0);
    b.spoil(&mut bias);
    let bias: Vec<f32> = bias.into_iter().cycle().take(rows).collect();
    let bias = if epilogue != E::Gated && b.flag() {
        b.input(&bias)
    } else {
        Operand::NONE
    };
    let index: Vec<u32> = (0..count).map(|_| b.below(b.tokens) as u32).collect();
    let index = if !is_many && b.flag() {
        b.words(&index)
    } else {
        Operand::NONE
    };
    let outputs = LinearOutputs::random(&mut b, epilogue, rows, &layout);
    let eps = b.pick(&[1e-6, 1e-5, 0.1]);
    let factor = b.pick(&[1.0, 0.22]);
    let activation = b.pick(&[SILU, GELU_TANH]);
    let parts = parts(rows as u32, cols as u32);
    b.finish(move |placed| {
        let op = FusedLinear {
            weights: placed.at(weights),
            x: placed.at(x),
            sums: placed.at(sums),
            bias: placed.at(bias),
            out: placed.at(outputs.out),
            next: placed.at(outputs.next),
            gain: placed.at(outputs.gain),
            next_sums: placed.at(outputs.next_sums),
            candidates: placed.at(outputs.candidates),
            arrivals: placed.at(outputs.arrivals),
            tokens: placed.at(outputs.tokens),
            index: placed.at(index),
            rows: rows as u32,
            cols: cols as u32,
            parts,
            sum_count: sum_count as u32,
            eps,
            factor,
            activation,
            flags: layout.flags,
            groups: layout.groups,
            reserved: 0,
        };
        FusedOp::Linear(epilogue, op).into()
    })
}

/// Rows and columns that the kernels of an epilogue can do.
fn matrix_size(b: &mut Builder, epilogue: Epilogue) -> (usize, usize) {
    /// What an interpreter can compute in a moment, for eight tokens.
    const MOST: usize = 1 << 19;
    let cols = b.pick(&[
        128, 160, 192, 256, 352, 512, 576, 1024, 1056, 2048, 2080, 4096, 8192, 12_288,
    ]);
    let rows: usize = b.pick(&[16, 32, 48, 208, 512, 1024, 1040, 4096, 8192]);
    let rows = rows.min(MOST * 8 / b.count.max(8) / cols).max(1);
    match epilogue {
        Epilogue::Store => (rows.next_multiple_of(16) - b.pick(&[0, 0, 3]), cols),
        Epilogue::Residual => (rows.next_multiple_of(32), cols),
        // Few rows of so many columns would be cut into parts that these have no kernel for.
        Epilogue::Gated => (rows.next_multiple_of(64), cols.min(4096)),
        Epilogue::Largest => (rows.next_multiple_of(16) - b.below(16), cols.min(4096)),
    }
}

/// A matrix in fragment order, of which only some rows are distinct.
fn weights(b: &mut Builder, rows: usize, cols: usize, distinct: usize) -> Operand {
    let mut values = b.random_values(rows * cols, 1.0);
    for row in distinct..rows {
        for col in 0..cols {
            values[fragment_index(row, col, cols)] =
                values[fragment_index(row % distinct, col, cols)];
        }
    }
    b.rounded_input(&values)
}

#[derive(Clone, Copy, Default)]
struct LinearOutputs {
    out: Operand,
    next: Operand,
    gain: Operand,
    next_sums: Operand,
    candidates: Operand,
    arrivals: Operand,
    tokens: Operand,
}

impl LinearOutputs {
    fn random(b: &mut Builder, epilogue: Epilogue, rows: usize, x: &XLayout) -> Self {
        let (tokens, tiles) = (b.tokens, rows.div_ceil(16));
        // What is written for the next operation is laid out as `x`.
        let next = |width: usize| {
            if x.flags & TILED != 0 {
                XLayout::tiled(x.groups as usize, width).len
            } else {
                tokens * width
            }
        };
        match epilogue {
            Epilogue::Store => Self {
                out: b.outputs(tokens * rows),
                ..Self::default()
            },
            Epilogue::Residual => Self {
                out: b.outputs(tokens * rows),
                next: b.rounded_outputs(next(rows)),
                gain: b.inputs(rows, 2.0),
                next_sums: b.outputs(tokens * tiles),
                ..Self::default()
            },
            Epilogue::Gated => Self {
                next: b.rounded_outputs(next(rows / 2)),
                ..Self::default()
            },
            Epilogue::Largest => Self {
                // Of each token and block; no GPU runs more blocks at a time.
                candidates: b.words(&vec![0; 2 * MAX_TOKENS as usize * 4096]),
                arrivals: b.changed_words(&[0]),
                tokens: b.output_words(tokens),
                ..Self::default()
            },
        }
    }
}

pub fn pack(mut b: Builder) -> Case {
    let has_up = b.flag();
    let cols = 16 * b.pick(&[1, 2, 5, 64, 66]);
    let mut rows: usize = b.pick(&[1, 7, 16, 31, 64, 200, 513]);
    if has_up {
        rows = rows.next_multiple_of(8);
    }
    let [matrix, up] = [(); 2].map(|()| {
        let mut values = b.random_values(rows * cols, 1.0);
        b.spoil(&mut values);
        b.rounded_input(&values)
    });
    let packed = if has_up {
        2 * rows
    } else {
        rows.next_multiple_of(16)
    };
    let out = b.rounded_outputs(packed * cols);
    b.finish(move |placed| {
        let op = PackFragments {
            out: placed.at(out),
            matrix: placed.at(matrix),
            up: placed.at(if has_up { up } else { Operand::NONE }),
            rows: rows as u32,
            cols: cols as u32,
        };
        FusedOp::Pack(op).into()
    })
}

pub fn advance(mut b: Builder) -> Case {
    b.first = 0;
    let count = b.pick(&[1, 2, 8, 130, 300]);
    b.set_count(count);
    let [positions, rope, seen_end] = [1, 3, 1].map(|width| {
        let words: Vec<u32> = (0..width * b.tokens)
            .map(|_| b.below(100_000) as u32)
            .collect();
        b.changed_words(&words)
    });
    b.finish(move |placed| {
        let op = Advance {
            positions: placed.at(positions),
            rope: placed.at(rope),
            seen_end: placed.at(seen_end),
        };
        FusedOp::Advance(op).into()
    })
}
