//! KV memory of well-known shapes before and after freeing what is behind windows, as plans count it.
//! Prints the table in `docs/benchmarks.md`.
//!
//! `cargo run --release -p loquat-cpu --example kv_windows`

use loquat_cpu::kv_groups;
use loquat_session::{KvFormat, KvGroups, SessionOptions};
use loquat_spec::Config;

/// Tokens of a page.
const PAGE: usize = 32;

struct Shape {
    name: &'static str,
    context: usize,
    /// The fields of `config.json` that KV depends on, and those that have no default.
    config: &'static str,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "Gemma 3 27B",
        context: 32_768,
        config: r#"{
            "model_type": "gemma3_text", "vocab_size": 262208, "max_position_embeddings": 131072,
            "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 168, "sliding_window": 1024, "sliding_window_pattern": 6
        }"#,
    },
    Shape {
        name: "gpt-oss-20b",
        context: 131_072,
        config: r#"{
            "model_type": "gpt_oss", "vocab_size": 201088, "max_position_embeddings": 131072,
            "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
            "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
            "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 4096, "truncate": false
            }
        }"#,
    },
    Shape {
        name: "Gemma 4 26B-A4B",
        context: 32_768,
        config: r#"{
            "model_type": "gemma4_text", "vocab_size": 262144, "max_position_embeddings": 262144,
            "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16,
            "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
            "global_head_dim": 512, "intermediate_size": 2112, "rms_norm_eps": 1e-6,
            "sliding_window": 1024, "attention_k_eq_v": true, "enable_moe_block": true,
            "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "hidden_size_per_layer_input": 0
        }"#,
    },
    Shape {
        name: "Llama 4 Scout",
        context: 131_072,
        config: r#"{
            "model_type": "llama4_text", "vocab_size": 202048, "max_position_embeddings": 10485760,
            "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "attention_chunk_size": 8192, "num_local_experts": 16, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1, "use_qk_norm": true, "attn_temperature_tuning": true,
            "floor_scale": 8192, "attn_scale": 0.1
        }"#,
    },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let row_tokens = SessionOptions::default().max_step_tokens;
    println!("| Shape, f16 | Context | Before | After | Factor |");
    println!("|---|---|---|---|---|");
    for shape in SHAPES {
        let config = Config::parse(shape.config, shape.name)?;
        let spec = loquat_spec::families::from_config(&config)?.spec;
        let groups = kv_groups(&spec, &KvFormat::F16);
        let uniform = KvGroups::uniform(groups.bytes_per_token());
        let [before, after] = [uniform, groups].map(|groups| {
            let tokens = groups.sequence_tokens(shape.context, row_tokens, PAGE) as u64;
            (tokens * groups.bytes_per_token()) as f64
        });
        println!(
            "| {} | {} | {:.2} GB | {:.2} GB | {:.1} |",
            shape.name,
            shape.context,
            before / 1e9,
            after / 1e9,
            before / after
        );
    }
    Ok(())
}
