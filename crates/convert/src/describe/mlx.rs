//! `config.json` in the words that mlx-lm reads: those that the hub had before `rope_parameters`.

use serde_json::{Map, Value, json};

/// Text models that mlx-lm knows only as a part of a larger one, and what that is called.
const WRAPPED: &[(&str, &str)] = &[
    ("qwen3_5_text", "qwen3_5"),
    ("qwen3_5_moe_text", "qwen3_5_moe"),
];
/// Text models that mlx-lm has no name for, or the name of another model.
const UNKNOWN: &[&str] = &["llama4_text"];
/// Other names for the same number: the family, mlx-lm's field, the one it is taken from.
const COPIED: &[(&str, &str, &str)] = &[
    ("gpt2", "n_ctx", "n_positions"),
    ("lfm2", "block_dim", "hidden_size"),
    ("qwen3_moe", "num_experts", "num_local_experts"),
];
/// Fields that published configs of a family have, that mlx-lm needs, and that newer ones say in
/// another way.
const NEEDED: &[(&str, &str)] = &[
    ("gemma4_text", "global_head_dim"),
    ("kimi_linear", "linear_attn_config"),
    ("mimo_v2_flash", "hybrid_layer_pattern"),
    ("minimax_m2", "shared_intermediate_size"),
];
/// What stands outside the text model's own config too.
const OUTSIDE: &[&str] = &["tie_word_embeddings", "bos_token_id", "eos_token_id"];
/// What a rope has fields of its own for, outside `rope_scaling`.
const OWN_FIELDS: &[&str] = &["rope_theta", "partial_rotary_factor"];

/// GPT-NeoX's words for a rope.
const NEOX: &[(&str, &str)] = &[
    ("rotary_emb_base", "rope_theta"),
    ("rotary_pct", "partial_rotary_factor"),
];

/// The same config with everything that mlx-lm looks for.
pub(crate) fn styled(mut config: Map<String, Value>) -> Map<String, Value> {
    for (field, value) in older_rope(&config) {
        config.entry(field).or_insert(value);
    }
    let family = family_of(&config).to_owned();
    for (_, theirs, ours) in COPIED.iter().filter(|(of, ..)| *of == family) {
        if let Some(value) = config.get(*ours).cloned() {
            config.entry(*theirs).or_insert(value);
        }
    }
    if let Some((field, value)) = older_layers(&config) {
        config.insert(field.into(), value);
    }
    wrapped(config)
}

/// What newer configs say of layers in words that mlx-lm does not know.
fn older_layers(config: &Map<String, Value>) -> Option<(&'static str, Value)> {
    let kinds = config.get("layer_types")?.as_array()?;
    let kinds = kinds.iter().map(|kind| kind.as_str().unwrap_or_default());
    match family_of(config) {
        "exaone4" => {
            let letters = kinds.map(|kind| match kind {
                "sliding_attention" => 'L',
                _ => 'G',
            });
            Some(("sliding_window_pattern", letters.collect::<String>().into()))
        }
        "granitemoehybrid" => {
            let names = kinds.map(|kind| match kind {
                "linear_attention" => "mamba",
                "full_attention" => "attention",
                other => other,
            });
            Some(("layer_types", names.collect()))
        }
        _ => None,
    }
}

fn family_of(config: &Map<String, Value>) -> &str {
    let kind = config.get("model_type").and_then(Value::as_str);
    kind.unwrap_or_default()
}

/// Why mlx-lm would not load the model, if it would not.
pub(crate) fn unreadable(family: &str, config: &Map<String, Value>) -> Option<String> {
    if UNKNOWN.contains(&family) {
        return Some("mlx-lm does not read its text model alone".to_owned());
    }
    let missing = |(of, field): &&(&str, &str)| *of == family && !config.contains_key(*field);
    let (_, field) = NEEDED.iter().find(missing)?;
    Some(format!(
        "its config.json has no `{field}`, which mlx-lm needs and published ones have"
    ))
}

/// What `rope_parameters` says, for all layers or by their kind, in the older fields.
fn older_rope(config: &Map<String, Value>) -> Vec<(&'static str, Value)> {
    let Some(Value::Object(all)) = config.get("rope_parameters") else {
        return Vec::new();
    };
    let kind = |name: &str| all.get(name).and_then(Value::as_object);
    let rope = kind("full_attention").unwrap_or(all);
    let mut fields = Vec::new();
    for field in OWN_FIELDS {
        if let Some(value) = rope.get(*field) {
            fields.push((*field, value.clone()));
        }
    }
    if config
        .get("model_type")
        .is_some_and(|kind| kind == "gpt_neox")
    {
        let theirs = NEOX
            .iter()
            .filter_map(|(theirs, ours)| Some((*theirs, rope.get(*ours)?)));
        fields.extend(theirs.map(|(theirs, value)| (theirs, value.clone())));
    }
    fields.push(("rope_scaling", scaling(rope)));
    let local = kind("sliding_attention").and_then(|local| local.get("rope_theta"));
    if let Some(theta) = local {
        // Gemma's word for it and MiMo's.
        fields.push(("rope_local_base_freq", theta.clone()));
        fields.push(("swa_rope_theta", theta.clone()));
    }
    fields
}

fn scaling(rope: &Map<String, Value>) -> Value {
    let kind = rope.get("rope_type").or(rope.get("type"));
    let Some(kind) = kind.filter(|kind| *kind != "default") else {
        return Value::Null;
    };
    let mut scaling = rope.clone();
    scaling.retain(|field, _| !OWN_FIELDS.contains(&field.as_str()));
    scaling.insert("rope_type".into(), kind.clone());
    scaling.insert("type".into(), kind.clone());
    Value::Object(scaling)
}

fn wrapped(config: Map<String, Value>) -> Map<String, Value> {
    let own = family_of(&config);
    let outer = WRAPPED.iter().find(|(inner, _)| *inner == own);
    let Some((_, outer)) = outer else {
        return config;
    };
    let mut whole = Map::new();
    whole.insert("model_type".into(), json!(outer));
    for field in OUTSIDE {
        if let Some(value) = config.get(*field) {
            whole.insert((*field).into(), value.clone());
        }
    }
    whole.insert("text_config".into(), Value::Object(config));
    whole
}
