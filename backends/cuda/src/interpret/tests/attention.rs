use std::ops::Range;

use super::super::fixture::{Bench, assert_close, encode, rounded, values};
use crate::ops::{Address, Attend, Format, KvRef, PAGE, PageRun, ReachKind, WriteKv};

const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const HEAD_DIM: usize = 7;
const VALUE_DIM: usize = 5;

/// A layer to attend in.
#[derive(Clone, Copy)]
struct Layer {
    format: Format,
    values_in_keys: bool,
    reach: ReachKind,
    reach_len: usize,
    softcap: f32,
    has_sinks: bool,
    looks_ahead: bool,
}

impl Default for Layer {
    fn default() -> Self {
        Self {
            format: Format::F32,
            values_in_keys: false,
            reach: ReachKind::All,
            reach_len: 0,
            softcap: 0.0,
            has_sinks: false,
            looks_ahead: false,
        }
    }
}

/// A sequence whose tokens from `next` on are in the step, and whose pages begin at `first`.
#[derive(Clone, Copy)]
struct Sequence {
    next: usize,
    tokens: usize,
    first: usize,
}

impl Layer {
    fn first_seen(&self, position: usize) -> usize {
        match self.reach {
            ReachKind::All => 0,
            ReachKind::Window => (position + 1).max(self.reach_len) - self.reach_len,
            ReachKind::Chunk => position - position % self.reach_len,
        }
    }

    fn kv(&self, pages: Address, group: usize) -> KvRef {
        let size = self.format.bytes();
        // Another layer's share of the page comes first.
        let keys = 48;
        let values = keys + KV_HEADS * PAGE * HEAD_DIM * size;
        KvRef {
            pages,
            page_bytes: (values + KV_HEADS * PAGE * HEAD_DIM * size + 32) as u64,
            keys: keys as u64,
            values: values as u64,
            group: group as u32,
            heads: KV_HEADS as u32,
            head_dim: HEAD_DIM as u32,
            value_dim: VALUE_DIM as u32,
            format: self.format,
            values_in_keys: self.values_in_keys.into(),
        }
    }

    /// The outputs of a sequence's tokens, from keys and values by position.
    fn expected(
        &self,
        query: &[f32],
        [keys, values]: [&[f32]; 2],
        seen: Range<usize>,
        sinks: &[f32],
    ) -> Vec<f32> {
        let mut out = Vec::new();
        for head in 0..HEADS {
            let kv_head = head / (HEADS / KV_HEADS);
            let query = &query[head * HEAD_DIM..(head + 1) * HEAD_DIM];
            let key =
                |position: usize| &keys[(position * KV_HEADS + kv_head) * HEAD_DIM..][..HEAD_DIM];
            let value = |position: usize| -> &[f32] {
                if self.values_in_keys {
                    return &key(position)[..VALUE_DIM];
                }
                &values[(position * KV_HEADS + kv_head) * VALUE_DIM..][..VALUE_DIM]
            };
            let weight = |position: usize| {
                let pairs = query.iter().zip(key(position));
                let score = 0.3 * pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>();
                let cap = f64::from(self.softcap);
                let score = if cap == 0.0 {
                    score
                } else {
                    (score / cap).tanh() * cap
                };
                score.exp()
            };
            let mut total: f64 = seen.clone().map(weight).sum();
            if self.has_sinks {
                total += f64::from(sinks[head]).exp();
            }
            for dim in 0..VALUE_DIM {
                let mixed: f64 = seen
                    .clone()
                    .map(|p| weight(p) * f64::from(value(p)[dim]))
                    .sum();
                out.push((mixed / total) as f32);
            }
        }
        out
    }

