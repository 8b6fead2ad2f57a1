//! `inspect`, and the help texts.

use serde_json::Value;

use crate::support::{golden, loquat};

fn inspect(args: &[&str]) -> Value {
    let report = loquat(["inspect", "--json"].iter().chain(args).copied());
    serde_json::from_str(&report.quiet()).unwrap()
}

#[test]
fn inspect_reports_shape_and_memory() {
    let report = inspect(&[&golden("llama")]);
    for (field, expected) in [
        ("model", Value::from("llama")),
        ("format", Value::from("safetensors")),
        ("family", Value::from("llama")),
        ("vocab_size", Value::from(288)),
        ("hidden_size", Value::from(64)),
        ("context", Value::from(512)),
        ("model_context", Value::from(512)),
        ("tied_head", Value::from(false)),
    ] {
        assert_eq!(report[field], expected, "{field}");
    }
    assert_eq!(report.get("tensors"), None);
    assert_eq!(report["layers"][0]["layers"], "layers 0-1");
    let number = |field: &str| report[field].as_u64().expect(field);
    // Two layers of two KV heads of 16, key and value, in two bytes each.
    assert_eq!(number("kv_bytes_per_token"), 2 * 2 * 16 * 2 * 2);
    assert_eq!(
        number("kv_bytes_at_context"),
        number("kv_bytes_per_token") * 512
    );
    assert_eq!(
        number("total_bytes"),
        number("weight_bytes") + number("kv_bytes_at_context")
    );
    // Embedding, head, and in each layer q, k, v, o, gate, up and down.
    let layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128;
    assert_eq!(number("parameters"), 2 * 288 * 64 + 2 * layer);
}

#[test]
fn inspect_reports_the_family() {
    for (golden_name, family, tied) in [
        ("gemma3_text", "gemma3_text", true),
        ("llama_tied", "llama", true),
        ("mistral_swa", "mistral", false),
        ("qwen2", "qwen2", false),
        ("qwen3", "qwen3", true),
        ("smollm3", "smollm3", true),
    ] {
        let report = inspect(&[&golden(golden_name)]);
        assert_eq!(report["family"], family);
        assert_eq!(report["tied_head"], tied, "{golden_name}");
    }
}

#[test]
fn shorter_context_needs_less_memory() {
    let model = golden("llama");
    let (whole, half) = (inspect(&[&model]), inspect(&[&model, "--context=256"]));
    assert_eq!(half["context"], 256);
    assert_eq!(half["model_context"], 512);
    assert_eq!(half["weight_bytes"], whole["weight_bytes"]);
    let kv = |report: &Value| report["kv_bytes_at_context"].as_u64().unwrap();
    assert_eq!(kv(&half) * 2, kv(&whole));
    let exact = inspect(&[&model, "--precision=reference"]);
    assert_eq!(kv(&exact), kv(&whole) * 2, "fp32 keys and values");
}

#[test]
fn inspect_plans_within_memory_budget() {
    let model = golden("llama");
    let number = |report: &Value, field: &str| report[field].as_u64().expect(field);
    let free = inspect(&[&model]);
    assert_eq!(free["memory_budget_bytes"], Value::Null);
    // One conversation and the retained ones.
    assert_eq!(number(&free, "kv_capacity"), 512 * 17);
    for (memory, bytes) in [("2MiB", 2 << 20), ("3MB", 3_000_000), ("2500kB", 2_500_000)] {
        let report = inspect(&[&model, "--memory", memory]);
        assert_eq!(report["memory_budget_bytes"], Value::from(bytes));
        let kv = number(&report, "kv_capacity_bytes");
        assert_eq!(
            kv,
            number(&report, "kv_capacity") * number(&report, "kv_bytes_per_token")
        );
        let resident = number(&report, "resident_bytes");
        let parts = number(&report, "weight_bytes") + number(&report, "buffer_bytes") + kv;
        assert_eq!(resident, parts);
        // Up to the last page of 32 tokens.
        assert!(
            resident <= bytes && resident + 32 * 256 > bytes,
            "{report:#}"
        );
        assert!(number(&report, "kv_capacity") < number(&free, "kv_capacity"));
    }
    let share = inspect(&[&model, "--memory=50%"]);
    let machine = number(&share, "device_memory_bytes");
    assert_eq!(number(&share, "memory_budget_bytes"), machine / 2);
    assert_eq!(share["kv_capacity"], free["kv_capacity"]);

    let text = loquat(["inspect", &model, "--memory=2MiB"]).quiet();
    for row in [
        "\nKV capacity        ",
        "full context",
        "\nbuffers            ",
        "of 2.1 MB allowed",
    ] {
        assert!(text.contains(row), "no {row:?} in:\n{text}");
    }
}

