//! Published dense models with unusual attention, norms or rope: the relevant fields and the
//! resulting blocks.

use crate::blocks::{attention, feed_forward, layers_where, mixer, sizes, spec};
use loquat_spec::{
    Activation, Attention, Block, Branch, Dense, FeedForward, Mixer, ModelSpec, Norm, QkNorm,
    Reach, Rope, RopeScaling, Yarn,
};
use serde_json::{Value, json};

fn silu(size: usize) -> FeedForward {
    FeedForward::Dense(Dense::gated(size, Activation::Silu))
}

fn windowed_layers(spec: &ModelSpec) -> Vec<usize> {
    layers_where(spec, |layer| {
        let attention = mixer(spec, layer).as_attention();
        matches!(attention.map(|a| a.reach), Some(Reach::Window(_)))
    })
}

/// Three of four layers, from the first.
fn all_but_each_fourth(layers: usize) -> Vec<usize> {
    (0..layers).filter(|layer| layer % 4 != 3).collect()
}

fn phi_3_5_mini() -> Value {
    json!({
        "model_type": "phi3", "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": vec![1.08; 48], "short_factor": vec![1.0; 48],
            "type": "longrope"
        },
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false,
        "vocab_size": 32064
    })
}

#[test]
fn phi_3_5_mini_has_two_frequency_sets() {
    let spec = spec(&phi_3_5_mini());
    assert_eq!(sizes(&spec), (32_064, 3072, 131_072, 32));
    let rope = Rope {
        scaling: RopeScaling::LongRope {
            short: vec![1.0; 48],
            long: vec![1.08; 48],
            original_context: 4096,
            // sqrt(1 + ln 32 / ln 4096), and 4096 is 2 to the twelfth.
            attention_factor: (1.0 + 5f64 / 12.0).sqrt() as f32,
        },
        ..Rope::plain(1e4, 96)
    };
    let expected = Attention {
        reach: Reach::Window(262_144),
        ..attention(32, 32, 96, Some(rope))
    };
    assert_eq!(mixer(&spec, 31), &Mixer::Attention(expected));
    assert_eq!(feed_forward(&spec, 0), &silu(8192));
}

#[test]
fn phi_4_mini_rotates_three_quarters_of_heads() {
    let mut config = phi_3_5_mini();
    config["num_attention_heads"] = json!(24);
    config["num_key_value_heads"] = json!(8);
    config["partial_rotary_factor"] = json!(0.75);
    config["tie_word_embeddings"] = json!(true);
    let spec = spec(&config);
    let rope = mixer(&spec, 0).rope().unwrap();
    assert_eq!(rope.dims, 96);
    assert!(matches!(&rope.scaling, RopeScaling::LongRope { long, .. } if long.len() == 48));
    assert!(spec.head.tied);
}

#[test]
fn olmo_3_7b_scales_only_global_layers() {
    let layer_types: Vec<_> = (1..=32)
        .map(|layer| match layer % 4 {
            0 => "full_attention",
            _ => "sliding_attention",
        })
        .collect();
    let spec = spec(&json!({
        "model_type": "olmo3", "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "layer_types": layer_types,
        "max_position_embeddings": 65536, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
            "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"
        },
        "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
        "vocab_size": 100278
    }));
    assert_eq!(sizes(&spec), (100_278, 4096, 65_536, 32));
    assert_eq!(windowed_layers(&spec), all_but_each_fourth(32));
    let norm = Norm::rms(1e-6);
    let plain = Rope::plain(5e5, 128);
    let local = Attention {
        qk_norm: Some(QkNorm::all_heads(norm)),
        reach: Reach::Window(4096),
        ..attention(32, 32, 128, Some(plain.clone()))
    };
    let stretched = Rope {
        scaling: RopeScaling::Yarn(Yarn {
            factor: 8.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 8192,
            truncate: true,
            attention_factor: 1.207_944_2,
        }),
        ..plain
    };
    let global = Attention {
        rope: Some(stretched),
        reach: Reach::All,
        ..local.clone()
    };
    // The norms stand after, not before.
    let layer = |attention| {
        [
            Branch::post_norm(norm, Mixer::Attention(attention)).into(),
            Branch::post_norm(norm, silu(11_008)).into(),
        ]
    };
    assert_eq!(spec.layers[0].blocks, layer(local));
    assert_eq!(spec.layers[3].blocks, layer(global));
}

