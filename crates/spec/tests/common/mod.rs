//! Configs that load, for tests to look at or to break.

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

/// The smallest config of a family that loads.
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
    match model_type {
        "gemma3_text" => with(common, json!({"sliding_window": 8})),
        _ => common,
    }
}
