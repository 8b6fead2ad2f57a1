//! GGUF headers of every architecture, whole and broken.

use std::collections::HashMap;

use loquat_spec::{
    Activation, FeedForward, GgufHeader, ModelSpec, RopeScaling, SpecError, families,
};

#[derive(Clone)]
enum Entry {
    Text(&'static str),
    Whole(u64),
    Float(f64),
    /// A type no family asks for, such as an array.
    Other,
}

use Entry::{Float, Other, Text, Whole};

/// What a parser would have found in a file.
#[derive(Clone, Default)]
struct Header {
    entries: HashMap<String, Entry>,
    tensors: HashMap<&'static str, Vec<usize>>,
}

impl GgufHeader for Header {
    fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    fn str(&self, key: &str) -> Option<&str> {
        match self.entries.get(key)? {
            Text(text) => Some(text),
            _ => None,
        }
    }

    fn u64(&self, key: &str) -> Option<u64> {
        match self.entries.get(key)? {
            Whole(number) => Some(*number),
            _ => None,
        }
    }

    fn f64(&self, key: &str) -> Option<f64> {
        match self.entries.get(key)? {
            Float(number) => Some(*number),
            _ => None,
        }
    }

    fn tensor_shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(Vec::as_slice)
    }
}

const ARCHITECTURES: [&str; 5] = ["gemma3", "llama", "qwen2", "qwen3", "smollm3"];

/// A header that loads: eight layers, untied.
fn header(architecture: &'static str) -> Header {
    let mut header = Header::default();
    header
        .entries
        .insert("general.architecture".into(), Text(architecture));
    let keys = [
        ("context_length", Whole(4096)),
        ("embedding_length", Whole(64)),
        ("block_count", Whole(8)),
        ("feed_forward_length", Whole(128)),
        ("attention.head_count", Whole(4)),
        ("attention.head_count_kv", Whole(2)),
        ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(5e5)),
    ];
    for (key, entry) in keys {
        header.set(architecture, key, entry);
    }
    if architecture == "gemma3" {
        header.set(architecture, "attention.sliding_window", Whole(512));
    }
    header.tensors.insert("token_embd.weight", vec![288, 64]);
    header.tensors.insert("output.weight", vec![288, 64]);
    header
}

impl Header {
    fn set(&mut self, architecture: &str, key: &str, entry: Entry) {
        self.entries.insert(format!("{architecture}.{key}"), entry);
    }
}

fn spec(header: &Header) -> ModelSpec {
    families::from_gguf(header).unwrap().0
}

#[test]
fn every_architecture_loads() {
    assert_eq!(families::architectures(), ARCHITECTURES);
    for architecture in ARCHITECTURES {
        let spec = spec(&header(architecture));
        assert!(spec.family.starts_with(architecture), "{}", spec.family);
        assert_eq!((spec.vocab_size, spec.hidden_size), (288, 64));
        assert_eq!((spec.max_context, spec.layers.len()), (4096, 8));
        assert!(!spec.head.tied);
        let gemma = architecture == "gemma3";
        let embedding_scale = if gemma { 8.0 } else { 1.0 };
        assert_eq!(spec.embedding_scale, embedding_scale, "{architecture}");
        let FeedForward::Gated {
            size,
            activation,
            bias,
        } = spec.layers[0].feed_forward.inner;
        let expected = if gemma {
            Activation::GeluTanh
        } else {
            Activation::Silu
        };
        assert_eq!((size, activation, bias), (128, expected, false));
        for (layer, attention) in spec.attentions().enumerate() {
            let heads = (attention.heads, attention.kv_heads, attention.head_dim);
            assert_eq!((heads, attention.scale), ((4, 2, 16), 0.25));
            assert_eq!(attention.qkv_bias, architecture == "qwen2");
            let normed = matches!(architecture, "gemma3" | "qwen3");
            assert_eq!(attention.qk_norm.is_some(), normed, "{architecture}");
            let local = gemma && layer != 5;
            assert_eq!(attention.window, local.then_some(512));
            let theta = attention.rope.as_ref().map(|rope| rope.theta);
            let expected = match architecture {
                "smollm3" if layer % 4 == 3 => None,
                _ if local => Some(1e4),
                _ => Some(5e5),
            };
            assert_eq!(theta, expected, "{architecture} {layer}");
        }
    }
}

