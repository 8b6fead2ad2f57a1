//! A spec as `config.json`.

use loquat_spec::{ModelSpec, Reach, Role, RopeScaling};
use loquat_weights::Dtype;
use serde_json::{Map, Value, json};

use super::config_scaling;
use super::gguf::activation_name;
use super::parts::Parts;

/// A family that can be written.
pub(crate) struct Writer {
    pub model_type: &'static str,
    class: &'static str,
    /// What is said of this family beyond the sizes.
    extra: fn(&Parts<'_>) -> Value,
}

const fn with(
    model_type: &'static str,
    class: &'static str,
    extra: fn(&Parts<'_>) -> Value,
) -> Writer {
    Writer {
        model_type,
        class,
        extra,
    }
}

/// Tested by going to GGUF and back.
pub(crate) const WRITERS: &[Writer] = &[
    with("gemma", "GemmaForCausalLM", gemma),
    with("gemma2", "Gemma2ForCausalLM", gemma2),
    with("gemma3_text", "Gemma3ForCausalLM", gemma3),
    with("granite", "GraniteForCausalLM", granite),
    with("llama", "LlamaForCausalLM", biases),
    with("mistral", "MistralForCausalLM", window),
    with("mixtral", "MixtralForCausalLM", mixtral),
    with("olmo2", "Olmo2ForCausalLM", biases),
    with("phi3", "Phi3ForCausalLM", phi3),
    with("qwen2", "Qwen2ForCausalLM", no_window),
    with("qwen3", "Qwen3ForCausalLM", no_window),
    with("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe),
    with("smollm3", "SmolLM3ForCausalLM", smollm3),
];

/// The family under which a GGUF file's model goes on the hub: llama.cpp writes Mistral and
/// Mixtral as Llama, and OLMo 2 as OLMo 3.
pub(crate) fn writer(spec: &ModelSpec) -> Option<&'static Writer> {
    let parts = Parts::of(spec)?;
    let model_type = match (spec.family, parts.experts, parts.local.is_some()) {
        ("llama", Some(_), _) => "mixtral",
        ("llama", None, true) => "mistral",
        ("olmo3", _, false) => "olmo2",
        (family, ..) => family,
    };
    WRITERS
        .iter()
        .find(|writer| writer.model_type == model_type)
}

/// The fields of `config.json`; `tensor` finds rope's divisors. `Err` is what has no words there.
pub(crate) fn fields(
    spec: &ModelSpec,
    writer: &Writer,
    float: Dtype,
    tensor: impl Fn(Role) -> Option<Vec<f32>>,
) -> Result<Map<String, Value>, &'static str> {
    let parts = Parts::of(spec).ok_or("it is not attention throughout")?;
    let attention = parts.attention;
    let fed = parts.dense.or(parts.experts.map(|experts| &experts.expert));
    let fed = fed.ok_or("it has no feed-forward")?;
    let activation = activation_name(fed.activation).ok_or("its activation has no plain name")?;
    let rope = attention.rope.as_ref().ok_or("it has no rope")?;
    let mut all = object(json!({
        "architectures": [writer.class],
        "model_type": writer.model_type,
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
    all.extend(object((writer.extra)(&parts)));
    Ok(all)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A number as people write it: the shortest decimals that read as the same `f32`.
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

fn layer_types(parts: &Parts<'_>) -> Vec<&'static str> {
    let kinds = parts
        .attentions
        .iter()
        .map(|attention| match attention.reach {
            Reach::All => "full_attention",
            Reach::Window(_) | Reach::Chunk(_) => "sliding_attention",
        });
    kinds.collect()
}

fn biases(parts: &Parts<'_>) -> Value {
    json!({
        "attention_bias": parts.attention.qkv_bias,
        "mlp_bias": parts.dense.is_some_and(|dense| dense.bias),
    })
}

fn window(parts: &Parts<'_>) -> Value {
    json!({ "sliding_window": parts.window() })
}

fn no_window(_: &Parts<'_>) -> Value {
    json!({ "use_sliding_window": false })
}

fn mixtral(parts: &Parts<'_>) -> Value {
    json!({
        "sliding_window": parts.window(),
        "num_local_experts": parts.experts.map(|experts| experts.count),
        "num_experts_per_tok": parts.experts.map(|experts| experts.top_k),
    })
}

fn qwen3_moe(parts: &Parts<'_>) -> Value {
    json!({
        "use_sliding_window": false,
        "attention_bias": parts.attention.qkv_bias,
        "num_experts": parts.experts.map(|experts| experts.count),
        "num_experts_per_tok": parts.experts.map(|experts| experts.top_k),
        "moe_intermediate_size": parts.experts.map(|experts| experts.expert.size),
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    })
}

/// Gemma calls its activation otherwise.
fn gemma(parts: &Parts<'_>) -> Value {
    let activation = parts
        .dense
        .and_then(|dense| activation_name(dense.activation));
    json!({ "hidden_activation": activation })
}

fn gemma2(parts: &Parts<'_>) -> Value {
    let scalar = 1.0 / (parts.attention.scale * parts.attention.scale);
    let mut all = object(gemma(parts));
    all.extend(object(json!({
        "query_pre_attn_scalar": scalar.round(),
        "sliding_window": parts.window(),
        "layer_types": layer_types(parts),
        "attn_logit_softcapping": parts.attention.softcap,
        "final_logit_softcapping": parts.spec.head.softcap,
        "attention_bias": false,
    })));
    Value::Object(all)
}

fn gemma3(parts: &Parts<'_>) -> Value {
    let theta = parts
        .local
        .and_then(|local| local.rope.as_ref())
        .map(|rope| short(rope.theta));
    let mut all = object(gemma2(parts));
    all.insert("rope_local_base_freq".into(), json!(theta));
    // mlx-lm reads the interval and not the list.
    let interval = parts
        .attentions
        .iter()
        .position(|attention| attention.reach == Reach::All);
    if let Some(layer) = interval {
        all.insert("sliding_window_pattern".into(), json!(layer + 1));
    }
    Value::Object(all)
}

fn granite(parts: &Parts<'_>) -> Value {
    let mut all = object(biases(parts));
    all.extend(object(json!({
        "attention_multiplier": short(parts.attention.scale),
        "embedding_multiplier": short(parts.spec.embedding.scale),
        "logits_scaling": short(1.0 / parts.spec.head.scale),
        "residual_multiplier": short(parts.residual_scale()),
    })));
    Value::Object(all)
}

fn phi3(parts: &Parts<'_>) -> Value {
    let original = parts
        .attention
        .rope
        .as_ref()
        .and_then(|rope| match rope.scaling {
            RopeScaling::LongTensor {
                original_context, ..
            } => Some(original_context),
            _ => None,
        });
    let turning = parts.attention.rope.as_ref().map_or(0, |rope| rope.dims) as f64;
    json!({
        "sliding_window": parts.window(),
        "original_max_position_embeddings": original.unwrap_or(parts.spec.max_context),
        "partial_rotary_factor": turning / parts.attention.head_dim as f64,
    })
}

fn smollm3(parts: &Parts<'_>) -> Value {
    let flags = parts
        .attentions
        .iter()
        .map(|attention| u8::from(attention.rope.is_some()));
    json!({
        "no_rope_layers": flags.collect::<Vec<u8>>(),
        "use_sliding_window": false,
        "attention_bias": false,
        "mlp_bias": false,
    })
}
