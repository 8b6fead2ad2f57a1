//! `inspect`, `bench` and the help texts.

use serde_json::Value;

use crate::support::{golden, loquat};

fn inspect(args: &[&str]) -> Value {
    let report = loquat(["inspect", "--json"].iter().chain(args).copied());
    serde_json::from_str(&report.quiet()).unwrap()
}

#[test]
fn inspect_tells_what_a_model_is_and_takes() {
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
fn inspect_knows_the_families_apart() {
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
fn a_shorter_context_takes_less_memory() {
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
fn inspect_foretells_memory_with_and_without_a_budget() {
    let model = golden("llama");
    let number = |report: &Value, field: &str| report[field].as_u64().expect(field);
    let free = inspect(&[&model]);
    assert_eq!(free["memory_budget_bytes"], Value::Null);
    // One conversation, and as many again as are kept.
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
fn tensors_are_listed_when_asked_for() {
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
fn inspect_reads_well() {
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

/// Models with every kind of block, and what is said of each.
const IN_WORDS: &[(&str, &[&str])] = &[
    (
        "deepseek_v3_yarn",
        &[
            "latent attention 4 heads, query rank 16, latent 16 + 8, dim 12 + 8, values 10",
            "rope 20 in neighbours yarn × 4 from 32, scores × 0.28990108, RMS norm before",
            "4 experts of 20, 2 chosen, silu, sigmoid router, corrected choice",
            "from 1 of 2 groups, normalised, weights × 1.5, 1 shared of 20",
        ],
    ),
    (
        "gpt_oss",
        &[
            "window 6, a sink per head, biased q, k, v, biased output",
            "clamped swiglu, softmax router, biased experts, biased router, normalised",
        ],
    ),
    (
        "qwen3_next",
        &[
            "gated delta rule 2 key heads of 8, 4 value heads of 8, convolution over 4",
            "decay per head, silu gate",
            "rope 10000 over 4, normed q and k, gated output",
            "1 shared of 24, gated",
            "recurrent state    1.8 kB per sequence, and per snapshot",
            "share prefixes at snapshots",
        ],
    ),
    (
        "kimi_linear",
        &[
            "decay per channel through 8, sigmoid gate through 8",
            "values 10, no positions",
        ],
    ),
    ("lfm2", &["short convolution over 3, 16 channels"]),
    (
        "mamba2",
        &["layers 0-1\n  Mamba-2 4 heads of 8, state 8, 1 group, convolution over 4, normed after"],
    ),
    (
        "falcon_h1",
        &[
            "embedding          40 × 16, scaled × 4",
            "head               its own, logits × 0.5",
            "input × 2, output × 0.5, RMS norm before\n  beside it Mamba-2 4 heads of 8",
            "gate × 0.5, x × 2, B × 4, C × 0.25, step × 8, input × 0.5, output × 2",
            "gated feed-forward 24, silu, gate × 2, output × 0.25",
        ],
    ),
    (
        "gemma4_text",
        &[
            "layer inputs       8 per layer, from a table of 40 and from the embedding",
            "head               tied to the embedding, softcap 4",
            "rope 1000000 on 2 of 8 pairs, scores × 1, normed q and k, normed values",
            "keys and values of layer 1",
            "gated feed-forward 24, gelu by tanh, RMS norm before, RMS norm after",
            "gate by the per-layer input of 8, gelu by tanh, RMS norm after",
            "the result × a learned number",
        ],
    ),
    (
        "gemma4_moe",
        &[
            "keys are values too",
            "beside it 4 experts of 20",
            "a learned weight per expert, router with a norm of its own",
            "RMS norm over their sum",
        ],
    ),
    (
        "cohere2",
        &[
            "layers 0-2\n  attention 4 heads, 2 kv, dim 4, rope 100 in neighbours, window 6",
            "no positions, layer norm before\n  beside it gated feed-forward 24",
            "logits × 0.5",
        ],
    ),
    ("granite", &["scores × 0.45, RMS norm before, added × 0.6"]),
    ("gemma2", &["scores capped at 5", "softcap 8"]),
    (
        "nemotron",
        &["feed-forward 24, squared relu, layer norm before"],
    ),
    ("olmo2", &["normed q and k over all heads, RMS norm after"]),
    (
        "llama4_text",
        &[
            "chunks of 8, normed q and k after rope",
            "no positions, queries grow every 8 tokens",
            "weighed inputs",
        ],
    ),
    ("phi3_longrope", &["rope 10000 longrope from 20"]),
    ("gpt2", &["learned positions", "no positions"]),
];

#[test]
fn inspect_says_every_kind_of_block_in_words() {
    for (name, phrases) in IN_WORDS {
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
            let told = format!("\n{layers}{}\n", lines.concat());
            assert!(text.contains(&told), "{name}: no {told:?} in:\n{text}");
        }
        let recurrent = report["state_bytes"].as_u64().unwrap() > 0;
        assert_eq!(recurrent, text.contains("recurrent state"), "{name}");
    }
}

const TINY: [&str; 6] = [
    "--prompt-tokens=8,16",
    "--decode-tokens=4",
    "--depth=3",
    "--batch=1,2",
    "--rounds=2",
    "--json",
];

#[test]
fn bench_measures_every_size_twice_over() {
    let model = golden("llama");
    let report = loquat(["bench", &model].into_iter().chain(TINY)).quiet();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["model"], "llama");
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
    let rows = report["results"].as_array().unwrap();
    let sizes: Vec<_> = (rows.iter())
        .map(|row| {
            let number = |field: &str| row[field].as_u64().unwrap();
            let work = row["work"].as_str().unwrap();
            (work, number("tokens"), number("depth"), number("batch"))
        })
        .collect();
    let expected = [
        ("prompt", 8, 0, 1),
        ("prompt", 16, 0, 1),
        ("decode", 4, 3, 1),
        ("decode", 4, 3, 2),
    ];
    assert_eq!(sizes, expected);
    for row in rows {
        for side in ["engine", "session"] {
            let rounds = row[format!("{side}_rounds")].as_array().unwrap();
            assert_eq!(rounds.len(), 2);
            let median = row[format!("{side}_tokens_per_second")].as_f64().unwrap();
            let mean = rounds.iter().map(|v| v.as_f64().unwrap()).sum::<f64>() / 2.0;
            assert!(median > 0.0 && (median / mean - 1.0).abs() < 1e-9, "{row}");
        }
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn bench_has_a_table_for_people() {
    let args = ["bench", &golden("llama"), "--prompt-tokens=8"];
    let sizes = ["--decode-tokens=4", "--batch=2", "--rounds=1"];
    let table = loquat(args.into_iter().chain(sizes)).quiet();
    for word in [
        "engine",
        "session",
        "ratio",
        "prompt 8 ",
        "decode 4 × 2 at 1",
    ] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn bench_refuses_sizes_that_do_not_fit() {
    let model = golden("llama");
    for (flags, words) in [
        (
            ["--prompt-tokens=512", "-v"],
            ["prompt 512", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--depth=500"],
            ["at 500", "context of 512"],
        ),
        (
            ["--prompt-tokens=18446744073709551615", "-v"],
            ["prompt 18446744073709551615", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--depth=18446744073709551615"],
            ["at 18446744073709551615", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--batch=600"],
            ["--batch 600", "at most 512"],
        ),
        (
            ["--prompt-tokens=0", "-v"],
            ["--prompt-tokens", "at least 1"],
        ),
        (
            ["--prompt-tokens=8", "--rounds=0"],
            ["--rounds", "at least 1"],
        ),
        (
            ["--prompt-tokens=8,x", "-v"],
            ["--prompt-tokens", "at least 1"],
        ),
    ] {
        let refused = loquat(["bench", &model].into_iter().chain(flags));
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        for word in words {
            assert!(refused.stderr.contains(word), "{}", refused.stderr);
        }
    }
}

#[test]
fn help_shows_defaults_and_ranges() {
    let help = loquat(["run", "--help"]).quiet();
    // However the lines were broken.
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
        for line in short.lines().filter(|line| line.contains("  --")) {
            let words = line.split_whitespace().count();
            let described = words > 2 || line.trim_end().ends_with('>');
            assert!(described, "{command}: {line:?} says nothing");
        }
    }
    let version = loquat(["--version"]).quiet();
    assert_eq!(version, concat!("loquat ", env!("CARGO_PKG_VERSION"), "\n"));
}
