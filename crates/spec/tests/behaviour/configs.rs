//! Published configs and their specs.

use crate::common::{load, tiny, with};
use loquat_spec::{
    Activation, Attention, Branch, FeedForward, Inner, ModelSpec, Norm, QkNorm, Reach, Rope,
    RopeScaling,
};
use serde_json::{Value, json};

/// Expectations for a whole model; `layers` holds what may differ between them.
#[derive(Debug, PartialEq)]
struct Facts {
    family: &'static str,
    vocab: usize,
    hidden: usize,
    context: usize,
    heads: (usize, usize, usize),
    feed_forward: (usize, Activation, bool),
    biases: (bool, bool),
    eps: f32,
    qk_norm: bool,
    sandwich: bool,
    scale: f32,
    embedding_scale: f32,
    tied: bool,
    layers: Vec<(Reach, Option<Rope>)>,
}

fn attentions(spec: &ModelSpec) -> impl Iterator<Item = &Attention> {
    spec.mixers()
        .map(|(_, mixer)| mixer.as_attention().expect("attention in every layer"))
}

/// A layer's mixer and its dense feed-forward, one after the other.
fn halves(spec: &ModelSpec, layer: usize) -> (&Branch, &Branch) {
    let blocks: Vec<_> = spec.layers[layer].blocks.iter().collect();
    let [mixer, feed_forward] = blocks[..] else {
        panic!("{} blocks in layer {layer}", blocks.len());
    };
    match (&mixer.branches[..], &feed_forward.branches[..]) {
        ([mixer], [feed_forward]) => (mixer, feed_forward),
        _ => panic!("layer {layer} has branches side by side"),
    }
}

fn facts(spec: &ModelSpec) -> Facts {
    let first = attentions(spec).next().unwrap();
    for attention in attentions(spec) {
        let same = Attention {
            rope: first.rope.clone(),
            reach: first.reach,
            ..attention.clone()
        };
        assert_eq!(same, *first, "layers differ in more than rope and reach");
    }
    let norm = Norm::rms(spec.final_norm.eps);
    let (first_mixer, first_feed_forward) = halves(spec, 0);
    for layer in 0..spec.layers.len() {
        let (mixer, feed_forward) = halves(spec, layer);
        assert_eq!(mixer.pre_norm, Some(norm));
        assert_eq!(feed_forward.pre_norm, Some(norm));
        assert_eq!(mixer.post_norm, feed_forward.post_norm);
        assert_eq!(feed_forward, first_feed_forward);
    }
    let Inner::FeedForward(FeedForward::Dense(dense)) = first_feed_forward.inner else {
        panic!("{first_feed_forward:?}");
    };
    assert!(dense.gated);
    Facts {
        family: spec.family,
        vocab: spec.vocab_size,
        hidden: spec.hidden_size,
        context: spec.max_context,
        heads: (first.heads, first.kv_heads, first.head_dim),
        feed_forward: (dense.size, dense.activation, dense.bias),
        biases: (first.qkv_bias, first.output_bias),
        eps: spec.final_norm.eps,
        qk_norm: first.qk_norm == Some(QkNorm::per_head(norm)),
        sandwich: first_mixer.post_norm == Some(norm),
        scale: first.scale,
        embedding_scale: spec.embedding.scale,
        tied: spec.head.tied,
        layers: attentions(spec)
            .map(|attention| (attention.reach, attention.rope.clone()))
            .collect(),
    }
}

/// Facts most models share.
fn plain(family: &'static str, head_dim: usize, layers: usize, rope: Rope) -> Facts {
    Facts {
        family,
        vocab: 0,
        hidden: 0,
        context: 0,
        heads: (0, 0, head_dim),
        feed_forward: (0, Activation::Silu, false),
        biases: (false, false),
        eps: 1e-6,
        qk_norm: false,
        sandwich: false,
        scale: 1.0 / (head_dim as f32).sqrt(),
        embedding_scale: 1.0,
        tied: false,
        layers: vec![(Reach::All, Some(rope)); layers],
    }
}

fn check(config: Value, expected: Facts) {
    let described = load(&config).unwrap_or_else(|error| panic!("{error}: {config}"));
    assert_eq!(facts(&described.spec), expected);
}

