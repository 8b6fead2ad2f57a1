use super::super::fixture::{Bench, assert_close, rounded, values};
use crate::device::Device;
use crate::fused::{
    Advance, AngleSet, Epilogue, FusedEmbed, FusedLinear, FusedOp, GELU_TANH, PACKED,
    PackFragments, SILU, TILED,
};
use crate::ops::{Address, Format, MEDIA_ID, NOT_A_NUMBER};

const NONE: Address = Address::NONE;
const BF16: Format = Format::Bf16;

/// Positions in memory of a matrix in fragment order, as the mma instruction's operand A has them:
/// `(row, col)` of each value.
fn fragment_order(rows: usize, cols: usize) -> Vec<(usize, usize)> {
    let mut order = Vec::new();
    for tile in 0..rows.div_ceil(16) {
        for fragment in 0..cols / 16 {
            for lane in 0..32 {
                let (group, thread) = (lane / 4, lane % 4);
                for register in 0..4 {
                    for half in 0..2 {
                        let row = tile * 16 + group + register % 2 * 8;
                        let col = fragment * 16 + 2 * thread + half + register / 2 * 8;
                        order.push((row, col));
                    }
                }
            }
        }
    }
    order
}

/// The columns of a vector in memory: a lane's operand B of two mma steps is contiguous.
fn x_order(width: usize) -> Vec<usize> {
    let mut order = Vec::new();
    for block in (0..width).step_by(32) {
        for thread in 0..4 {
            for register in 0..4 {
                order.extend([0, 1].map(|half| block + 2 * thread + half + 8 * register));
            }
        }
    }
    order
}

/// Groups of eight tokens of tiled buffers.
const GROUPS: usize = 2;

/// Vectors of `width` in tiles of 8 tokens and 64 columns, whose 16 bytes `i` of token `t` are in
/// place `i ^ t`. What is missing are zeros.
fn tiled(vectors: &[f32], width: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for columns in (0..width).step_by(64) {
        for group in 0..GROUPS {
            for token in 0..8 {
                for place in 0..8 {
                    let first = columns + 8 * (place ^ token);
                    out.extend((first..first + 8).map(|column| {
                        let at = (group * 8 + token) * width + column;
                        let value = vectors.get(at).copied();
                        value.filter(|_| column < width).unwrap_or(0.0)
                    }));
                }
            }
        }
    }
    out
}

/// A row-major matrix in fragment order, with zeros below.
fn packed(matrix: &[f32], cols: usize) -> Vec<f32> {
    let rows = matrix.len() / cols;
    let order = fragment_order(rows, cols).into_iter();
    order
        .map(|(row, col)| matrix.get(row * cols + col).copied().unwrap_or(0.0))
        .collect()
}

/// Vectors of `width` in an order of `x`.
fn ordered(vectors: &[f32], width: usize, flags: u32) -> Vec<f32> {
    if flags & TILED != 0 {
        return tiled(vectors, width);
    }
    let order = x_order(width);
    let vectors = vectors.chunks_exact(width);
    vectors
        .flat_map(|vector| order.iter().map(|column| vector[*column]))
        .collect()
}

/// Values that were stored as bf16 may be one rounding away.
#[track_caller]
fn assert_rounded(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= expected.abs() / 256.0 + 1e-6;
        assert!(close, "value {index}: {found} instead of {expected}");
    }
}

#[test]
fn packed_matrices_are_mma_operands() {
    for (rows, cols) in [(1, 16), (16, 32), (21, 48), (40, 16)] {
        let mut bench = Bench::default();
        let matrix = rounded(&values(rows * cols, 1), BF16);
        let expected = packed(&matrix, cols);
        let pack = PackFragments {
            out: bench.empty(expected.len() / 2),
            matrix: bench.stored(&matrix, BF16),
            up: NONE,
            rows: rows as u32,
            cols: cols as u32,
        };
        bench.run(FusedOp::Pack(pack), 0);
        assert_eq!(bench.read_bf16s(pack.out, expected.len()), expected);
    }
}

