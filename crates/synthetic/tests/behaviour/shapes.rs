//! Small shapes of every family, and the parameter counts of the real ones.

use loquat_spec::families;
use loquat_synthetic::{ModelSeries, Recipe, SHAPES, Shape};

/// As deep as the larger models, so that growth from layer to layer shows.
pub static DEEP: Shape = ModelSeries {
    architecture: "llama",
    config: r#"{
        "model_type": "llama", "vocab_size": 512, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0
    }"#,
}
.shape("deep", "Llama", [256, 32, 4, 2, 64, 512])
.tied();

/// Its width is not a multiple of 256.
pub static QWEN3: Shape = ModelSeries {
    architecture: "qwen3",
    config: r#"{
        "model_type": "qwen3", "vocab_size": 320, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0
    }"#,
}
.shape("qwen3", "Qwen3", [192, 3, 4, 2, 64, 256]);

pub static QWEN3_MOE: Shape = ModelSeries {
    architecture: "qwen3moe",
    config: r#"{
        "model_type": "qwen3_moe", "vocab_size": 512, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "moe_intermediate_size": 256,
        "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": []
    }"#,
}
.shape("qwen3-moe", "Qwen3 with experts", [256, 3, 4, 2, 64, 512]);

pub static GEMMA3: Shape = ModelSeries {
    architecture: "gemma3",
    config: r#"{
        "model_type": "gemma3_text", "vocab_size": 512, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 64, "sliding_window": 16, "sliding_window_pattern": 6
    }"#,
}
.shape("gemma3", "Gemma 3", [256, 7, 4, 1, 64, 512])
.tied();

pub static GPT_OSS: Shape = ModelSeries {
    architecture: "gpt-oss",
    config: r#"{
        "model_type": "gpt_oss", "vocab_size": 512, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 16, "truncate": false
        }
    }"#,
}
.shape("gpt-oss", "gpt-oss", [256, 4, 4, 2, 64, 256]);

pub fn every_family() -> [&'static Shape; 5] {
    [&DEEP, &QWEN3, &QWEN3_MOE, &GEMMA3, &GPT_OSS]
}

/// The parameters of all tensors.
fn parameters(shape: &Shape) -> usize {
    let described = families::from_config(&shape.config().unwrap()).unwrap();
    let slots = described.namings[0].slots(&described.spec);
    let kinds = slots.iter().map(|slot| slot.kind);
    kinds
        .map(|kind| kind.count() * kind.rows() * kind.cols())
        .sum()
}

#[test]
fn parameter_counts_match_published_models() {
    // In thousands, as the models' publishers count them; the last two are not published models.
    let published = [
        ("llama-1b", 1_235_814),
        ("llama-3b", 3_212_749),
        ("llama-8b", 8_030_261),
        ("smollm2-135m", 134_515),
        ("qwen3-0.6b", 596_049),
        ("qwen3-4b", 4_022_468),
        ("qwen3-8b", 8_190_735),
        ("qwen3-30b-a3b", 30_532_122),
        ("gemma3-270m", 268_098),
        ("gemma3-1b", 999_885),
        ("gpt-oss-20b", 20_914_757),
        ("gpt-oss-tiny", 770_497),
        ("llama-tiny", 4_985),
    ];
    for shape in SHAPES {
        let row = published.iter().find(|(name, _)| *name == shape.name);
        let (_, thousands) = row.unwrap_or_else(|| panic!("{} is not listed here", shape.name));
        assert_eq!(parameters(shape) / 1000, *thousands, "{}", shape.name);
    }
}

#[test]
fn unknown_recipe_lists_valid_names() {
    let recipe: Recipe = "llama-1b:q4_0".parse().unwrap();
    assert_eq!(recipe.name(), "llama-1b:q4_0");
    let recipe: Recipe = "gemma3-1b".parse().unwrap();
    assert_eq!(recipe.name(), "gemma3-1b:bf16");
    for (text, words) in [
        ("llama-2b:q4_0", ["`llama-2b` is not a shape", "qwen3-0.6b"]),
        ("llama-1b:q4", ["`q4` is not a format", "q4_k_m"]),
        ("", ["`` is not a shape", "llama-8b"]),
        ("llama-1b:", ["`` is not a format", "mxfp4"]),
    ] {
        let error = text.parse::<Recipe>().unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
