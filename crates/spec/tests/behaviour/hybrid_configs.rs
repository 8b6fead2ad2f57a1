//! Published recurrent and hybrid models: the relevant fields and the resulting blocks.

use crate::blocks::{attention, feed_forward, layers_where, mixer, sizes, spec};
use loquat_spec::{
    Activation, Attention, Branch, Config, Decay, DeltaOutputGate, DeltaRule, Dense, Experts,
    FeedForward, Inner, KeySharing, KvSource, LatentAttention, Mamba2, MambaNorm, Mixer, ModelSpec,
    Norm, PerLayerInputs, QkNorm, Reach, Rope, RopeScaling, RopeSections, Router, RouterInput,
    SectionOrder, SharedExpert, ShortConv, families,
};
use serde_json::json;

fn silu(size: usize) -> Dense {
    Dense::gated(size, Activation::Silu)
}

fn attention_layers(spec: &ModelSpec) -> Vec<usize> {
    layers_where(spec, |layer| !mixer(spec, layer).is_recurrent())
}

#[test]
fn qwen3_next_80b_attends_every_fourth_layer() {
    let spec = spec(&json!({
        "model_type": "qwen3_next", "attention_bias": false, "decoder_sparse_step": 1,
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [],
        "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16,
        "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 10000000,
        "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
        "vocab_size": 151936
    }));
    assert_eq!(sizes(&spec), (151_936, 2048, 262_144, 48));
    let expected: Vec<usize> = (3..48).step_by(4).collect();
    assert_eq!(attention_layers(&spec), expected);
    let delta = DeltaRule {
        key_heads: 16,
        value_heads: 32,
        sharing: KeySharing::Adjacent,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
        decay: Decay::PerHead,
        gate: DeltaOutputGate::Silu,
        norm: Norm::rms(1e-6),
    };
    assert_eq!(mixer(&spec, 0), &Mixer::DeltaRule(delta));
    let gated = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(1e-6))),
        output_gate: true,
        ..attention(16, 2, 256, Some(Rope::plain(1e7, 64)))
    };
    assert_eq!(mixer(&spec, 3), &Mixer::Attention(gated));
    let mixture = FeedForward::Experts(Experts {
        count: 512,
        top_k: 10,
        expert: silu(512),
        router: Router::softmax(true),
        shared: Some(SharedExpert {
            dense: silu(512),
            gated: true,
        }),
        weigh_input: false,
    });
    assert_eq!(feed_forward(&spec, 47), &mixture);
    assert!(spec.is_recurrent());
}

#[test]
fn qwen3_5_is_wrapped_by_a_larger_model() {
    let layer_types: Vec<_> = [
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ]
    .repeat(6);
    let config = json!({
        "model_type": "qwen3_5", "image_token_id": 248056, "vision_config": {"depth": 12},
        "text_config": {
            "model_type": "qwen3_5_text", "head_dim": 256, "hidden_act": "silu",
            "hidden_size": 1024, "intermediate_size": 3584, "layer_types": layer_types,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 16,
            "linear_value_head_dim": 128, "max_position_embeddings": 262144,
            "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "vocab_size": 248320,
            "rope_parameters": {
                "mrope_interleaved": true, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 10000000,
                "rope_type": "default"
            }
        }
    });
    let described =
        families::from_config(&Config::parse(&config.to_string(), "config.json").unwrap()).unwrap();
    assert!(described.wrapped);
    let spec = described.spec;
    assert_eq!(sizes(&spec), (248_320, 1024, 262_144, 24));
    assert!(spec.head.tied);
    assert_eq!(attention_layers(&spec), [3, 7, 11, 15, 19, 23]);
    let gated = mixer(&spec, 23).as_attention().unwrap();
    let sections = RopeSections {
        counts: [11, 11, 10],
        order: SectionOrder::Alternating,
    };
    let rope = Rope {
        sections: Some(sections),
        ..Rope::plain(1e7, 64)
    };
    assert_eq!(gated.rope, Some(rope));
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Dense(silu(3584)));
}