#[test]
fn packed_gates_and_ups_share_tiles() {
    let (rows, cols) = (24, 32);
    let mut bench = Bench::default();
    let [gates, ups] = [1, 2].map(|seed| rounded(&values(rows * cols, seed), BF16));
    let mut both = Vec::new();
    for (gates, ups) in gates.chunks_exact(8 * cols).zip(ups.chunks_exact(8 * cols)) {
        both.extend_from_slice(gates);
        both.extend_from_slice(ups);
    }
    let expected = packed(&both, cols);
    let pack = PackFragments {
        out: bench.empty(expected.len() / 2),
        matrix: bench.stored(&gates, BF16),
        up: bench.stored(&ups, BF16),
        rows: rows as u32,
        cols: cols as u32,
    };
    bench.run(FusedOp::Pack(pack), 0);
    assert_eq!(bench.read_bf16s(pack.out, expected.len()), expected);
    let uneven = PackFragments { rows: 20, ..pack };
    let refusal = bench.refusal(FusedOp::Pack(uneven), 0);
    assert!(refusal.contains("not a multiple of 8"), "{refusal}");
}

#[test]
fn embeddings_come_with_gain_and_sums() {
    let (vocab, hidden, tokens, pairs) = (19, 96, 4, 3);
    for flags in [0, TILED, PACKED, PACKED | TILED] {
        let mut bench = Bench::default();
        let table = rounded(&values(vocab * hidden, 1), BF16);
        let features = values(hidden, 2);
        let gain = values(hidden, 3);
        bench.tables.ids = bench.u32s(&[99, 18, MEDIA_ID, 0, MEDIA_ID]);
        let at = bench.f32s(&features);
        bench.tables.features = bench.addresses(&[NONE, NONE, at, NONE, NONE]);
        bench.tables.positions = bench.u32s(&[0, 7, 8, 9, 10]);
        let rope: Vec<u32> = (0..15).collect();
        bench.tables.rope = bench.u32s(&rope);
        let frequencies = [1.0, 0.5, 0.25];
        let mut set = |axes: Address, factor| AngleSet {
            cos: bench.empty((tokens + 1) * pairs),
            sin: bench.empty((tokens + 1) * pairs),
            frequencies: bench.f32s(&frequencies),
            axes,
            pairs: pairs as u32,
            factor,
        };
        let plain = set(NONE, 1.0);
        let mut by_axis = set(NONE, 2.0);
        by_axis.axes = bench.u32s(&[2, 0, 1]);
        let op = FusedEmbed {
            table: if flags & PACKED == 0 {
                bench.stored(&table, BF16)
            } else {
                bench.stored(&packed(&table, hidden), BF16)
            },
            gain: bench.f32s(&gain),
            stream: bench.empty((tokens + 1) * hidden),
            x: bench.stored(&vec![0.0; GROUPS * 8 * 128], BF16),
            sums: bench.empty((tokens + 1) * 3),
            angles: [plain, by_axis],
            hidden: hidden as u32,
            sum_count: 3,
            scale: 2.0,
            flags,
            groups: GROUPS as u32,
            reserved: 0,
        };
        bench.try_run(FusedOp::Embed(op), 1, tokens).unwrap();
        let row = |id: usize| -> Vec<f32> {
            let row = &table[id * hidden..(id + 1) * hidden];
            row.iter().map(|value| 2.0 * value).collect()
        };
        let expected = [row(18), features, row(0), vec![0.0; hidden]].concat();
        assert_eq!(
            bench.read(op.stream.values(hidden), tokens * hidden),
            expected
        );
        let normed: Vec<f32> = expected
            .iter()
            .zip(gain.iter().cycle())
            .map(|(value, gain)| value * gain)
            .collect();
        let all = [vec![0.0; hidden], normed].concat();
        let x = rounded(&ordered(&all, hidden, flags), BF16);
        assert_eq!(bench.read_bf16s(op.x, x.len()), x);
        for token in 0..tokens {
            let stream = &expected[token * hidden..(token + 1) * hidden];
            let sum = stream.iter().map(|value| value * value).sum();
            let found = bench.read(op.sums.values((token + 1) * 3), 3);
            assert_close(&found, &[sum, 0.0, 0.0]);
            let position = (7 + token) as f32;
            let angle = |pair: usize| position * frequencies[pair];
            let cos = [0, 1, 2].map(|pair| angle(pair).cos());
            assert_close(&bench.read(plain.cos.values((token + 1) * 3), 3), &cos);
            let first = 3 * (token + 1);
            let angles = [first + 2, first, first + 1];
            let sin = [0, 1, 2].map(|pair| 2.0 * (angles[pair] as f32 * frequencies[pair]).sin());
            assert_close(&bench.read(by_axis.sin.values((token + 1) * 3), 3), &sin);
        }
        // The token before is not the launch's.
        let before = bench.device.read(op.stream, &mut [0; 4]);
        assert!(before.is_err(), "{before:?}");
    }
}

