//! The shapes of well-known models, as fields of `config.json`.
//!
//! Rope scalings are left out unless a family requires one: they change neither a tensor nor the
//! cost of a token.

use loquat_spec::{Config, SpecError};

use crate::SyntheticError;

/// A model's shape.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    /// The model that has this shape, for display.
    pub model: &'static str,
    /// Its fields of `config.json`.
    pub config: &'static str,
    /// GGUF's `general.architecture`.
    pub architecture: &'static str,
}

impl Shape {
    pub fn find(name: &str) -> Result<&'static Self, SyntheticError> {
        let found = SHAPES.iter().find(|shape| shape.name == name);
        found.ok_or_else(|| {
            let known: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            SyntheticError::UnknownShape {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    pub(crate) fn config(&self) -> Result<Config, SpecError> {
        Config::parse(self.config, self.name)
    }
}

const LLAMA: &str = "llama";
const QWEN3: &str = "qwen3";
const GEMMA3: &str = "gemma3";

/// In the order that messages list them.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "llama-1b",
        model: "Llama-3.2-1B",
        architecture: LLAMA,
        config: r#"{
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 64, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true
        }"#,
    },
    Shape {
        name: "llama-3b",
        model: "Llama-3.2-3B",
        architecture: LLAMA,
        config: r#"{
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true
        }"#,
    },
    Shape {
        name: "llama-8b",
        model: "Llama-3.1-8B",
        architecture: LLAMA,
        config: r#"{
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false
        }"#,
    },
    Shape {
        name: "smollm2-135m",
        model: "SmolLM2-135M",
        architecture: LLAMA,
        config: r#"{
            "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "head_dim": 64, "intermediate_size": 1536, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true
        }"#,
    },
    Shape {
        name: "qwen3-0.6b",
        model: "Qwen3-0.6B",
        architecture: QWEN3,
        config: r#"{
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true
        }"#,
    },
    Shape {
        name: "qwen3-4b",
        model: "Qwen3-4B",
        architecture: QWEN3,
        config: r#"{
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 9728, "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true
        }"#,
    },
    Shape {
        name: "qwen3-8b",
        model: "Qwen3-8B",
        architecture: QWEN3,
        config: r#"{
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 12288, "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false
        }"#,
    },
    Shape {
        name: "qwen3-30b-a3b",
        model: "Qwen3-30B-A3B",
        architecture: "qwen3moe",
        config: r#"{
            "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
            "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false
        }"#,
    },
    Shape {
        name: "gemma3-270m",
        model: "Gemma-3-270M",
        architecture: GEMMA3,
        config: r#"{
            "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 640,
            "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 256, "intermediate_size": 2048, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6
        }"#,
    },
    Shape {
        name: "gemma3-1b",
        model: "Gemma-3-1B",
        architecture: GEMMA3,
        config: r#"{
            "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 256, "intermediate_size": 6912, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6
        }"#,
    },
    Shape {
        name: "gpt-oss-tiny",
        model: "gpt-oss made small",
        architecture: "gpt-oss",
        config: r#"{
            "model_type": "gpt_oss", "vocab_size": 65536, "hidden_size": 1024,
            "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,
            "head_dim": 64, "intermediate_size": 1024, "num_local_experts": 16,
            "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 4096, "truncate": false
            },
            "tie_word_embeddings": false
        }"#,
    },
    Shape {
        name: "llama-tiny",
        model: "Llama made tiny",
        architecture: LLAMA,
        config: r#"{
            "model_type": "llama", "vocab_size": 512, "hidden_size": 256,
            "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 64, "intermediate_size": 512, "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false
        }"#,
    },
];
