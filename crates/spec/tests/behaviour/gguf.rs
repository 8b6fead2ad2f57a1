//! GGUF headers of every architecture, whole and broken.

use crate::header::Entry::{Flag, Float, List, Other, Text, Whole};
use crate::header::{Header, header};
use loquat_spec::{
    Activation, Attention, Dense, ExpertGroups, Experts, FeedForward, GroupScore, Inner, MambaNorm,
    Mixer, ModelSpec, Reach, RopePairs, RopeScaling, Router, SpecError, families,
};

/// Architectures with the same keys.
const ALIKE: [&str; 5] = ["gemma3", "llama", "qwen2", "qwen3", "smollm3"];

fn spec(header: &Header) -> ModelSpec {
    match families::from_gguf(header) {
        Ok(described) => described.spec,
        Err(error) => panic!("{error}"),
    }
}

fn error(header: &Header) -> SpecError {
    match families::from_gguf(header) {
        Ok(_) => panic!("the header is taken"),
        Err(error) => error,
    }
}

fn attentions(spec: &ModelSpec) -> Vec<&Attention> {
    let mixers = spec.mixers();
    mixers
        .filter_map(|(_, mixer)| mixer.as_attention())
        .collect()
}

fn feed_forward(spec: &ModelSpec, layer: usize) -> &FeedForward {
    let mut branches = spec.layers[layer].branches();
    let found = branches.find_map(|branch| match &branch.inner {
        Inner::FeedForward(feed_forward) => Some(feed_forward),
        Inner::Mixer(_) => None,
    });
    found.expect("a feed-forward")
}

