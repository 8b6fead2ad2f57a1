//! Published mixtures of experts: the relevant fields and the resulting blocks.

use crate::blocks::{attention, feed_forward, layers_where, mixer, sizes, spec};
use loquat_spec::{
    Activation, Attention, Dense, ExpertGroups, Experts, FeedForward, GroupScore, LatentAttention,
    Mixer, ModelSpec, Norm, QkNorm, Reach, Rope, RopeScaling, Router, SharedExpert, Yarn,
};
use serde_json::{Value, json};

/// What DeepSeek adds to the sum that it divides weights by.
const NORMALISE_EPS: f32 = 1e-20;

fn silu(size: usize) -> Dense {
    Dense::gated(size, Activation::Silu)
}

fn dense(size: usize) -> FeedForward {
    FeedForward::Dense(silu(size))
}

fn experts(count: usize, top_k: usize, size: usize, router: Router) -> Experts {
    Experts {
        count,
        top_k,
        expert: silu(size),
        router,
        shared: None,
        weigh_input: false,
    }
}

fn shared(size: usize, gated: bool) -> Option<SharedExpert> {
    Some(SharedExpert {
        dense: silu(size),
        gated,
    })
}

/// DeepSeek-V3's router.
fn corrected(scale: f32, groups: Option<ExpertGroups>) -> Router {
    Router {
        correction: true,
        groups,
        normalise: Some(NORMALISE_EPS),
        scale,
        ..Router::sigmoid()
    }
}

fn is_dense(spec: &ModelSpec, layer: usize) -> bool {
    matches!(feed_forward(spec, layer), FeedForward::Dense(_))
}

fn deepseek_v3() -> Value {
    json!({
        "model_type": "deepseek_v3", "attention_bias": false, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129280
    })
}

#[test]
fn deepseek_v3_chooses_among_half_of_its_groups() {
    let spec = spec(&deepseek_v3());
    assert_eq!(sizes(&spec), (129_280, 7168, 163_840, 61));
    // Yarn's magnitude, 0.1 ln 40 + 1, squared: the config weighs both halves alike, so that
    // none of it is left for the sines.
    let magnitude = 1.368_887_9_f32;
    let latent = LatentAttention {
        heads: 128,
        query_rank: Some(1536),
        latent_dim: 512,
        nope_dim: 128,
        rope_dim: 64,
        value_dim: 128,
        rope: Some(
            Rope {
                scaling: RopeScaling::Yarn(Yarn {
                    factor: 40.0,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    original_context: 4096,
                    truncate: true,
                    attention_factor: 1.0,
                }),
                ..Rope::plain(1e4, 64)
            }
            .interleaved(),
        ),
        scale: 0.0,
        norm: Norm::rms(1e-6),
        down_bias: false,
        output_bias: false,
    };
    let Mixer::Latent(found) = mixer(&spec, 0) else {
        panic!("{:?}", mixer(&spec, 0));
    };
    let scale = magnitude * magnitude / 192f32.sqrt();
    assert!((found.scale - scale).abs() < 1e-7, "{}", found.scale);
    let unscaled = LatentAttention {
        scale: 0.0,
        ..found.clone()
    };
    assert_eq!(unscaled, latent);
    let groups = ExpertGroups {
        count: 8,
        keep: 4,
        score: GroupScore::BestTwo,
    };
    let mixture = Experts {
        shared: shared(2048, false),
        ..experts(256, 8, 2048, corrected(2.5, Some(groups)))
    };
    assert_eq!(
        layers_where(&spec, |layer| is_dense(&spec, layer)),
        [0, 1, 2]
    );
    assert_eq!(feed_forward(&spec, 2), &dense(18_432));
    assert_eq!(feed_forward(&spec, 60), &FeedForward::Experts(mixture));
}

#[test]
fn kimi_k2_is_deepseek_v3_with_one_group() {
    let mut config = deepseek_v3();
    for (field, value) in [
        ("model_type", json!("kimi_k2")),
        ("first_k_dense_replace", json!(1)),
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
        ("n_routed_experts", json!(384)),
        ("num_attention_heads", json!(64)),
        ("routed_scaling_factor", json!(2.827)),
        ("vocab_size", json!(163_840)),
    ] {
        config[field] = value;
    }
    let spec = spec(&config);
    assert_eq!(spec.family, "deepseek_v3");
    assert!(matches!(mixer(&spec, 60), Mixer::Latent(latent) if latent.heads == 64));
    assert_eq!(layers_where(&spec, |layer| is_dense(&spec, layer)), [0]);
    let mixture = Experts {
        shared: shared(2048, false),
        ..experts(384, 8, 2048, corrected(2.827, None))
    };
    assert_eq!(feed_forward(&spec, 1), &FeedForward::Experts(mixture));
}