#[test]
fn tensors_say_what_no_key_does() {
    let mut tensors = header("llama");
    tensors.tensors.remove("output.weight");
    tensors.tensors.insert("rope_freqs.weight", vec![8]);
    for name in [
        "blk.0.attn_q.bias",
        "blk.0.attn_output.bias",
        "blk.0.ffn_gate.bias",
    ] {
        tensors.tensors.insert(name, vec![64]);
    }
    let found = spec(&tensors);
    let attention = found.attentions().next().unwrap();
    assert!(found.head.tied && attention.qkv_bias && attention.output_bias);
    assert_eq!(
        attention.rope.as_ref().map(|rope| &rope.scaling),
        Some(&RopeScaling::Tensor)
    );
    let FeedForward::Gated { bias, .. } = found.layers[0].feed_forward.inner;
    assert!(bias);

    // The tensor and a named scaling would have to be combined.
    tensors.set("llama", "rope.scaling.type", Text("linear"));
    let error = families::from_gguf(&tensors).unwrap_err();
    assert!(error.to_string().contains("rope_freqs.weight"), "{error}");
}

#[test]
fn optional_keys_are_heard() {
    let mut llama = header("llama");
    llama.set("llama", "attention.sliding_window", Whole(4096));
    llama.set("llama", "attention.key_length", Whole(32));
    llama.set("llama", "attention.value_length", Whole(32));
    llama.set("llama", "rope.scaling.type", Text("linear"));
    llama.set("llama", "rope.scaling.factor", Float(4.0));
    let llama = spec(&llama);
    let attention = llama.attentions().next().unwrap();
    let rope = attention.rope.as_ref().unwrap();
    assert_eq!((attention.window, attention.head_dim), (Some(4096), 32));
    assert_eq!(
        (rope.dims, &rope.scaling),
        (32, &RopeScaling::Linear { factor: 4.0 })
    );

    let mut gemma = header("gemma3");
    gemma.set("gemma3", "attention.sliding_window_pattern", Whole(2));
    gemma.set("gemma3", "rope.freq_base_swa", Float(2e4));
    gemma.set("gemma3", "final_logit_softcapping", Float(30.0));
    let gemma = spec(&gemma);
    let thetas: Vec<_> = gemma
        .attentions()
        .map(|a| a.rope.as_ref().unwrap().theta)
        .collect();
    assert_eq!(thetas[..4], [2e4, 5e5, 2e4, 5e5]);
    assert_eq!(gemma.head.softcap, Some(30.0));
}

#[test]
fn gemma_3_27b_scales_by_its_hidden_size() {
    let mut gemma = header("gemma3");
    for (key, number) in [
        ("block_count", 62),
        ("embedding_length", 5376),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 16),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
    ] {
        gemma.set("gemma3", key, Whole(number));
    }
    let scale = spec(&gemma).attentions().next().unwrap().scale;
    assert_eq!(scale, 1.0 / 168f32.sqrt());
}

#[test]
fn an_unknown_architecture_lists_those_there_are() {
    for name in ["mistral", "mamba", ""] {
        let error = families::from_gguf(&header(name)).unwrap_err();
        assert_eq!(
            error,
            SpecError::UnknownFamily {
                field: "general.architecture",
                found: name.into(),
                supported: ARCHITECTURES.to_vec(),
            }
        );
    }
    let error = families::from_gguf(&Header::default()).unwrap_err();
    let field = "general.architecture".into();
    assert_eq!(error, SpecError::Missing { field });
}

#[test]
fn missing_keys_are_named() {
    for architecture in ARCHITECTURES {
        let mut keys = vec![
            "context_length",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ];
        if architecture == "gemma3" {
            keys.push("attention.sliding_window");
        }
        for key in keys {
            let field = format!("{architecture}.{key}");
            let mut header = header(architecture);
            header.entries.remove(&field).unwrap();
            let error = families::from_gguf(&header).unwrap_err();
            assert_eq!(error, SpecError::Missing { field });
        }
        let mut header = header(architecture);
        header.tensors.remove("token_embd.weight");
        let error = families::from_gguf(&header).unwrap_err();
        assert!(error.to_string().contains("token_embd.weight"), "{error}");
    }
}

