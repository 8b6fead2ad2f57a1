//! Coded keys and values, against what they were coded from.

use super::*;

/// One page of one span, and its memory.
fn page(format: CodeFormat, operand: CodeOperand, dim: usize) -> (CodeSpan, Vec<u8>) {
    let span = CodeSpan {
        at: 0,
        operand,
        format,
        dim,
    };
    (span, vec![0xa5; span.page_bytes()])
}

fn ptr(memory: &mut [u8]) -> PagePtr<u8> {
    PagePtr::new(memory.as_mut_ptr(), memory.len())
}

/// What is kept of a key.
fn kept(format: CodeFormat, values: &[f32]) -> Vec<f32> {
    kept_as(CodeOperand::Key, format, values)
}

fn kept_as(operand: CodeOperand, format: CodeFormat, values: &[f32]) -> Vec<f32> {
    let (span, mut memory) = page(format, operand, values.len());
    let mut kept = vec![0.0; values.len()];
    unsafe {
        span.write(ptr(&mut memory), 17, values);
        span.read(ptr(&mut memory), 17, &mut kept);
    }
    kept
}

/// Nearly normal values.
fn normal(random: &mut Random, len: usize) -> Vec<f32> {
    let mut sum = || (0..12).map(|_| random.float()).sum::<f32>() / 2.0;
    (0..len).map(|_| sum()).collect()
}

fn rotated(values: &[f32]) -> Vec<f32> {
    agree("rotate_codes", |k| {
        let mut values = values.to_vec();
        unsafe { (k.rotate_codes)(&mut values) };
        values
    })
}

fn unrotated(values: &[f32]) -> Vec<f32> {
    agree("unrotate_codes", |k| {
        let mut values = values.to_vec();
        unsafe { (k.unrotate_codes)(&mut values) };
        values
    })
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum()
}

#[test]
fn rotation_keeps_products_and_is_undone() {
    let mut random = Random(50);
    for len in (1..40).chain([64, 80, 96, 128, 192, 256, 576]) {
        let (a, b) = (random.floats(len, 1.0), random.floats(len, 1.0));
        let (turned_a, turned_b) = (rotated(&a), rotated(&b));
        let size = (dot(&a, &a) * dot(&b, &b)).sqrt();
        let moved = (dot(&a, &b) - dot(&turned_a, &turned_b)).abs();
        assert!(moved < 1e-5 * size, "{len}: {moved}");
        assert!(squared_error(&a, &unrotated(&turned_a)) < 1e-10 * dot(&a, &a));
    }
}

#[test]
fn rotation_spreads_one_channel_over_all() {
    for len in [16, 64, 80, 96, 128, 256] {
        for channel in 0..len {
            let mut values = vec![0.0; len];
            values[channel] = 1.0;
            let largest = rotated(&values)
                .iter()
                .fold(0.0f32, |max, x| max.max(x.abs()));
            let size = 1 << usize::ilog2(len);
            let bound = if size == len { 1.0 } else { 4.0 } / (size as f32).sqrt();
            assert!(largest <= bound * 1.001, "{len}, {channel}: {largest}");
        }
    }
}

/// Every token keeps its own codes while its neighbours are written, and what is exported is
/// imported the same.
#[test]
fn tokens_share_bytes_but_not_codes() {
    let mut random = Random(51);
    for format in CodeFormat::ALL {
        for operand in [CodeOperand::Key, CodeOperand::Value] {
            for dim in [1, 7, 16, 40, 64, 80, 128] {
                let (span, mut memory) = page(format, operand, dim);
                let tokens: Vec<Vec<f32>> = (0..PAGE).map(|_| random.floats(dim, 3.0)).collect();
                for slot in (0..PAGE).rev() {
                    unsafe { span.write(ptr(&mut memory), slot, &tokens[slot]) };
                }
                let mut copied = vec![0x5a; memory.len()];
                for (slot, token) in tokens.iter().enumerate() {
                    let [mut found, mut copy] = [(); 2].map(|()| vec![0.0; dim]);
                    let mut bytes = Vec::new();
                    unsafe {
                        span.read(ptr(&mut memory), slot, &mut found);
                        span.export(ptr(&mut memory), slot, &mut bytes);
                        span.import(ptr(&mut copied), slot, &bytes);
                        span.read(ptr(&mut copied), slot, &mut copy);
                    }
                    assert_eq!(bytes.len(), span.export_bytes());
                    assert_eq!(
                        found,
                        kept_as(operand, format, token),
                        "{format:?} {operand:?} {dim} {slot}"
                    );
                    assert_eq!(found, copy, "{format:?} {operand:?} {dim} {slot}");
                }
            }
        }
    }
}

