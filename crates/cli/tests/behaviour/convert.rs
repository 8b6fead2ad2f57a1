//! `loquat convert`, and running its output.

use loquat_testkit::goldens;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::loquat;

#[test]
fn lossless_conversion_keeps_answers() {
    let folder = TempDir::new().unwrap();
    let source = goldens::family("llama").display().to_string();
    let ask = |model: &str| {
        let greedy = [
            "generate",
            model,
            "Hello there",
            "--temperature",
            "0",
            "--max-tokens",
            "6",
        ];
        loquat(greedy).quiet()
    };
    let first = ask(&source);
    // These types are exact.
    for (target, out) in [
        ("gguf", "model.gguf"),
        ("mlx", "mlx"),
        ("safetensors", "plain"),
    ] {
        let out = folder.path().join(out).display().to_string();
        let args = [
            "convert", &source, "--to", target, "--quant", "bf16", "-o", &out, "--json",
        ];
        let report: Value = serde_json::from_str(&loquat(args).quiet()).unwrap();
        assert_eq!(report["error"]["relative_rms"], 0.0, "{target}");
        assert!(
            report["bits_per_weight"].as_f64().unwrap() >= 16.0,
            "{target}"
        );
        assert_eq!(ask(&out), first, "{target}");
    }
}

/// A model, flags, the output, the exit code and words of the refusal.
type Case<'a> = (&'a str, &'a [&'a str], &'a str, i32, &'a [&'a str]);

#[test]
fn invalid_conversions_are_refused() {
    let folder = TempDir::new().unwrap();
    let source = goldens::family("llama").display().to_string();
    let unwritable = goldens::family("mamba2").display().to_string();
    let quantized = goldens::fixtures().join("goldens-mlx/llama__affine4_g32");
    let quantized = quantized.display().to_string();
    let out = folder.path().join("out").display().to_string();
    let there = folder.path().display().to_string();
    let table: &[Case] = &[
        (
            &source,
            &["--to", "mlx", "--quant", "q4_0"],
            &out,
            2,
            &["q4_0", "mxfp4", "q8"],
        ),
        (
            &source,
            &["--to", "gguf", "--quant", "q4"],
            &out,
            2,
            &["q4_k_m", "q8_0"],
        ),
        (&source, &["--to", "mlx"], &there, 2, &["--force"]),
        (&source, &["--to", "gguf"], &there, 2, &["Name a file"]),
        (
            &source,
            &["--to", "mlx", "--quant", "f32", "--dtype", "f16"],
            &out,
            2,
            &["--quant f32", "--dtype f16"],
        ),
        (
            &source,
            &["--to", "mlx", "--force"],
            &there,
            2,
            &["holds no model"],
        ),
        (
            &quantized,
            &["--to", "mlx"],
            &out,
            2,
            &["affine 4-bit g32", "--requantize"],
        ),
        (
            &unwritable,
            &["--to", "gguf"],
            &out,
            3,
            &["mamba2", "--to mlx", "qwen3"],
        ),
    ];
    for (model, flags, out, code, words) in table {
        let args = ["convert", model, "-o", out]
            .into_iter()
            .chain(flags.iter().copied());
        loquat(args).refused(*code, words);
    }
}
