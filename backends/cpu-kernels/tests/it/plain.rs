//! Plain weights: every version against the reference, that against `f64`, and one token alone
//! against many.

use super::*;

const FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Columns around registers and steps, odd ones, and models' own.
const COLS: [usize; 12] = [1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 576, 1000];

fn encode(format: Format, values: &[f32]) -> Vec<u8> {
    let bytes = values.iter().map(|value| match format {
        Format::F32 => value.to_le_bytes().to_vec(),
        Format::F16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
        Format::Bf16 => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
    });
    bytes.flatten().collect()
}

fn decode(format: Format, bytes: &[u8]) -> Vec<f64> {
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let values = bytes.chunks_exact(format.bytes()).map(|b| match format {
        Format::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Format::F16 => half::f16::from_bits(two(b)).to_f32(),
        Format::Bf16 => half::bf16::from_bits(two(b)).to_f32(),
    });
    values.map(f64::from).collect()
}

/// A matrix and activations, `[token][col]`.
struct Case {
    format: Format,
    cols: usize,
    bytes: Vec<u8>,
    x: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Arithmetic {
    Exact,
    Rounded,
}

impl Case {
    fn rows(&self) -> usize {
        self.bytes.len() / self.cols / self.format.bytes()
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.cols
    }

    fn ways(&self) -> &'static [Arithmetic] {
        match self.format {
            Format::Bf16 => &[Arithmetic::Exact, Arithmetic::Rounded],
            _ => &[Arithmetic::Exact],
        }
    }

    /// Results of one table, `[token][row]`. Weights lie at an odd address, and nothing but the
    /// results is written.
    fn run(&self, kernels: &Kernels, way: Arithmetic) -> Vec<f32> {
        let (rows, tokens) = (self.rows(), self.tokens());
        let mut shifted = vec![0; 1];
        shifted.extend(&self.bytes);
        let weights = PlainRows {
            format: self.format,
            cols: self.cols,
            bytes: &shifted[1..],
        };
        let stride = rows + 3;
        let mut out = vec![7.0; tokens * stride];
        let place = PlainOut {
            start: out.as_mut_ptr(),
            stride,
        };
        match way {
            Arithmetic::Exact => unsafe { (kernels.plain)(&weights, &self.x, place) },
            Arithmetic::Rounded => {
                let (pairs, factors) = self.rounded(kernels);
                let x = Rounded {
                    pairs: &pairs,
                    factors: &factors,
                };
                unsafe { (kernels.plain_bf16)(&weights, &x, place) };
            }
        }
        assert!(out.chunks(stride).all(|row| row[rows..] == [7.0; 3]));
        out.chunks(stride)
            .flat_map(|row| row[..rows].to_vec())
            .collect()
    }

    fn rounded(&self, kernels: &Kernels) -> (Vec<u32>, Vec<f32>) {
        let width = self.cols.div_ceil(2);
        let mut pairs = vec![0xffff_ffff; self.tokens() * width];
        let rows = self
            .x
            .chunks_exact(self.cols)
            .zip(pairs.chunks_exact_mut(width));
        let factors = rows.map(|(x, pairs)| unsafe { (kernels.round_bf16)(x, pairs) });
        let factors = factors.collect();
        (pairs, factors)
    }

    /// The same by every table, and for each token as if it were alone.
    fn agree(&self, way: Arithmetic) -> Vec<f32> {
        let what = format!("{:?} × {}", self.format, self.cols);
        let all = agree(&what, |kernels| self.run(kernels, way));
        for (token, x) in self.x.chunks_exact(self.cols).enumerate() {
            let alone = Case {
                format: self.format,
                cols: self.cols,
                bytes: self.bytes.clone(),
                x: x.to_vec(),
            };
            for table in supported() {
                let found = bits(&alone.run(table, way));
                let row = &all[token * self.rows()..(token + 1) * self.rows()];
                assert_eq!(found, bits(row), "{what}: token {token} by {}", table.name);
            }
        }
        all
    }

    fn exact(&self) -> Vec<f64> {
        let weights = decode(self.format, &self.bytes);
        let tokens = self.x.chunks_exact(self.cols).map(exact);
        let products = tokens.flat_map(|x| {
            let rows = weights.chunks_exact(self.cols);
            let dots = rows.map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum());
            dots.collect::<Vec<f64>>()
        });
        products.collect()
    }
}

#[test]
fn products_are_correct_for_every_shape() {
    let mut random = Random(31);
    for format in FORMATS {
        for cols in COLS {
            for (rows, tokens) in [(1, 1), (4, 6), (5, 2), (7, 7), (16, 1), (3, 15)] {
                let case = Case {
                    format,
                    cols,
                    bytes: encode(format, &random.floats(rows * cols, 0.1)),
                    x: random.floats(tokens * cols, 4.0),
                };
                for way in case.ways() {
                    let found = case.agree(*way);
                    // Rounded, each activation is off by up to 2^-9 of itself; else only the
                    // sum is rounded.
                    let each = match way {
                        Arithmetic::Exact => 2e-7,
                        Arithmetic::Rounded => 1.0 / 512.0,
                    };
                    let size = 0.4 * cols as f64;
                    for (found, exact) in found.iter().zip(case.exact()) {
                        let error = (f64::from(*found) - exact).abs();
                        assert!(
                            error <= each * size,
                            "{format:?} × {cols}: {found}, {exact}"
                        );
                    }
                }
            }
        }
    }
}