#[test]
fn lfm2_1_2b_adjusts_its_stated_width() {
    let config = json!({
        "model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 3,
        "conv_bias": false, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
        "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 1000000.0,
        "vocab_size": 65536
    });
    let lfm2 = spec(&config);
    assert_eq!(sizes(&lfm2), (65_536, 2048, 128_000, 16));
    assert_eq!(attention_layers(&lfm2), [2, 5, 8, 10, 12, 14]);
    let conv = ShortConv {
        channels: 2048,
        kernel: 3,
        bias: false,
    };
    assert_eq!(mixer(&lfm2, 0), &Mixer::ShortConv(conv));
    let normed = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(1e-5))),
        ..attention(32, 8, 64, Some(Rope::plain(1e6, 64)))
    };
    assert_eq!(mixer(&lfm2, 2), &Mixer::Attention(normed));
    assert_eq!(feed_forward(&lfm2, 0), &FeedForward::Dense(silu(8192)));
    let mut as_stated = config;
    as_stated["block_auto_adjust_ff_dim"] = json!(false);
    let as_stated = spec(&as_stated);
    let found = feed_forward(&as_stated, 0);
    assert_eq!(found, &FeedForward::Dense(silu(12_288)));
}

#[test]
fn lfm2_8b_starts_with_two_dense_layers() {
    let attends = [2, 6, 10, 14, 18, 21];
    let layer_types: Vec<_> = (0..24)
        .map(|layer| {
            if attends.contains(&layer) {
                "full_attention"
            } else {
                "conv"
            }
        })
        .collect();
    let spec = spec(&json!({
        "model_type": "lfm2_moe", "conv_L_cache": 3, "conv_bias": false,
        "hidden_size": 2048, "intermediate_size": 7168, "layer_types": layer_types,
        "max_position_embeddings": 128000, "moe_intermediate_size": 1792,
        "norm_eps": 1e-05, "norm_topk_prob": true, "num_attention_heads": 32,
        "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0, "use_expert_bias": true, "vocab_size": 65536
    }));
    assert_eq!(attention_layers(&spec), attends);
    assert_eq!(feed_forward(&spec, 1), &FeedForward::Dense(silu(7168)));
    let FeedForward::Experts(experts) = feed_forward(&spec, 2) else {
        panic!("{:?}", feed_forward(&spec, 2));
    };
    let router = Router {
        correction: true,
        normalise: Some(1e-6),
        ..Router::sigmoid()
    };
    assert_eq!((experts.count, experts.top_k), (32, 4));
    assert_eq!((experts.expert, &experts.router), (silu(1792), &router));
}

fn mamba(heads: usize, groups: usize, norm: MambaNorm) -> Mamba2 {
    Mamba2 {
        heads,
        head_dim: 64,
        groups,
        state: 128,
        kernel: 4,
        conv_bias: true,
        projection_bias: false,
        norm,
        step_limits: (0.0, f32::INFINITY),
        scales: [1.0; 5],
    }
}

#[test]
fn mamba_codestral_7b_bounds_its_steps_by_infinity() {
    // As Python writes it: JSON has no word for infinity.
    let text = r#"{
        "model_type": "mamba2", "conv_kernel": 4, "expand": 2, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 4096, "layer_norm_epsilon": 1e-05,
        "n_groups": 8, "num_heads": 128, "num_hidden_layers": 64, "state_size": 128,
        "tie_word_embeddings": false, "time_step_limit": [0.0, Infinity],
        "use_bias": false, "use_conv_bias": true, "vocab_size": 32768
    }"#;
    let spec = families::from_config(&Config::parse(text, "config.json").unwrap())
        .unwrap()
        .spec;
    assert_eq!((spec.vocab_size, spec.hidden_size), (32_768, 4096));
    assert_eq!(spec.layers.len(), 64);
    let norm = Norm::rms(1e-5);
    let expected = mamba(128, 8, MambaNorm::AfterGate { norm, groups: 1 });
    for layer in &spec.layers {
        let branches: Vec<_> = layer.branches().collect();
        let [Branch { inner, .. }] = branches[..] else {
            panic!("{branches:?}");
        };
        assert_eq!(inner, &Inner::Mixer(Mixer::Mamba2(expected)));
    }
}