/// The relative squared error of normal values: Lloyd-Max's own, a little more for its centroids
/// in eight bits and for the factor that keeps products unbiased.
#[test]
fn normal_values_have_the_distortion_of_lloyd_max() {
    for (format, distortion) in [
        (CodeFormat::Q8, 7e-5),
        (CodeFormat::Turbo4, 0.009_501),
        (CodeFormat::Turbo3, 0.034_54),
        (CodeFormat::Turbo2, 0.117_5),
    ] {
        let mut random = Random(52);
        let (mut error, mut size) = (0.0, 0.0);
        for _ in 0..500 {
            let values = normal(&mut random, 128);
            error += squared_error(&values, &kept(format, &values));
            size += dot(&values, &values);
        }
        let found = error / size;
        let most = distortion / (1.0 - distortion) * 1.05;
        assert!(found < most, "{format:?}: {found} of {most}");
    }
}

/// Products with other vectors are unbiased: a vector's product with what is kept of it is the
/// product with itself.
#[test]
fn product_with_itself_is_exact() {
    let mut random = Random(53);
    for format in [CodeFormat::Turbo4, CodeFormat::Turbo3, CodeFormat::Turbo2] {
        for len in [16, 64, 128] {
            let values = random.floats(len, 2.0);
            let (found, exact) = (dot(&values, &kept(format, &values)), dot(&values, &values));
            assert!(
                (found / exact - 1.0).abs() < 1e-3,
                "{format:?}: {found} {exact}"
            );
        }
    }
}

#[test]
fn extreme_values_stay_finite_and_broken_ones_visible() {
    for format in CodeFormat::ALL {
        for extreme in [f32::MAX, f32::MIN, 65504.0, 1e-30, 0.0] {
            let kept = kept(format, &[extreme; 16]);
            assert!(
                kept.iter().all(|value| value.is_finite()),
                "{format:?} {extreme}"
            );
        }
        assert_eq!(kept(format, &[0.0, -0.0, 1e-45]), [0.0; 3]);
        for large in [60_000.0, -60_000.0f32] {
            let found = kept(format, &[large; 64])[0];
            assert!(
                (found / large - 1.0).abs() < 0.6,
                "{format:?}: {found} for {large}"
            );
        }
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let kept = kept(format, &[1.0, broken]);
            assert!(
                kept.iter().any(|value| !value.is_finite()),
                "{format:?} {broken}"
            );
        }
    }
}

/// llama.cpp's q8_0: blocks of 32 values under an f16 factor.
fn q8_0(values: &[f32]) -> Vec<f32> {
    let block = |values: &[f32]| -> Vec<f32> {
        let largest = values
            .iter()
            .fold(0.0f32, |max, value| max.max(value.abs()));
        let factor = largest / 127.0;
        let inverse = if factor > 0.0 { 1.0 / factor } else { 0.0 };
        let stored = half::f16::from_f32(factor).to_f32();
        values
            .iter()
            .map(|value| (value * inverse).round() * stored)
            .collect()
    };
    values.chunks(32).flat_map(block).collect()
}

/// Keys with biases that are large in some channels, as Qwen2.5 has them: rotated q8 is closer to
/// the products than blocks of 32 are, and far closer than one factor for each key.
#[test]
fn q8_keeps_keys_with_outlier_channels() {
    let mut random = Random(54);
    let [mut ours, mut blocks, mut single] = [0.0; 3];
    for _ in 0..200 {
        let mut key = normal(&mut random, 64);
        for (channel, bias) in [(3, 120.0), (29, -60.0), (35, 90.0), (61, 30.0)] {
            key[channel] += bias;
        }
        let query = normal(&mut random, 64);
        let exact = dot(&query, &key);
        let turned = kept(CodeFormat::Q8, &rotated(&key));
        ours += (dot(&rotated(&query), &turned) - exact).powi(2);
        blocks += (dot(&query, &q8_0(&key)) - exact).powi(2);
        let factor = 120.0 / 127.0;
        let coarse: Vec<f32> = key.iter().map(|x| (x / factor).round() * factor).collect();
        single += (dot(&query, &coarse) - exact).powi(2);
    }
    let [ours, blocks, single] = [ours, blocks, single].map(|sum| (sum / 200.0).sqrt());
    println!("score error: rotated q8 {ours:.4}, q8_0 {blocks:.4}, one factor {single:.4}");
    assert!(ours < 0.5 * blocks && blocks < single);
}