/// A product to test, and what it should be.
#[derive(Clone, Copy, Default)]
struct Product {
    rows: usize,
    cols: usize,
    parts: usize,
    first: usize,
    count: usize,
    is_normed: bool,
    has_bias: bool,
    has_index: bool,
    flags: u32,
    activation: u32,
}

const PRODUCTS: [Product; 5] = [
    Product {
        rows: 64,
        cols: 128,
        parts: 4,
        first: 0,
        count: 1,
        is_normed: false,
        has_bias: false,
        has_index: false,
        flags: 0,
        activation: SILU,
    },
    Product {
        rows: 192,
        cols: 160,
        parts: 4,
        first: 2,
        count: 3,
        is_normed: true,
        has_bias: true,
        has_index: false,
        flags: TILED,
        activation: GELU_TANH,
    },
    Product {
        rows: 128,
        cols: 352,
        parts: 7,
        first: 1,
        count: 8,
        is_normed: true,
        has_bias: false,
        has_index: true,
        flags: 0,
        activation: GELU_TANH,
    },
    Product {
        rows: 64,
        cols: 544,
        parts: 8,
        first: 0,
        count: 2,
        is_normed: false,
        has_bias: true,
        has_index: true,
        flags: TILED,
        activation: SILU,
    },
    Product {
        rows: 64,
        cols: 576,
        parts: 5,
        first: 3,
        count: 1,
        is_normed: true,
        has_bias: true,
        has_index: false,
        flags: 0,
        activation: SILU,
    },
];

const TOKENS: usize = 12;
const SUMS: usize = 3;
const EPS: f32 = 0.01;

impl Product {
    /// The operation without outputs, and the products of its tokens.
    fn prepare(&self, bench: &mut Bench, epilogue: Epilogue) -> (FusedLinear, Vec<Vec<f64>>) {
        let Self { rows, cols, .. } = *self;
        let reads_tiles = matches!(epilogue, Epilogue::Store | Epilogue::Largest);
        let order = if reads_tiles { self.flags } else { 0 };
        let matrix = rounded(&values(rows * cols, 1), BF16);
        let x = rounded(&values(TOKENS * cols, 2), BF16);
        let sums: Vec<f32> = values(TOKENS * SUMS, 3).iter().map(|x| 50.0 + x).collect();
        let bias = values(rows, 4);
        let index: Vec<usize> = (0..self.count).map(|m| (5 * m + 3) % TOKENS).collect();
        let words: Vec<u32> = index.iter().map(|token| *token as u32).collect();
        let mut optional = |has: bool, values: &[f32]| {
            if has { bench.f32s(values) } else { NONE }
        };
        let op = FusedLinear {
            sums: optional(self.is_normed, &sums),
            bias: optional(self.has_bias, &bias),
            weights: bench.stored(&packed(&matrix, cols), BF16),
            x: bench.stored(&ordered(&x, cols, order), BF16),
            out: NONE,
            next: NONE,
            gain: NONE,
            next_sums: NONE,
            candidates: NONE,
            arrivals: NONE,
            tokens: NONE,
            index: if self.has_index {
                bench.u32s(&words)
            } else {
                NONE
            },
            rows: rows as u32,
            cols: cols as u32,
            parts: self.parts as u32,
            sum_count: SUMS as u32,
            eps: EPS,
            factor: 0.5,
            activation: self.activation,
            flags: order,
            groups: GROUPS as u32,
            reserved: 0,
        };
        let products = (0..self.count).map(|m| {
            let from = if self.has_index {
                index[m]
            } else {
                self.first + m
            };
            let x = &x[from * cols..(from + 1) * cols];
            let sum: f32 = sums[from * SUMS..(from + 1) * SUMS].iter().sum();
            let mean = f64::from(sum) / cols as f64;
            let scale = if self.is_normed {
                1.0 / (mean + f64::from(EPS)).sqrt()
            } else {
                1.0
            };
            let product = |row: &[f32]| -> f64 {
                let pairs = row.iter().zip(x);
                pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>() * scale
            };
            let with_bias = self.has_bias && epilogue != Epilogue::Gated;
            let bias = |row: usize| if with_bias { f64::from(bias[row]) } else { 0.0 };
            let rows = matrix.chunks_exact(cols).enumerate();
            rows.map(|(row, values)| product(values) + bias(row))
                .collect()
        });
        (op, products.collect())
    }

    fn run(&self, bench: &mut Bench, epilogue: Epilogue, op: FusedLinear) {
        let op = FusedOp::Linear(epilogue, op);
        bench.try_run(op, self.first, self.count).unwrap();
    }
}

