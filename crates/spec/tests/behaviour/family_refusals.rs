//! Refusals of fields that only some families have.

use crate::common::{tiny, with};
use crate::refused::Variant::{Invalid, Missing, Unsupported};
use crate::refused::refused;
use serde_json::{Value, json};

#[test]
fn latent_attention_needs_all_its_sizes() {
    let mut table = Vec::new();
    for field in [
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ] {
        table.push((json!({field: null}), Missing, field));
        table.push((json!({field: "16"}), Invalid, field));
        table.push((json!({field: 0}), Invalid, field));
        table.push((json!({field: 1 << 25}), Invalid, field));
    }
    // The rope part must fall into pairs.
    table.retain(|(changes, _, field)| {
        !(*field == "qk_rope_head_dim" && changes[field].as_u64().is_some())
    });
    table.extend([
        (json!({"q_lora_rank": 0}), Invalid, "q_lora_rank"),
        (json!({"qk_rope_head_dim": 0}), Invalid, "qk_rope_head_dim"),
        (json!({"qk_rope_head_dim": 7}), Invalid, "rotary dimensions"),
        (
            json!({"rope_interleave": "yes"}),
            Invalid,
            "rope_interleave",
        ),
    ]);
    refused(tiny("deepseek_v3"), table);
}

/// Numbers that would make the lists of tensors, or of rope factors, too long to hold.
#[test]
fn absurd_counts_are_refused_early() {
    refused(
        tiny("qwen3_moe"),
        vec![
            (json!({"num_experts": 5000}), Invalid, "num_experts"),
            (
                json!({"num_experts": 4000, "num_hidden_layers": 4000}),
                Invalid,
                "num_experts",
            ),
        ],
    );
    let factors = vec![1.0; 4000];
    let rope = json!({
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
        "short_factor": factors, "long_factor": factors,
    });
    refused(
        tiny("phi3"),
        vec![(
            json!({"head_dim": 8000, "num_hidden_layers": 4000, "rope_parameters": rope}),
            Invalid,
            "head_dim",
        )],
    );
}

/// transformers would rotate the whole head.
#[test]
fn unexpected_partial_rope_is_refused() {
    let partial = json!({"partial_rotary_factor": 0.5});
    for family in ["llama", "qwen3_moe", "gpt_oss"] {
        let table = vec![(partial.clone(), Unsupported, "partial_rotary_factor")];
        refused(tiny(family), table);
    }
    let table = [0.0, 1e300].map(|part| {
        let changes = json!({"partial_rotary_factor": part});
        (changes, Invalid, "rotary dimensions")
    });
    refused(tiny("phi3"), table.into());
}

#[test]
fn rows_must_exist_for_every_token_and_position() {
    refused(
        tiny("gemma4_text"),
        vec![(
            json!({"vocab_size_per_layer_input": 287}),
            Invalid,
            "vocab_size",
        )],
    );
}

#[test]
fn expert_groups_must_be_equal() {
    refused(
        tiny("deepseek_v3"),
        vec![
            (json!({"n_group": 3}), Invalid, "n_group"),
            (json!({"n_group": 0}), Invalid, "n_group"),
            (json!({"n_group": 16}), Invalid, "n_group"),
            // A group is judged by its two best experts.
            (json!({"n_group": 8}), Invalid, "n_group"),
            (json!({"topk_group": 0}), Invalid, "topk_group"),
            (json!({"topk_group": 5}), Invalid, "topk_group"),
            (
                json!({"topk_group": 1, "num_experts_per_tok": 3}),
                Invalid,
                "num_experts_per_tok",
            ),
            (
                json!({"num_experts_per_tok": 0}),
                Invalid,
                "num_experts_per_tok",
            ),
            (
                json!({"num_experts_per_tok": 9}),
                Invalid,
                "num_experts_per_tok",
            ),
            (json!({"n_routed_experts": 0}), Invalid, "num_experts"),
            (json!({"n_routed_experts": 100_000}), Invalid, "num_experts"),
            (
                json!({"n_routed_experts": null}),
                Missing,
                "n_routed_experts",
            ),
            (
                json!({"moe_intermediate_size": 0}),
                Invalid,
                "intermediate_size",
            ),
            (
                json!({"n_shared_experts": 1_000_000_000}),
                Invalid,
                "intermediate_size",
            ),
            (
                json!({"scoring_func": "softmax"}),
                Unsupported,
                "scoring_func",
            ),
            (json!({"topk_method": "greedy"}), Unsupported, "topk_method"),
            (json!({"topk_method": 4}), Invalid, "topk_method"),
            (json!({"moe_layer_freq": 2}), Unsupported, "moe_layer_freq"),
            (
                json!({"routed_scaling_factor": 1e300}),
                Invalid,
                "routed_scaling_factor",
            ),
            (json!({"norm_topk_prob": 1}), Invalid, "norm_topk_prob"),
            (
                json!({"first_k_dense_replace": -1}),
                Invalid,
                "first_k_dense_replace",
            ),
        ],
    );
}

