//! The shapes of well-known models, as fields of `config.json`.
//!
//! Rope scalings are left out unless a family requires one: they change neither a tensor nor the
//! cost of a token.

use loquat_spec::{Config, SpecError};
use serde_json::{Map, Value, json};

use crate::SyntheticError;

/// Properties shared by all models of a series.
#[derive(Debug, Clone, Copy)]
pub struct ModelSeries {
    /// GGUF's `general.architecture`.
    pub architecture: &'static str,
    /// The fields of `config.json` that are equal in all of them.
    pub config: &'static str,
}

/// A model's shape.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    /// The model that has this shape, for display.
    pub model: &'static str,
    pub(crate) series: ModelSeries,
    /// In the order of [`SIZE_FIELDS`].
    sizes: [usize; 6],
    tied: bool,
}

/// The fields of `config.json` that differ within a series.
const SIZE_FIELDS: [&str; 6] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
];

impl ModelSeries {
    /// `sizes`: hidden size, layers, heads, key/value heads, a head's size, feed-forward's size.
    pub const fn shape(self, name: &'static str, model: &'static str, sizes: [usize; 6]) -> Shape {
        Shape {
            name,
            model,
            series: self,
            sizes,
            tied: false,
        }
    }
}

impl Shape {
    /// Uses the embedding as the head.
    pub const fn tied(self) -> Self {
        Self { tied: true, ..self }
    }

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

    pub fn config(&self) -> Result<Config, SpecError> {
        Config::parse(&Value::Object(self.fields()?).to_string(), self.name)
    }

    /// The fields of its `config.json`.
    pub(crate) fn fields(&self) -> Result<Map<String, Value>, SpecError> {
        let mut fields: Map<String, Value> =
            serde_json::from_str(self.series.config).map_err(|error| self.not_json(&error))?;
        let sizes = SIZE_FIELDS.iter().zip(self.sizes);
        fields.extend(sizes.map(|(field, size)| ((*field).to_owned(), json!(size))));
        fields.insert("tie_word_embeddings".to_owned(), json!(self.tied));
        Ok(fields)
    }

    pub(crate) fn not_json(&self, error: &serde_json::Error) -> SpecError {
        SpecError::NotJson {
            source_name: self.name.into(),
            reason: error.to_string(),
        }
    }
}

const LLAMA_3: ModelSeries = ModelSeries {
    architecture: "llama",
    config: r#"{
        "model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0
    }"#,
};

const SMOLLM2: ModelSeries = ModelSeries {
    config: r#"{
        "model_type": "llama", "vocab_size": 49152, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 100000.0
    }"#,
    ..LLAMA_3
};

const LLAMA_TINY: ModelSeries = ModelSeries {
    config: r#"{
        "model_type": "llama", "vocab_size": 512, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0
    }"#,
    ..LLAMA_3
};

const QWEN3: ModelSeries = ModelSeries {
    architecture: "qwen3",
    config: r#"{
        "model_type": "qwen3", "vocab_size": 151936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0
    }"#,
};

const QWEN3_MOE: ModelSeries = ModelSeries {
    architecture: "qwen3moe",
    config: r#"{
        "model_type": "qwen3_moe", "vocab_size": 151936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": []
    }"#,
};

const GEMMA3: ModelSeries = ModelSeries {
    architecture: "gemma3",
    config: r#"{
        "model_type": "gemma3_text", "vocab_size": 262144, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6
    }"#,
};

const GPT_OSS: ModelSeries = ModelSeries {
    architecture: "gpt-oss",
    config: r#"{
        "model_type": "gpt_oss", "vocab_size": 201088, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": false
        }
    }"#,
};

const GPT_OSS_TINY: ModelSeries = ModelSeries {
    config: r#"{
        "model_type": "gpt_oss", "vocab_size": 65536, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
        "num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 128,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": false
        }
    }"#,
    ..GPT_OSS
};

/// In the order that messages list them.
#[rustfmt::skip]
pub const SHAPES: &[Shape] = &[
    LLAMA_3.shape("llama-1b", "Llama-3.2-1B",                [2048, 16, 32, 8, 64,  8192]).tied(),
    LLAMA_3.shape("llama-3b", "Llama-3.2-3B",                [3072, 28, 24, 8, 128, 8192]).tied(),
    LLAMA_3.shape("llama-8b", "Llama-3.1-8B",                [4096, 32, 32, 8, 128, 14336]),
    SMOLLM2.shape("smollm2-135m", "SmolLM2-135M",            [576,  30, 9,  3, 64,  1536]).tied(),
    QWEN3.shape("qwen3-0.6b", "Qwen3-0.6B",                  [1024, 28, 16, 8, 128, 3072]).tied(),
    QWEN3.shape("qwen3-4b", "Qwen3-4B",                      [2560, 36, 32, 8, 128, 9728]).tied(),
    QWEN3.shape("qwen3-8b", "Qwen3-8B",                      [4096, 36, 32, 8, 128, 12288]),
    QWEN3_MOE.shape("qwen3-30b-a3b", "Qwen3-30B-A3B",        [2048, 48, 32, 4, 128, 6144]),
    GEMMA3.shape("gemma3-270m", "Gemma-3-270M",              [640,  18, 4,  1, 256, 2048]).tied(),
    GEMMA3.shape("gemma3-1b", "Gemma-3-1B",                  [1152, 26, 4,  1, 256, 6912]).tied(),
    GPT_OSS.shape("gpt-oss-20b", "gpt-oss-20b",         [2880, 24, 64, 8, 64,  2880]),
    GPT_OSS_TINY.shape("gpt-oss-tiny", "small gpt-oss", [1024, 12, 16, 4, 64,  1024]),
    LLAMA_TINY.shape("llama-tiny", "tiny Llama",        [256,  8,  4,  2, 64,  512]),
];
