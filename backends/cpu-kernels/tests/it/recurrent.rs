//! Convolutions and recurrent states, token after token.

use super::*;

/// Every `stride`-th value from `first` on.
fn column(values: &[f32], first: usize, stride: usize) -> Vec<f32> {
    values[first..].iter().step_by(stride).copied().collect()
}

#[test]
fn convolutions_use_past_inputs() {
    let mut random = Random(21);
    for channels in [1, 3, 15, 16, 17, 40] {
        for kernel in 1..=4 {
            let weights = random.floats(kernel * channels, 1.0);
            let bias = random.floats(channels, 1.0);
            let tokens: Vec<Vec<f32>> = (0..6).map(|_| random.floats(channels, 2.0)).collect();
            for bias in [&bias[..], &[]] {
                // All outputs, then what is left for the next token.
                let found = agree("conv_step", |k| {
                    let mut past = vec![0.0; (kernel - 1) * channels];
                    let mut all = Vec::new();
                    for token in &tokens {
                        let mut x = token.clone();
                        let conv = ConvWeights {
                            weights: &weights,
                            bias,
                        };
                        unsafe { (k.conv_step)(&mut x, &conv, &mut past) };
                        all.extend(x);
                    }
                    all.extend(past);
                    all
                });
                let (outputs, past) = found.split_at(tokens.len() * channels);
                let mut expected = Vec::new();
                for (at, _) in tokens.iter().enumerate() {
                    for channel in 0..channels {
                        let taps = (0..kernel).filter(|tap| at + tap + 1 >= kernel);
                        let sum: f64 = taps
                            .map(|tap| {
                                let input = tokens[at + tap + 1 - kernel][channel];
                                f64::from(weights[tap * channels + channel]) * f64::from(input)
                            })
                            .sum();
                        expected.push(sum + bias.get(channel).map_or(0.0, |b| f64::from(*b)));
                    }
                }
                near("conv_step", outputs, &expected, 1e-6);
                assert_eq!(past, tokens[7 - kernel..].concat(), "the last inputs");
            }
        }
    }
}

#[test]
fn nan_leaves_a_convolution_after_kernel_length() {
    let (channels, kernel) = (18, 3);
    let weights = vec![0.5; kernel * channels];
    let found = agree("conv_step", |k| {
        let mut past = vec![0.0; (kernel - 1) * channels];
        let mut all = Vec::new();
        for token in 0..5 {
            let mut x = vec![1.0; channels];
            if token == 1 {
                x[17] = f32::NAN;
            }
            let conv = ConvWeights {
                weights: &weights,
                bias: &[],
            };
            unsafe { (k.conv_step)(&mut x, &conv, &mut past) };
            all.extend(x);
        }
        all
    });
    let spoiled: Vec<usize> = (0..found.len()).filter(|i| found[*i].is_nan()).collect();
    assert_eq!(spoiled, [1, 2, 3].map(|token| token * channels + 17));
}

/// One head's tokens, and the delta rule in `f64`.
struct Delta {
    keys: usize,
    values: usize,
    tokens: Vec<DeltaToken>,
}

struct DeltaToken {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decay: Vec<f32>,
    beta: f32,
}

impl Delta {
    fn random(random: &mut Random, keys: usize, values: usize, per_channel: bool) -> Self {
        let decays = if per_channel { keys } else { 1 };
        let tokens = (0..5).map(|_| DeltaToken {
            query: random.floats(keys, 1.0),
            key: random.floats(keys, 1.0 / (keys as f32).sqrt()),
            value: random.floats(values, 2.0),
            decay: random.floats(decays, 0.5).iter().map(|x| 0.5 + x).collect(),
            beta: 0.5 + random.float() / 2.0,
        });
        Self {
            keys,
            values,
            tokens: tokens.collect(),
        }
    }

    /// Each token's answer, then the state, by every table.
    fn run(&self) -> Vec<f32> {
        agree("delta_step", |k| {
            let mut state = vec![0.0; self.keys * self.values];
            let mut all = Vec::new();
            for token in &self.tokens {
                let mut out = vec![7.0; self.values];
                let step = DeltaStep {
                    query: &token.query,
                    key: &token.key,
                    value: &token.value,
                    decay: &token.decay,
                    beta: token.beta,
                };
                unsafe { (k.delta_step)(&step, &mut state, &mut out) };
                all.extend(out);
            }
            all.extend(state);
            all
        })
    }