    /// Writes all positions by [`WriteKv`] in several steps, then attends and compares.
    fn check(&self, sequences: &[Sequence]) {
        let mut bench = Bench {
            rows: sequences.len(),
            ..Bench::default()
        };
        let group = 1;
        let mut pages: Vec<u32> = Vec::new();
        // Rows of another group come first; nothing may read them.
        let mut runs = vec![
            PageRun {
                start: 999,
                first: 64
            };
            sequences.len() + 2
        ];
        for (index, sequence) in sequences.iter().enumerate() {
            runs.push(PageRun {
                start: pages.len() as u32,
                first: sequence.first as u32,
            });
            let count = (sequence.next + sequence.tokens - sequence.first).div_ceil(PAGE);
            // Pages of the sequences alternate in memory.
            let ids = (0..count)
                .rev()
                .map(|page| (page * sequences.len() + index) as u32);
            pages.extend(ids);
        }
        bench.tables.run_stride = sequences.len() as u64 + 2;
        let bytes: Vec<u8> = runs.iter().flat_map(bytemuck::bytes_of).copied().collect();
        bench.tables.page_runs = bench.bytes(&bytes);
        bench.tables.pages = bench.u32s(&pages);
        let kv = self.kv(Address::NONE, group);
        let count = pages.iter().max().unwrap() + 1;
        let pool = bench.empty(count as usize * kv.page_bytes as usize / 4);
        let kv = self.kv(pool, group);
        let all: Vec<[Vec<f32>; 2]> = sequences
            .iter()
            .enumerate()
            .map(|(index, sequence)| {
                let len = (sequence.next + sequence.tokens) * KV_HEADS;
                let seed = 10 * index as u64;
                [
                    values(len * HEAD_DIM, seed + 1),
                    values(len * VALUE_DIM, seed + 2),
                ]
            })
            .collect();
        for (index, sequence) in sequences.iter().enumerate() {
            let written: Vec<(usize, usize)> = (sequence.first..sequence.next + sequence.tokens)
                .map(|position| (index, position))
                .collect();
            for tokens in written.chunks(50) {
                self.write(&mut bench, kv, tokens, &all);
            }
        }
        self.attend(&mut bench, kv, sequences, &all);
    }

    fn write(
        &self,
        bench: &mut Bench,
        kv: KvRef,
        tokens: &[(usize, usize)],
        all: &[[Vec<f32>; 2]],
    ) {
        let rows: Vec<u32> = tokens.iter().map(|(row, _)| *row as u32).collect();
        let positions: Vec<u32> = tokens
            .iter()
            .map(|(_, position)| *position as u32)
            .collect();
        bench.tables.token_row = bench.u32s(&rows);
        bench.tables.positions = bench.u32s(&positions);
        let pick = |which: usize, len: usize| -> Vec<f32> {
            let vectors = tokens
                .iter()
                .map(|(row, at)| &all[*row][which][at * len..(at + 1) * len]);
            vectors.flatten().copied().collect()
        };
        let op = WriteKv {
            kv,
            keys: bench.f32s(&pick(0, KV_HEADS * HEAD_DIM)),
            values: if self.values_in_keys {
                Address::NONE
            } else {
                bench.f32s(&pick(1, KV_HEADS * VALUE_DIM))
            },
            key_stride: (KV_HEADS * HEAD_DIM) as u32,
            value_stride: (KV_HEADS * VALUE_DIM) as u32,
        };
        bench.run(op, tokens.len());
    }

    fn attend(&self, bench: &mut Bench, kv: KvRef, sequences: &[Sequence], all: &[[Vec<f32>; 2]]) {
        let mut tokens = Vec::new();
        for (row, sequence) in sequences.iter().enumerate() {
            let end = sequence.next + sequence.tokens;
            tokens.extend((sequence.next..end).map(|position| (row, position)));
        }
        let last = |row: usize| sequences[row].next + sequences[row].tokens;
        let seen_end = |row: usize, position: usize| (position + 4).min(last(row));
        let rows: Vec<u32> = tokens.iter().map(|(row, _)| *row as u32).collect();
        let positions: Vec<u32> = tokens
            .iter()
            .map(|(_, position)| *position as u32)
            .collect();
        let ends: Vec<u32> = tokens
            .iter()
            .map(|(row, at)| seen_end(*row, *at) as u32)
            .collect();
        bench.tables.token_row = bench.u32s(&rows);
        bench.tables.positions = bench.u32s(&positions);
        bench.tables.seen_end = bench.u32s(&ends);
        let query = values(tokens.len() * HEADS * HEAD_DIM, 3);
        let sinks = values(HEADS, 4);
        let op = Attend {
            kv,
            query: bench.f32s(&query),
            out: bench.empty(tokens.len() * HEADS * VALUE_DIM),
            query_stride: (HEADS * HEAD_DIM) as u32,
            out_stride: (HEADS * VALUE_DIM) as u32,
            heads: HEADS as u32,
            reach: self.reach,
            reach_len: self.reach_len as u32,
            looks_ahead: self.looks_ahead.into(),
            scale: 0.3,
            softcap: self.softcap,
            sinks: if self.has_sinks {
                bench.f32s(&sinks)
            } else {
                Address::NONE
            },
        };
        bench.run(op, tokens.len());
        let found = bench.read(op.out, tokens.len() * HEADS * VALUE_DIM);
        for (index, (row, position)) in tokens.into_iter().enumerate() {
            let end = if self.looks_ahead {
                seen_end(row, position)
            } else {
                position + 1
            };
            let [keys, values] = [0, 1].map(|which| rounded(&all[row][which], self.format));
            let query = &query[index * HEADS * HEAD_DIM..][..HEADS * HEAD_DIM];
            let seen = self.first_seen(position)..end;
            let expected = self.expected(query, [&keys, &values], seen, &sinks);
            assert_close(
                &found[index * HEADS * VALUE_DIM..][..HEADS * VALUE_DIM],
                &expected,
            );
        }
    }
}

