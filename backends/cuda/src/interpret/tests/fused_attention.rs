use super::super::fixture::{Bench, rounded, values};
use crate::fused::{FusedAttention, FusedOp, TILED, x_position, x_tiled};
use crate::ops::{Address, Format, KvRef, PAGE, PageRun};

const BF16: Format = Format::Bf16;
const NONE: Address = Address::NONE;
const EPS: f32 = 0.02;
const SCALE: f32 = 0.2;

/// A layer, whose launch begins at the step's second token.
#[derive(Clone, Copy)]
struct Layer {
    kv_heads: usize,
    sharing: usize,
    head_dim: usize,
    pairs: usize,
    reach_len: usize,
    softcap: f32,
    has_gains: bool,
    flags: u32,
}

const LAYER: Layer = Layer {
    kv_heads: 2,
    sharing: 3,
    head_dim: 64,
    pairs: 32,
    reach_len: 0,
    softcap: 0.0,
    has_gains: false,
    flags: 0,
};

/// A row's position, and the first one of its pages.
type Row = (usize, usize);

impl Layer {
    fn heads(&self) -> usize {
        self.kv_heads * self.sharing
    }

    fn kv(&self, pages: Address) -> KvRef {
        let len = (self.kv_heads * PAGE * self.head_dim * 2) as u64;
        KvRef {
            pages,
            page_bytes: 2 * len + 48,
            keys: 16,
            values: len + 32,
            group: 1,
            heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            value_dim: self.head_dim as u32,
            format: BF16,
            values_in_keys: 0,
        }
    }