#[test]
fn glm_4_7_flash_states_latent_sizes() {
    let spec = spec(&json!({
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47,
        "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "v_head_dim": 256, "intermediate_size": 10240, "moe_intermediate_size": 1536,
        "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.8, "topk_method": "noaux_tc", "rope_theta": 1000000,
        "rope_scaling": null, "max_position_embeddings": 202752, "rms_norm_eps": 1e-05,
        "vocab_size": 154880, "num_nextn_predict_layers": 1
    }));
    assert_eq!(sizes(&spec), (154_880, 2048, 202_752, 47));
    let Mixer::Latent(latent) = mixer(&spec, 46) else {
        panic!("{:?}", mixer(&spec, 46));
    };
    let dims = (latent.nope_dim, latent.rope_dim, latent.value_dim);
    assert_eq!((latent.query_rank, dims), (Some(768), (192, 64, 256)));
    assert_eq!(latent.rope, Some(Rope::plain(1e6, 64).interleaved()));
    assert_eq!(latent.scale, 1.0 / 16.0);
    assert_eq!(layers_where(&spec, |layer| is_dense(&spec, layer)), [0]);
}

#[test]
fn qwen3_30b_a3b_normalises_over_the_chosen() {
    let config = json!({
        "model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
        "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false,
        "vocab_size": 151936
    });
    let model = spec(&config);
    assert_eq!(sizes(&model), (151_936, 2048, 40_960, 48));
    let mixture = experts(128, 8, 768, Router::softmax(true));
    let expected = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(1e-6))),
        ..attention(32, 4, 128, Some(Rope::plain(1e6, 128)))
    };
    for layer in 0..48 {
        assert_eq!(mixer(&model, layer), &Mixer::Attention(expected.clone()));
        let found = feed_forward(&model, layer);
        assert_eq!(found, &FeedForward::Experts(mixture.clone()));
    }
    let mut stepped = config;
    stepped["decoder_sparse_step"] = json!(3);
    stepped["mlp_only_layers"] = json!([5, 11]);
    let stepped = spec(&stepped);
    let sparse = layers_where(&stepped, |layer| !is_dense(&stepped, layer));
    assert_eq!(sparse[..5], [2, 8, 14, 17, 20]);
    assert_eq!(feed_forward(&stepped, 5), &dense(6144));
}

#[test]
fn qwen1_5_moe_has_gated_shared_expert() {
    let spec = spec(&json!({
        "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": false,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768, "tie_word_embeddings": false,
        "use_sliding_window": false, "vocab_size": 151936
    }));
    let mixture = Experts {
        shared: shared(5632, true),
        ..experts(60, 4, 1408, Router::softmax(false))
    };
    assert_eq!(feed_forward(&spec, 23), &FeedForward::Experts(mixture));
    let expected = Attention {
        qkv_bias: true,
        ..attention(16, 16, 128, Some(Rope::plain(1e6, 128)))
    };
    assert_eq!(mixer(&spec, 23), &Mixer::Attention(expected));
}

#[test]
fn mixtral_8x7b_has_no_window() {
    let config = json!({
        "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
        "vocab_size": 32000
    });
    let mixtral = spec(&config);
    let mixture = experts(8, 2, 14_336, Router::softmax(true));
    assert_eq!(feed_forward(&mixtral, 0), &FeedForward::Experts(mixture));
    let expected = attention(32, 8, 128, Some(Rope::plain(1e6, 128)));
    assert_eq!(mixer(&mixtral, 31), &Mixer::Attention(expected));
    let mut windowed = config;
    windowed["sliding_window"] = json!(4096);
    let windowed = spec(&windowed);
    let attention = mixer(&windowed, 31).as_attention().unwrap();
    assert_eq!(attention.reach, Reach::Window(4096));
}

