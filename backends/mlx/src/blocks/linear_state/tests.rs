use super::{LinearState, Tokens};
use crate::array::{Array, Ops};
use crate::testing::{noise, ops, read};

/// The heads and the kind of tokens of a case.
#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    tokens: usize,
    heads: [usize; 2],
    key_heads: [usize; 2],
    key_dim: usize,
    value_dim: usize,
    per_channel: bool,
    delta: bool,
    nature: TokenKind,
}

#[derive(Clone, Copy)]
enum TokenKind {
    Random,
    /// All keys are equal and nothing decays: key products are bounded only by the delta rule
    /// itself.
    Stubborn,
    /// The decay over a chunk underflows a float.
    Forgetful,
}

/// Values of [rows, tokens, heads, dim], with a query and a key for each head.
struct Plain {
    case: Case,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    memory: Vec<f32>,
}

impl Case {
    fn count(&self) -> usize {
        self.rows * self.tokens
    }

    fn all_heads(&self) -> usize {
        self.heads[0] * self.heads[1]
    }

    fn channels(&self) -> usize {
        if self.per_channel { self.key_dim } else { 1 }
    }

    fn make(self) -> Plain {
        let shared = self.key_heads[0] * self.key_heads[1];
        let heads = self.count() * self.all_heads();
        let unit = |mut all: Vec<f32>| {
            for head in all.chunks_exact_mut(self.key_dim) {
                let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= length);
            }
            all
        };
        let mut keys = noise(self.count() * shared * self.key_dim, 2);
        let mut decay = noise(heads * self.channels(), 4);
        let mut beta = noise(heads, 5);
        match self.nature {
            TokenKind::Random => decay.iter_mut().for_each(|x| *x = -(*x + 1.0) / 2.0),
            TokenKind::Stubborn => {
                let len = self.key_dim;
                (len..keys.len()).for_each(|at| keys[at] = keys[at - len]);
                decay.fill(-1e-4);
                beta.fill(6.0);
            }
            TokenKind::Forgetful => decay.iter_mut().for_each(|x| *x = -20.0 * (*x + 1.0)),
        }
        Plain {
            case: self,
            queries: unit(noise(self.count() * shared * self.key_dim, 1)),
            keys: unit(keys),
            values: noise(heads * self.value_dim, 3),
            decay,
            beta,
            memory: noise(
                self.rows * self.all_heads() * self.value_dim * self.key_dim,
                6,
            ),
        }
    }
}

impl Plain {
    fn tokens(&self, ops: &Ops) -> Tokens {
        let case = &self.case;
        let upload = |values: &[f32], [outer, inner]: [usize; 2]| {
            let dim = values.len() / (case.count() * outer * inner);
            let dims = [case.rows, case.tokens, outer, inner, dim].map(|n| n as i32);
            ops.upload_f32(values, &dims).unwrap()
        };
        Tokens {
            queries: upload(&self.queries, case.key_heads),
            keys: upload(&self.keys, case.key_heads),
            values: upload(&self.values, case.heads),
            decay: upload(&self.decay, case.heads),
            beta: case.delta.then(|| upload(&self.beta, case.heads)),
        }
    }

    fn before(&self, ops: &Ops) -> Array {
        let Case {
            rows,
            heads: [outer, inner],
            value_dim,
            key_dim,
            ..
        } = self.case;
        let dims = [rows, outer, inner, value_dim, key_dim].map(|n| n as i32);
        ops.upload_f32(&self.memory, &dims).unwrap()
    }

