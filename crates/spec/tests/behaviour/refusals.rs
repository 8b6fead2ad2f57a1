//! Configs that must not load, and what each refusal says.

use crate::common::{load, tiny, with};
use crate::refused::Variant::{Invalid, Missing, Unsupported};
use crate::refused::refused;
use loquat_spec::{Config, SpecError, families};
use serde_json::{Value, json};

fn error(config: &Value) -> SpecError {
    match load(config) {
        Ok(_) => panic!("{config} is taken"),
        Err(error) => error,
    }
}

#[test]
fn invalid_json_names_the_file() {
    let table = [
        ("", "EOF"),
        ("{\"hidden_size\":", "EOF"),
        ("[1, 2]", "the top level is not an object"),
        ("null", "the top level is not an object"),
        ("{\"rms_norm_eps\": nan}", "expected ident"),
        ("{\"rms_norm_eps\": 1e999}", "out of range"),
    ];
    for (text, reason) in table {
        let error = Config::parse(text, "config.json").unwrap_err();
        assert!(
            matches!(&error, SpecError::NotJson { source_name, reason: found }
                if source_name == "config.json" && found.contains(reason)),
            "{text}: {error}"
        );
        assert!(error.to_string().contains("config.json"), "{error}");
    }
}

#[test]
fn unknown_family_lists_supported() {
    let families = families::model_types();
    let error = error(&tiny("mamba"));
    assert_eq!(
        error,
        SpecError::UnknownFamily {
            field: "model_type",
            found: "mamba".into(),
            supported: families.clone(),
        }
    );
    for name in families.iter().chain(&["mamba", "model_type"]) {
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// The families that the project promises to load.
const PROMISED: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "lfm2",
    "lfm2_moe",
    "deepseek_v3",
    "kimi_k2",
    "kimi_linear",
    "gpt_oss",
    "phi3",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "granitemoe",
    "starcoder2",
    "cohere2",
    "seed_oss",
    "ernie4_5",
    "hunyuan_v1_dense",
    "exaone4",
    "nemotron",
    "minimax_m2",
    "mamba2",
    "falcon_h1",
    "granitemoehybrid",
];

#[test]
fn promised_families_are_listed_once() {
    let mut families = families::model_types();
    for name in PROMISED {
        assert!(families.contains(name), "{name}");
    }
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), count);
}

#[test]
fn missing_fields_are_named() {
    let fields = [
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ];
    let table = fields.map(|field| (json!({field: null}), Missing, field));
    refused(tiny("llama"), table.to_vec());
    let table = vec![(
        json!({"use_sliding_window": true}),
        Missing,
        "sliding_window",
    )];
    refused(tiny("qwen2"), table);
}

#[test]
fn impossible_numbers_are_refused() {
    let mut table = Vec::new();
    for value in [
        json!(-1),
        json!(64.0),
        json!("64"),
        json!(0),
        json!(4_294_967_295u32),
        json!(4_294_967_296u64),
        json!(1e300),
        json!([64]),
        json!(true),
    ] {
        table.push((json!({"hidden_size": value}), Invalid, "hidden_size"));
        table.push((json!({"vocab_size": value}), Invalid, "vocab_size"));
    }
    table.extend([
        (json!({"model_type": 7}), Invalid, "model_type"),
        (
            json!({"num_hidden_layers": 0}),
            Invalid,
            "num_hidden_layers",
        ),
        (
            json!({"num_hidden_layers": 1_000_000_000}),
            Invalid,
            "num_hidden_layers",
        ),
        (
            json!({"num_hidden_layers": 4097}),
            Invalid,
            "num_hidden_layers",
        ),
        (
            json!({"num_attention_heads": 0}),
            Invalid,
            "num_attention_heads",
        ),
        (
            json!({"num_attention_heads": 0, "head_dim": null}),
            Invalid,
            "num_attention_heads",
        ),
        (
            json!({"num_attention_heads": 6, "head_dim": null}),
            Invalid,
            "num_attention_heads",
        ),
        (
            json!({"num_key_value_heads": 3}),
            Invalid,
            "num_key_value_heads",
        ),
        (
            json!({"num_key_value_heads": 0}),
            Invalid,
            "num_key_value_heads",
        ),
        (json!({"head_dim": 0}), Invalid, "head_dim"),
        (json!({"head_dim": 4098}), Invalid, "head_dim"),
        (json!({"head_dim": 15}), Invalid, "rotary dimensions"),
        (json!({"rms_norm_eps": -1e-6}), Invalid, "rms_norm_eps"),
        (json!({"rms_norm_eps": 1e300}), Invalid, "rms_norm_eps"),
        (json!({"rms_norm_eps": "1e-6"}), Invalid, "rms_norm_eps"),
        (
            json!({"intermediate_size": 0}),
            Invalid,
            "intermediate_size",
        ),
        (
            json!({"max_position_embeddings": 0}),
            Invalid,
            "max_position_embeddings",
        ),
        (json!({"attention_bias": 1}), Invalid, "attention_bias"),
        (
            json!({"tie_word_embeddings": "yes"}),
            Invalid,
            "tie_word_embeddings",
        ),
        (json!({"hidden_act": "tanh"}), Unsupported, "hidden_act"),
        (json!({"hidden_act": 1}), Invalid, "hidden_act"),
    ]);
    refused(tiny("llama"), table);
}