#[test]
fn gpt_oss_20b_alternates_and_clamps() {
    let layer_types: Vec<_> = ["sliding_attention", "full_attention"].repeat(12);
    let spec = spec(&json!({
        "model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 4,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880,
        "layer_types": layer_types, "max_position_embeddings": 131072,
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": false
        },
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "vocab_size": 201088
    }));
    assert_eq!(sizes(&spec), (201_088, 2880, 131_072, 24));
    let rope = Rope {
        scaling: RopeScaling::Yarn(Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096,
            truncate: false,
            // 0.1 ln 32 + 1.
            attention_factor: 1.346_573_6,
        }),
        ..Rope::plain(150_000.0, 64)
    };
    let expected = |reach| {
        Mixer::Attention(Attention {
            qkv_bias: true,
            output_bias: true,
            sinks: true,
            reach,
            ..attention(64, 8, 64, Some(rope.clone()))
        })
    };
    assert_eq!(mixer(&spec, 22), &expected(Reach::Window(128)));
    assert_eq!(mixer(&spec, 23), &expected(Reach::All));
    let clamped = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 7.0,
    };
    let router = Router {
        bias: true,
        ..Router::softmax(true)
    };
    let mixture = Experts {
        expert: Dense {
            bias: true,
            ..Dense::gated(2880, clamped)
        },
        ..experts(32, 4, 2880, router)
    };
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Experts(mixture));
}

#[test]
fn glm_4_5_air_rotates_half_heads() {
    let config = json!({
        "model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 10944, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96,
        "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
        "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1,
        "use_qk_norm": false, "vocab_size": 151552
    });
    let air = spec(&config);
    let expected = Attention {
        qkv_bias: true,
        ..attention(96, 8, 128, Some(Rope::plain(1e6, 64)))
    };
    assert_eq!(mixer(&air, 0), &Mixer::Attention(expected.clone()));
    let mixture = Experts {
        shared: shared(1408, false),
        ..experts(128, 8, 1408, corrected(1.0, None))
    };
    assert_eq!(layers_where(&air, |layer| is_dense(&air, layer)), [0]);
    assert_eq!(feed_forward(&air, 45), &FeedForward::Experts(mixture));
    // The larger one normalises queries and keys.
    let mut large = config;
    large["use_qk_norm"] = json!(true);
    let normed = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(1e-5))),
        ..expected
    };
    assert_eq!(mixer(&spec(&large), 0), &Mixer::Attention(normed));
}

#[test]
fn minimax_m2_normalises_all_heads_at_once() {
    let spec = spec(&json!({
        "model_type": "minimax", "attn_type_list": vec![1; 62], "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536,
        "max_position_embeddings": 196608, "num_attention_heads": 48,
        "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
        "num_local_experts": 256, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
        "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
        "shared_intermediate_size": 0, "tie_word_embeddings": false, "use_qk_norm": true,
        "use_routing_bias": true, "vocab_size": 200064
    }));
    assert_eq!(sizes(&spec), (200_064, 3072, 196_608, 62));
    let expected = Attention {
        qk_norm: Some(QkNorm::all_heads(Norm::rms(1e-6))),
        ..attention(48, 8, 128, Some(Rope::plain(5e6, 64)))
    };
    assert_eq!(mixer(&spec, 61), &Mixer::Attention(expected));
    let router = Router {
        correction: true,
        normalise: Some(0.0),
        ..Router::sigmoid()
    };
    let mixture = experts(256, 8, 1536, router);
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Experts(mixture));
}

#[test]
fn granite_3_1_moe_multiplies_nearly_everything() {
    let spec = spec(&json!({
        "model_type": "granitemoe", "attention_bias": false,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 512,
        "logits_scaling": 6.0, "max_position_embeddings": 131072,
        "num_attention_heads": 16, "num_experts_per_tok": 8, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1500000.0,
        "tie_word_embeddings": true, "vocab_size": 49155
    }));
    assert_eq!(sizes(&spec), (49_155, 1024, 131_072, 24));
    assert_eq!((spec.embedding.scale, spec.head.scale), (12.0, 1.0 / 6.0));
    assert!(spec.head.tied);
    let blocks = spec.layers.iter().flat_map(|layer| &layer.blocks);
    assert!(blocks.into_iter().all(|block| block.residual_scale == 0.22));
    let expected = Attention {
        scale: 0.015_625,
        ..attention(16, 8, 64, Some(Rope::plain(1.5e6, 64)))
    };
    assert_eq!(mixer(&spec, 0), &Mixer::Attention(expected));
    let mixture = experts(32, 8, 512, Router::softmax(true));
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Experts(mixture));
}
