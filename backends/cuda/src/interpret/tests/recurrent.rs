//! States that rows carry, and convolutions.

use super::super::fixture::{Bench, assert_close, values};
use crate::ops::{Address, Convolve, Op, RowTable, StateCopy};

const NONE: Address = Address::NONE;
/// Values of a state that are another layer's.
pub(super) const OTHERS: usize = 3;

/// A recurrent operation: a function of a row's inputs, which computes in place or to `out`.
pub(super) trait Mixer {
    /// Values of a token in each of the inputs.
    fn inputs(&self) -> Vec<usize>;
    fn outputs(&self) -> usize;
    fn state_len(&self) -> usize;
    /// The operation, and the address of its outputs.
    fn op(&self, bench: &mut Bench, inputs: &[Address], out: Address) -> (Op, Address);
    /// Advances the state by a token, and returns the output.
    fn step(&self, state: &mut [f64], inputs: &[Vec<f64>]) -> Vec<f64>;
}

/// A row: its tokens' inputs, the state before it, and where to save copies.
struct Row<'a> {
    tokens: usize,
    before: Option<&'a [f32]>,
    copies: &'a [usize],
}

/// What a row leaves behind, the other layers' part of the state included.
#[derive(Debug, PartialEq)]
struct Outcome {
    out: Vec<f32>,
    after: Vec<f32>,
    copies: Vec<Vec<f32>>,
}

/// Runs rows in one launch; `inputs` are those of all their tokens.
fn run(mixer: &dyn Mixer, rows: &[Row], inputs: &[Vec<f32>]) -> Vec<Outcome> {
    let mut bench = Bench::default();
    let tokens: usize = rows.iter().map(|row| row.tokens).sum();
    let addresses: Vec<Address> = inputs.iter().map(|values| bench.f32s(values)).collect();
    let out = bench.empty(tokens * mixer.outputs());
    let (op, out) = mixer.op(&mut bench, &addresses, out);
    let state_len = OTHERS + mixer.state_len();
    let (mut tables, mut copies, mut first) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        let before = row.before.map_or(NONE, |before| bench.f32s(before));
        tables.push(RowTable {
            first,
            tokens: row.tokens as u32,
            first_snapshot: copies.len() as u32,
            snapshots: row.copies.len() as u32,
            before,
            after: bench.f32s(&vec![7.0; state_len]),
        });
        for tokens in row.copies {
            copies.push(StateCopy {
                tokens: *tokens as u32,
                reserved: 0,
                to: bench.f32s(&vec![7.0; state_len]),
            });
        }
        first += row.tokens as u32;
    }
    bench.set_rows(&tables, &copies);
    bench.run(op, rows.len());
    tables
        .iter()
        .map(|row| {
            let at = out.values(row.first as usize * mixer.outputs());
            let own = row.first_snapshot as usize..(row.first_snapshot + row.snapshots) as usize;
            let out = bench.read(at, row.tokens as usize * mixer.outputs());
            Outcome {
                out,
                after: bench.read(row.after, state_len),
                copies: copies[own]
                    .iter()
                    .map(|copy| bench.read(copy.to, state_len))
                    .collect(),
            }
        })
        .collect()
}

fn slice(mixer: &dyn Mixer, inputs: &[Vec<f32>], tokens: std::ops::Range<usize>) -> Vec<Vec<f32>> {
    let lens = mixer.inputs();
    let pairs = inputs.iter().zip(lens);
    pairs
        .map(|(values, len)| values[tokens.start * len..tokens.end * len].to_vec())
        .collect()
}

pub(super) fn check(mixer: &dyn Mixer) {
    let tokens = 7;
    let lens = mixer.inputs();
    let inputs: Vec<Vec<f32>> = lens
        .iter()
        .zip(1..)
        .map(|(len, seed)| values(tokens * len, seed))
        .collect();
    let start = values(OTHERS + mixer.state_len(), 99);
    for before in [None, Some(start.as_slice())] {
        let whole = Row {
            tokens,
            before,
            copies: &[3, 5, 7],
        };
        let outcome = run(mixer, &[whole], &inputs).remove(0);
        // Against the formula, state and output after each token.
        let own = before.map_or(vec![0.0; mixer.state_len()], |before| {
            before[OTHERS..].iter().map(|x| f64::from(*x)).collect()
        });
        let (mut state, mut copies) = (own, outcome.copies.iter());
        for token in 0..tokens {
            let own: Vec<Vec<f64>> = slice(mixer, &inputs, token..token + 1)
                .iter()
                .map(|values| values.iter().map(|x| f64::from(*x)).collect())
                .collect();
            let expected: Vec<f32> = mixer
                .step(&mut state, &own)
                .iter()
                .map(|x| *x as f32)
                .collect();
            assert_close(
                &outcome.out[token * mixer.outputs()..][..mixer.outputs()],
                &expected,
            );
            if [3, 5, 7].contains(&(token + 1)) {
                let copy = copies.next().unwrap();
                let expected: Vec<f32> = state.iter().map(|x| *x as f32).collect();
                assert_close(&copy[OTHERS..], &expected);
                assert_eq!(
                    copy[..OTHERS],
                    [7.0; OTHERS],
                    "the others' part is left alone"
                );
            }
        }
        assert_eq!(outcome.copies[2], outcome.after);
        // In chunks, and beside another row.
        let first = Row {
            tokens: 3,
            before,
            copies: &[1],
        };
        let other = Row {
            tokens: 2,
            before: None,
            copies: &[],
        };
        let mut beside = slice(mixer, &inputs, 0..5);
        let chunk = run(mixer, &[first, other], &beside).remove(0);
        assert_eq!(chunk.after, outcome.copies[0]);
        beside = slice(mixer, &inputs, 3..7);
        let rest = Row {
            tokens: 4,
            before: Some(&chunk.after),
            copies: &[2],
        };
        let rest = run(mixer, &[rest], &beside).remove(0);
        assert_eq!([chunk.out, rest.out].concat(), outcome.out);
        assert_eq!(rest.after, outcome.after);
        assert_eq!(rest.copies[0], outcome.copies[1]);
    }
}