    fn expected(&self) -> Vec<f64> {
        let (keys, values) = (self.keys, self.values);
        let mut state = vec![0.0; keys * values];
        let mut all = Vec::new();
        for token in &self.tokens {
            let [query, key, value] = [&token.query, &token.key, &token.value].map(|x| exact(x));
            let decay = |row: usize| f64::from(token.decay[row % token.decay.len()]);
            for (row, state) in state.chunks_mut(values).enumerate() {
                state.iter_mut().for_each(|state| *state *= decay(row));
            }
            let read = |state: &[f64], by: &[f64], column: usize| -> f64 {
                (0..keys)
                    .map(|row| by[row] * state[row * values + column])
                    .sum()
            };
            for column in 0..values {
                let change = (value[column] - read(&state, &key, column)) * f64::from(token.beta);
                for row in 0..keys {
                    state[row * values + column] += key[row] * change;
                }
                all.push(read(&state, &query, column));
            }
        }
        all.extend(state);
        all
    }
}

#[test]
fn delta_rule_matches_reference() {
    let mut random = Random(22);
    for keys in [1, 3, 16, 20, 64] {
        for values in [1, 5, 16, 17, 33] {
            for per_channel in [false, true] {
                let delta = Delta::random(&mut random, keys, values, per_channel);
                let what = format!("delta_step {keys} × {values}, {per_channel}");
                near(&what, &delta.run(), &delta.expected(), 2e-6);
            }
        }
    }
}

#[test]
fn nan_value_spoils_only_its_column() {
    let (keys, values) = (6, 18);
    let mut delta = Delta::random(&mut Random(23), keys, values, true);
    delta.tokens[1].value[17] = f32::NAN;
    let found = delta.run();
    let answers = &found[..delta.tokens.len() * values];
    let bad = |column_of: usize| column(answers, column_of, values);
    assert!(bad(17)[0].is_finite());
    assert!(bad(17)[1..].iter().all(|x| x.is_nan()));
    assert!((0..17).all(|other| bad(other).iter().all(|x| x.is_finite())));
    let state = column(&found[answers.len()..], 17, values);
    assert!(state.iter().all(|x| x.is_nan()));
}

struct MambaToken {
    x: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    decay: f32,
    step: f32,
}

const SKIP: f32 = 0.75;

/// Each token's output, then the state, by every table.
fn run_mamba(tokens: &[MambaToken]) -> Vec<f32> {
    let (channels, width) = (tokens[0].x.len(), tokens[0].b.len());
    agree("mamba_step", |k| {
        let mut state = vec![0.0; channels * width];
        let mut all = Vec::new();
        for token in tokens {
            let mut out = vec![7.0; channels];
            let step = MambaStep {
                x: &token.x,
                b: &token.b,
                c: &token.c,
                decay: token.decay,
                step: token.step,
                skip: SKIP,
            };
            unsafe { (k.mamba_step)(&step, &mut state, &mut out) };
            all.extend(out);
        }
        all.extend(state);
        all
    })
}

fn mamba_tokens(random: &mut Random, channels: usize, width: usize) -> Vec<MambaToken> {
    let tokens = (0..5).map(|_| MambaToken {
        x: random.floats(channels, 2.0),
        b: random.floats(width, 1.0),
        c: random.floats(width, 1.0),
        decay: 0.5 + random.float() / 2.0,
        step: 0.1 + random.float().abs(),
    });
    tokens.collect()
}

#[test]
fn mamba_step_matches_reference() {
    let mut random = Random(24);
    for channels in [1, 3, 16, 17] {
        for width in [1, 5, 16, 24, 64, 65] {
            let tokens = mamba_tokens(&mut random, channels, width);
            let mut state = vec![0.0; channels * width];
            let mut expected = Vec::new();
            for token in &tokens {
                let [x, b, c] = [&token.x, &token.b, &token.c].map(|x| exact(x));
                for (row, x) in state.chunks_mut(width).zip(x) {
                    for (state, b) in row.iter_mut().zip(&b) {
                        *state = *state * f64::from(token.decay) + f64::from(token.step) * x * b;
                    }
                    let read: f64 = row.iter().zip(&c).map(|(state, c)| state * c).sum();
                    expected.push(read + f64::from(SKIP) * x);
                }
            }
            expected.extend(state);
            let what = format!("mamba_step {channels} × {width}");
            near(&what, &run_mamba(&tokens), &expected, 2e-6);
        }
    }
}

#[test]
fn nan_channel_spoils_only_its_row() {
    let (channels, width) = (5, 20);
    let mut tokens = mamba_tokens(&mut Random(25), channels, width);
    tokens[2].x[4] = f32::NAN;
    let found = run_mamba(&tokens);
    for (at, value) in found[..tokens.len() * channels].iter().enumerate() {
        let spoiled = at / channels >= 2 && at % channels == 4;
        assert_eq!(value.is_nan(), spoiled, "token {}", at / channels);
    }
}