#[test]
fn sparse_layers_are_counted_or_listed() {
    refused(
        tiny("qwen3_moe"),
        vec![
            (
                json!({"decoder_sparse_step": 0}),
                Invalid,
                "decoder_sparse_step",
            ),
            (
                json!({"mlp_only_layers": [0, "1"]}),
                Invalid,
                "mlp_only_layers",
            ),
            (json!({"mlp_only_layers": [-1]}), Invalid, "mlp_only_layers"),
            (json!({"mlp_only_layers": 1}), Invalid, "mlp_only_layers"),
            (json!({"num_experts": null}), Missing, "num_local_experts"),
            (
                json!({"use_sliding_window": true, "sliding_window": 0}),
                Invalid,
                "sliding_window",
            ),
        ],
    );
    let listed = with(
        tiny("deepseek_v3"),
        json!({"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse"]}),
    );
    refused(
        listed,
        vec![
            (
                json!({"mlp_layer_types": ["dense"]}),
                Invalid,
                "mlp_layer_types",
            ),
            (
                json!({"mlp_layer_types": ["dense", "moe"]}),
                Invalid,
                "mlp_layer_types",
            ),
        ],
    );
}

#[test]
fn gpt_oss_needs_its_window_and_its_rope() {
    refused(
        tiny("gpt_oss"),
        vec![
            (json!({"rope_scaling": null}), Missing, "rope_parameters"),
            (json!({"sliding_window": 0}), Invalid, "sliding_window"),
            (json!({"swiglu_limit": "7"}), Invalid, "swiglu_limit"),
            (
                json!({"num_local_experts": null}),
                Missing,
                "num_local_experts",
            ),
        ],
    );
}

#[test]
fn delta_rule_shares_key_heads_evenly() {
    let mut table = Vec::new();
    for field in [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ] {
        table.push((json!({field: 0}), Invalid, field));
        table.push((json!({field: 1.5}), Invalid, field));
        table.push((json!({field: 1 << 25}), Invalid, field));
    }
    table.extend([
        (
            json!({"linear_num_value_heads": 3}),
            Invalid,
            "linear_num_value_heads",
        ),
        (
            json!({"full_attention_interval": 0}),
            Invalid,
            "full_attention_interval",
        ),
        (
            json!({"layer_types": ["linear_attention", "mamba"]}),
            Invalid,
            "layer_types",
        ),
        (json!({"hidden_act": "gelu"}), Unsupported, "hidden_act"),
        (
            json!({"shared_expert_intermediate_size": null}),
            Missing,
            "shared_expert_intermediate_size",
        ),
        (json!({"head_dim": null}), Missing, "head_dim"),
    ]);
    refused(tiny("qwen3_next"), table);
}

#[test]
fn kimi_linear_has_one_router_and_no_rope() {
    let kimi = with(
        tiny("deepseek_v3"),
        json!({
            "model_type": "kimi_linear", "q_lora_rank": null, "n_group": 1,
            "linear_attn_config": {"head_dim": 16, "num_heads": 4, "full_attn_layers": [2]},
        }),
    );
    let nested = |table: Value| json!({"linear_attn_config": table});
    refused(
        kimi,
        vec![
            (
                json!({"moe_router_activation_func": "softmax"}),
                Unsupported,
                "moe_router_activation_func",
            ),
            (json!({"mla_use_nope": false}), Unsupported, "mla_use_nope"),
            (
                json!({"linear_attn_config": 4}),
                Invalid,
                "linear_attn_config",
            ),
            (
                nested(json!({"head_dim": "16"})),
                Invalid,
                "linear_attn_config.head_dim",
            ),
            (
                nested(json!({"full_attn_layers": [2.5]})),
                Invalid,
                "linear_attn_config.full_attn_layers",
            ),
            (
                nested(json!({"num_heads": 0})),
                Invalid,
                "linear_num_key_heads",
            ),
        ],
    );
}

