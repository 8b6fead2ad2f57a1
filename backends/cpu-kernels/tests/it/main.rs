//! Every table against the portable reference, bit for bit, and that against plain `f64`
//! arithmetic, on random and hostile input.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is of a table from `supported`, which lists what this machine can run"
)]

mod attention;
mod dense;
mod kv_codes;
mod low_rank;
mod plain;
mod pointwise;
mod recurrent;
mod tile;

use loquat_cpu_kernels::*;

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

/// Lengths around registers, chains of registers, and a model's own.
fn lengths() -> impl Iterator<Item = usize> {
    (1..100).chain([127, 128, 129, 576, 1000])
}

/// All NaNs count as one: which of two operands' NaN survives is the machine's choice.
fn bits(values: &[f32]) -> Vec<u32> {
    let canonical = |value: &f32| if value.is_nan() { f32::NAN } else { *value };
    values
        .iter()
        .map(|value| canonical(value).to_bits())
        .collect()
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Every value within `tolerance` of the exact one, as a share of the largest there is.
#[track_caller]
fn near(what: &str, found: &[f32], exact: &[f64], tolerance: f64) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let largest = exact.iter().fold(1e-30f64, |max, x| max.max(x.abs()));
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        assert!(
            error <= tolerance * largest,
            "{what}: {found} for {exact} at {i} of up to {largest}"
        );
    }
}

/// Runs `compute` with every table this machine has and compares it with the portable one.
fn agree(what: &str, compute: impl Fn(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let expected = compute(supported().last().unwrap());
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
fn quantize_agrees_and_reconstructs() {
    let mut random = Random(3);
    for groups in [1, 2, 5] {
        let mut x = random.floats(groups * GROUP, 5.0);
        x[..GROUP].fill(0.0);
        x[GROUP - 1] = 1e-38;
        // Every third block, as in a matrix of three tokens.
        let stride = 3;
        let run = |k: &Kernels| {
            let untouched = ActivationBlock {
                scale: -1.0,
                ..ActivationBlock::default()
            };
            let mut found = vec![untouched; stride * groups];
            unsafe { (k.quantize)(&x, found.as_mut_ptr(), stride) };
            let (written, others): (Vec<_>, Vec<_>) = found
                .into_iter()
                .enumerate()
                .partition(|(i, _)| i % stride == 0);
            assert!(others.iter().all(|(_, block)| *block == untouched));
            written
                .into_iter()
                .map(|(_, block)| block)
                .collect::<Vec<_>>()
        };
        agree("quantize", |k| {
            let blocks = run(k);
            let codes = blocks.iter().flat_map(|block| block.codes.map(f32::from));
            codes
                .chain(blocks.iter().map(|block| block.scale))
                .collect()
        });
        for block in run(supported()[0]) {
            assert_eq!(block, tile::activation_block(block.codes, block.scale));
        }
        for table in supported() {
            for (x, block) in x.as_chunks::<GROUP>().0.iter().zip(run(table)) {
                for (x, code) in x.iter().zip(block.codes) {
                    let error = (x - f32::from(code) * block.scale).abs();
                    assert!(error <= block.scale * 0.501 + 1e-30, "{x} became {code}");
                }
            }
        }
    }
}

#[test]
fn quantize_keeps_nan_visible() {
    let mut x = vec![1.0; GROUP];
    x[7] = f32::NAN;
    for table in supported() {
        let mut block = ActivationBlock::default();
        unsafe { (table.quantize)(&x, &raw mut block, 1) };
        assert!(block.scale.is_nan(), "{}", table.name);
    }
}

#[test]
fn features_agree_with_chosen_tables() {
    let has = |name: &str| cpu_features().iter().any(|at| at == &(name, true));
    let chosen = |name: &str| supported().iter().any(|at| at.name == name);
    assert_eq!(chosen("avx2"), has("avx2") && has("fma") && has("f16c"));
    assert_eq!(chosen("neon-dotprod"), has("dotprod"));
    assert_eq!(chosen("neon"), has("neon"));
}