    /// Norm, rope and rounding of a head.
    fn turned(&self, head: &[f32], gain: &[f32], [cos, sin]: [&[f32]; 2]) -> Vec<f32> {
        let mut out: Vec<f64> = head.iter().copied().map(f64::from).collect();
        if self.has_gains {
            let squares: f64 = out.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares / self.head_dim as f64 + f64::from(EPS)).sqrt();
            for (value, gain) in out.iter_mut().zip(gain) {
                *value *= scale * f64::from(*gain);
            }
        }
        for pair in 0..self.pairs {
            let (c, s) = (f64::from(cos[pair]), f64::from(sin[pair]));
            let (a, b) = (out[pair], out[pair + self.pairs]);
            out[pair] = a * c - b * s;
            out[pair + self.pairs] = a * s + b * c;
        }
        let out: Vec<f32> = out.iter().map(|value| *value as f32).collect();
        rounded(&out, BF16)
    }

    fn attended(&self, query: &[f32], seen: &[(Vec<f32>, Vec<f32>)]) -> Vec<f32> {
        let weights: Vec<f64> = seen
            .iter()
            .map(|(key, _)| {
                let dot: f64 = query.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum();
                let score = dot * f64::from(SCALE);
                let cap = f64::from(self.softcap);
                let capped = if cap == 0.0 {
                    score
                } else {
                    (score / cap).tanh() * cap
                };
                capped.exp()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        (0..self.head_dim)
            .map(|dim| {
                let values = seen.iter().map(|(_, value)| f64::from(value[dim]));
                let mixed: f64 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
                (mixed / total) as f32
            })
            .collect()
    }

    /// Old keys and values of a row, by position.
    fn old(&self, row: usize, positions: usize) -> [Vec<f32>; 2] {
        let len = positions * self.kv_heads * self.head_dim;
        [100, 200].map(|seed| rounded(&values(len, seed + row as u64), BF16))
    }

    /// Builds pages with the rows' old keys and values, and the tables.
    fn prepare(&self, bench: &mut Bench, rows: &[Row]) -> (KvRef, Vec<Vec<u32>>) {
        let mut pages: Vec<Vec<u32>> = Vec::new();
        let mut runs = vec![
            PageRun {
                start: 999,
                first: 1
            };
            rows.len() + 2
        ];
        // Row 0 is not in the launch.
        runs.push(PageRun {
            start: 999,
            first: 1,
        });
        let (mut all, mut next) = (vec![u32::MAX], 0);
        for (position, first) in rows {
            runs.push(PageRun {
                start: all.len() as u32,
                first: *first as u32,
            });
            let count = (position - first) / PAGE + 1;
            let own: Vec<u32> = (0..count as u32).rev().map(|page| next + page).collect();
            next += count as u32;
            all.extend(&own);
            pages.push(own);
        }
        let kv = self.kv(NONE);
        let pool = bench.empty(next as usize * kv.page_bytes as usize / 4);
        let kv = self.kv(pool);
        for (row, (position, first)) in rows.iter().enumerate() {
            let [keys, values] = self.old(row, *position);
            for at in *first..*position {
                let base = u64::from(pages[row][(at - first) / PAGE]) * kv.page_bytes;
                for head in 0..self.kv_heads {
                    for dim in 0..self.head_dim {
                        let from = (at * self.kv_heads + head) * self.head_dim + dim;
                        let key = ((head * PAGE + at % PAGE) * self.head_dim + dim) as u64;
                        let value = ((head * self.head_dim + dim) * PAGE + at % PAGE) as u64;
                        bench.set_bf16(pool.offset(base + kv.keys + 2 * key), keys[from]);
                        bench.set_bf16(pool.offset(base + kv.values + 2 * value), values[from]);
                    }
                }
            }
        }
        let bytes: Vec<u8> = runs.iter().flat_map(bytemuck::bytes_of).copied().collect();
        bench.tables.page_runs = bench.bytes(&bytes);
        bench.tables.run_stride = rows.len() as u64 + 2;
        bench.tables.pages = bench.u32s(&all);
        let positions: Vec<u32> = rows.iter().map(|(position, _)| *position as u32).collect();
        bench.tables.positions = bench.u32s(&[&[9999], &positions[..]].concat());
        bench.rows = rows.len() + 1;
        (kv, pages)
    }

    fn check(&self, rows: &[Row]) {
        let mut bench = Bench::default();
        let (kv, pages) = self.prepare(&mut bench, rows);
        let (heads, dim) = (self.heads(), self.head_dim);
        let tokens = rows.len() + 1;
        let width = (heads + 2 * self.kv_heads) * dim;
        let qkv = values(tokens * width, 1);
        let [cos, sin] = [2, 3].map(|seed| values(tokens * self.pairs, seed));
        let gains = [4, 5].map(|seed| values(dim, seed));
        let [query_gain, key_gain] = if self.has_gains {
            gains.clone().map(|gain| bench.f32s(&gain))
        } else {
            [NONE; 2]
        };
        let op = FusedAttention {
            kv,
            qkv: bench.f32s(&qkv),
            cos: bench.f32s(&cos),
            sin: bench.f32s(&sin),
            query_gain,
            key_gain,
            out: bench.stored(&vec![0.0; 8 * heads * dim], BF16),
            heads: heads as u32,
            pairs: self.pairs as u32,
            reach_len: self.reach_len as u32,
            first_row: 1,
            scale: SCALE,
            softcap: self.softcap,
            eps: EPS,
            flags: self.flags,
            groups: 1,
            reserved: 0,
        };
        let launched = FusedOp::Attention(op);
        bench.try_run(launched, 1, rows.len()).unwrap();
        for (row, (position, first)) in rows.iter().enumerate() {
            let token = row + 1;
            let angles = [&cos, &sin].map(|a| &a[token * self.pairs..(token + 1) * self.pairs]);
            let head = |head: usize| &qkv[token * width + head * dim..][..dim];
            let [old_keys, old_values] = self.old(row, *position);
            let start = match self.reach_len {
                0 => 0,
                len => (position + 1).saturating_sub(len),
            };
            let page = u64::from(pages[row][(position - first) / PAGE]) * kv.page_bytes;
            let slot = position % PAGE;
            for kv_head in 0..self.kv_heads {
                let old = |of: &[f32], at: usize| {
                    of[(at * self.kv_heads + kv_head) * dim..][..dim].to_vec()
                };
                let mut seen: Vec<(Vec<f32>, Vec<f32>)> = (start..*position)
                    .map(|at| (old(&old_keys, at), old(&old_values, at)))
                    .collect();
                let key = self.turned(head(heads + kv_head), &gains[1], angles);
                let value = rounded(head(heads + self.kv_heads + kv_head), BF16);
                let at = kv.keys + (2 * (kv_head * PAGE + slot) * dim) as u64;
                assert_near(&bench.read_bf16s(kv.pages.offset(page + at), dim), &key);
                for (index, value) in value.iter().enumerate() {
                    let at = kv.values + (2 * ((kv_head * dim + index) * PAGE + slot)) as u64;
                    assert_eq!(bench.read_bf16s(kv.pages.offset(page + at), 1), [*value]);
                }
                seen.push((key, value));
                for query in kv_head * self.sharing..(kv_head + 1) * self.sharing {
                    let turned = self.turned(head(query), &gains[0], angles);
                    let expected = self.attended(&turned, &seen);
                    let found = bench.read_bf16s(op.out, 8 * heads * dim);
                    let found: Vec<f32> = (query * dim..(query + 1) * dim)
                        .map(|column| match self.flags & TILED {
                            0 => found[token * heads * dim + x_position(column)],
                            _ => found[x_tiled(token, column, 1)],
                        })
                        .collect();
                    assert_near(&found, &expected);
                }
            }
        }
    }
}

/// Values of at most about one, which were rounded to bf16, as were the weights of their sum.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= expected.abs() / 128.0 + 1e-3;
        assert!(close, "value {index}: {found} instead of {expected}");
    }
}