#[test]
fn falcon_h1_has_parallel_mixers() {
    let multipliers = [0.353_553_4, 0.25, 0.353_553_4, 0.5, 0.353_553_4];
    let spec = spec(&json!({
        "model_type": "falcon_h1", "attention_bias": false, "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.9375, "embedding_multiplier": 5.656854249492381,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 2048, "key_multiplier": 0.390625,
        "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128, "mamba_conv_bias": true,
        "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
        "mamba_norm_before_gate": false, "mamba_proj_bias": false,
        "mamba_rms_norm": false, "max_position_embeddings": 16384, "mlp_bias": false,
        "mlp_multipliers": [0.8838834764831844, 0.5859375], "num_attention_heads": 8,
        "num_hidden_layers": 36, "num_key_value_heads": 2, "projectors_bias": false,
        "rms_norm_eps": 1e-05, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
        "ssm_multipliers": multipliers, "ssm_out_multiplier": 0.23570226039551587,
        "tie_word_embeddings": false, "vocab_size": 32784
    }));
    assert_eq!(sizes(&spec), (32_784, 1024, 16_384, 36));
    assert_eq!(spec.embedding.scale, 32f32.sqrt());
    assert_eq!(spec.head.scale, 0.039_062_5);
    let [mixers, feed_forward] = &spec.layers[35].blocks[..] else {
        panic!("{:?}", spec.layers[35]);
    };
    let [attends, recurs] = &mixers.branches[..] else {
        panic!("{mixers:?}");
    };
    let plain = attention(8, 2, 64, Some(Rope::plain(1e11, 64)));
    let attention = Attention {
        // A key's multiplier only makes the scores larger.
        scale: plain.scale * 0.390_625,
        ..plain
    };
    assert_eq!(attends.inner, Mixer::Attention(attention).into());
    assert_eq!((attends.input_scale, attends.output_scale), (1.0, 0.9375));
    let mamba = Mamba2 {
        scales: multipliers.map(|scale| scale as f32),
        ..mamba(24, 1, MambaNorm::None)
    };
    assert_eq!(recurs.inner, Mixer::Mamba2(mamba).into());
    assert_eq!(
        (recurs.input_scale, recurs.output_scale),
        (1.25, 0.235_702_26)
    );
    let dense = Dense {
        gate_scale: 0.883_883_5,
        ..silu(2048)
    };
    let [branch] = &feed_forward.branches[..] else {
        panic!("{feed_forward:?}");
    };
    assert_eq!(branch.inner, FeedForward::Dense(dense).into());
    assert_eq!(branch.output_scale, 0.585_937_5);
}

#[test]
fn granite_4_h_tiny_attends_without_positions() {
    let attends = [5, 15, 25, 35];
    let layer_types: Vec<_> = (0..40)
        .map(|layer| {
            if attends.contains(&layer) {
                "attention"
            } else {
                "mamba"
            }
        })
        .collect();
    let config = json!({
        "model_type": "granitemoehybrid", "attention_bias": false,
        "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
        "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 512,
        "layer_types": layer_types, "logits_scaling": 6, "mamba_conv_bias": true,
        "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
        "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": false,
        "max_position_embeddings": 131072, "num_attention_heads": 12,
        "num_experts_per_tok": 6, "num_hidden_layers": 40, "num_key_value_heads": 4,
        "num_local_experts": 64, "position_embedding_type": "nope",
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_theta": 10000,
        "shared_intermediate_size": 1024, "tie_word_embeddings": true,
        "vocab_size": 100352
    });
    let tiny = spec(&config);
    assert_eq!(sizes(&tiny), (100_352, 1536, 131_072, 40));
    assert_eq!(attention_layers(&tiny), attends);
    let norm = Norm::rms(1e-5);
    let expected = mamba(48, 1, MambaNorm::AfterGate { norm, groups: 1 });
    assert_eq!(mixer(&tiny, 0), &Mixer::Mamba2(expected));
    let unplaced = Attention {
        scale: 0.007_812_5,
        ..attention(12, 4, 128, None)
    };
    assert_eq!(mixer(&tiny, 5), &Mixer::Attention(unplaced));
    assert_eq!((tiny.embedding.scale, tiny.head.scale), (12.0, 1.0 / 6.0));
    let mut blocks = tiny.layers.iter().flat_map(|layer| &layer.blocks);
    assert!(blocks.all(|block| block.residual_scale == 0.22));
    let mixture = FeedForward::Experts(Experts {
        count: 64,
        top_k: 6,
        expert: silu(512),
        router: Router::softmax(true),
        shared: Some(SharedExpert {
            dense: silu(1024),
            gated: false,
        }),
        weigh_input: false,
    });
    assert_eq!(feed_forward(&tiny, 39), &mixture);
    // The dense sizes have no experts at all.
    let mut dense = config;
    dense["num_local_experts"] = json!(0);
    let dense = spec(&dense);
    assert_eq!(feed_forward(&dense, 0), &FeedForward::Dense(silu(1024)));
}