#[test]
fn architectures_are_distinguished() {
    for architecture in ALIKE {
        let spec = spec(&header(architecture));
        assert!(spec.family.starts_with(architecture), "{}", spec.family);
        assert_eq!((spec.vocab_size, spec.hidden_size), (288, 64));
        assert_eq!((spec.max_context, spec.layers.len()), (4096, 8));
        assert!(!spec.head.tied);
        let gemma = architecture == "gemma3";
        let embedding_scale = if gemma { 8.0 } else { 1.0 };
        assert_eq!(spec.embedding.scale, embedding_scale, "{architecture}");
        let activation = if gemma {
            Activation::GeluTanh
        } else {
            Activation::Silu
        };
        let dense = FeedForward::Dense(Dense::gated(128, activation));
        assert_eq!(feed_forward(&spec, 0), &dense);
        for (layer, attention) in attentions(&spec).into_iter().enumerate() {
            let heads = (attention.heads, attention.kv_heads, attention.head_dim);
            assert_eq!((heads, attention.scale), ((4, 2, 16), 0.25));
            assert_eq!(attention.qkv_bias, architecture == "qwen2");
            let normed = matches!(architecture, "gemma3" | "qwen3");
            assert_eq!(attention.qk_norm.is_some(), normed, "{architecture}");
            let local = gemma && layer != 5;
            let reach = if local {
                Reach::Window(512)
            } else {
                Reach::All
            };
            assert_eq!(attention.reach, reach);
            // llama.cpp's converter reorders the rows of queries and keys for some.
            let pairs = match architecture {
                "llama" | "smollm3" => RopePairs::Interleaved,
                _ => RopePairs::Halves,
            };
            let rope = attention.rope.as_ref();
            assert!(
                rope.is_none_or(|rope| rope.pairs == pairs),
                "{architecture}"
            );
            let theta = rope.map(|rope| rope.theta);
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
fn tensors_supply_missing_keys() {
    let mut tensors = header("llama");
    tensors.tensors.remove("output.weight");
    tensors.tensor("rope_freqs.weight", &[8]);
    for name in [
        "blk.0.attn_q.bias",
        "blk.0.attn_output.bias",
        "blk.0.ffn_gate.bias",
    ] {
        tensors.tensor(name, &[64]);
    }
    let found = spec(&tensors);
    let attention = attentions(&found)[0];
    assert!(found.head.tied && attention.qkv_bias && attention.output_bias);
    assert_eq!(
        attention.rope.as_ref().map(|rope| &rope.scaling),
        Some(&RopeScaling::Tensor)
    );
    assert!(matches!(feed_forward(&found, 0), FeedForward::Dense(dense) if dense.bias));

    // The tensor and a named scaling would have to be combined.
    tensors.set("llama", "rope.scaling.type", Text("linear"));
    let error = error(&tensors);
    assert!(error.to_string().contains("rope_freqs.weight"), "{error}");
}

#[test]
fn optional_keys_are_read() {
    let mut llama = header("llama");
    llama.set("llama", "attention.sliding_window", Whole(4096));
    llama.set("llama", "attention.key_length", Whole(32));
    llama.set("llama", "attention.value_length", Whole(32));
    llama.set("llama", "rope.scaling.type", Text("linear"));
    llama.set("llama", "rope.scaling.factor", Float(4.0));
    let llama = spec(&llama);
    let attention = attentions(&llama)[0];
    let rope = attention.rope.as_ref().unwrap();
    assert_eq!(
        (attention.reach, attention.head_dim),
        (Reach::Window(4096), 32)
    );
    assert_eq!(
        (rope.dims, &rope.scaling),
        (32, &RopeScaling::Linear { factor: 4.0 })
    );

    let mut gemma = header("gemma3");
    gemma.set("gemma3", "attention.sliding_window_pattern", Whole(2));
    gemma.set("gemma3", "rope.freq_base_swa", Float(2e4));
    gemma.set("gemma3", "final_logit_softcapping", Float(30.0));
    let gemma = spec(&gemma);
    let thetas: Vec<_> = attentions(&gemma)
        .iter()
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
    let scale = attentions(&spec(&gemma))[0].scale;
    assert_eq!(scale, 1.0 / 168f32.sqrt());
}

#[test]
fn unknown_architecture_lists_supported() {
    for name in ["mistral", "mamba", ""] {
        let expected = SpecError::UnknownFamily {
            field: "general.architecture",
            found: name.into(),
            supported: families::architectures(),
        };
        assert_eq!(error(&header(name)), expected);
    }
    let error = error(&Header::default());
    let field = "general.architecture".into();
    assert_eq!(error, SpecError::Missing { field });
}

#[test]
fn missing_keys_are_named() {
    for architecture in ALIKE {
        let mut keys = vec![
            "context_length",
            "embedding_length",
            "block_count",
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
            assert_eq!(error(&header), SpecError::Missing { field });
        }
        let mut header = header(architecture);
        header.tensors.remove("token_embd.weight");
        let error = error(&header);
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
            Text("ntk"),
            "llama.rope.scaling.type",
        ),
        (
            "llama",
            "rope.scaling.type",
            Text("yarn"),
            "llama.rope.scaling.factor",
        ),
        (
            "llama",
            "rope.scaling.type",
            Text("linear"),
            "llama.rope.scaling.factor",
        ),
        (
            "llama",
            "rope.dimension_count",
            Whole(7),
            "rotary dimensions",
        ),
        (
            "llama",
            "feed_forward_length",
            List(vec![128; 7]),
            "llama.feed_forward_length",
        ),
        (
            "llama",
            "feed_forward_length",
            Whole(0),
            "intermediate_size",
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
        ("llama", "expert_count", Whole(8), "llama.expert_used_count"),
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
        let message = error(&header).to_string();
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    let mut partial = header("qwen2");
    partial.set("qwen2", "rope.dimension_count", Whole(8));
    let partial = spec(&partial);
    assert_eq!(attentions(&partial)[0].rope.as_ref().unwrap().dims, 8);
}

#[test]
fn zero_heads_divide_nothing() {
    for architecture in ALIKE {
        let mut broken = header(architecture);
        broken.set(architecture, "block_count", Whole(62));
        broken.set(architecture, "attention.head_count", Whole(0));
        broken.set(architecture, "attention.key_length", Whole(256));
        let error = error(&broken);
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
        families::from_gguf(&header).map(|described| {
            let rope = attentions(&described.spec)[0].rope.clone();
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

#[test]
fn architectures_are_listed_once() {
    let mut architectures = families::architectures();
    let count = architectures.len();
    architectures.sort_unstable();
    architectures.dedup();
    assert_eq!(architectures.len(), count);
    for promised in [
        "llama",
        "gemma3",
        "gemma4",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "qwen3next",
        "qwen35",
        "gemma",
        "gemma2",
        "glm4",
        "glm4moe",
        "lfm2",
        "lfm2moe",
        "deepseek2",
        "kimi-linear",
        "gpt-oss",
        "phi3",
        "smollm3",
        "olmo2",
        "granite",
        "granitemoe",
        "starcoder2",
        "cohere2",
        "seed_oss",
        "ernie4_5",
        "hunyuan-dense",
        "exaone4",
        "nemotron",
        "minimax-m2",
        "mamba2",
        "falcon-h1",
        "granitehybrid",
    ] {
        assert!(architectures.contains(&promised), "{promised}");
    }
}

#[test]
fn mixtral_is_written_as_llama() {
    let mut mixtral = header("llama");
    mixtral.set("llama", "expert_count", Whole(8));
    mixtral.set("llama", "expert_used_count", Whole(2));
    let mixture = Experts {
        count: 8,
        top_k: 2,
        expert: Dense::gated(128, Activation::Silu),
        router: Router::softmax(true),
        shared: None,
        weigh_input: false,
    };
    let expected = FeedForward::Experts(mixture);
    assert_eq!(feed_forward(&spec(&mixtral), 7), &expected);
    mixtral.set("llama", "expert_used_count", Whole(9));
    assert!(error(&mixtral).to_string().contains("num_experts_per_tok"));
}

#[test]
fn yarn_magnitude_has_a_default() {
    let mut yarn = header("qwen3");
    yarn.set("qwen3", "rope.scaling.type", Text("yarn"));
    yarn.set("qwen3", "rope.scaling.factor", Float(4.0));
    yarn.set("qwen3", "rope.scaling.original_context_length", Whole(1024));
    let found = |header: &Header| match &attentions(&spec(header))[0].rope {
        Some(rope) => match rope.scaling {
            RopeScaling::Yarn(yarn) => yarn,
            ref other => panic!("{other:?}"),
        },
        None => panic!("no rope"),
    };
    let plain = found(&yarn);
    assert_eq!((plain.factor, plain.original_context), (4.0, 1024));
    // 0.1 ln 4 + 1.
    assert!((plain.attention_factor - 1.138_629_4).abs() < 1e-6);
    yarn.set("qwen3", "rope.scaling.yarn_attn_factor", Float(1.5));
    assert_eq!(found(&yarn).attention_factor, 1.5);
}

#[test]
fn long_rope_divisors_are_tensors() {
    let mut phi = header("phi3");
    phi.tensor("rope_factors_long.weight", &[8]);
    phi.tensor("rope_factors_short.weight", &[8]);
    phi.set("phi3", "rope.scaling.original_context_length", Whole(1024));
    phi.set("phi3", "rope.scaling.attn_factor", Float(1.19));
    let expected = RopeScaling::LongTensor {
        original_context: 1024,
        attention_factor: 1.19,
    };
    let phi = spec(&phi);
    assert_eq!(attentions(&phi)[0].rope.as_ref().unwrap().scaling, expected);
}

/// A header of the architecture that DeepSeek-V2, V3 and GLM-4.7-Flash share.
fn deepseek2() -> Header {
    let mut header = header("deepseek2");
    for (key, entry) in [
        ("attention.q_lora_rank", Whole(24)),
        ("attention.kv_lora_rank", Whole(32)),
        ("attention.key_length", Whole(40)),
        ("attention.value_length", Whole(32)),
        ("attention.key_length_mla", Whole(24)),
        ("attention.value_length_mla", Whole(12)),
        ("rope.dimension_count", Whole(8)),
        ("leading_dense_block_count", Whole(1)),
        ("expert_count", Whole(8)),
        ("expert_used_count", Whole(2)),
        ("expert_shared_count", Whole(1)),
        ("expert_feed_forward_length", Whole(32)),
        ("expert_group_count", Whole(4)),
        ("expert_group_used_count", Whole(2)),
        ("expert_weights_scale", Float(2.5)),
        ("expert_weights_norm", Flag(true)),
        ("expert_gating_func", Whole(2)),
    ] {
        header.set("deepseek2", key, entry);
    }
    header.tensor("blk.1.exp_probs_b.bias", &[8]);
    header
}

#[test]
fn latent_attention_has_lengths_before_and_after_absorption() {
    let spec = spec(&deepseek2());
    let Mixer::Latent(latent) = spec.layers[0].mixer().unwrap() else {
        panic!("{:?}", spec.layers[0]);
    };
    assert_eq!(
        (latent.heads, latent.query_rank, latent.latent_dim),
        (4, Some(24), 32)
    );
    let dims = (latent.nope_dim, latent.rope_dim, latent.value_dim);
    assert_eq!(dims, (16, 8, 12));
    assert_eq!(latent.scale, (1.0 / 24f64.sqrt()) as f32);
    let FeedForward::Experts(experts) = feed_forward(&spec, 1) else {
        panic!("{:?}", feed_forward(&spec, 1));
    };
    let groups = ExpertGroups {
        count: 4,
        keep: 2,
        score: GroupScore::BestTwo,
    };
    let router = Router {
        correction: true,
        groups: Some(groups),
        normalise: Some(1e-20),
        scale: 2.5,
        ..Router::sigmoid()
    };
    assert_eq!(experts.router, router);
    assert_eq!(experts.shared.map(|shared| shared.dense.size), Some(32));
    assert!(matches!(feed_forward(&spec, 0), FeedForward::Dense(dense) if dense.size == 128));
}

#[test]
fn router_kinds_are_numbers_in_gguf() {
    let table = [
        ("expert_gating_func", Whole(3), "expert_gating_func"),
        ("expert_weights_norm", Whole(1), "expert_weights_norm"),
        ("expert_group_count", Whole(3), "n_group"),
        ("expert_group_used_count", Whole(5), "topk_group"),
        ("expert_used_count", Whole(0), "num_experts_per_tok"),
        ("expert_count", Whole(u64::MAX), "expert_count"),
        (
            "expert_feed_forward_length",
            Other,
            "expert_feed_forward_length",
        ),
        ("rope.dimension_count", Whole(25), "rope.dimension_count"),
        (
            "attention.temperature_scale",
            Float(0.1),
            "temperature_scale",
        ),
    ];
    for (key, entry, name) in table {
        let mut header = deepseek2();
        header.set("deepseek2", key, entry);
        let message = error(&header).to_string();
        assert!(message.contains(name), "{key}: {message}");
    }
}

#[test]
fn layer_list_marks_recurrent_layers() {
    let mut lfm2 = header("lfm2");
    let kv_heads = vec![0, 0, 2, 0, 0, 2, 0, 2];
    lfm2.set("lfm2", "attention.head_count_kv", List(kv_heads));
    lfm2.set("lfm2", "shortconv.l_cache", Whole(3));
    let found = spec(&lfm2);
    let attention: Vec<_> = found
        .mixers()
        .filter(|(_, mixer)| !mixer.is_recurrent())
        .map(|(layer, _)| layer)
        .collect();
    assert_eq!(attention, [2, 5, 7]);
    assert!(attentions(&found).iter().all(|a| a.kv_heads == 2));

    lfm2.set("lfm2", "attention.head_count_kv", List(vec![2; 7]));
    let message = error(&lfm2).to_string();
    assert!(
        message.contains("lfm2.attention.head_count_kv"),
        "{message}"
    );
}

#[test]
fn mamba_uses_the_ssm_keys() {
    let mut mamba = header("mamba2");
    for (key, entry) in [
        ("ssm.conv_kernel", Whole(4)),
        ("ssm.inner_size", Whole(128)),
        ("ssm.state_size", Whole(16)),
        ("ssm.time_step_rank", Whole(8)),
        ("ssm.group_count", Whole(2)),
    ] {
        mamba.set("mamba2", key, entry);
    }
    mamba.tensor("blk.0.ssm_norm.weight", &[2, 64]);
    let found = spec(&mamba);
    let Mixer::Mamba2(mixer) = found.layers[7].mixer().unwrap() else {
        panic!("{:?}", found.layers[7]);
    };
    assert_eq!((mixer.heads, mixer.head_dim, mixer.groups), (8, 16, 2));
    // llama.cpp norms each group by itself.
    assert!(matches!(mixer.norm, MambaNorm::AfterGate { groups: 2, .. }));
    assert!(!mixer.conv_bias);
    mamba.set("mamba2", "ssm.time_step_rank", Whole(7));
    let message = error(&mamba).to_string();
    assert!(message.contains("mamba2.ssm.time_step_rank"), "{message}");
}
