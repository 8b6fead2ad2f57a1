//! Kernels of an instruction set use it. What the compiler does not inline is built without the
//! instruction set, down to a library call for each fused multiply-add, and no result shows it.

use std::time::{Duration, Instant};

use super::attention::Cache;
use super::*;

/// How much faster than portable kernels. On a Zen 5, 45 to 400 is measured, and 14 to 16 for an
/// attention that calls functions for its exponentials.
const LEAST: u32 = 20;

/// Undisturbed, if any of the runs is.
fn best(mut run: impl FnMut()) -> Duration {
    let times = (0..100).map(|_| {
        let started = Instant::now();
        run();
        started.elapsed()
    });
    times.min().unwrap()
}

#[track_caller]
fn faster_than_portable(what: &str, mut run: impl FnMut(&Kernels)) {
    let tables = supported();
    let (portable, vector) = tables.split_last().unwrap();
    let slow = best(|| run(portable));
    for table in vector {
        let fast = best(|| run(table));
        let name = table.name;
        assert!(
            fast * LEAST < slow,
            "{what}: {name} {fast:?}, portable {slow:?}"
        );
    }
}

#[test]
fn plain_products_use_the_instructions() {
    let (cols, rows, tokens) = (512, 16, 4);
    let x = vec![0.5; tokens * cols];
    let mut out = vec![0.0; tokens * rows];
    let place = PlainOut {
        start: out.as_mut_ptr(),
        stride: rows,
    };
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let bytes = &vec![0x3c; rows * cols * format.bytes()];
        let weights = PlainRows {
            format,
            cols,
            bytes,
        };
        faster_than_portable("plain", |k| unsafe { (k.plain)(&weights, &x, place) });
        if format == Format::Bf16 {
            let x = Rounded {
                pairs: &vec![0x3c3c_3c3c; tokens * cols / 2],
                factors: &vec![1.0; tokens],
            };
            faster_than_portable("bf16", |k| unsafe { (k.plain_bf16)(&weights, &x, place) });
        }
    }
}

#[test]
fn attention_uses_the_instructions() {
    let mut random = Random(5);
    let cache = Cache::<F16Bits>::random(&mut random, 64, 64, 512);
    let query = random.floats(64, 1.0);
    let asks: Vec<_> = (0..4).map(|_| cache.ask(&query, 0)).collect();
    faster_than_portable("attention", |k| drop(cache.attend_with(k, &asks)));
}

#[test]
fn activations_use_the_instructions() {
    let mut gate = vec![0.5; 4096];
    let up = vec![0.5; 4096];
    faster_than_portable("silu", |k| unsafe { (k.silu_gate)(&mut gate, &up) });
}