#[test]
fn mamba_heads_fall_into_groups() {
    let mamba2 = json!({
        "model_type": "mamba2", "vocab_size": 288, "hidden_size": 64,
        "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "n_groups": 2,
        "state_size": 16,
    });
    refused(
        mamba2,
        vec![
            (json!({"n_groups": 3}), Invalid, "mamba groups"),
            (json!({"n_groups": 0}), Invalid, "mamba groups"),
            (json!({"num_heads": 0}), Invalid, "mamba heads"),
            (json!({"num_heads": null}), Missing, "num_heads"),
            (json!({"state_size": null}), Missing, "state_size"),
            (json!({"state_size": 1 << 25}), Invalid, "mamba state size"),
            (json!({"head_dim": 1 << 25}), Invalid, "mamba head size"),
            (
                json!({"head_dim": null, "num_heads": 6}),
                Invalid,
                "num_heads",
            ),
            (json!({"conv_kernel": 0}), Invalid, "mamba convolution"),
            (json!({"conv_kernel": 65}), Invalid, "mamba convolution"),
            (json!({"hidden_act": "gelu"}), Unsupported, "hidden_act"),
            (
                json!({"time_step_limit": [1.0, 0.5]}),
                Invalid,
                "time_step_limit",
            ),
            (
                json!({"time_step_limit": [0.0]}),
                Invalid,
                "time_step_limit",
            ),
            (json!({"time_step_limit": 0.5}), Invalid, "time_step_limit"),
            (
                json!({"num_hidden_layers": 1_000_000}),
                Invalid,
                "num_hidden_layers",
            ),
        ],
    );
}

fn mamba_fields() -> Value {
    json!({
        "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
    })
}

#[test]
fn falcon_h1_lists_its_multipliers() {
    let falcon = with(tiny("falcon_h1"), mamba_fields());
    refused(
        falcon,
        vec![
            (
                json!({"ssm_multipliers": [1, 1, 1, 1]}),
                Invalid,
                "ssm_multipliers",
            ),
            (
                json!({"ssm_multipliers": [1, 1, 1, 1, 1e300]}),
                Invalid,
                "ssm_multipliers",
            ),
            (
                json!({"mlp_multipliers": [1, 1, 1]}),
                Invalid,
                "mlp_multipliers",
            ),
            (
                json!({"mlp_multipliers": ["1", 1]}),
                Invalid,
                "mlp_multipliers",
            ),
            (json!({"key_multiplier": 0}), Invalid, "attention scale"),
            (
                json!({"embedding_multiplier": 1e300}),
                Invalid,
                "embedding scale",
            ),
            (
                json!({"lm_head_multiplier": "x"}),
                Invalid,
                "lm_head_multiplier",
            ),
            (
                json!({"projectors_bias": true}),
                Unsupported,
                "projectors_bias",
            ),
            (json!({"mamba_rms_norm": 1}), Invalid, "mamba_rms_norm"),
        ],
    );
}

#[test]
fn granite_hybrids_have_two_layer_kinds() {
    let granite = with(
        with(tiny("granitemoehybrid"), mamba_fields()),
        json!({
            "num_local_experts": 4, "num_experts_per_tok": 2,
            "shared_intermediate_size": 64, "layer_types": ["mamba", "attention"],
        }),
    );
    refused(
        granite,
        vec![
            (
                json!({"layer_types": ["mamba", "conv"]}),
                Invalid,
                "layer_types",
            ),
            (json!({"layer_types": ["mamba"]}), Invalid, "layer_types"),
            (json!({"logits_scaling": 0}), Invalid, "logit scale"),
            (
                json!({"residual_multiplier": 1e300}),
                Invalid,
                "residual scale",
            ),
            (
                json!({"attention_multiplier": -1}),
                Invalid,
                "attention scale",
            ),
            (
                json!({"shared_intermediate_size": null}),
                Missing,
                "shared_intermediate_size",
            ),
            (
                json!({"num_local_experts": null}),
                Missing,
                "num_local_experts",
            ),
        ],
    );
}

#[test]
fn short_convolutions_are_short() {
    let lfm2 = with(
        tiny("lfm2"),
        json!({"norm_eps": 1e-5, "full_attn_idxs": [1]}),
    );
    refused(
        lfm2,
        vec![
            (json!({"conv_L_cache": 0}), Invalid, "conv_L_cache"),
            (json!({"conv_L_cache": 1000}), Invalid, "conv_L_cache"),
            (json!({"full_attn_idxs": ["1"]}), Invalid, "full_attn_idxs"),
            (
                json!({"block_multiple_of": 0}),
                Invalid,
                "block_multiple_of",
            ),
            (
                json!({"block_ffn_dim_multiplier": 1e300}),
                Invalid,
                "block_multiple_of",
            ),
            (
                json!({"block_ffn_dim_multiplier": -1}),
                Invalid,
                "intermediate_size",
            ),
            (json!({"norm_eps": null}), Missing, "norm_eps"),
            (
                json!({"num_key_value_heads": null}),
                Missing,
                "num_key_value_heads",
            ),
        ],
    );
}