    /// Outputs and states token by token, in double precision.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let case = &self.case;
        let heads = case.all_heads();
        let size = case.value_dim * case.key_dim;
        let mut memory: Vec<f64> = self.memory.iter().map(|x| f64::from(*x)).collect();
        let mut outputs = vec![0.0; self.values.len()];
        for at in 0..case.count() * heads {
            let (token, head) = (at / heads, at % heads);
            let row = token / case.tokens;
            let memory = &mut memory[(row * heads + head) * size..][..size];
            let answer = self.step(token, head, memory);
            outputs[at * case.value_dim..][..case.value_dim].copy_from_slice(&answer);
        }
        (outputs, memory)
    }

    fn step(&self, token: usize, head: usize, memory: &mut [f64]) -> Vec<f64> {
        let case = &self.case;
        let [outer, inner] = case.key_heads;
        let (index, width) = (
            [head / case.heads[1] % outer, head % case.heads[1] % inner],
            inner,
        );
        let shared = token * outer * inner + index[0] * width + index[1];
        let own = token * case.all_heads() + head;
        let wide = |of: &[f32], at: usize, len: usize| -> Vec<f64> {
            of[at * len..][..len]
                .iter()
                .map(|x| f64::from(*x))
                .collect()
        };
        let key = wide(&self.keys, shared, case.key_dim);
        let query = wide(&self.queries, shared, case.key_dim);
        let value = wide(&self.values, own, case.value_dim);
        let decay = wide(&self.decay, own, case.channels());
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut answer = Vec::new();
        for (line, value) in memory.chunks_exact_mut(case.key_dim).zip(value) {
            for (channel, cell) in line.iter_mut().enumerate() {
                *cell *= decay[channel % decay.len()].exp();
            }
            let share = 1.0 / (1.0 + (-f64::from(self.beta[own])).exp());
            let written = if case.delta {
                (value - dot(line, &key)) * share
            } else {
                value
            };
            line.iter_mut()
                .zip(&key)
                .for_each(|(cell, key)| *cell += written * key);
            answer.push(dot(line, &query));
        }
        answer
    }
}

fn cases() -> Vec<Case> {
    let base = Case {
        rows: 1,
        tokens: 1,
        heads: [2, 3],
        key_heads: [2, 1],
        key_dim: 16,
        value_dim: 8,
        per_channel: false,
        delta: true,
        nature: TokenKind::Random,
    };
    let mut cases = Vec::new();
    for tokens in [1, 2, 3, 16, 17, 63, 64, 65, 130, 600] {
        for (per_channel, delta) in [(false, true), (true, true), (false, false)] {
            cases.push(Case {
                tokens,
                per_channel,
                delta,
                ..base
            });
        }
    }
    let turns = Case {
        rows: 3,
        tokens: 33,
        heads: [3, 2],
        key_heads: [1, 2],
        ..base
    };
    cases.extend([
        turns,
        Case { tokens: 1, ..turns },
        Case {
            per_channel: true,
            ..turns
        },
        Case {
            delta: false,
            tokens: 65,
            ..turns
        },
    ]);
    for nature in [TokenKind::Stubborn, TokenKind::Forgetful] {
        for per_channel in [false, true] {
            cases.push(Case {
                tokens: 128,
                per_channel,
                nature,
                ..base
            });
        }
    }
    cases
}

fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let worst = |worst: f64, difference: f64| {
        if difference <= worst {
            worst
        } else {
            difference
        }
    };
    pairs
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, worst)
}

/// Sums of hundreds of rounded products of numbers below one.
const CLOSE: f64 = 1e-5;

#[test]
fn chunks_equal_single_tokens() {
    let Some(ops) = ops() else { return };
    for (index, case) in cases().into_iter().enumerate() {
        let plain = case.make();
        let memory = LinearState::new(&ops, case.channels()).unwrap();
        let before = Some(plain.before(&ops));
        let (outputs, after) = memory.run(&ops, &plain.tokens(&ops), before).unwrap();
        let (expected, expected_after) = plain.expected();
        let difference = distance(&read(&ops, &outputs), &expected);
        assert!(
            difference < CLOSE,
            "case {index}: outputs differ by {difference}"
        );
        let difference = distance(&read(&ops, &after), &expected_after);
        assert!(
            difference < CLOSE,
            "case {index}: states differ by {difference}"
        );
    }
}

#[test]
fn pieces_equal_the_whole_sequence() {
    let Some(ops) = ops() else { return };
    for per_channel in [false, true] {
        let case = Case {
            tokens: 90,
            per_channel,
            ..cases()[0]
        };
        let plain = Case { rows: 1, ..case }.make();
        let memory = LinearState::new(&ops, case.channels()).unwrap();
        let tokens = plain.tokens(&ops);
        let (whole, after) = memory.run(&ops, &tokens, None).unwrap();
        let whole: Vec<f64> = read(&ops, &whole).into_iter().map(f64::from).collect();
        let (mut state, mut pieces) = (None, Vec::new());
        let mut at = 0;
        for len in [40, 1, 49] {
            let piece = tokens.slice(&ops, at, len).unwrap();
            let (outputs, next) = memory.run(&ops, &piece, state).unwrap();
            pieces.extend(read(&ops, &outputs));
            state = Some(next);
            at += len;
        }
        assert!(distance(&pieces, &whole) < CLOSE);
        let after: Vec<f64> = read(&ops, &after).into_iter().map(f64::from).collect();
        assert!(distance(&read(&ops, &state.unwrap()), &after) < CLOSE);
    }
}