#[test]
fn kimi_linear_48b_counts_its_layers_from_one() {
    let spec = spec(&json!({
        "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72,
        "hidden_act": "silu", "hidden_size": 2304, "intermediate_size": 9216,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
            "num_heads": 32, "short_conv_kernel_size": 4
        },
        "mla_use_nope": true, "model_max_length": 1048576, "moe_intermediate_size": 1024,
        "moe_layer_freq": 1, "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
        "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8,
        "num_hidden_layers": 27, "num_key_value_heads": 32, "num_shared_experts": 1,
        "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
        "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
        "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840
    }));
    assert_eq!(sizes(&spec), (163_840, 2304, 1_048_576, 27));
    assert_eq!(attention_layers(&spec), [3, 7, 11, 15, 19, 23, 26]);
    let delta = DeltaRule {
        key_heads: 32,
        value_heads: 32,
        sharing: KeySharing::Adjacent,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
        decay: Decay::PerChannel { rank: 128 },
        gate: DeltaOutputGate::LowRankSigmoid { rank: 128 },
        norm: Norm::rms(1e-5),
    };
    assert_eq!(mixer(&spec, 0), &Mixer::DeltaRule(delta));
    let latent = LatentAttention {
        heads: 32,
        query_rank: None,
        latent_dim: 512,
        nope_dim: 128,
        rope_dim: 64,
        value_dim: 128,
        rope: None,
        scale: 1.0 / 192f32.sqrt(),
        norm: Norm::rms(1e-6),
        down_bias: false,
        output_bias: false,
    };
    assert_eq!(mixer(&spec, 26), &Mixer::Latent(latent));
    assert_eq!(feed_forward(&spec, 0), &FeedForward::Dense(silu(9216)));
    let FeedForward::Experts(experts) = feed_forward(&spec, 1) else {
        panic!("{:?}", feed_forward(&spec, 1));
    };
    assert_eq!((experts.count, experts.top_k), (256, 8));
    assert_eq!(experts.router.scale, 2.446);
}

/// A small Gemma 4 of the "E" kind: per-layer inputs, upper layers without keys of their own.
fn gemma4_e() -> serde_json::Value {
    json!({
        "model_type": "gemma4_text", "attention_k_eq_v": false, "enable_moe_block": false,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536,
        "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
        "max_position_embeddings": 131072, "num_attention_heads": 8,
        "num_hidden_layers": 12, "num_key_value_heads": 1, "num_kv_shared_layers": 6,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                "rope_type": "proportional"
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}
        },
        "sliding_window": 512, "tie_word_embeddings": true, "use_double_wide_mlp": true,
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144
    })
}

fn gelu(size: usize) -> Dense {
    Dense::gated(size, Activation::GeluTanh)
}

