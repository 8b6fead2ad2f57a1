//! Vision parts of configs.

use loquat_spec::families::{self, Described};
use loquat_spec::{Config, MediaAttention, PatchSpan, SpecError};
use serde_json::{Value, json};

fn described(config: &Value) -> Result<Described, SpecError> {
    families::from_config(&Config::parse(&config.to_string(), "config.json")?)
}

fn qwen2_5_vl(vision: Value) -> Value {
    let mut config = json!({
        "model_type": "qwen2_5_vl", "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "vocab_size": 64,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
        "vision_config": {
            "hidden_size": 16, "num_heads": 2, "depth": 4, "intermediate_size": 24,
            "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
            "fullatt_block_indexes": [3],
        },
    });
    for (field, value) in vision.as_object().into_iter().flatten() {
        config["vision_config"][field] = value.clone();
    }
    config
}

#[test]
fn text_fields_beside_vision_config_are_read() {
    let described = described(&qwen2_5_vl(json!({}))).unwrap();
    assert!(described.wrapped && described.spec.has_grid_positions());
    let vision = described.vision.unwrap().spec;
    // 112 pixels are four merged patches of 28.
    let window = PatchSpan::Window(8);
    assert_eq!(vision.layers, [window, window, window, PatchSpan::Frame]);
    assert_eq!(vision.attention, MediaAttention::Causal);
    assert!(vision.video);
}

#[test]
fn broken_vision_config_leaves_text_working() {
    let table = [
        json!({"patch_size": 0}),
        json!({"spatial_merge_size": 0}),
        json!({"spatial_merge_size": 4_000_000_000u32}),
        json!({"hidden_size": 4_000_000_000u32}),
        json!({"num_heads": 0}),
        json!({"depth": 4_000_000_000u32}),
        json!({"window_size": 3}),
        json!({"hidden_act": "softplus"}),
    ];
    for vision in table {
        let described = described(&qwen2_5_vl(vision.clone()));
        let described = described.unwrap_or_else(|error| panic!("{vision}: {error}"));
        assert!(described.vision.is_none(), "{vision}");
        let refusal = described.spec.vision_refusal.unwrap_or_default();
        assert!(refusal.contains("vision_config"), "{vision}: {refusal}");
    }
}

#[test]
fn mrope_sections_must_cover_the_head() {
    let mut config = qwen2_5_vl(json!({}));
    config["rope_scaling"]["mrope_section"] = json!([2, 1, 2]);
    let error = described(&config).err();
    assert!(
        matches!(&error, Some(SpecError::Invalid { field, .. }) if field.contains("mrope_section")),
        "{error:?}"
    );
}