#[test]
fn command_r7b_has_no_rope_in_global_layers() {
    let config = json!({
        "model_type": "cohere2", "attention_bias": false, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "layer_norm_eps": 1e-05, "logit_scale": 0.25, "max_position_embeddings": 8192,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096,
        "sliding_window_pattern": 4, "use_embedding_sharing": true,
        "use_parallel_block": true, "use_parallel_embedding": true, "use_qk_norm": false,
        "vocab_size": 256000
    });
    let spec = spec(&config);
    assert_eq!(sizes(&spec), (256_000, 4096, 8192, 32));
    assert_eq!(windowed_layers(&spec), all_but_each_fourth(32));
    assert!(spec.head.tied);
    assert_eq!(spec.head.scale, 0.25);
    let norm = Norm::layer(1e-5, false);
    let side_by_side = |attention| {
        [Block::parallel(vec![
            Branch::pre_norm(norm, Mixer::Attention(attention)),
            Branch::pre_norm(norm, silu(14_336)),
        ])]
    };
    let local = Attention {
        reach: Reach::Window(4096),
        ..attention(32, 8, 128, Some(Rope::plain(5e4, 128).interleaved()))
    };
    assert_eq!(spec.layers[0].blocks, side_by_side(local));
    let global = attention(32, 8, 128, None);
    assert_eq!(spec.layers[3].blocks, side_by_side(global));
}

#[test]
fn minitron_4b_squares_its_relus() {
    let spec = spec(&json!({
        "model_type": "nemotron", "attention_bias": false, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "intermediate_size": 9216,
        "max_position_embeddings": 4096, "mlp_bias": false, "norm_eps": 1e-05,
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "vocab_size": 256000
    }));
    assert_eq!(sizes(&spec), (256_000, 3072, 4096, 32));
    let norm = Norm::layer(1e-5, true);
    assert_eq!(spec.final_norm, norm);
    let attention = attention(24, 8, 128, Some(Rope::plain(1e4, 64)));
    let squared = Dense::plain(9216, Activation::Relu2, false);
    let expected = [
        Branch::pre_norm(norm, Mixer::Attention(attention)).into(),
        Branch::pre_norm(norm, FeedForward::Dense(squared)).into(),
    ];
    assert_eq!(spec.layers[31].blocks, expected);
}

#[test]
fn starcoder2_3b_has_biases_everywhere() {
    let spec = spec(&json!({
        "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072, "intermediate_size": 12288, "max_position_embeddings": 16384,
        "norm_epsilon": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 30,
        "num_key_value_heads": 2, "rope_theta": 999999.4420358813,
        "sliding_window": 4096, "use_bias": true, "vocab_size": 49152
    }));
    let expected = Attention {
        qkv_bias: true,
        output_bias: true,
        reach: Reach::Window(4096),
        ..attention(24, 2, 128, Some(Rope::plain(999_999.44, 128)))
    };
    assert_eq!(mixer(&spec, 29), &Mixer::Attention(expected));
    let biased = Dense::plain(12_288, Activation::GeluTanh, true);
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Dense(biased));
    assert!(spec.head.tied);
}

#[test]
fn gemma_2_2b_caps_scores_and_logits() {
    let spec = spec(&json!({
        "model_type": "gemma2", "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
        "intermediate_size": 9216, "max_position_embeddings": 8192,
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 256000
    }));
    let evens: Vec<usize> = (0..26).step_by(2).collect();
    assert_eq!(windowed_layers(&spec), evens);
    let expected = Attention {
        scale: 1.0 / 16.0,
        softcap: Some(50.0),
        ..attention(8, 4, 256, Some(Rope::plain(1e4, 256)))
    };
    assert_eq!(mixer(&spec, 1), &Mixer::Attention(expected));
    assert_eq!(spec.head.softcap, Some(30.0));
    assert_eq!(spec.embedding.scale, 48.0);
}

#[test]
fn glm_4_9b_norms_on_both_sides() {
    let spec = spec(&json!({
        "model_type": "glm4", "attention_bias": true, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696,
        "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "vocab_size": 151552
    }));
    let norm = Norm::rms(1e-5);
    let attention = Attention {
        qkv_bias: true,
        ..attention(32, 2, 128, Some(Rope::plain(1e4, 64).interleaved()))
    };
    let expected = [
        Branch::sandwich(norm, Mixer::Attention(attention)).into(),
        Branch::sandwich(norm, silu(13_696)).into(),
    ];
    assert_eq!(spec.layers[39].blocks, expected);
}