#[test]
fn gemma_4_e_reads_lower_layers_keys() {
    let spec = spec(&gemma4_e());
    let norm = Norm::rms(1e-6);
    let local = Attention {
        qk_norm: Some(QkNorm::per_head(norm)),
        value_norm: Some(norm.weightless()),
        scale: 1.0,
        reach: Reach::Window(512),
        ..attention(8, 1, 256, Some(Rope::plain(1e4, 256)))
    };
    assert_eq!(mixer(&spec, 0), &Mixer::Attention(local.clone()));
    let turned = Rope {
        scaling: RopeScaling::Proportional {
            rotating: 64,
            factor: 1.0,
        },
        ..Rope::plain(1e6, 512)
    };
    let global = Attention {
        head_dim: 512,
        value_dim: 512,
        rope: Some(turned),
        reach: Reach::All,
        ..local
    };
    assert_eq!(mixer(&spec, 5), &Mixer::Attention(global));
    // Each reads the last layer of its own kind below the sixth.
    let sources: Vec<_> = spec
        .mixers()
        .filter_map(|(_, mixer)| match mixer.as_attention()?.kv {
            KvSource::Layer(source) => Some(source),
            _ => None,
        })
        .collect();
    assert_eq!(sources, [4, 4, 4, 4, 4, 5]);
    assert_eq!(feed_forward(&spec, 5), &FeedForward::Dense(gelu(6144)));
    assert_eq!(feed_forward(&spec, 6), &FeedForward::Dense(gelu(12_288)));
    assert_eq!(
        spec.per_layer_inputs,
        Some(PerLayerInputs {
            media_token: 0,
            dim: 256,
            vocab_size: 262_144,
            embedding_scale: 16.0,
            projection_scale: 1.0 / 1536f32.sqrt(),
            combined_scale: std::f32::consts::FRAC_1_SQRT_2,
            norm,
        })
    );
    let [.., last] = &spec.layers[0].blocks[..] else {
        panic!("{:?}", spec.layers[0]);
    };
    let inner = FeedForward::PerLayerInput {
        dim: 256,
        activation: Activation::GeluTanh,
    };
    assert_eq!(last.branches, [Branch::post_norm(norm, inner)]);
    assert!(spec.layers.iter().all(|layer| layer.scaled));
    assert_eq!(spec.head.softcap, Some(30.0));
}

#[test]
fn gemma_4_adds_experts_to_dense_feed_forward() {
    let mut config = gemma4_e();
    for (field, value) in [
        ("attention_k_eq_v", json!(true)),
        ("enable_moe_block", json!(true)),
        ("hidden_size_per_layer_input", json!(0)),
        ("moe_intermediate_size", json!(704)),
        ("num_experts", json!(128)),
        ("num_global_key_value_heads", json!(2)),
        ("num_key_value_heads", json!(8)),
        ("num_kv_shared_layers", json!(0)),
        ("top_k_experts", json!(8)),
        ("use_double_wide_mlp", json!(false)),
    ] {
        config[field] = value;
    }
    let spec = spec(&config);
    let norm = Norm::rms(1e-6);
    let kv = |layer| {
        let attention = mixer(&spec, layer).as_attention().unwrap();
        (attention.kv, attention.kv_heads)
    };
    assert_eq!(kv(4), (KvSource::Own, 8));
    assert_eq!(kv(5), (KvSource::KeyIsValue, 2));
    let [_, beside] = &spec.layers[5].blocks[..] else {
        panic!("{:?}", spec.layers[5]);
    };
    let experts = Experts {
        count: 128,
        top_k: 8,
        expert: gelu(704),
        router: Router {
            expert_scale: true,
            input: Some(RouterInput {
                norm,
                scale: 1.0 / 1536f32.sqrt(),
            }),
            ..Router::softmax(true)
        },
        shared: None,
        weigh_input: false,
    };
    let expected = [
        Branch::sandwich(norm, FeedForward::Dense(gelu(6144))),
        Branch::sandwich(norm, FeedForward::Experts(experts)),
    ];
    assert_eq!(beside.branches, expected);
    assert_eq!(beside.post_norm, Some(norm));
    assert_eq!(spec.per_layer_inputs, None);
}