/// The root mean square error of products with keys coded in three bits, in three and a sign bit of
/// the residual's random projections (TurboQuant's inner-product form), and in four.
#[test]
fn fourth_bit_helps_more_than_residual_sign() {
    const DIM: usize = 64;
    let mut random = Random(55);
    let projections: Vec<Vec<f32>> = (0..DIM).map(|_| normal(&mut random, DIM)).collect();
    let [mut three, mut signed, mut four] = [0.0; 3];
    for _ in 0..400 {
        let (key, query) = (normal(&mut random, DIM), normal(&mut random, DIM));
        let exact = dot(&query, &key);
        let coarse = kept(CodeFormat::Turbo3, &key);
        let residual: Vec<f32> = key.iter().zip(&coarse).map(|(a, b)| a - b).collect();
        let estimates = projections
            .iter()
            .map(|projection| dot(projection, &query) * dot(projection, &residual).signum());
        let scale = (std::f64::consts::FRAC_PI_2).sqrt() / DIM as f64;
        let estimate = scale * dot(&residual, &residual).sqrt() * estimates.sum::<f64>();
        three += (dot(&query, &coarse) - exact).powi(2);
        signed += (dot(&query, &coarse) + estimate - exact).powi(2);
        four += (dot(&query, &kept(CodeFormat::Turbo4, &key)) - exact).powi(2);
    }
    let [three, signed, four] = [three, signed, four].map(|sum| (sum / 400.0f64).sqrt());
    println!("product error: 3 bits {three:.3}, and a sign {signed:.3}, 4 bits {four:.3}");
    assert!(four < 0.7 * three && four < 0.7 * signed);
}

/// The error of attention over q8 keys and values against llama.cpp's: q8_0 for the query, keys and
/// values, floats otherwise.
#[test]
fn q8_attention_is_no_worse_than_q8_0() {
    const DIM: usize = 128;
    const TOKENS: usize = 96;
    for outliers in [false, true] {
        let mut random = Random(56);
        let [mut ours, mut blocks] = [0.0; 2];
        for _ in 0..20 {
            let mut draw = |bias: f32| -> Vec<f32> {
                let mut values = normal(&mut random, DIM);
                for channel in [5, 40, 77, 101] {
                    values[channel] += bias;
                }
                values
            };
            let bias = if outliers { 50.0 } else { 0.0 };
            let query = draw(0.0);
            let keys: Vec<Vec<f32>> = (0..TOKENS).map(|_| draw(bias)).collect();
            let values: Vec<Vec<f32>> = (0..TOKENS).map(|_| draw(0.0)).collect();
            let exact = softmax_mix(&query, &keys, &values);
            let all = |vectors: &[Vec<f32>]| vectors.iter().map(|it| q8_0(it)).collect::<Vec<_>>();
            let theirs = softmax_mix(&q8_0(&query), &all(&keys), &all(&values));
            let found = unrotated(&attend_q8(&rotated(&query), &keys, &values));
            ours += squared_error(&found, &exact);
            blocks += squared_error(&theirs, &exact);
        }
        let [ours, blocks] = [ours, blocks].map(f64::sqrt);
        println!("attention error, outliers {outliers}: q8 {ours:.4}, q8_0 {blocks:.4}");
        assert!(ours < blocks, "{outliers}: {ours} {blocks}");
    }
}

const SCALE: f32 = 0.2;

fn softmax_mix(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f32> {
    let scores = keys.iter().map(|key| dot(query, key) * f64::from(SCALE));
    let scores: Vec<f64> = scores.collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mixed = |d: usize| {
        let products = weights
            .iter()
            .zip(values)
            .map(|(w, value)| w * f64::from(value[d]));
        (products.sum::<f64>() / total) as f32
    };
    (0..query.len()).map(mixed).collect()
}

/// A rotated output, for a rotated query.
fn attend_q8(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f32> {
    let dim = query.len();
    let span = |at, operand| CodeSpan {
        at,
        operand,
        format: CodeFormat::Q8,
        dim,
    };
    let key = span(0, CodeOperand::Key);
    let value = span(key.page_bytes(), CodeOperand::Value);
    let len = value.at + value.page_bytes();
    let mut memory = vec![0u8; len * keys.len().div_ceil(PAGE)];
    let pages: Vec<PagePtr<u8>> = memory.chunks_exact_mut(len).map(ptr).collect();
    for (token, (of_key, of_value)) in keys.iter().zip(values).enumerate() {
        let page = pages[token / PAGE];
        unsafe {
            key.write(page, token % PAGE, &rotated(of_key));
            value.write(page, token % PAGE, &rotated(of_value));
        }
    }
    agree("attend_codes", |k| {
        let args = AttendArgs {
            scale: SCALE,
            softcap: None,
            value_dim: dim,
            pages: HeadPages {
                pages: &pages,
                layout: HeadLayout {
                    keys: 0,
                    key_dim: dim,
                    values: Some(value.at),
                    value_dim: dim,
                    codes: Some(HeadCodes {
                        key,
                        value,
                        skip_below: 0.0,
                    }),
                },
            },
            piece: None,
        };
        let mut out = vec![0.0; dim];
        let queries = &mut [AttendQuery {
            query,
            sink: None,
            seen: 0..keys.len(),
            out: &mut out,
        }];
        unsafe { (k.attend_codes)(&args, queries) };
        out
    })
}
