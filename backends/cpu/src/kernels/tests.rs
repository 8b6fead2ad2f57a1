//! Every table against the portable reference, bit for bit, on random and hostile input.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is of a table from `supported`, which lists what this machine can run"
)]

use super::*;
use crate::shared::PagePtr;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.float() * size).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `compute` with every table this machine has and compares it with the portable one.
fn agree(what: &str, compute: impl Fn(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let expected = compute(&float::portable::TABLE);
    for table in supported() {
        let found = compute(table);
        assert_eq!(
            bits(&found),
            bits(&expected),
            "{what}: {} differs",
            table.name
        );
    }
    expected
}

#[test]
fn dot_and_norm_agree_at_every_length() {
    let mut random = Random(1);
    for len in (1..100).chain([127, 128, 129, 576, 1000]) {
        let (a, b) = (random.floats(len, 3.0), random.floats(len, 3.0));
        let dot = agree("dot", |k| vec![unsafe { (k.dot)(&a, &b) }]);
        let exact: f64 = a
            .iter()
            .zip(&b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum();
        assert!(
            (f64::from(dot[0]) - exact).abs() < 1e-5 * len as f64,
            "dot of {len}"
        );
        agree("rms_norm", |k| {
            let mut out = a.clone();
            unsafe { (k.rms_norm)(&mut out, &b, 1e-5) };
            out
        });
    }
}

#[test]
fn activations_agree_and_are_right() {
    let mut random = Random(2);
    let mut gate = random.floats(400, 20.0);
    gate.extend([
        0.0,
        -0.0,
        1e-30,
        -1e-6,
        88.0,
        -88.0,
        1e4,
        -1e4,
        f32::MIN_POSITIVE,
    ]);
    let up = vec![1.0; gate.len()];
    let silu = agree("silu", |k| {
        let mut out = gate.clone();
        unsafe { (k.silu_gate)(&mut out, &up) };
        out
    });
    let gelu = agree("gelu", |k| {
        let mut out = gate.clone();
        unsafe { (k.gelu_gate)(&mut out, &up) };
        out
    });
    for ((x, silu), gelu) in gate.iter().zip(silu).zip(gelu) {
        let x = f64::from(*x);
        let exact_silu = x / (1.0 + (-x).exp());
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        let exact_gelu = 0.5 * x * (1.0 + inner.tanh());
        let tolerance = 1e-6 * x.abs().max(1e-3);
        assert!(
            (f64::from(silu) - exact_silu).abs() <= tolerance,
            "silu({x}) = {silu}"
        );
        assert!(
            (f64::from(gelu) - exact_gelu).abs() <= tolerance,
            "gelu({x}) = {gelu}"
        );
    }
    agree("softcap", |k| {
        let mut out = gate.clone();
        unsafe { (k.softcap)(&mut out, 30.0) };
        out
    });
}

#[test]
fn quantize_agrees_and_reconstructs() {
    let mut random = Random(3);
    for groups in [1, 2, 5] {
        let mut x = random.floats(groups * GROUP, 5.0);
        x[..GROUP].fill(0.0);
        x[GROUP - 1] = 1e-38;
        let run = |k: &Kernels| {
            let (mut codes, mut scales) = (vec![0i8; x.len()], vec![0.0; groups]);
            let mut sums = vec![0i32; x.len() / SUM_GROUP];
            let mut scaled = vec![0.0; groups];
            let out = Quantized {
                codes: &mut codes,
                scales: &mut scales,
                sums: &mut sums,
                scaled_sums: &mut scaled,
            };
            unsafe { (k.quantize)(&x, out) };
            scales.extend(scaled);
            (codes, scales, sums)
        };
        agree("quantize", |k| {
            let (codes, scales, sums) = run(k);
            let codes = codes.iter().map(|code| f32::from(*code));
            codes
                .chain(scales)
                .chain(sums.iter().map(|sum| *sum as f32))
                .collect()
        });
        let (codes, scales, sums) = run(supported()[0]);
        for (i, (x, code)) in x.iter().zip(&codes).enumerate() {
            let error = (x - f32::from(*code) * scales[i / GROUP]).abs();
            assert!(
                error <= scales[i / GROUP] * 0.501 + 1e-30,
                "{x} became {code}"
            );
        }
        let total: i32 = codes.iter().map(|code| i32::from(*code)).sum();
        assert_eq!(total, sums.iter().sum::<i32>());
    }
}

#[test]
fn a_nan_activation_is_not_hidden() {
    let mut x = vec![1.0; GROUP];
    x[7] = f32::NAN;
    for table in supported() {
        let (mut codes, mut sums) = (vec![0i8; GROUP], vec![0i32; 2]);
        let (mut scales, mut scaled) = ([0.0], [0.0]);
        let out = Quantized {
            codes: &mut codes,
            scales: &mut scales,
            sums: &mut sums,
            scaled_sums: &mut scaled,
        };
        unsafe { (table.quantize)(&x, out) };
        assert!(scales[0].is_nan(), "{}", table.name);
    }
}

#[test]
fn halves_decode_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let values = agree("decode_f16", |k| {
        let mut out = vec![0.0; all.len() / 2];
        unsafe { (k.decode_f16)(&all, &mut out) };
        out
    });
    for (code, value) in (0..=u16::MAX).zip(values) {
        let expected = half::f16::from_bits(code).to_f32();
        let equal = value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
        assert!(equal, "{code:#x}: {value} for {expected}");
    }
    agree("decode_bf16", |k| {
        let mut out = vec![0.0; all.len() / 2];
        unsafe { (k.decode_bf16)(&all, &mut out) };
        out.iter()
            .map(|value| if value.is_nan() { 0.0 } else { *value })
            .collect()
    });
}

#[test]
fn rotation_agrees() {
    let mut random = Random(4);
    for pairs in [1, 8, 13, 32] {
        let head = random.floats(pairs * 2 + 6, 2.0);
        let (cos, sin) = (random.floats(pairs, 1.0), random.floats(pairs, 1.0));
        let turned = agree("rotate", |k| {
            let mut out = head.clone();
            unsafe { (k.rotate)(&mut out, &cos, &sin) };
            out
        });
        assert_eq!(
            turned[pairs * 2..],
            head[pairs * 2..],
            "what is past the pairs stays"
        );
    }
}

fn attention_case<T: KvElement>(head_dim: usize, tokens: usize, seed: u64) {
    let mut random = Random(seed);
    let pages: Vec<PagePtr<T>> = (0..tokens.div_ceil(PAGE))
        .map(|_| PagePtr::allocate(2 * head_dim * PAGE))
        .collect();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for token in 0..pages.len() * PAGE {
        for d in 0..head_dim {
            let inside = token < tokens;
            // What lies past the end must not matter, whatever it is.
            let (k, v) = if inside {
                (random.float(), random.float())
            } else {
                (f32::NAN, f32::NAN)
            };
            let (k, v) = if inside {
                (T::store(k), T::store(v))
            } else {
                (T::store(3e4), T::store(k.max(v)))
            };
            let slot = token % PAGE;
            // SAFETY: this test alone holds the pages.
            unsafe {
                pages[token / PAGE].write(d * PAGE + slot, k);
                pages[token / PAGE].write(head_dim * PAGE + slot * head_dim + d, v);
            }
            if inside {
                keys.push(f64::from(k.load()));
                values.push(f64::from(v.load()));
            }
        }
    }
    let query = random.floats(head_dim, 2.0);
    for start in [0, 1, tokens / 2, tokens - 1]
        .into_iter()
        .filter(|start| *start < tokens)
    {
        let args = AttendArgs {
            query: &query,
            scale: 0.3,
            pages: HeadPages {
                pages: &pages,
                key_offset: 0,
                value_offset: head_dim * PAGE,
            },
            start,
            end: tokens,
        };
        let found = agree("attend", |k| {
            let mut out = vec![0.0; head_dim];
            unsafe { T::attend(k)(&args, &mut out) };
            out
        });
        let weights: Vec<f64> = (start..tokens)
            .map(|t| {
                let dot: f64 = (0..head_dim)
                    .map(|d| f64::from(query[d]) * keys[t * head_dim + d])
                    .sum();
                (dot * f64::from(0.3f32)).exp()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        for (d, found) in found.iter().enumerate() {
            let exact: f64 = weights
                .iter()
                .zip(start..)
                .map(|(w, t)| w * values[t * head_dim + d])
                .sum();
            assert!(
                (f64::from(*found) - exact / total).abs() < 2e-6,
                "{head_dim} {tokens} {start}"
            );
        }
    }
    for page in pages {
        // SAFETY: allocated above, freed once.
        unsafe { page.free() };
    }
}

#[test]
fn attention_agrees_and_ignores_what_it_may_not_see() {
    for head_dim in [1, 7, 16, 24, 64, 80, 128] {
        for tokens in [1, 2, 31, 32, 33, 64, 100] {
            attention_case::<f32>(head_dim, tokens, 5);
            attention_case::<Half>(head_dim, tokens, 6);
        }
    }
}

#[test]
fn tiles_agree_for_every_shape() {
    let mut random = Random(7);
    for (four_bit, group) in [(true, 32), (false, 32), (false, 16)] {
        for (cols, tokens) in [(32, 1), (64, 3), (96, 7), (256, 8), (576, 13), (32, 17)] {
            for has_mins in [false, true]
                .into_iter()
                .filter(|mins| group == GROUP || !mins)
            {
                for half_scales in [false, true] {
                    let codes = random.bytes(cols * TILE_ROWS / if four_bit { 2 } else { 1 });
                    let floats = random.floats(2 * cols / group * TILE_ROWS, 0.1);
                    let halves: Vec<u16> = floats
                        .iter()
                        .map(|v| half::f16::from_f32(*v).to_bits())
                        .collect();
                    let count = floats.len() / 2;
                    let part = |range: std::ops::Range<usize>| match half_scales {
                        true => Scales::F16(&halves[range]),
                        false => Scales::F32(&floats[range]),
                    };
                    let tile = Tile {
                        codes: &codes,
                        four_bit,
                        group,
                        scales: part(0..count),
                        mins: has_mins.then(|| part(count..2 * count)),
                        zero: if has_mins { 0 } else { 128 },
                    };
                    // The extremes, -128 included, besides random codes.
                    let mut x: Vec<i8> = random
                        .bytes(tokens * cols)
                        .iter()
                        .map(|b| *b as i8)
                        .collect();
                    x[..32].fill(-128);
                    let sums: Vec<i32> = x
                        .chunks(SUM_GROUP)
                        .map(|x| x.iter().map(|v| i32::from(*v)).sum())
                        .collect();
                    let scales = random.floats(tokens * cols / GROUP, 0.05);
                    let scaled_sums: Vec<f32> = (scales.iter().zip(sums.chunks(2)))
                        .map(|(scale, sums)| scale * (sums[0] + sums[1]) as f32)
                        .collect();
                    let input = TileInput {
                        tokens,
                        cols,
                        codes: &x,
                        scales: &scales,
                        sums: &sums,
                        scaled_sums: &scaled_sums,
                    };
                    agree("tile", |k| {
                        let stride = TILE_ROWS + 3;
                        let mut out = vec![7.0; tokens * stride];
                        // SAFETY: `out` holds sixteen values at every stride.
                        unsafe { (k.tile)(&tile, &input, out.as_mut_ptr(), stride) };
                        assert!(out.chunks(stride).all(|row| row[TILE_ROWS..] == [7.0; 3]));
                        out
                    });
                }
            }
        }
    }
}
