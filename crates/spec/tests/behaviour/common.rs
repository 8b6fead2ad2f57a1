//! Valid configs for tests.

use loquat_spec::families::{self, Described};
use loquat_spec::{Config, SpecError};
use serde_json::{Value, json};

pub fn load(config: &Value) -> Result<Described, SpecError> {
    families::from_config(&Config::parse(&config.to_string(), "config.json")?)
}

/// A config with `changes` laid over it; `null` removes a field.
pub fn with(mut config: Value, changes: Value) -> Value {
    for (field, value) in changes.as_object().unwrap() {
        let fields = config.as_object_mut().unwrap();
        match value {
            Value::Null => fields.remove(field),
            value => fields.insert(field.clone(), value.clone()),
        };
    }
    config
}

/// A small config of a family.
pub fn tiny(model_type: &str) -> Value {
    let common = json!({
        "model_type": model_type,
        "vocab_size": 288,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
    });
    let own = match model_type {
        "gemma3_text" => json!({"sliding_window": 8}),
        "gemma4_text" => json!({
            "num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 32,
            "layer_types": [
                "sliding_attention", "full_attention", "sliding_attention", "full_attention"
            ],
            "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 288,
        }),
        "deepseek_v3" => json!({
            "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 32,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        }),
        "qwen3_moe" => json!({
            "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        }),
        "qwen3_next" => json!({
            "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32, "full_attention_interval": 2,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        }),
        "gpt_oss" => json!({
            "num_local_experts": 4, "num_experts_per_tok": 2,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        }),
        _ => json!({}),
    };
    with(common, own)
}