#[test]
fn llama_3_2_1b() {
    let rope = Rope {
        scaling: RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
        ..Rope::plain(500_000.0, 64)
    };
    check(
        json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false,
            "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
            "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 8192,
            "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
            "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"
            },
            "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "use_cache": true, "vocab_size": 128256
        }),
        Facts {
            vocab: 128_256,
            hidden: 2048,
            context: 131_072,
            heads: (32, 8, 64),
            feed_forward: (8192, Activation::Silu, false),
            eps: 1e-5,
            tied: true,
            ..plain("llama", 64, 16, rope)
        },
    );
}

#[test]
fn llama_2_uses_default_head_dim_and_theta() {
    check(
        json!({
            "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
            "intermediate_size": 11008, "max_position_embeddings": 4096,
            "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
            "use_cache": true, "vocab_size": 32000
        }),
        Facts {
            vocab: 32_000,
            hidden: 4096,
            context: 4096,
            heads: (32, 32, 128),
            feed_forward: (11_008, Activation::Silu, false),
            eps: 1e-5,
            ..plain("llama", 128, 32, Rope::plain(10_000.0, 128))
        },
    );
}

#[test]
fn only_mistral_v0_1_has_a_window() {
    let v1 = json!({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 32000
    });
    let rope = Rope::plain(10_000.0, 128);
    let expected = |vocab, reach, rope| Facts {
        vocab,
        hidden: 4096,
        context: 32_768,
        heads: (32, 8, 128),
        feed_forward: (14_336, Activation::Silu, false),
        eps: 1e-5,
        layers: vec![(reach, Some(rope)); 32],
        ..plain("mistral", 128, 0, Rope::plain(0.0, 0))
    };
    let mut v3 = with(
        v1.clone(),
        json!({"rope_theta": 1000000.0, "vocab_size": 32768}),
    );
    v3["sliding_window"] = Value::Null;
    // Not a word about it is the window that transformers assumes.
    let mut silent = v1.clone();
    silent.as_object_mut().unwrap().remove("sliding_window");
    check(silent, expected(32_000, Reach::Window(4096), rope.clone()));
    check(v1, expected(32_000, Reach::Window(4096), rope));
    check(v3, expected(32_768, Reach::All, Rope::plain(1e6, 128)));
}

#[test]
fn qwen2_5_ignores_its_window() {
    check(
        json!({
            "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
            "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
            "max_position_embeddings": 32768, "max_window_layers": 21,
            "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
            "sliding_window": 32768, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
            "vocab_size": 151936
        }),
        Facts {
            vocab: 151_936,
            hidden: 896,
            context: 32_768,
            heads: (14, 2, 64),
            feed_forward: (4864, Activation::Silu, false),
            biases: (true, false),
            tied: true,
            ..plain("qwen2", 64, 24, Rope::plain(1e6, 64))
        },
    );
}

#[test]
fn qwen3_0_6b_has_wide_heads() {
    check(
        json!({
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
            "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
            "initializer_range": 0.02, "intermediate_size": 3072,
            "max_position_embeddings": 40960, "max_window_layers": 28,
            "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
            "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
            "vocab_size": 151936
        }),
        Facts {
            vocab: 151_936,
            hidden: 1024,
            context: 40_960,
            heads: (16, 8, 128),
            feed_forward: (3072, Activation::Silu, false),
            qk_norm: true,
            tied: true,
            ..plain("qwen3", 128, 28, Rope::plain(1e6, 128))
        },
    );
}

#[test]
fn gemma_3_1b_is_global_every_sixth_layer() {
    let local = (Reach::Window(512), Some(Rope::plain(1e4, 256)));
    let global = (Reach::All, Some(Rope::plain(1e6, 256)));
    check(
        json!({
            "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
            "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 2,
            "cache_implementation": "hybrid", "eos_token_id": [1, 106],
            "final_logit_softcapping": null, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
            "initializer_range": 0.02, "intermediate_size": 6912,
            "max_position_embeddings": 32768, "model_type": "gemma3_text",
            "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
            "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
            "sliding_window": 512, "sliding_window_pattern": 6,
            "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 262144
        }),
        Facts {
            vocab: 262_144,
            hidden: 1152,
            context: 32_768,
            heads: (4, 1, 256),
            feed_forward: (6912, Activation::GeluTanh, false),
            qk_norm: true,
            sandwich: true,
            scale: 1.0 / 16.0,
            embedding_scale: (1152f32).sqrt(),
            tied: true,
            layers: (1..=26)
                .map(|layer| if layer % 6 == 0 { &global } else { &local })
                .cloned()
                .collect(),
            ..plain("gemma3_text", 256, 0, Rope::plain(0.0, 0))
        },
    );
}