#[test]
fn long_values_are_shortened_in_errors() {
    let long = "é".repeat(10_000);
    let error = error(&with(tiny("llama"), json!({"hidden_size": long})));
    let message = error.to_string();
    assert!(
        message.contains("éééé") && message.contains('…'),
        "{message}"
    );
    assert!(message.len() < 300);
    let error = self::error(&with(tiny("llama"), json!({"hidden_act": "tanh"})));
    assert!(error.to_string().contains("`tanh`"), "{error}");
}

#[test]
fn impossible_rope_is_refused() {
    let llama3 = |changes| {
        let whole = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        });
        json!({"rope_scaling": with(whole, changes)})
    };
    let unknown = |field: &str| json!({field: "ntk", "factor": 4.0});
    let yarn = |changes| {
        let whole = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        });
        json!({"rope_scaling": with(whole, changes)})
    };
    let longrope = |changes| {
        let whole = json!({
            "rope_type": "longrope", "original_max_position_embeddings": 64,
            "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8],
        });
        json!({"rope_scaling": with(whole, changes)})
    };
    let table = vec![
        (json!({"rope_theta": 0}), Invalid, "rope_theta"),
        (json!({"rope_theta": -1e4}), Invalid, "rope_theta"),
        (json!({"rope_theta": 1e300}), Invalid, "rope_theta"),
        (json!({"rope_theta": "1e4"}), Invalid, "rope_theta"),
        (json!({"rope_scaling": 8.0}), Invalid, "rope_scaling"),
        (
            json!({"rope_scaling": unknown("rope_type")}),
            Unsupported,
            "rope_scaling.rope_type",
        ),
        (
            json!({"rope_scaling": unknown("type")}),
            Unsupported,
            "rope_scaling.type",
        ),
        (
            json!({"rope_parameters": unknown("rope_type")}),
            Unsupported,
            "rope_parameters.rope_type",
        ),
        (
            llama3(json!({"factor": null})),
            Missing,
            "rope_scaling.factor",
        ),
        (
            llama3(json!({"original_max_position_embeddings": null})),
            Missing,
            "rope_scaling.original_max_position_embeddings",
        ),
        (
            llama3(json!({"factor": 0.0})),
            Invalid,
            "rope_scaling.factor",
        ),
        (
            llama3(json!({"high_freq_factor": 1.0})),
            Invalid,
            "rope_scaling.high_freq_factor",
        ),
        (yarn(json!({"factor": 0})), Invalid, "rope_scaling.factor"),
        (yarn(json!({"factor": "4"})), Invalid, "rope_scaling.factor"),
        (
            yarn(json!({"beta_fast": -32})),
            Invalid,
            "rope_scaling.beta_fast",
        ),
        (
            yarn(json!({"beta_slow": 1e300})),
            Invalid,
            "rope_scaling.beta_slow",
        ),
        (
            yarn(json!({"attention_factor": 0})),
            Invalid,
            "rope_scaling.attention_factor",
        ),
        (
            yarn(json!({"original_max_position_embeddings": 0})),
            Invalid,
            "rope_scaling.original_max_position_embeddings",
        ),
        (
            yarn(json!({"truncate": 1})),
            Invalid,
            "rope_scaling.truncate",
        ),
        (
            longrope(json!({"short_factor": null})),
            Missing,
            "rope_scaling.short_factor",
        ),
        (
            longrope(json!({"short_factor": vec![1.0; 7]})),
            Invalid,
            "rope_scaling.short_factor",
        ),
        (
            longrope(json!({"long_factor": vec![0.0; 8]})),
            Invalid,
            "rope_scaling.long_factor",
        ),
        (
            longrope(json!({"long_factor": vec!["1"; 8]})),
            Invalid,
            "rope_scaling.long_factor",
        ),
        (
            longrope(json!({"attention_factor": -1})),
            Invalid,
            "rope_scaling.attention_factor",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear"}}),
            Missing,
            "rope_scaling.factor",
        ),
        (
            json!({"rope_scaling": {"factor": 4.0}}),
            Missing,
            "rope_scaling.rope_type",
        ),
    ];
    refused(tiny("llama"), table);
    // Their own defaults are not Llama's, so nothing is assumed.
    for (family, field) in [
        ("qwen3", "head_dim"),
        ("qwen2", "num_key_value_heads"),
        ("mistral", "num_key_value_heads"),
    ] {
        let error = error(&with(tiny(family), json!({field: null})));
        assert_eq!(
            error,
            SpecError::Missing {
                field: field.into()
            },
            "{family}"
        );
    }
    let flat = json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}});
    let table = vec![(flat, Missing, "rope_parameters.full_attention")];
    refused(tiny("gemma3_text"), table);
    let changes = json!({"rope_scaling": unknown("rope_type")});
    let error = error(&with(tiny("llama"), changes));
    assert!(error.to_string().contains("`ntk`"), "{error}");
}