fn sequence(next: usize, tokens: usize, first: usize) -> Sequence {
    Sequence {
        next,
        tokens,
        first,
    }
}

#[test]
fn attention_sees_what_is_in_reach() {
    let all = Layer::default();
    let window = Layer {
        reach: ReachKind::Window,
        reach_len: 9,
        ..all
    };
    let chunk = Layer {
        reach: ReachKind::Chunk,
        reach_len: 70,
        ..all
    };
    let prompt = [sequence(0, 67, 0), sequence(63, 1, 0), sequence(130, 5, 0)];
    for layer in [all, window, chunk] {
        layer.check(&prompt);
    }
    // Pages out of reach are gone.
    window.check(&[
        sequence(135, 3, 64),
        sequence(136, 1, 128),
        sequence(64, 2, 0),
    ]);
    chunk.check(&[
        sequence(150, 3, 128),
        sequence(140, 1, 64),
        sequence(2, 3, 0),
    ]);
}

#[test]
fn attention_variants_agree_with_the_formula() {
    let base = Layer::default();
    let table = [
        Layer {
            format: Format::Bf16,
            ..base
        },
        Layer {
            values_in_keys: true,
            ..base
        },
        Layer {
            values_in_keys: true,
            format: Format::Bf16,
            ..base
        },
        Layer {
            softcap: 0.4,
            ..base
        },
        Layer {
            has_sinks: true,
            ..base
        },
        Layer {
            looks_ahead: true,
            ..base
        },
        Layer {
            has_sinks: true,
            looks_ahead: true,
            reach: ReachKind::Window,
            reach_len: 70,
            softcap: 2.0,
            ..base
        },
    ];
    for layer in table {
        layer.check(&[sequence(0, 5, 0), sequence(126, 5, 0), sequence(3, 1, 0)]);
    }
}

#[test]
fn invalid_page_runs_are_refused() {
    let layer = Layer::default();
    let mut bench = Bench {
        rows: 1,
        ..Bench::default()
    };
    bench.tables.token_row = bench.u32s(&[0]);
    bench.tables.positions = bench.u32s(&[70]);
    bench.tables.pages = bench.u32s(&[0, 1]);
    bench.tables.run_stride = 1;
    let pool = vec![0.0; 2 * layer.kv(Address::NONE, 0).page_bytes as usize / 4];
    let pool = bench.bytes(&encode(&pool, Format::F32));
    let op = Attend {
        kv: layer.kv(pool, 0),
        query: bench.f32s(&values(HEADS * HEAD_DIM, 1)),
        out: bench.empty(HEADS * VALUE_DIM),
        query_stride: 0,
        out_stride: 0,
        heads: HEADS as u32,
        reach: ReachKind::All,
        reach_len: 0,
        looks_ahead: 0,
        scale: 1.0,
        softcap: 0.0,
        sinks: Address::NONE,
    };
    for (first, expected) in [
        (0, None),
        (32, Some("not a page's")),
        (64, Some("begins at 64")),
    ] {
        bench.tables.page_runs = bench.u32s(&[0, first]);
        let found = bench.try_run(op, 0, 1).err().map(|error| error.to_string());
        match (found, expected) {
            (None, None) => {}
            (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }
    bench.tables.page_runs = bench.u32s(&[0, 0]);
    let mut overlapping = op;
    overlapping.kv.values = overlapping.kv.keys + 4;
    assert!(
        bench
            .refusal(overlapping, 1)
            .contains("keys and values overlap")
    );
    let uneven = Attend { heads: 5, ..op };
    assert!(bench.refusal(uneven, 1).contains("not a multiple"));
}
