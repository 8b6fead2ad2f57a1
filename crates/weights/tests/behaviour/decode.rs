//! Compares decoded values bit for bit with the reference implementations of the formats.

use loquat_weights::decode::{MlxMode, decode_mlx_row, decode_row, unpack_codes};
use loquat_weights::{DecodeFault, Dtype};

fn bytes(hex: &str) -> Vec<u8> {
    let (pairs, _) = hex.as_bytes().as_chunks::<2>();
    let digits = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.iter().map(|pair| digits(pair)).collect()
}

fn floats(hex: &str) -> Vec<f32> {
    let bytes = bytes(hex);
    let (values, _) = bytes.as_chunks();
    values.iter().map(|&v| f32::from_le_bytes(v)).collect()
}

fn dtype(name: &str) -> Dtype {
    *Dtype::ALL.iter().find(|d| d.name() == name).unwrap()
}

fn rows(golden: &str) -> impl Iterator<Item = Vec<&str>> {
    golden
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
}

fn assert_bits(found: &[f32], expected: &[f32], label: &str) {
    assert_eq!(found.len(), expected.len(), "{label}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{label} value {i}: {a} for {b}");
    }
}

#[test]
fn ggml_rows_match_gguf_py() {
    let mut seen = 0;
    for row in rows(include_str!("../golden/ggml.txt")) {
        let [name, row, values] = row[..] else {
            panic!("{row:?}")
        };
        let expected = floats(values);
        let mut out = vec![0.0; expected.len()];
        decode_row(dtype(name), &bytes(row), &mut out).unwrap();
        assert_bits(&out, &expected, name);
        seen += 1;
    }
    assert_eq!(seen, 10);
}

#[test]
fn mlx_rows_match_mlx() {
    let mut seen = 0;
    for row in rows(include_str!("../golden/mlx.txt")) {
        let [
            mode,
            bits,
            group,
            scales_dtype,
            packed,
            scales,
            biases,
            values,
        ] = row[..]
        else {
            panic!("{row:?}")
        };
        let label = format!("{mode} {bits} {group}");
        let mode = match mode {
            "affine" => MlxMode::affine(bits.parse().unwrap(), group.parse().unwrap()).unwrap(),
            "mxfp4" => MlxMode::Mxfp4,
            "mxfp8" => MlxMode::Mxfp8,
            "nvfp4" => MlxMode::Nvfp4,
            other => panic!("{other}"),
        };
        assert_eq!(mode.bits().to_string(), bits);
        assert_eq!(mode.group().to_string(), group);
        let (packed, scales) = (bytes(packed), bytes(scales));
        let bias_bytes = bytes(biases);
        let scales_dtype = dtype(scales_dtype);
        let biases = (biases != "-").then_some((&bias_bytes[..], scales_dtype));
        let expected = floats(values);
        let mut out = vec![0.0; expected.len()];
        decode_mlx_row(mode, &packed, &scales, scales_dtype, biases, &mut out).unwrap();
        assert_bits(&out, &expected, &label);
        seen += 1;
    }
    assert_eq!(seen, 21);
}