/// Any bits at all, weighted towards the ends of the exponents' range.
fn hostile(random: &mut Random) -> f32 {
    let bits = random.next() as u32;
    let exponent = match random.next() % 6 {
        0 => 0,
        1 => 1 + bits % 3,
        2 => 254,
        3 => 60 + bits % 8,
        4 if random.next().is_multiple_of(16) => 255,
        _ => 120 + bits % 14,
    };
    f32::from_bits(bits & 0x807f_ffff | exponent << 23)
}

#[test]
fn hostile_values_give_the_same_bits() {
    let mut random = Random(32);
    for format in FORMATS {
        for round in 0..300 {
            let (rows, tokens) = (5, 7);
            let cols = COLS[round % COLS.len()].min(65);
            let of = |random: &mut Random, len| -> Vec<f32> {
                // One kind of row has all exponents, the other none so large as to be all there is.
                let most = if round % 2 == 0 { f32::INFINITY } else { 1e-20 };
                let values = std::iter::repeat_with(|| hostile(random));
                let kept = values.filter(|value| value.is_nan() || value.abs() <= most);
                kept.take(len).collect()
            };
            let case = Case {
                format,
                cols,
                bytes: random.bytes(rows * cols * format.bytes()),
                x: of(&mut random, tokens * cols),
            };
            let drawn = Case {
                bytes: encode(format, &of(&mut random, rows * cols)),
                x: of(&mut random, tokens * cols),
                ..case
            };
            for way in case.ways() {
                case.agree(*way);
                drawn.agree(*way);
            }
        }
    }
}

#[test]
fn sums_that_cancel_give_the_same_bits() {
    let mut random = Random(33);
    for shift in [0, 20, 60, 100, 120] {
        let cols = 96;
        let size = 2f32.powi(-shift);
        let mut weights: Vec<f32> = random.floats(4 * cols, size);
        let mut x = random.floats(3 * cols, 2f32.powi(-30));
        // Each pair's products are each other's opposite, but for a last bit here and there.
        for pair in weights.chunks_exact_mut(2) {
            pair[1] = -pair[0];
        }
        for (i, pair) in x.chunks_exact_mut(2).enumerate() {
            pair[1] = pair[0] * if i % 3 == 0 { 1.0078125 } else { 1.0 };
        }
        let case = Case {
            format: Format::Bf16,
            cols,
            bytes: encode(Format::Bf16, &weights),
            x,
        };
        case.agree(Arithmetic::Exact);
        case.agree(Arithmetic::Rounded);
    }
}

#[test]
fn activations_round_to_the_nearest_bf16() {
    let mut random = Random(34);
    // A row's largest value, and how small one beside it may be before it counts as nothing.
    for (size, least) in [(1.0, 2e-14), (1e30, 2e16), (1e-20, 2e-34), (1e-37, 1e-34)] {
        let mut x = random.floats(63, size);
        x[0] = size;
        x[5] = size * 1e-12;
        x[6] = size * 1e-15;
        let case = Case {
            format: Format::Bf16,
            cols: x.len(),
            bytes: Vec::new(),
            x: x.clone(),
        };
        let found = agree("round_bf16", |kernels| {
            let (pairs, factors) = case.rounded(kernels);
            let codes = pairs.iter().flat_map(|pair| [pair << 16, pair & !0xffff]);
            let values = codes.map(|code| f32::from_bits(code) * factors[0]);
            values.collect()
        });
        assert_eq!(found.len(), x.len() + 1);
        for (x, found) in x.iter().zip(&found) {
            let expected = if x.abs() < least {
                0.0
            } else {
                half::bf16::from_f32(*x).to_f32()
            };
            assert_eq!(*found, expected, "{x} beside {size}");
        }
        assert_eq!(found[63], 0.0, "an odd row's padding");
    }
}

#[test]
fn nan_and_infinity_stay_visible() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for format in FORMATS {
            for at in [0, 31, 32, 39] {
                let mut x = vec![0.5; 2 * 40];
                x[40 + at] = bad;
                let case = Case {
                    format,
                    cols: 40,
                    bytes: encode(format, &[0.25; 5 * 40]),
                    x,
                };
                for way in case.ways() {
                    let found = case.agree(*way);
                    assert!(found[..5].iter().all(|value| *value == 5.0));
                    let same = |value: &f32| value.is_nan() == bad.is_nan() && !value.is_finite();
                    assert!(found[5..].iter().all(same), "{format:?}: {found:?}");
                }
            }
        }
    }
}

#[test]
fn every_half_is_widened_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for format in [Format::F16, Format::Bf16] {
        let case = Case {
            format,
            cols: 1,
            bytes: all.clone(),
            x: vec![1.0],
        };
        let found = case.agree(Arithmetic::Exact);
        // Zeros were added to zero, and lost their sign.
        let expected = decode(format, &all)
            .into_iter()
            .map(|value| value as f32 + 0.0);
        assert_eq!(bits(&found), bits(&expected.collect::<Vec<_>>()));
    }
}
