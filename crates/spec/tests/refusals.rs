//! Configs that must not load, and what each refusal says.

mod common;

use common::{load, tiny, with};
use loquat_spec::{Config, SpecError, families};
use serde_json::{Value, json};

#[test]
fn what_is_not_a_json_object_is_refused_by_its_file_name() {
    let table = [
        ("", "EOF"),
        ("{\"hidden_size\":", "EOF"),
        ("[1, 2]", "the top level is not an object"),
        ("null", "the top level is not an object"),
        // What Python writes for a number that JSON does not have.
        ("{\"rms_norm_eps\": NaN}", "expected value"),
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
fn an_unknown_family_lists_those_there_are() {
    let error = load(&tiny("mamba2")).unwrap_err();
    let families = [
        "gemma3_text",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "smollm3",
    ];
    assert_eq!(
        error,
        SpecError::UnknownFamily {
            field: "model_type",
            found: "mamba2".into(),
            supported: families.to_vec(),
        }
    );
    for name in families.iter().chain(&["mamba2", "model_type"]) {
        assert!(error.to_string().contains(name), "{error}");
    }
    assert_eq!(families::model_types(), families);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Variant {
    Missing,
    Invalid,
    Unsupported,
}

use Variant::{Invalid, Missing, Unsupported};

/// A change to a tiny config, and the field its refusal names.
fn refused(config: Value, table: Vec<(Value, Variant, &str)>) {
    load(&config).expect("the config loads before it is changed");
    for (changes, expected, name) in table {
        let error = load(&with(config.clone(), changes.clone())).expect_err(&changes.to_string());
        let (variant, field) = match &error {
            SpecError::Missing { field } => (Missing, field),
            SpecError::Invalid { field, .. } => (Invalid, field),
            SpecError::Unsupported { field, .. } => (Unsupported, field),
            other => panic!("{changes}: {other}"),
        };
        assert_eq!((variant, field.as_str()), (expected, name), "{changes}");
        let message = error.to_string();
        assert!(message.contains(name), "{message}");
        assert!(message.len() < 300, "{message}");
    }
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
    let table = vec![(json!({"sliding_window": null}), Missing, "sliding_window")];
    refused(tiny("gemma3_text"), table);
    let table = vec![(
        json!({"use_sliding_window": true}),
        Missing,
        "sliding_window",
    )];
    refused(tiny("qwen2"), table);
}

#[test]
fn numbers_that_are_none_or_fit_nothing_are_refused() {
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
        (json!({"hidden_act": "relu"}), Unsupported, "hidden_act"),
        (json!({"hidden_act": "gelu"}), Unsupported, "hidden_act"),
    ]);
    refused(tiny("llama"), table);
}

#[test]
fn what_was_found_is_shown_but_not_a_page_of_it() {
    let long = "é".repeat(10_000);
    let error = load(&with(tiny("llama"), json!({"hidden_size": long}))).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("éééé") && message.contains('…'),
        "{message}"
    );
    assert!(message.len() < 300);
    let error = load(&with(tiny("llama"), json!({"hidden_act": "relu"}))).unwrap_err();
    assert!(error.to_string().contains("`relu`"), "{error}");
}

#[test]
fn rope_that_cannot_turn_is_refused() {
    let llama3 = |changes| {
        let whole = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        });
        json!({"rope_scaling": with(whole, changes)})
    };
    let yarn = |field: &str| json!({field: "yarn", "factor": 4.0});
    let table = vec![
        (json!({"rope_theta": 0}), Invalid, "rope_theta"),
        (json!({"rope_theta": -1e4}), Invalid, "rope_theta"),
        (json!({"rope_theta": 1e300}), Invalid, "rope_theta"),
        (json!({"rope_theta": "1e4"}), Invalid, "rope_theta"),
        (json!({"rope_scaling": 8.0}), Invalid, "rope_scaling"),
        (
            json!({"partial_rotary_factor": 0.0}),
            Invalid,
            "rotary dimensions",
        ),
        (
            json!({"partial_rotary_factor": 1e300}),
            Invalid,
            "rotary dimensions",
        ),
        (
            json!({"rope_scaling": yarn("rope_type")}),
            Unsupported,
            "rope_scaling.rope_type",
        ),
        (
            json!({"rope_scaling": yarn("type")}),
            Unsupported,
            "rope_scaling.type",
        ),
        (
            json!({"rope_parameters": yarn("rope_type")}),
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
        ("gemma3_text", "head_dim"),
        ("qwen2", "num_key_value_heads"),
        ("mistral", "num_key_value_heads"),
    ] {
        let error = load(&with(tiny(family), json!({field: null}))).unwrap_err();
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
    let error = load(&with(
        tiny("llama"),
        json!({"rope_scaling": yarn("rope_type")}),
    ));
    assert!(error.unwrap_err().to_string().contains("`yarn`"));
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
            Unsupported,
            "layer_types",
        ),
        (json!({"layer_types": [0, 1]}), Unsupported, "layer_types"),
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
            json!({"hidden_activation": "gelu"}),
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