#[test]
fn smollm3_3b_has_no_rope_every_fourth_layer() {
    let with_rope: Vec<u32> = (1..=36).map(|layer| u32::from(layer % 4 != 0)).collect();
    check(
        json!({
            "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
            "attention_dropout": 0.0, "bos_token_id": null, "eos_token_id": 128012,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
            "intermediate_size": 11008, "layer_types": vec!["full_attention"; 36],
            "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
            "model_type": "smollm3", "no_rope_layer_interval": 4,
            "no_rope_layers": with_rope, "num_attention_heads": 16,
            "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
            "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0,
            "sliding_window": null, "torch_dtype": "bfloat16",
            "use_sliding_window": false, "vocab_size": 128256
        }),
        Facts {
            vocab: 128_256,
            hidden: 2048,
            context: 65_536,
            heads: (16, 4, 128),
            feed_forward: (11_008, Activation::Silu, false),
            tied: true,
            layers: with_rope
                .iter()
                .map(|&with| (Reach::All, (with == 1).then(|| Rope::plain(5e6, 128))))
                .collect(),
            ..plain("smollm3", 128, 0, Rope::plain(0.0, 0))
        },
    );
}

#[test]
fn windows_follow_the_config() {
    use Reach::{All, Window};
    let (full, sliding) = ("full_attention", "sliding_attention");
    let qwen = json!({"use_sliding_window": true, "sliding_window": 8});
    let table = [
        // Qwen counts from the first windowed layer, where it does not list them.
        (tiny("qwen2"), json!({}), [All, All]),
        (
            with(tiny("qwen2"), qwen.clone()),
            json!({"max_window_layers": 1}),
            [All, Window(8)],
        ),
        (with(tiny("qwen2"), qwen.clone()), json!({}), [All, All]),
        (
            with(tiny("qwen3"), qwen),
            json!({"layer_types": [sliding, full]}),
            [Window(8), All],
        ),
        (
            tiny("gemma3_text"),
            json!({"layer_types": [full, sliding]}),
            [All, Window(8)],
        ),
        (
            tiny("gemma3_text"),
            json!({"sliding_window_pattern": 1}),
            [All, All],
        ),
        (tiny("gemma3_text"), json!({}), [Window(8), Window(8)]),
    ];
    for (config, changes, expected) in table {
        let spec = load(&with(config, changes.clone())).unwrap().spec;
        let reaches: Vec<_> = attentions(&spec).map(|a| a.reach).collect();
        assert_eq!(reaches, expected, "{} {changes}", spec.family);
    }
}

#[test]
fn rope_may_be_scaled_or_partial() {
    let linear = |factor| RopeScaling::Linear { factor };
    let table = [
        ("llama", json!({}), 10_000.0, 16, RopeScaling::None),
        (
            "llama",
            json!({"rope_scaling": {"type": "linear", "factor": 4}}),
            10_000.0,
            16,
            linear(4.0),
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}}),
            5.0,
            16,
            linear(2.0),
        ),
        (
            "phi3",
            json!({"partial_rotary_factor": 0.5}),
            10_000.0,
            8,
            RopeScaling::None,
        ),
    ];
    for (family, changes, theta, dims, scaling) in table {
        let spec = load(&with(tiny(family), changes)).unwrap().spec;
        let expected = Rope {
            scaling,
            ..Rope::plain(theta, dims)
        };
        let found = attentions(&spec).next().unwrap().rope.as_ref();
        assert_eq!(found, Some(&expected));
    }
}

#[test]
fn gemma_3_scales_only_global_layers() {
    let changes = json!({
        "sliding_window_pattern": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    });
    let spec = load(&with(tiny("gemma3_text"), changes)).unwrap().spec;
    let scalings: Vec<_> = attentions(&spec)
        .map(|a| a.rope.as_ref().unwrap().scaling.clone())
        .collect();
    assert_eq!(
        scalings,
        [RopeScaling::None, RopeScaling::Linear { factor: 8.0 }]
    );
}