fn f32s(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

/// Relative to sums of a few hundred products.
#[track_caller]
fn assert_sums(found: &[f32], expected: &[f32]) {
    let scaled = |values: &[f32]| values.iter().map(|x| x / 16.0).collect::<Vec<f32>>();
    assert_close(&scaled(found), &scaled(expected));
}

#[test]
fn products_are_scaled_and_biased() {
    for product in PRODUCTS {
        // A head's rows may end within a tile.
        let product = Product {
            rows: product.rows - 3,
            ..product
        };
        let mut bench = Bench::default();
        let (mut op, expected) = product.prepare(&mut bench, Epilogue::Store);
        let before = values(TOKENS * product.rows, 5);
        op.out = bench.f32s(&before);
        product.run(&mut bench, Epilogue::Store, op);
        let found = bench.read(op.out, before.len());
        let rows = product.rows;
        for token in 0..TOKENS {
            let own = token * rows..(token + 1) * rows;
            match token.checked_sub(product.first) {
                Some(m) if m < product.count => assert_sums(&found[own], &f32s(&expected[m])),
                _ => assert_eq!(found[own.clone()], before[own]),
            }
        }
    }
}

#[test]
fn residuals_prepare_the_next_norm() {
    for product in PRODUCTS {
        let rows = product.rows;
        let mut bench = Bench::default();
        let (mut op, expected) = product.prepare(&mut bench, Epilogue::Residual);
        let before = values(TOKENS * rows, 5);
        let gain = values(rows, 6);
        op.out = bench.f32s(&before);
        op.gain = bench.f32s(&gain);
        op.next = bench.empty(TOKENS * rows / 2);
        op.next_sums = bench.empty(TOKENS * rows / 16);
        product.run(&mut bench, Epilogue::Residual, op);
        for (m, expected) in expected.iter().enumerate() {
            let token = product.first + m;
            let before = &before[token * rows..];
            let stream: Vec<f32> = expected
                .iter()
                .zip(before)
                .map(|(y, before)| (f64::from(*before) + 0.5 * y) as f32)
                .collect();
            assert_sums(&bench.read(op.out.values(token * rows), rows), &stream);
            let next: Vec<f32> = stream.iter().zip(&gain).map(|(x, gain)| x * gain).collect();
            let found = bench.read_bf16s(op.next.offset((2 * token * rows) as u64), rows);
            assert_rounded(&found, &ordered(&next, rows, 0));
            let sums: Vec<f32> = stream
                .chunks_exact(16)
                .map(|tile| tile.iter().map(|x| x * x).sum())
                .collect();
            let found = bench.read(op.next_sums.values(token * rows / 16), rows / 16);
            assert_rounded(&found, &sums);
        }
    }
}

#[test]
fn gates_multiply_the_ups_beside_them() {
    for product in PRODUCTS {
        let width = product.rows / 2;
        let mut bench = Bench::default();
        let (mut op, expected) = product.prepare(&mut bench, Epilogue::Gated);
        op.next = bench.empty(TOKENS * width / 2);
        product.run(&mut bench, Epilogue::Gated, op);
        for (m, expected) in expected.iter().enumerate() {
            let activate = |x: f64| {
                if product.activation == SILU {
                    return x / (1.0 + (-x).exp());
                }
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            };
            let value = |column: usize| {
                let gate = column / 8 * 16 + column % 8;
                (activate(expected[gate]) * expected[gate + 8]) as f32
            };
            let next: Vec<f32> = (0..width).map(value).collect();
            let token = product.first + m;
            let found = bench.read_bf16s(op.next.offset((2 * token * width) as u64), width);
            assert_rounded(&found, &ordered(&next, width, 0));
        }
    }
}

#[test]
fn largest_is_the_lowest_of_equals() {
    for product in PRODUCTS {
        let product = Product {
            rows: product.rows - 5,
            ..product
        };
        let mut bench = Bench::default();
        let (mut op, expected) = product.prepare(&mut bench, Epilogue::Largest);
        op.candidates = bench.empty(2 * 8 * 16);
        op.arrivals = bench.u32s(&[0]);
        op.tokens = bench.u32s(&[77; TOKENS]);
        product.run(&mut bench, Epilogue::Largest, op);
        let mut tokens = vec![77; TOKENS];
        for (m, logits) in expected.iter().enumerate() {
            let best = (0..product.rows)
                .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
                .unwrap();
            tokens[product.first + m] = best as u32;
        }
        assert_eq!(bench.read_u32s(op.tokens, TOKENS), tokens);
        assert_eq!(bench.read_u32s(op.arrivals, 1), [0]);
    }
}

#[test]
fn largest_of_chosen_logits() {
    let product = Product {
        rows: 37,
        cols: 128,
        parts: 4,
        count: 2,
        has_bias: true,
        ..Product::default()
    };
    let low = f32::NEG_INFINITY;
    let table: [(&[(usize, f32)], u32); 5] = [
        (&[(35, 5.0), (6, 5.0)], 6),
        (&[(35, f32::INFINITY), (36, f32::INFINITY)], 35),
        (&[(0, low), (1, low)], 2),
        (&[(20, f32::NAN)], NOT_A_NUMBER),
        (&[(0, f32::NAN), (4, f32::INFINITY)], NOT_A_NUMBER),
    ];
    for (logits, expected) in table {
        let mut bench = Bench::default();
        let (mut op, _) = product.prepare(&mut bench, Epilogue::Largest);
        op.weights = bench.stored(&vec![0.0; 48 * 128], BF16);
        let mut bias = vec![0.0; 37];
        for (row, logit) in logits {
            bias[*row] = *logit;
        }
        op.bias = bench.f32s(&bias);
        op.candidates = bench.empty(64);
        op.arrivals = bench.u32s(&[0]);
        op.tokens = bench.empty(2);
        product.run(&mut bench, Epilogue::Largest, op);
        assert_eq!(bench.read_u32s(op.tokens, 2), [expected; 2]);
    }
}

#[test]
fn invalid_products_are_refused() {
    let product = PRODUCTS[0];
    let mut bench = Bench::default();
    let (mut op, _) = product.prepare(&mut bench, Epilogue::Largest);
    op.candidates = bench.empty(64);
    op.arrivals = bench.u32s(&[0]);
    op.tokens = bench.empty(TOKENS);
    op.out = bench.empty(TOKENS * 64);
    op.next = bench.empty(TOKENS * 64);
    let waiting = bench.u32s(&[3]);
    let table = [
        (
            Epilogue::Store,
            9,
            op,
            "step: covers no tokens, or more than a kernel can",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear { cols: 96, ..op },
            "cols: fewer than",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear { cols: 144, ..op },
            "x: its width is not",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear { parts: 3, ..op },
            "parts: no kernel",
        ),
        (
            Epilogue::Gated,
            1,
            FusedLinear { parts: 16, ..op },
            "parts: no kernel",
        ),
        (
            Epilogue::Gated,
            1,
            FusedLinear { rows: 48, ..op },
            "next: its width is not",
        ),
        (
            Epilogue::Gated,
            1,
            FusedLinear {
                activation: 2,
                ..op
            },
            "activation: unknown",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear { rows: 65, ..op },
            "weights: bytes",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear {
                x: op.x.offset(8),
                ..op
            },
            "x: byte 8",
        ),
        (
            Epilogue::Store,
            1,
            FusedLinear { out: op.x, ..op },
            "x: it overlaps out",
        ),
        (
            Epilogue::Largest,
            1,
            FusedLinear {
                arrivals: waiting,
                ..op
            },
            "arrivals: not 0",
        ),
        (
            Epilogue::Largest,
            1,
            FusedLinear {
                candidates: NONE,
                ..op
            },
            "candidates: the address is none",
        ),
        (
            Epilogue::Largest,
            1,
            FusedLinear {
                candidates: op.tokens,
                ..op
            },
            "it overlaps",
        ),
    ];
    for (epilogue, count, op, expected) in table {
        let refusal = bench.refusal(FusedOp::Linear(epilogue, op), count);
        assert!(refusal.contains(expected), "{refusal}, not {expected}");
    }
}

#[test]
fn advance_moves_all_tokens_of_the_launch() {
    let mut bench = Bench::default();
    let op = Advance {
        positions: bench.u32s(&[5, 0, 9]),
        rope: bench.u32s(&[5, 6, 7, 0, 0, 1, 9, 9, 9]),
        seen_end: bench.u32s(&[6, 1, 10]),
    };
    bench.run(FusedOp::Advance(op), 2);
    assert_eq!(bench.read_u32s(op.positions, 3), [6, 1, 9]);
    assert_eq!(bench.read_u32s(op.rope, 9), [6, 7, 8, 1, 1, 2, 9, 9, 9]);
    assert_eq!(bench.read_u32s(op.seen_end, 3), [7, 2, 10]);
}