#[test]
fn gemma_4_shares_only_what_there_is() {
    refused(
        tiny("gemma4_text"),
        vec![
            (
                json!({"num_kv_shared_layers": 5}),
                Invalid,
                "num_kv_shared_layers",
            ),
            // No full layer is left below to read from.
            (
                json!({"num_kv_shared_layers": 3}),
                Invalid,
                "num_kv_shared_layers",
            ),
            (
                json!({"per_layer_config": {"4": {"head_dim": 32}}}),
                Invalid,
                "per_layer_config",
            ),
            (
                json!({"per_layer_config": {"first": {"head_dim": 32}}}),
                Invalid,
                "per_layer_config",
            ),
            (
                json!({"per_layer_config": {"0": {"sliding_window": 4}}}),
                Unsupported,
                "per_layer_config.0.sliding_window",
            ),
            (
                json!({"per_layer_config": {"0": {"head_dim": "x"}}}),
                Invalid,
                "per_layer_config.0.head_dim",
            ),
            (
                json!({"use_bidirectional_attention": "all"}),
                Unsupported,
                "use_bidirectional_attention",
            ),
            (json!({"enable_moe_block": true}), Missing, "num_experts"),
            (
                json!({"vocab_size_per_layer_input": 0}),
                Invalid,
                "vocab_size_per_layer_input",
            ),
            (
                json!({"rope_parameters": {"sliding_attention": {}}}),
                Missing,
                "rope_parameters.full_attention",
            ),
        ],
    );
}

#[test]
fn unsupported_words_are_refused() {
    let sparse = json!({"num_local_experts": 4, "num_experts_per_tok": 2});
    refused(
        with(tiny("minimax_m2"), sparse.clone()),
        vec![
            (
                json!({"scoring_func": "softmax"}),
                Unsupported,
                "scoring_func",
            ),
            (
                json!({"qk_norm_type": "per_head"}),
                Unsupported,
                "qk_norm_type",
            ),
            (json!({"use_qk_norm": false}), Unsupported, "use_qk_norm"),
            (
                json!({"attn_type_list": [1, 0]}),
                Unsupported,
                "attn_type_list",
            ),
            (
                json!({"shared_intermediate_size": 64}),
                Unsupported,
                "shared_intermediate_size",
            ),
        ],
    );
    refused(
        tiny("phi3"),
        vec![
            (
                json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
                Unsupported,
                "rope_scaling.type",
            ),
            (json!({"sliding_window": 0}), Invalid, "sliding_window"),
        ],
    );
    refused(
        tiny("exaone4"),
        vec![
            (
                json!({"sliding_window_pattern": "LLX"}),
                Invalid,
                "sliding_window_pattern",
            ),
            (
                json!({"sliding_window_pattern": ""}),
                Invalid,
                "sliding_window_pattern",
            ),
            (
                json!({"sliding_window_pattern": 0}),
                Invalid,
                "sliding_window_pattern",
            ),
        ],
    );
    refused(
        with(
            tiny("deepseek_v3"),
            json!({"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"}),
        ),
        vec![
            (
                json!({"topk_method": "noaux_tc"}),
                Unsupported,
                "topk_method",
            ),
            (json!({"n_group": null}), Missing, "n_group"),
            (
                json!({"norm_topk_prob": true}),
                Unsupported,
                "norm_topk_prob",
            ),
        ],
    );
    refused(
        with(
            with(tiny("llama4_text"), sparse),
            json!({"intermediate_size_mlp": 128, "no_rope_layers": [1, 0]}),
        ),
        vec![
            (
                json!({"attention_chunk_size": 0}),
                Invalid,
                "attention_chunk_size",
            ),
            (json!({"floor_scale": 0}), Invalid, "floor_scale"),
            (
                json!({"interleave_moe_layer_step": 0}),
                Invalid,
                "interleave_moe_layer_step",
            ),
            (
                json!({"intermediate_size_mlp": null}),
                Missing,
                "intermediate_size_mlp",
            ),
            (
                json!({"layer_types": ["chunked_attention", "sliding_attention"]}),
                Invalid,
                "layer_types",
            ),
        ],
    );
}