#[test]
fn bad_values_are_refused_by_name() {
    let table = [
        (
            "llama",
            "block_count",
            Whole(1_000_000_000),
            "llama.block_count",
        ),
        ("llama", "block_count", Whole(0), "num_hidden_layers"),
        ("llama", "block_count", Float(2.0), "llama.block_count"),
        ("llama", "block_count", Whole(u64::MAX), "llama.block_count"),
        // An optional key of the wrong type is not an absent one.
        (
            "llama",
            "attention.head_count_kv",
            Other,
            "llama.attention.head_count_kv",
        ),
        (
            "llama",
            "attention.sliding_window",
            Text("4096"),
            "llama.attention.sliding_window",
        ),
        (
            "llama",
            "rope.freq_base",
            Whole(500_000),
            "llama.rope.freq_base",
        ),
        (
            "llama",
            "rope.scaling.type",
            Whole(1),
            "llama.rope.scaling.type",
        ),
        (
            "llama",
            "rope.scaling.type",
            Text("yarn"),
            "llama.rope.scaling.type",
        ),
        (
            "llama",
            "rope.scaling.type",
            Text("linear"),
            "llama.rope.scaling.factor",
        ),
        // Rows stored interleaved are put back by whole heads.
        (
            "llama",
            "rope.dimension_count",
            Whole(8),
            "llama.rope.dimension_count",
        ),
        (
            "smollm3",
            "rope.dimension_count",
            Whole(8),
            "smollm3.rope.dimension_count",
        ),
        (
            "llama",
            "attention.head_count",
            Whole(6),
            "llama.attention.head_count",
        ),
        (
            "llama",
            "attention.value_length",
            Whole(8),
            "llama.attention.value_length",
        ),
        ("llama", "expert_count", Whole(8), "llama.expert_count"),
        (
            "qwen2",
            "attention.layer_norm_rms_epsilon",
            Float(f64::NAN),
            "rms_norm_eps",
        ),
        ("qwen3", "rope.freq_base", Float(0.0), "rope_theta"),
        (
            "gemma3",
            "attention.sliding_window_pattern",
            Whole(0),
            "gemma3.attention.sliding_window_pattern",
        ),
        (
            "gemma3",
            "attention.sliding_window_pattern",
            Other,
            "gemma3.attention.sliding_window_pattern",
        ),
    ];
    for (architecture, key, entry, name) in table {
        let mut header = header(architecture);
        header.set(architecture, key, entry);
        let error = families::from_gguf(&header).expect_err(name);
        let message = error.to_string();
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    // Elsewhere a rope over part of the head is well defined.
    let mut partial = header("qwen2");
    partial.set("qwen2", "rope.dimension_count", Whole(8));
    let dims = spec(&partial).attentions().next().unwrap().rope.clone();
    assert_eq!(dims.unwrap().dims, 8);
}

#[test]
fn zero_heads_divide_nothing() {
    for architecture in ARCHITECTURES {
        let mut broken = header(architecture);
        broken.set(architecture, "block_count", Whole(62));
        broken.set(architecture, "attention.head_count", Whole(0));
        broken.set(architecture, "attention.key_length", Whole(256));
        let error = families::from_gguf(&broken).unwrap_err();
        assert!(
            error.to_string().contains("attention.head_count"),
            "{error}"
        );
    }
}

#[test]
fn scaling_is_read_or_refused_never_dropped() {
    let scaled = |key: &str, entry| {
        let mut header = header("llama");
        header.set("llama", key, entry);
        families::from_gguf(&header).map(|(spec, _)| {
            let rope = spec.attentions().next().unwrap().rope.clone();
            rope.unwrap().scaling
        })
    };
    let linear = Ok(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaled("rope.scaling.factor", Float(4.0)), linear);
    assert_eq!(scaled("rope.scale_linear", Float(4.0)), linear);
    assert_eq!(
        scaled("rope.scaling.attn_factor", Float(1.0)),
        Ok(RopeScaling::None)
    );
    let error = scaled("rope.scaling.attn_factor", Float(1.2)).unwrap_err();
    assert!(
        error.to_string().contains("llama.rope.scaling.attn_factor"),
        "{error}"
    );
    let error = scaled("rope.scaling.type", Text("linear")).unwrap_err();
    assert!(
        error.to_string().contains("llama.rope.scaling.factor"),
        "{error}"
    );
}
