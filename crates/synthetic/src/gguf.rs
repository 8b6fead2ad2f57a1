//! GGUF metadata that llama.cpp needs: sizes and a vocabulary.

use loquat_spec::{Config, SpecError};
use loquat_weights::gguf::{Array, Metadata, Value};

use crate::shapes::Shape;

/// Counts under llama.cpp's keys, if the config has them. Head sizes are explicit: not every
/// architecture divides its width evenly among heads.
const COUNTS: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("head_dim", "rope.dimension_count"),
    ("sliding_window", "attention.sliding_window"),
    ("num_experts", "expert_count"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
];

pub(crate) fn metadata(shape: &Shape, config: &Config) -> Result<Metadata, SpecError> {
    let architecture = shape.series.architecture;
    let mut metadata: Metadata = [
        ("general.architecture", text(architecture)),
        (
            "general.name",
            text(&format!("random weights of the shape of {}", shape.model)),
        ),
        // The layout of blocks that ggml has had since 2023.
        ("general.quantization_version", Value::U32(2)),
    ]
    .into_iter()
    .collect();
    let key = |field: &str| format!("{architecture}.{field}");
    for (field, name) in COUNTS {
        if let Some(count) = config.usize_opt(field)? {
            metadata.insert(key(name), count_value(count));
        }
    }
    // gpt-oss has only experts and stores their size under the name of the dense size.
    if config.get("num_local_experts").is_some() {
        let size = config.usize("intermediate_size")?;
        metadata.insert(key("expert_feed_forward_length"), count_value(size));
    }
    for (field, name) in NUMBERS {
        if let Some(number) = config.f64_opt(field)? {
            metadata.insert(key(name), Value::F32(number as f32));
        }
    }
    if let Some(scaling) = config.object("rope_scaling")? {
        let kind = scaling.str("rope_type")?.unwrap_or("none");
        let original = scaling.usize("original_max_position_embeddings")?;
        let factor = Value::F32(scaling.f64("factor")? as f32);
        metadata.insert(key("rope.scaling.type"), text(kind));
        metadata.insert(key("rope.scaling.factor"), factor);
        metadata.insert(
            key("rope.scaling.original_context_length"),
            count_value(original),
        );
    }
    vocabulary(config.usize("vocab_size")?, &mut metadata);
    Ok(metadata)
}

/// llama.cpp's kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// A byte-level vocabulary: every byte, one merge (required), an end token, and placeholder names
/// for the rest.
fn vocabulary(size: usize, metadata: &mut Metadata) {
    let mut tokens: Vec<String> = byte_letters().map(String::from).collect();
    tokens.push("Ġt".to_owned());
    let mut kinds = vec![NORMAL; tokens.len()];
    let end = tokens.len();
    tokens.push("<|end|>".to_owned());
    kinds.push(CONTROL);
    tokens.extend((tokens.len()..size).map(|id| format!("<|unused_{id}|>")));
    kinds.resize(tokens.len(), UNUSED);
    for (field, value) in [
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", Value::Array(Array::String(tokens))),
        ("token_type", Value::Array(Array::I32(kinds))),
        (
            "merges",
            Value::Array(Array::String(vec!["Ġ t".to_owned()])),
        ),
        ("bos_token_id", count_value(end)),
        ("eos_token_id", count_value(end)),
        ("add_bos_token", Value::Bool(false)),
    ] {
        metadata.insert(format!("tokenizer.ggml.{field}"), value);
    }
}

/// The character for each byte in byte-level vocabularies: its own in Latin-1 if that is printable,
/// else the next from U+0100.
fn byte_letters() -> impl Iterator<Item = char> {
    let mut further = '\u{100}'..;
    (0..=u8::MAX).filter_map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => Some(char::from(byte)),
        _ => further.next(),
    })
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// Counts of a config are below 2³².
fn count_value(count: usize) -> Value {
    Value::U32(count as u32)
}