#[test]
fn new_tokens_attend_to_pages_and_themselves() {
    LAYER.check(&[(0, 0), (1, 0), (63, 0), (64, 0), (65, 0), (200, 0)]);
    // More pages than splits.
    LAYER.check(&[(64 * 17 + 5, 0)]);
}

#[test]
fn windows_end_within_pages() {
    for reach_len in [1, 2, 64, 65, 100] {
        let layer = Layer { reach_len, ..LAYER };
        layer.check(&[(5, 0), (64, 0), (200, 0), (199, 64)]);
    }
    let layer = Layer {
        reach_len: 20,
        ..LAYER
    };
    layer.check(&[(150, 128), (128, 64), (147, 128)]);
}

#[test]
fn head_variants_agree_with_the_formula() {
    let table = [
        Layer {
            has_gains: true,
            ..LAYER
        },
        Layer {
            pairs: 0,
            has_gains: true,
            flags: TILED,
            ..LAYER
        },
        Layer {
            pairs: 9,
            softcap: 0.5,
            ..LAYER
        },
        Layer {
            kv_heads: 2,
            sharing: 1,
            head_dim: 80,
            pairs: 20,
            ..LAYER
        },
        Layer {
            kv_heads: 1,
            sharing: 16,
            head_dim: 128,
            pairs: 64,
            ..LAYER
        },
        Layer {
            kv_heads: 3,
            sharing: 2,
            head_dim: 96,
            pairs: 48,
            has_gains: true,
            ..LAYER
        },
    ];
    for layer in table {
        layer.check(&[(3, 0), (127, 0)]);
    }
}

#[test]
fn invalid_heads_and_pages_are_refused() {
    let mut bench = Bench::default();
    let (kv, _) = LAYER.prepare(&mut bench, &[(70, 0)]);
    let op = FusedAttention {
        kv,
        qkv: bench.f32s(&values(2 * 10 * 64, 1)),
        cos: bench.f32s(&values(64, 2)),
        sin: bench.f32s(&values(64, 3)),
        query_gain: NONE,
        key_gain: NONE,
        out: bench.empty(2 * 6 * 64 / 2),
        heads: 6,
        pairs: 32,
        reach_len: 0,
        first_row: 1,
        scale: 1.0,
        softcap: 0.0,
        eps: 0.0,
        flags: 0,
        groups: 0,
        reserved: 0,
    };
    let changed = |change: fn(&mut FusedAttention)| {
        let mut op = op;
        change(&mut op);
        op
    };
    let table = [
        (changed(|op| op.heads = 5), "heads: not a multiple"),
        (changed(|op| op.heads = 34), "heads: no kernel"),
        (changed(|op| op.pairs = 33), "pairs: more than"),
        (changed(|op| op.kv.format = Format::F32), "kv: "),
        (
            changed(|op| op.kv.value_dim = 32),
            "kv: values are not as long",
        ),
        (changed(|op| op.kv.keys = 8), "kv: not aligned"),
        (changed(|op| op.first_row = 2), "first_row: row 2"),
        (changed(|op| op.kv.group = 0), "page_runs: "),
        (changed(|op| op.cos = NONE), "cos: the address is none"),
        (
            changed(|op| op.out = op.qkv.offset(2048)),
            "qkv: it overlaps out",
        ),
    ];
    for (op, expected) in table {
        let refusal = bench.try_run(FusedOp::Attention(op), 1, 1).unwrap_err();
        let refusal = refusal.to_string();
        assert!(refusal.contains(expected), "{refusal}, not {expected}");
    }
    // Position 71 was never written.
    bench.tables.positions = bench.u32s(&[0, 72]);
    let refusal = bench
        .try_run(FusedOp::Attention(op), 1, 1)
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("keys: byte"), "{refusal}");
}