#[test]
fn granite_3_3_2b_multiplies_and_divides() {
    let spec = spec(&json!({
        "model_type": "granite", "attention_bias": false,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": false,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 10000000.0, "tie_word_embeddings": true, "vocab_size": 49159
    }));
    assert_eq!((spec.embedding.scale, spec.head.scale), (12.0, 0.125));
    let expected = Attention {
        scale: 0.015_625,
        ..attention(32, 8, 64, Some(Rope::plain(1e7, 64)))
    };
    assert_eq!(mixer(&spec, 0), &Mixer::Attention(expected));
    let mut blocks = spec.layers.iter().flat_map(|layer| &layer.blocks);
    assert!(blocks.all(|block| block.residual_scale == 0.22));
}

#[test]
fn hunyuan_1_8b_scales_its_base() {
    let spec = spec(&json!({
        "model_type": "hunyuan_v1_dense", "attention_bias": false, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 262144, "num_attention_heads": 16,
        "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"
        },
        "rope_theta": 10000.0, "tie_word_embeddings": true, "use_qk_norm": true,
        "vocab_size": 120818
    }));
    let found = mixer(&spec, 0).as_attention().unwrap();
    let rope = found.rope.as_ref().unwrap();
    assert_eq!((rope.dims, &rope.scaling), (128, &RopeScaling::None));
    // 10000 * 1000^(128/126), the number llama.cpp's converter asserts.
    assert_eq!(rope.theta.round(), 11_158_840.0);
    let qk_norm = QkNorm {
        after_rope: true,
        ..QkNorm::per_head(Norm::rms(1e-5))
    };
    assert_eq!(found.qk_norm, Some(qk_norm));
}

#[test]
fn exaone_4_lists_layers_by_letters() {
    let config = json!({
        "model_type": "exaone4", "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 27392,
        "max_position_embeddings": 131072, "num_attention_heads": 40,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
        "tie_word_embeddings": false, "vocab_size": 102400
    });
    let large = spec(&config);
    assert_eq!(windowed_layers(&large), all_but_each_fourth(64));
    let rope = |layer| mixer(&large, layer).rope();
    assert!(matches!(
        rope(0).map(|rope| &rope.scaling),
        Some(RopeScaling::Llama3 { factor: 16.0, .. })
    ));
    assert_eq!(rope(3), None);
    // Without a window every layer has its positions.
    let mut small = config;
    small["sliding_window"] = Value::Null;
    let small = spec(&small);
    assert!(windowed_layers(&small).is_empty());
    assert!((0..64).all(|layer| mixer(&small, layer).rope().is_some()));
}

#[test]
fn missing_fields_use_family_defaults() {
    let base = json!({
        "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 4096,
    });
    // Key/value heads, head size, epsilon, rope's base and how much of a head it turns, whether
    // q, k and v have biases, whether the head is the embedding.
    type Defaults = ((usize, usize), f32, (f32, usize), bool, bool);
    let table: [(&str, Defaults); 8] = [
        ("seed_oss", ((8, 128), 1e-6, (1e4, 128), true, false)),
        ("ernie4_5", ((2, 128), 1e-5, (5e5, 128), false, true)),
        ("olmo2", ((4, 128), 1e-5, (1e4, 128), false, false)),
        ("glm4", ((2, 128), 1.5625e-7, (1e4, 64), true, false)),
        ("gemma", ((16, 256), 1e-6, (1e4, 256), false, true)),
        ("starcoder2", ((2, 128), 1e-5, (1e4, 128), true, true)),
        ("nemotron", ((4, 128), 1e-5, (1e4, 64), false, false)),
        ("helium", ((20, 128), 1e-8, (1e5, 128), false, false)),
    ];
    for (family, expected) in table {
        let mut config = base.clone();
        config["model_type"] = json!(family);
        let (kv_heads, _) = expected.0;
        // A multiple of the family's key/value heads, with heads no wider.
        config["num_attention_heads"] = json!(4.max(kv_heads));
        if kv_heads > 4 {
            config["hidden_size"] = json!(128 * kv_heads);
        }
        let spec = spec(&config);
        let attention = mixer(&spec, 0).as_attention().unwrap();
        let rope = attention.rope.as_ref().unwrap();
        let found = (
            (attention.kv_heads, attention.head_dim),
            spec.final_norm.eps,
            (rope.theta, rope.dims),
            attention.qkv_bias,
            spec.head.tied,
        );
        assert_eq!(found, expected, "{family}");
    }
}