struct Conv {
    channels: usize,
    kernel: usize,
    silu: bool,
    has_bias: bool,
}

impl Conv {
    fn weights(&self) -> [Vec<f32>; 2] {
        [
            values(self.channels * self.kernel, 50),
            values(self.channels, 51),
        ]
    }
}

impl Mixer for Conv {
    fn inputs(&self) -> Vec<usize> {
        vec![self.channels]
    }

    fn outputs(&self) -> usize {
        self.channels
    }

    fn state_len(&self) -> usize {
        (self.kernel - 1) * self.channels
    }

    fn op(&self, bench: &mut Bench, inputs: &[Address], _: Address) -> (Op, Address) {
        let [weights, bias] = self.weights();
        let op = Convolve {
            values: inputs[0],
            weights: bench.f32s(&weights),
            bias: if self.has_bias {
                bench.f32s(&bias)
            } else {
                NONE
            },
            stride: self.channels as u32,
            channels: self.channels as u32,
            kernel: self.kernel as u32,
            state: OTHERS as u32,
            silu: self.silu.into(),
            reserved: 0,
        };
        (op.into(), inputs[0])
    }

    fn step(&self, state: &mut [f64], inputs: &[Vec<f64>]) -> Vec<f64> {
        let [weights, bias] = self.weights();
        let window = [&*state, &inputs[0]].concat();
        state.copy_from_slice(&window[self.channels..]);
        (0..self.channels)
            .map(|channel| {
                let taps = (0..self.kernel).map(|tap| {
                    let weight = weights[channel * self.kernel + tap];
                    f64::from(weight) * window[tap * self.channels + channel]
                });
                let bias = if self.has_bias {
                    f64::from(bias[channel])
                } else {
                    0.0
                };
                let total = bias + taps.sum::<f64>();
                if self.silu {
                    total / (1.0 + (-total).exp())
                } else {
                    total
                }
            })
            .collect()
    }
}

#[test]
fn convolution_carries_its_last_inputs() {
    for (channels, kernel, silu, has_bias) in [
        (5, 4, true, true),
        (1, 2, false, false),
        (67, 3, true, false),
    ] {
        check(&Conv {
            channels,
            kernel,
            silu,
            has_bias,
        });
    }
}

#[test]
fn convolution_of_one_tap_needs_no_state() {
    let mut bench = Bench::default();
    let row = RowTable {
        tokens: 2,
        ..RowTable::default()
    };
    bench.set_rows(&[row], &[]);
    let op = Convolve {
        values: bench.f32s(&[1.0, 2.0, 3.0, 4.0]),
        weights: bench.f32s(&[10.0, -1.0]),
        bias: NONE,
        stride: 2,
        channels: 2,
        kernel: 1,
        state: 0,
        silu: 0,
        reserved: 0,
    };
    bench.run(op, 1);
    assert_eq!(bench.read(op.values, 4), [10.0, -2.0, 30.0, -4.0]);
    let wider = Convolve {
        kernel: 2,
        channels: 1,
        ..op
    };
    let refusal = bench.refusal(wider, 1);
    assert_eq!(
        refusal,
        "invalid access by Convolve to after: the address is none"
    );
}

#[test]
fn states_may_advance_in_place() {
    let mut bench = Bench::default();
    let state = bench.f32s(&[1.0, 2.0]);
    let row = RowTable {
        tokens: 1,
        before: state,
        after: state,
        ..RowTable::default()
    };
    bench.set_rows(&[row], &[]);
    let op = Convolve {
        values: bench.f32s(&[3.0]),
        weights: bench.f32s(&[100.0, 10.0, 1.0]),
        bias: NONE,
        stride: 1,
        channels: 1,
        kernel: 3,
        state: 0,
        silu: 0,
        reserved: 0,
    };
    bench.run(op, 1);
    assert_eq!(bench.read(op.values, 1), [123.0]);
    assert_eq!(bench.read(state, 2), [2.0, 3.0]);
}

#[test]
fn snapshots_after_the_row_are_refused() {
    let mut bench = Bench::default();
    let state = bench.empty(1);
    for (tokens, expected) in [(0, "after 0 of 2 tokens"), (3, "after 3 of 2 tokens")] {
        let row = RowTable {
            tokens: 2,
            snapshots: 1,
            after: state,
            ..RowTable::default()
        };
        let copy = StateCopy {
            tokens,
            reserved: 0,
            to: state,
        };
        bench.set_rows(&[row], &[copy]);
        let op = Convolve {
            values: bench.f32s(&[1.0, 2.0]),
            weights: bench.f32s(&[1.0, 1.0]),
            bias: NONE,
            stride: 1,
            channels: 1,
            kernel: 2,
            state: 0,
            silu: 0,
            reserved: 0,
        };
        let refusal = bench.refusal(op, 1);
        assert!(refusal.contains(expected), "{refusal}");
    }
}