#[test]
fn layers_must_be_listed_one_by_one() {
    let layer_types = |types: &[&str]| json!({"layer_types": types});
    let (full, sliding) = ("full_attention", "sliding_attention");
    let gemma = vec![
        (layer_types(&[full]), Invalid, "layer_types"),
        (layer_types(&[full, full, sliding]), Invalid, "layer_types"),
        (
            layer_types(&[full, "chunked_attention"]),
            Invalid,
            "layer_types",
        ),
        (json!({"layer_types": [0, 1]}), Invalid, "layer_types"),
        (json!({"layer_types": full}), Invalid, "layer_types"),
        (json!({"sliding_window": 0}), Invalid, "sliding_window"),
        (
            json!({"sliding_window_pattern": 0}),
            Invalid,
            "sliding_window_pattern",
        ),
        (
            json!({"query_pre_attn_scalar": 0}),
            Invalid,
            "query_pre_attn_scalar",
        ),
        (
            json!({"query_pre_attn_scalar": -256}),
            Invalid,
            "query_pre_attn_scalar",
        ),
        (
            json!({"final_logit_softcapping": 0.0}),
            Invalid,
            "final_logit_softcapping",
        ),
        (
            json!({"attn_logit_softcapping": 50.0}),
            Unsupported,
            "attn_logit_softcapping",
        ),
        (
            json!({"use_bidirectional_attention": true}),
            Unsupported,
            "use_bidirectional_attention",
        ),
        (
            json!({"hidden_activation": "tanh"}),
            Unsupported,
            "hidden_activation",
        ),
    ];
    refused(tiny("gemma3_text"), gemma);
    refused(
        tiny("mistral"),
        vec![(json!({"sliding_window": 0}), Invalid, "sliding_window")],
    );
    let smollm3 = vec![
        (json!({"no_rope_layers": [1]}), Invalid, "no_rope_layers"),
        (
            json!({"no_rope_layers": [1, 1, 0]}),
            Invalid,
            "no_rope_layers",
        ),
        (json!({"no_rope_layers": [1, 2]}), Invalid, "no_rope_layers"),
        (
            json!({"no_rope_layers": ["1", "0"]}),
            Invalid,
            "no_rope_layers",
        ),
        (
            json!({"no_rope_layer_interval": 0}),
            Invalid,
            "no_rope_layer_interval",
        ),
    ];
    refused(tiny("smollm3"), smollm3);
}