/// Blocks small enough to check by hand, independent of the goldens: a scale of 0.5 (and a minimum
/// of 1.0) with one or two codes set.
#[test]
fn hand_computed_blocks() {
    const HALF: [u8; 2] = [0x00, 0x38];
    const ONE: [u8; 2] = [0x00, 0x3C];
    let block = |len: usize, set: &[(usize, &[u8])]| {
        let mut block = vec![0; len];
        for (at, bytes) in set {
            block[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        block
    };
    type Case<'a> = (Dtype, Vec<u8>, &'a [(usize, f32)]);
    let table: [Case; 12] = [
        (Dtype::F32, 1.5f32.to_le_bytes().to_vec(), &[(0, 1.5)]),
        (Dtype::F16, vec![0x00, 0xC0], &[(0, -2.0)]),
        (Dtype::BF16, vec![0x40, 0x40], &[(0, 3.0)]),
        (
            Dtype::Q4_0,
            block(18, &[(0, &HALF), (2, &[0xF3])]),
            &[(0, -2.5), (16, 3.5), (1, -4.0)],
        ),
        (
            Dtype::Q4_1,
            block(20, &[(0, &HALF), (2, &ONE), (4, &[0xF3])]),
            &[(0, 2.5), (16, 8.5), (1, 1.0)],
        ),
        (
            // High bits of values 0 and 17.
            Dtype::Q5_0,
            block(22, &[(0, &HALF), (2, &[1, 0, 2, 0]), (6, &[0x03, 0x20])]),
            &[(0, 1.5), (16, -8.0), (17, 1.0), (1, -8.0)],
        ),
        (
            Dtype::Q5_1,
            block(24, &[(0, &HALF), (2, &ONE), (4, &[1]), (8, &[0x03])]),
            &[(0, 10.5), (16, 1.0)],
        ),
        (
            Dtype::Q8_0,
            block(34, &[(0, &HALF), (2, &[0x80, 0x7F])]),
            &[(0, -64.0), (1, 63.5), (2, 0.0)],
        ),
        (
            // Sub-block 0 has scale 3 and minimum 2; sub-block 4 has scale
            // 0b10_0001 and minimum 0b01_0010 split over bytes 0, 4 and 8.
            Dtype::Q4K,
            block(
                144,
                &[
                    (0, &HALF),
                    (2, &ONE),
                    (4, &[0b1000_0011]),
                    (8, &[0b0100_0010]),
                    (12, &[0x21]),
                    (16, &[0x05]),
                    (16 + 64, &[0x01]),
                ],
            ),
            &[(0, 5.5), (1, -2.0), (32, 0.0), (128, -1.5), (129, -18.0)],
        ),
        (
            // The high bit of value 0.
            Dtype::Q5K,
            block(
                176,
                &[
                    (0, &HALF),
                    (2, &ONE),
                    (4, &[3]),
                    (8, &[2]),
                    (16, &[1]),
                    (48, &[5]),
                ],
            ),
            &[(0, 29.5), (1, -2.0)],
        ),
        (
            // Value 0 is code 0b10_0101, value 64 code 0b01_0011; scales 2 and -1.
            Dtype::Q6K,
            block(
                210,
                &[
                    (0, &[0x35]),
                    (128, &[0b01_0010]),
                    (192, &[2, 0, 0, 0, 0xFF]),
                    (208, &HALF),
                ],
            ),
            &[(0, 5.0), (1, -32.0), (64, 6.5), (32, 0.0)],
        ),
        (
            // A scale of 2^1; codes 0b1011 and 0b0111, the others 0.
            Dtype::Mxfp4,
            block(17, &[(0, &[128]), (1, &[0x7B])]),
            &[(0, -3.0), (16, 12.0), (1, 0.0), (17, 0.0)],
        ),
    ];
    for (dtype, block, expected) in table {
        let mut out = vec![0.0; dtype.block_len()];
        decode_row(dtype, &block, &mut out).unwrap();
        for &(at, value) in expected {
            assert_eq!(out[at], value, "{dtype} value {at}");
        }
    }
}

#[test]
fn codes_are_one_stream_of_bits() {
    // 0b11111_00001 repeats codes 1 and 31; the rest is zero.
    let mut out = [0; 32];
    let mut packed = [0; 20];
    packed[..2].copy_from_slice(&[0b1110_0001, 0b0000_0011]);
    unpack_codes(5, &packed, &mut out).unwrap();
    assert_eq!(out[..3], [1, 31, 0]);
}

#[test]
fn wrong_rows_are_refused() {
    let table = [
        ((Dtype::I32, 4, 1), DecodeFault::Dtype { dtype: Dtype::I32 }),
        (
            (Dtype::F32, 5, 1),
            DecodeFault::Length {
                what: "row",
                expected: 4,
                found: 5,
            },
        ),
        (
            (Dtype::Q4_0, 18, 31),
            DecodeFault::PartialBlock {
                cols: 31,
                block: 32,
            },
        ),
    ];
    for ((dtype, bytes, cols), expected) in table {
        let result = decode_row(dtype, &vec![0; bytes], &mut vec![0.0; cols]);
        assert_eq!(result, Err(expected), "{dtype}");
    }
}

#[test]
fn wrong_mlx_rows_are_refused() {
    let affine = |bits, group| MlxMode::Affine { bits, group };
    let length = |what, expected, found| DecodeFault::Length {
        what,
        expected,
        found,
    };
    let some = |len, dtype| Some((len, dtype));
    // Mode; bytes of codes; scales; biases; the fault for a row of 64 values.
    let table = [
        (
            (affine(7, 64), 56, (4, Dtype::F32), some(4, Dtype::F32)),
            DecodeFault::Bits { bits: 7 },
        ),
        (
            (affine(4, 0), 32, (4, Dtype::F32), some(4, Dtype::F32)),
            DecodeFault::Group { group: 0 },
        ),
        (
            (affine(4, 128), 32, (4, Dtype::F32), some(4, Dtype::F32)),
            DecodeFault::PartialBlock {
                cols: 64,
                block: 128,
            },
        ),
        (
            (affine(4, 64), 31, (4, Dtype::F32), some(4, Dtype::F32)),
            length("packed codes", 32, 31),
        ),
        (
            (affine(4, 64), 32, (2, Dtype::F32), some(4, Dtype::F32)),
            length("scales", 4, 2),
        ),
        (
            (affine(4, 64), 32, (2, Dtype::F16), some(4, Dtype::F16)),
            length("biases", 2, 4),
        ),
        (
            (affine(4, 64), 32, (1, Dtype::U8), some(4, Dtype::F32)),
            DecodeFault::ScaleType {
                mode: "affine",
                dtype: Dtype::U8,
            },
        ),
        (
            (affine(4, 64), 32, (2, Dtype::F16), some(1, Dtype::I8)),
            DecodeFault::Dtype { dtype: Dtype::I8 },
        ),
        (
            (affine(4, 64), 32, (2, Dtype::F16), None),
            DecodeFault::Biases {
                mode: "affine",
                rule: "needs biases",
            },
        ),
        (
            (MlxMode::Mxfp4, 32, (2, Dtype::U8), some(2, Dtype::U8)),
            DecodeFault::Biases {
                mode: "mxfp4",
                rule: "must not have biases",
            },
        ),
        (
            (MlxMode::Nvfp4, 32, (2, Dtype::U8), None),
            length("scales", 4, 2),
        ),
        (
            (MlxMode::Nvfp4, 32, (4, Dtype::F8E8M0), None),
            DecodeFault::ScaleType {
                mode: "nvfp4",
                dtype: Dtype::F8E8M0,
            },
        ),
    ];
    for ((mode, packed, (scales, scales_dtype), biases), expected) in table {
        let zeros = [0; 64];
        let biases = biases.map(|(len, dtype)| (&zeros[..len], dtype));
        let (packed, scales) = (&zeros[..packed], &zeros[..scales]);
        let result = decode_mlx_row(mode, packed, scales, scales_dtype, biases, &mut [0.0; 64]);
        assert_eq!(result, Err(expected), "{mode:?}");
    }
}

#[test]
fn codes_that_end_inside_a_word_are_refused() {
    let fault = DecodeFault::PartialWord { cols: 7, bits: 4 };
    assert_eq!(unpack_codes(4, &[0; 4], &mut [0; 7]), Err(fault));
}
