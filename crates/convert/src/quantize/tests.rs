use loquat_weights::Dtype;
use loquat_weights::decode::MlxMode;

use super::{Encoded, Encoding};

fn encoded(encoding: Encoding, row: &[f32]) -> Encoded {
    let mut out = Encoded::default();
    encoding.encode(row, &mut out);
    out
}

fn decoded(encoding: Encoding, row: &[f32]) -> Vec<f32> {
    let mut values = vec![f32::NAN; row.len()];
    (encoding.decode(&encoded(encoding, row), &mut values)).unwrap();
    values
}

/// Like weights: bell-shaped, with a few outliers.
fn weights(seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..512)
        .map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 0.05)
        .collect()
}

fn relative(was: &[f32], is: &[f32]) -> f64 {
    let mut error = crate::QuantizationError::default();
    error.add(was, is);
    error.relative()
}

fn affine(bits: u8, group: usize) -> Encoding {
    Encoding::Mlx {
        mode: MlxMode::Affine { bits, group },
        float: Dtype::BF16,
    }
}

fn small(mode: MlxMode) -> Encoding {
    Encoding::Mlx {
        mode,
        float: Dtype::BF16,
    }
}

/// Each type and its largest relative error; the least is a third of it.
fn table() -> Vec<(Encoding, f64)> {
    vec![
        (Encoding::Plain(Dtype::F16), 3e-4),
        (Encoding::Plain(Dtype::BF16), 2.5e-3),
        (Encoding::Plain(Dtype::Q4_0), 0.11),
        (Encoding::Plain(Dtype::Q4_1), 0.09),
        (Encoding::Plain(Dtype::Q5_0), 0.055),
        (Encoding::Plain(Dtype::Q5_1), 0.045),
        (Encoding::Plain(Dtype::Q8_0), 0.0065),
        (Encoding::Plain(Dtype::Q4K), 0.09),
        (Encoding::Plain(Dtype::Q5K), 0.045),
        (Encoding::Plain(Dtype::Q6K), 0.025),
        (affine(2, 32), 0.45),
        (affine(3, 64), 0.22),
        (affine(4, 32), 0.095),
        (affine(4, 128), 0.12),
        (affine(5, 64), 0.055),
        (affine(6, 64), 0.03),
        (affine(8, 64), 0.0085),
        (small(MlxMode::Mxfp4), 0.15),
        (small(MlxMode::Mxfp8), 0.035),
        (small(MlxMode::Nvfp4), 0.12),
    ]
}

#[test]
fn errors_are_as_small_as_the_type_allows() {
    for (encoding, most) in table() {
        let row = weights(7);
        let error = relative(&row, &decoded(encoding, &row));
        let name = encoding.name();
        assert!((most / 3.0..most).contains(&error), "{name}: {error}");
    }
}

#[test]
fn odd_rows_stay_finite_and_close() {
    let tiny = f32::from_bits(3);
    let rows: Vec<(&str, Vec<f32>)> = vec![
        ("zeros", vec![0.0; 256]),
        ("negative zeros", vec![-0.0; 256]),
        ("equal", vec![0.25; 256]),
        ("equal below zero", vec![-0.25; 256]),
        ("denormal", vec![tiny; 256]),
        ("least normal", vec![-f32::MIN_POSITIVE; 256]),
        ("large", vec![1000.0; 256]),
        (
            "one apart",
            (0..256).map(|i| if i == 9 { 8.0 } else { 0.0 }).collect(),
        ),
        (
            "far from zero",
            (0..256).map(|i| 100.0 + i as f32 / 256.0).collect(),
        ),
    ];
    for (encoding, _) in table() {
        for (name, row) in &rows {
            let out = decoded(encoding, row);
            let top = row.iter().fold(0.0f32, |top, value| top.max(value.abs()));
            for (was, is) in row.iter().zip(&out) {
                let apart = (was - is).abs();
                // Less than the smallest half-precision number may be lost.
                assert!(
                    apart <= top * 0.35 + 1e-7,
                    "{} {name}: {was} {is}",
                    encoding.name()
                );
            }
        }
    }
}

#[test]
fn affine_far_edge_is_exact() {
    let row: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) / 64.0).collect();
    let mode = MlxMode::Affine { bits: 4, group: 64 };
    let full = Encoding::Mlx {
        mode,
        float: Dtype::F32,
    };
    let out = decoded(full, &row);
    assert_eq!(out[63], row[63]);
    assert!(out[20].abs() < 1e-7, "{}", out[20]);
}

/// `gguf.quants.quantize` and `mx.quantize` of `[-8, -7, … 7]` twice, in halves.
#[test]
fn bytes_match_the_references() {
    let row: Vec<f32> = (0..32).map(|i| ((i % 16) as f32 - 8.0) / 2.0).collect();
    let nibbles: Vec<u8> = (0..16).map(|i| i | i << 4).collect();
    let q4_0 = encoded(Encoding::Plain(Dtype::Q4_0), &row).codes;
    assert_eq!(q4_0[..2], [0x00, 0x38]);
    assert_eq!(q4_0[2..], nibbles);
    let q4_1 = encoded(Encoding::Plain(Dtype::Q4_1), &row).codes;
    assert_eq!(q4_1[..4], [0x00, 0x38, 0x00, 0xC4]);
    assert_eq!(q4_1[4..], nibbles);
    let q4 = encoded(affine(4, 32), &row);
    assert_eq!((q4.scales, q4.biases), (vec![0x00, 0x3F], vec![0x80, 0xC0]));
    let pairs: Vec<u8> = (0..16)
        .map(|i| (i % 8 * 2) | (i % 8 * 2 + 1) << 4)
        .collect();
    assert_eq!(q4.codes, pairs);
}
