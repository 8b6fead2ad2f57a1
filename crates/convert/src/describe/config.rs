//! A spec as `config.json`.

use loquat_spec::{ConfigExport, ConfigFields, ModelSpec, Reach, Role, RopeScaling};
use loquat_weights::Dtype;
use serde_json::{Map, Value, json};

use super::config_scaling;
use super::gguf::activation_name;
use super::summary::Summary;

/// The fields of `config.json`; `tensor` finds rope's divisors. `Err` says what it cannot express.
pub(crate) fn fields(
    spec: &ModelSpec,
    (model_type, export): (&'static str, &ConfigExport),
    float: Dtype,
    tensor: impl Fn(Role) -> Option<Vec<f32>>,
) -> Result<Map<String, Value>, &'static str> {
    let summary = Summary::from_spec(spec).ok_or("it has layers without attention")?;
    let attention = summary.attention;
    let fed = summary
        .dense
        .or(summary.experts.map(|experts| &experts.expert));
    let fed = fed.ok_or("it has no feed-forward")?;
    let activation =
        activation_name(fed.activation).ok_or("config.json cannot express its activation")?;
    let rope = attention.rope.as_ref().ok_or("it has no rope")?;
    let mut all = object(json!({
        "architectures": [export.class],
        "model_type": model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": fed.size,
        "num_hidden_layers": spec.layers.len(),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": spec.max_context,
        "rms_norm_eps": short(spec.final_norm.eps),
        "rope_theta": short(rope.theta),
        "hidden_act": activation,
        "tie_word_embeddings": spec.head.tied,
        "torch_dtype": torch_name(float),
    }));
    if let Some(scaling) = config_scaling(rope, tensor)? {
        all.insert("rope_scaling".into(), scaling);
    }
    for group in export.fields {
        all.extend(object(field_group(*group, &summary)));
    }
    Ok(all)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The shortest decimals that read as the same `f32`.
fn short(number: f32) -> Value {
    let text = format!("{number:?}");
    text.parse::<f64>()
        .map_or(json!(number), |number| json!(number))
}

pub(crate) fn torch_name(float: Dtype) -> &'static str {
    match float {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    }
}

fn layer_types(summary: &Summary<'_>) -> Vec<&'static str> {
    let kinds = summary
        .attentions
        .iter()
        .map(|attention| match attention.reach {
            Reach::All => "full_attention",
            Reach::Window(_) | Reach::Chunk(_) => "sliding_attention",
        });
    kinds.collect()
}

fn field_group(group: ConfigFields, summary: &Summary<'_>) -> Value {
    match group {
        ConfigFields::Biases => json!({
            "attention_bias": summary.attention.qkv_bias,
            "mlp_bias": summary.dense.is_some_and(|dense| dense.bias),
        }),
        ConfigFields::SlidingWindow => json!({ "sliding_window": summary.window() }),
        ConfigFields::NoSlidingWindow => json!({ "use_sliding_window": false }),
        ConfigFields::LocalExperts => json!({
            "num_local_experts": summary.experts.map(|experts| experts.count),
            "num_experts_per_tok": summary.experts.map(|experts| experts.top_k),
        }),
        ConfigFields::SparseExperts => json!({
            "attention_bias": summary.attention.qkv_bias,
            "num_experts": summary.experts.map(|experts| experts.count),
            "num_experts_per_tok": summary.experts.map(|experts| experts.top_k),
            "moe_intermediate_size": summary.experts.map(|experts| experts.expert.size),
            "norm_topk_prob": true,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }),
        ConfigFields::HiddenActivation => hidden_activation(summary),
        ConfigFields::GemmaAttention => gemma_attention(summary),
        ConfigFields::LocalRope => local_rope(summary),
        ConfigFields::Multipliers => json!({
            "attention_multiplier": short(summary.attention.scale),
            "embedding_multiplier": short(summary.spec.embedding.scale),
            "logits_scaling": short(1.0 / summary.spec.head.scale),
            "residual_multiplier": short(summary.residual_scale()),
        }),
        ConfigFields::PartialRope => partial_rope(summary),
        ConfigFields::NoRopeLayers => {
            let attentions = summary.attentions.iter();
            let flags = attentions.map(|attention| u8::from(attention.rope.is_some()));
            json!({ "no_rope_layers": flags.collect::<Vec<u8>>() })
        }
    }
}

fn hidden_activation(summary: &Summary<'_>) -> Value {
    let activation = summary
        .dense
        .and_then(|dense| activation_name(dense.activation));
    json!({ "hidden_activation": activation })
}

fn gemma_attention(summary: &Summary<'_>) -> Value {
    let scalar = 1.0 / (summary.attention.scale * summary.attention.scale);
    json!({
        "query_pre_attn_scalar": scalar.round(),
        "sliding_window": summary.window(),
        "layer_types": layer_types(summary),
        "attn_logit_softcapping": summary.attention.softcap,
        "final_logit_softcapping": summary.spec.head.softcap,
        "attention_bias": false,
    })
}

fn local_rope(summary: &Summary<'_>) -> Value {
    let local = summary.local.and_then(|local| local.rope.as_ref());
    let mut all = Map::new();
    all.insert(
        "rope_local_base_freq".into(),
        json!(local.map(|rope| short(rope.theta))),
    );
    // mlx-lm reads the interval and not the list.
    let interval = summary
        .attentions
        .iter()
        .position(|attention| attention.reach == Reach::All);
    if let Some(layer) = interval {
        all.insert("sliding_window_pattern".into(), json!(layer + 1));
    }
    Value::Object(all)
}

fn partial_rope(summary: &Summary<'_>) -> Value {
    let rope = summary.attention.rope.as_ref();
    let original = rope.and_then(|rope| match rope.scaling {
        RopeScaling::LongTensor {
            original_context, ..
        } => Some(original_context),
        _ => None,
    });
    let rotated = rope.map_or(0, |rope| rope.dims) as f64;
    json!({
        "original_max_position_embeddings": original.unwrap_or(summary.spec.max_context),
        "partial_rotary_factor": rotated / summary.attention.head_dim as f64,
    })
}
