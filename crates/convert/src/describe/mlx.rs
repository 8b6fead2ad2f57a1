//! `config.json` for mlx-lm, which reads the hub's fields from before `rope_parameters`.

use loquat_spec::{MlxFacts, MlxLayerTypes};
use serde_json::{Map, Value, json};

/// Fields that the wrapper repeats from the text model's config.
const OUTSIDE: &[&str] = &["tie_word_embeddings", "bos_token_id", "eos_token_id"];
/// Rope fields kept outside `rope_scaling`.
const OWN_FIELDS: &[&str] = &["rope_theta", "partial_rotary_factor"];

/// The config with all fields that mlx-lm reads.
pub(crate) fn styled(mut config: Map<String, Value>, facts: &MlxFacts) -> Map<String, Value> {
    for (field, value) in older_rope(&config, facts) {
        config.entry(field).or_insert(value);
    }
    for (theirs, ours) in facts.copied_fields {
        if let Some(value) = config.get(*ours).cloned() {
            config.entry(*theirs).or_insert(value);
        }
    }
    if let Some((field, value)) = older_layers(&config, facts) {
        config.insert(field.into(), value);
    }
    match facts.wrapper {
        Some(outer) if model_type(&config) != Some(outer) => wrapped(config, outer),
        _ => config,
    }
}

fn model_type(config: &Map<String, Value>) -> Option<&str> {
    config.get("model_type")?.as_str()
}

/// Newer layer kinds as mlx-lm names them.
fn older_layers(config: &Map<String, Value>, facts: &MlxFacts) -> Option<(&'static str, Value)> {
    let kinds = config.get("layer_types")?.as_array()?;
    let kinds = kinds.iter().map(|kind| kind.as_str().unwrap_or_default());
    Some(match facts.layer_types? {
        MlxLayerTypes::Letters => {
            let letters = kinds.map(|kind| match kind {
                "sliding_attention" => 'L',
                _ => 'G',
            });
            ("sliding_window_pattern", letters.collect::<String>().into())
        }
        MlxLayerTypes::Mamba => {
            let names = kinds.map(|kind| match kind {
                "linear_attention" => "mamba",
                "full_attention" => "attention",
                other => other,
            });
            ("layer_types", names.collect())
        }
    })
}

/// Why mlx-lm would not load the model, if it would not.
pub(crate) fn unreadable(config: &Map<String, Value>, facts: &MlxFacts) -> Option<String> {
    if !facts.text_model {
        return Some("mlx-lm does not read its text model alone".to_owned());
    }
    let mut required = facts.required_fields.iter();
    let field = required.find(|field| !config.contains_key(**field))?;
    Some(format!(
        "its config.json has no `{field}`, which mlx-lm needs and published ones have"
    ))
}

/// `rope_parameters`, for all layers or by kind, as the older fields.
fn older_rope(config: &Map<String, Value>, facts: &MlxFacts) -> Vec<(&'static str, Value)> {
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
    let theirs = facts.rope_fields.iter();
    fields.extend(theirs.filter_map(|(theirs, ours)| Some((*theirs, rope.get(*ours)?.clone()))));
    fields.push(("rope_scaling", scaling(rope)));
    let local = kind("sliding_attention").and_then(|local| local.get("rope_theta"));
    if let Some(theta) = local {
        // Gemma's name and MiMo's.
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

fn wrapped(config: Map<String, Value>, outer: &str) -> Map<String, Value> {
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