#[test]
fn tensors_are_listed_on_request() {
    let model = golden("llama");
    let tensors = inspect(&[&model, "--tensors"])["tensors"].clone();
    let embedding = (tensors.as_array().unwrap().iter())
        .find(|tensor| tensor["name"] == "model.embed_tokens.weight")
        .unwrap();
    assert_eq!(embedding["dtype"], "BF16");
    assert_eq!(embedding["shape"], Value::from(vec![288, 64]));

    let plain = loquat(["inspect", &model]).quiet();
    let listed = loquat(["inspect", &model, "--tensors"]).quiet();
    assert!(!plain.contains("embed_tokens"));
    assert!(listed.contains("model.embed_tokens.weight") && listed.contains("288 × 64"));
}

#[test]
fn program_lists_operations_and_buffers() {
    let llama = golden("llama");
    let flags = ["inspect", &llama, "--program", "--gpu=8.6"];
    let text = loquat(flags).quiet();
    for row in [
        "model      llama",
        "device     cuda, compute capability 8.6",
        "path       general, since no fast kernels run on the GPU",
        "matrices   bf16,",
        "  logits          64 x 288 (73728 bytes)",
        // Two layers of two KV heads of 16, key and value, in two bytes each.
        "  pages of group 0: 16384 bytes for 64 tokens of 2 layers, reach All",
        "\ngreedy: 2 operations",
        "input -> query",
    ] {
        assert!(text.contains(row), "no {row:?} in:\n{text}");
    }
    let line = |text: &str, start: &str| {
        text.lines()
            .find(|line| line.starts_with(start))
            .map(str::to_owned)
    };
    assert!(
        line(&text, "  Linear ").unwrap().contains("64 x 64 bf16"),
        "{text}"
    );

    let exact = loquat([
        "inspect",
        &golden("llama"),
        "--program",
        "--precision=reference",
    ])
    .quiet();
    let path = line(&exact, "path").unwrap();
    assert_eq!(path, "path       general, since it computes in f32");

    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let model = model.to_str().unwrap();
    loquat(["bench", "--synthetic", "llama-tiny:bf16", "--save", model]);
    let fast = loquat(["inspect", model, "--program"]).quiet();
    assert_eq!(line(&fast, "path").unwrap(), "path       fast");
    // Five for each of two layers, the embedding, the head and the positions.
    let decoding = line(&fast, "decoding").unwrap();
    assert!(
        decoding.ends_with("recorded as a graph and started ahead"),
        "{decoding}"
    );
    assert!(fast.contains("FusedAttention"), "{fast}");

    for (flags, words) in [
        (&["--program", "--json"][..], "--json"),
        (&["--gpu=9.0"], "--program"),
        (&["--program", "--gpu=7.5"], "too old"),
        (
            &["--program", "--gpu=hopper"],
            "is not a compute capability",
        ),
        (&["--program", "--kv-format=q8"], "bf16 or f32"),
    ] {
        let model = golden("llama");
        let refused = loquat(
            ["inspect", &model]
                .iter()
                .copied()
                .chain(flags.iter().copied()),
        );
        assert!(
            refused.code == 2 && refused.stderr.contains(words),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn inspect_prints_aligned_rows() {
    let text = loquat(["inspect", &golden("gemma3_text")]).quiet();
    for row in [
        "family             gemma3_text",
        "context            512 (model: 512)",
        "KV at this context 131 kB (256 B per token, f16)",
        "embedding          288 × 64, scaled × 8",
        "window 8",
        "RMS norms before and after",
    ] {
        assert!(text.contains(row), "no {row:?} in:\n{text}");
    }
    assert!(!text.contains("recurrent state"), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "{text:?}");
}

/// Models with every kind of block, and phrases of their description.
const DESCRIPTIONS: &[(&str, &[&str])] = &[
    (
        "deepseek_v3_yarn",
        &[
            "latent attention 4 heads, query rank 16, latent 16 + 8, dim 12 + 8, values 10",
            "RoPE base 20, interleaved, yarn × 4 from 32, scores × 0.28990108, RMS norm before",
            "4 experts of 20, top 2, silu, sigmoid router, score correction",
            "from 1 of 2 groups, normalised, weights × 1.5, 1 shared of 20",
        ],
    ),
    (
        "gpt_oss",
        &[
            "window 6, attention sinks, QKV bias, output bias",
            "clamped swiglu, softmax router, expert bias, router bias, normalised",
        ],
    ),
    (
        "qwen3_next",
        &[
            "gated delta rule 2 key heads of 8, 4 value heads of 8, convolution over 4",
            "decay per head, silu gate",
            "RoPE base 10000, 4 dims, QK norm, gated output",
            "1 shared of 24, gated",
            "recurrent state    1.8 kB per sequence and snapshot",
            "prefix sharing at snapshots",
        ],
    ),
    (
        "kimi_linear",
        &[
            "decay per channel through 8, sigmoid gate through 8",
            "values 10, no position encoding",
        ],
    ),
    ("lfm2", &["short convolution over 3, 16 channels"]),
    (
        "mamba2",
        &["layers 0-1\n  Mamba-2 4 heads of 8, state 8, 1 group, convolution over 4, norm after"],
    ),
    (
        "falcon_h1",
        &[
            "embedding          40 × 16, scaled × 4",
            "head               separate, logits × 0.5",
            "input × 2, output × 0.5, RMS norm before\n  in parallel: Mamba-2 4 heads of 8",
            "gate × 0.5, x × 2, B × 4, C × 0.25, step × 8, input × 0.5, output × 2",
            "gated feed-forward 24, silu, gate × 2, output × 0.25",
        ],
    ),
    (
        "gemma4_text",
        &[
            "layer inputs       8 per layer, from a table of 40 and from the embedding",
            "head               tied to the embedding, softcap 4",
            "RoPE base 1000000, on 2 of 8 pairs, scores × 1, QK norm, value norm",
            "KV of layer 1",
            "gated feed-forward 24, gelu (tanh), RMS norm before, RMS norm after",
            "gate by per-layer input of 8, gelu (tanh), RMS norm after",
            "output × a learned factor",
        ],
    ),
    (
        "gemma4_moe",
        &[
            "keys shared as values",
            "in parallel: 4 experts of 20",
            "learned scale per expert, router norm",
            "RMS norm after the sum",
        ],
    ),
    (
        "cohere2",
        &[
            "layers 0-2\n  attention 4 heads, 2 kv, dim 4, RoPE base 100, interleaved, window 6",
            "no position encoding, layer norm before\n  in parallel: gated feed-forward 24",
            "logits × 0.5",
        ],
    ),
    ("granite", &["scores × 0.45, RMS norm before, added × 0.6"]),
    ("gemma2", &["scores capped at 5", "softcap 8"]),
    (
        "nemotron",
        &["feed-forward 24, squared relu, layer norm before"],
    ),
    ("olmo2", &["QK norm over all heads, RMS norm after"]),
    (
        "llama4_text",
        &[
            "chunks of 8, QK norm after RoPE",
            "no position encoding, query temperature every 8 tokens",
            "weighted inputs",
        ],
    ),
    ("phi3_longrope", &["RoPE base 10000, longrope from 20"]),
    ("gpt2", &["learned positions", "no position encoding"]),
];

#[test]
fn inspect_describes_every_block_kind() {
    for (name, phrases) in DESCRIPTIONS {
        let folder = golden(name);
        let text = loquat(["inspect", &folder]).quiet();
        for phrase in *phrases {
            assert!(text.contains(phrase), "{name}: no {phrase:?} in:\n{text}");
        }
        let report = inspect(&[&folder]);
        for kind in report["layers"].as_array().unwrap() {
            let layers = kind["layers"].as_str().unwrap();
            let blocks = kind["blocks"].as_array().unwrap();
            let lines: Vec<_> = (blocks.iter())
                .map(|block| format!("\n  {}", block.as_str().unwrap()))
                .collect();
            let described = format!("\n{layers}{}\n", lines.concat());
            assert!(
                text.contains(&described),
                "{name}: no {described:?} in:\n{text}"
            );
        }
        let recurrent = report["state_bytes"].as_u64().unwrap() > 0;
        assert_eq!(recurrent, text.contains("recurrent state"), "{name}");
    }
}

#[test]
fn help_shows_defaults_and_ranges() {
    let help = loquat(["run", "--help"]).quiet();
    // Independent of line breaks.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "[0 to 100] [default: 0.6]",
        "[0 to 1] [default: 0.95]",
        "[-2 to 2] [default: 0]",
        "[possible values: fast, reference]",
        "LOQUAT_BACKEND",
    ] {
        assert!(help.contains(words), "no {words:?} in: {help}");
    }
    for command in ["run", "generate", "inspect", "bench", "backends"] {
        let short = loquat([command, "-h"]).quiet();
        assert!(
            short.contains(&format!("Usage: loquat {command}")),
            "{short}"
        );
        // Deeper lines continue a description.
        let is_flag = |line: &&str| line.starts_with("      --");
        for line in short.lines().filter(is_flag) {
            let words = line.split_whitespace().count();
            let described = words > 2 || line.trim_end().ends_with('>');
            assert!(described, "{command}: {line:?} says nothing");
        }
    }
    let version = loquat(["--version"]).quiet();
    assert_eq!(version, concat!("loquat ", env!("CARGO_PKG_VERSION"), "\n"));
}
