"""The families of the golden checkpoints: for each, transformers' model_type and the fields that differ from BASE.

Sizes are the smallest that still take every branch; widths that could be mixed up differ. Layers are two, or as many
as it takes to have one of each kind, or as GGUF needs where llama.cpp fixes their order (a full layer every fourth).

`fields(family, wide=True)` gives the same model wider, for MLX: there a row that is quantized must be a multiple of 32.
"""

V, HIDDEN, INNER, EXPERT, LATENT, CONTEXT = 40, 16, 24, 20, 16, 128
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"

BASE = dict(
    vocab_size=V,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=CONTEXT,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)


def rope(theta=10000.0, kind="default", **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


def yarn(original, **more):
    """With a base and betas that put some of the few frequencies on the ramp."""
    return rope(
        kind="yarn",
        **dict(
            theta=1000.0,
            factor=CONTEXT / original,
            original_max_position_embeddings=original,
            beta_fast=2.0,
            beta_slow=0.1,
        )
        | more
    )


def layers(*types):
    return dict(num_hidden_layers=len(types), layer_types=list(types))


# llama.cpp reads yarn's betas for few families only; the others have these.
USUAL_BETAS = dict(beta_fast=32.0, beta_slow=1.0, theta=20.0)
TIED = dict(tie_word_embeddings=True)
# Config classes without the field take hidden_size / heads.
NO_HEAD_DIM = dict(head_dim=None)
TWO_HEADS = dict(head_dim=None, num_attention_heads=2, num_key_value_heads=1)  # of 8, where half of a head turns
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=EXPERT)
LOCAL_MOE = dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=EXPERT)
MLA = dict(
    num_key_value_heads=4,
    head_dim=None,
    kv_lora_rank=LATENT,
    q_lora_rank=LATENT,
    qk_rope_head_dim=8,
    qk_nope_head_dim=12,
    v_head_dim=10,
)
MLA_MOE = dict(
    MLA,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=EXPERT,
    routed_scaling_factor=1.5,
    norm_topk_prob=True,
    n_group=1,
    topk_group=1,
)
DELTA = dict(
    layers(LINEAR, FULL),
    full_attention_interval=2,
    head_dim=16,
    num_key_value_heads=1,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
)
MROPE = rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)
GRANITE = dict(
    embedding_multiplier=3.0, logits_scaling=0.5, residual_multiplier=0.6, attention_multiplier=0.45, head_dim=None
)
GEMMA4 = dict(
    TIED,
    **layers(SLIDING, FULL),
    sliding_window=7,
    hidden_size_per_layer_input=0,
    attention_k_eq_v=True,
    num_global_key_value_heads=1,
    global_head_dim=16,
    final_logit_softcapping=4.0
)

REQUIRED = {
    "llama_tied": ("llama", dict(TIED, attention_bias=True, mlp_bias=True)),
    "mistral": ("mistral", dict(sliding_window=None, **rope(1e6))),
    "mistral_swa": ("mistral", dict(sliding_window=6)),
    "mixtral": ("mixtral", dict(LOCAL_MOE, sliding_window=None)),
    "qwen2_moe": ("qwen2_moe", dict(NO_HEAD_DIM, **MOE, shared_expert_intermediate_size=INNER, norm_topk_prob=False)),
    "qwen3": ("qwen3", dict(TIED, head_dim=16)),
    "qwen3_moe": ("qwen3_moe", dict(MOE, head_dim=16, num_key_value_heads=1, norm_topk_prob=True)),
    "qwen3_next": (
        "qwen3_next",
        dict(
            MOE, **DELTA, shared_expert_intermediate_size=INNER, norm_topk_prob=True, **rope(partial_rotary_factor=0.25)
        ),
    ),
    "qwen3_5": ("qwen3_5_text", dict(DELTA, **MROPE)),
    "gemma": ("gemma", dict(TIED, head_dim=16, num_key_value_heads=1)),
    "gemma2": (
        "gemma2",
        dict(
            TIED,
            **layers(SLIDING, FULL),
            sliding_window=6,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=8.0
        ),
    ),
    "gemma4_text": (
        "gemma4_text",
        dict(
            GEMMA4,
            **layers(SLIDING, FULL, SLIDING, FULL),
            attention_k_eq_v=False,
            num_key_value_heads=1,
            num_global_key_value_heads=None,
            num_kv_shared_layers=2,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=V
        ),
    ),
    "gemma4_dense": ("gemma4_text", GEMMA4),
    "gemma4_moe": (
        "gemma4_text",
        dict(GEMMA4, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=EXPERT),
    ),
    "glm4": ("glm4", dict(attention_bias=True, **rope(partial_rotary_factor=0.5))),
    "glm4_moe": (
        "glm4_moe",
        dict(
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=EXPERT,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            use_qk_norm=True,
            attention_bias=True,
            routed_scaling_factor=1.5,
            **rope(partial_rotary_factor=0.5)
        ),
    ),
    "glm4_moe_lite": ("glm4_moe_lite", dict(MLA_MOE, mlp_layer_types=["dense", "sparse"])),
    "lfm2": (
        "lfm2",
        dict(
            TIED,
            **NO_HEAD_DIM,
            **layers("conv", FULL),
            full_attn_idxs=None,
            block_auto_adjust_ff_dim=False,
            block_ff_dim=INNER,
            **rope(100.0)
        ),
    ),
    "lfm2_moe": (
        "lfm2_moe",
        dict(
            TIED, **NO_HEAD_DIM, **MOE, **layers("conv", FULL), num_dense_layers=1, use_expert_bias=True, **rope(100.0)
        ),
    ),
    "deepseek_v3": (
        "deepseek_v3",
        dict(
            MLA_MOE,
            n_routed_experts=8,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            rope_interleave=True,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            **yarn(16, mscale=0.7, mscale_all_dim=1.2)
        ),
    ),
    "kimi_linear": (
        "kimi_linear",
        dict(
            MLA,
            q_lora_rank=None,
            **layers(LINEAR, FULL),
            linear_head_dim=8,
            linear_num_heads=4,
            mlp_layer_types=["dense", "sparse"],
            num_experts=4,
            num_shared_experts=1,
            num_experts_per_token=2,
            moe_intermediate_size=EXPERT,
            num_expert_group=1,
            topk_group=1,
            routed_scaling_factor=1.5
        ),
    ),
    "gpt_oss": (
        "gpt_oss",
        dict(LOCAL_MOE, **layers(SLIDING, FULL), sliding_window=6, **yarn(32, truncate=False, **USUAL_BETAS)),
    ),
    "phi3": ("phi3", dict(TWO_HEADS, sliding_window=None, **rope(partial_rotary_factor=0.5))),
    "phi3_longrope": (
        "phi3",
        dict(
            TWO_HEADS,
            sliding_window=None,
            original_max_position_embeddings=20,
            **rope(
                kind="longrope",
                original_max_position_embeddings=20,
                short_factor=[1.0, 1.1, 1.3, 1.6],
                long_factor=[1.0, 2.0, 5.0, 12.0],
            )
        ),
    ),
    "phi3_swa": ("phi3", dict(NO_HEAD_DIM, sliding_window=6)),
    "smollm3": (
        "smollm3",
        dict(TIED, **NO_HEAD_DIM, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4),
    ),
    "olmo2": ("olmo2", dict(NO_HEAD_DIM)),
    "olmo3": ("olmo3", dict(NO_HEAD_DIM, **layers(SLIDING, FULL), sliding_window=6)),
    "granite": ("granite", dict(GRANITE)),
    "granitemoe": ("granitemoe", dict(TIED, **LOCAL_MOE, **GRANITE)),
    "starcoder2": ("starcoder2", dict(TIED, **NO_HEAD_DIM, sliding_window=None, use_bias=True)),
    "cohere2": (
        "cohere2",
        dict(
            TIED,
            **NO_HEAD_DIM,
            **layers(SLIDING, SLIDING, SLIDING, FULL),
            sliding_window=6,
            sliding_window_pattern=4,
            logit_scale=0.5,
            **rope(100.0)
        ),
    ),
    "seed_oss": ("seed_oss", dict(attention_bias=True, attention_out_bias=False)),
    "ernie4_5": ("ernie4_5", dict(TIED, use_bias=False)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", dict(TIED, use_qk_norm=True)),
    "exaone4": ("exaone4", dict(**layers(SLIDING, FULL), sliding_window=6, sliding_window_pattern=2)),
    "nemotron": ("nemotron", dict(TWO_HEADS, **rope(partial_rotary_factor=0.5))),
    "minimax_m2": (
        "minimax_m2",
        dict(
            LOCAL_MOE,
            head_dim=16,
            num_key_value_heads=1,
            use_qk_norm=True,
            rotary_dim=8,
            **rope(partial_rotary_factor=0.5)
        ),
    ),
    "mamba2": ("mamba2", dict(num_heads=4, head_dim=8, state_size=8, n_groups=1, expand=2, chunk_size=8)),
    # Powers of two: converters fold the multipliers into bf16 weights, which must stay exact.
    "falcon_h1": (
        "falcon_h1",
        dict(
            mamba_d_ssm=32,
            mamba_n_heads=4,
            mamba_d_head=8,
            mamba_n_groups=1,
            mamba_d_state=8,
            mamba_chunk_size=8,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            embedding_multiplier=4.0,
            lm_head_multiplier=0.5,
            mlp_multipliers=[2.0, 0.25],
            key_multiplier=0.5,
            attention_in_multiplier=2.0,
            attention_out_multiplier=0.5,
            ssm_multipliers=[0.5, 2.0, 4.0, 0.25, 8.0],
            ssm_in_multiplier=0.5,
            ssm_out_multiplier=2.0,
        ),
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        dict(
            TIED,
            **LOCAL_MOE,
            **GRANITE,
            **layers("mamba", "attention"),
            shared_intermediate_size=INNER,
            mamba_n_heads=4,
            mamba_n_groups=1,
            mamba_d_state=8,
            mamba_d_head=8,
            mamba_expand=2,
            mamba_chunk_size=8,
            position_embedding_type="nope"
        ),
    ),
}

# No MLX form of these is kept.
OPTIONAL = {
    "cohere": ("cohere", dict(TIED, **NO_HEAD_DIM, use_qk_norm=True, logit_scale=0.5, **rope(100.0))),
    "ministral3": ("ministral3", yarn(16, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
    "helium": ("helium", dict(TWO_HEADS, head_dim=8)),
    "phi": (
        "phi",
        dict(TWO_HEADS, num_key_value_heads=2, intermediate_size=4 * HIDDEN, **rope(partial_rotary_factor=0.5)),
    ),
    "gpt2": ("gpt2", dict(TIED, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=40)),
    "gpt_neox": ("gpt_neox", dict(TWO_HEADS, num_key_value_heads=None, **rope(partial_rotary_factor=0.5))),
    "deepseek_v2": (
        "deepseek_v2",
        dict(
            MLA_MOE,
            n_routed_experts=8,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            topk_method="group_limited_greedy",
            norm_topk_prob=False,
            scoring_func="softmax",
            **yarn(32, mscale=0.8, mscale_all_dim=0.8, **USUAL_BETAS)
        ),
    ),
    # deepseek_v3 as far as GGUF can follow: it has one mscale.
    "deepseek_v3_yarn": (
        "deepseek_v3",
        dict(
            MLA_MOE,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            rope_interleave=True,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            **yarn(32, mscale=1.0, mscale_all_dim=1.0, **USUAL_BETAS)
        ),
    ),
    "olmoe": (
        "olmoe",
        dict(NO_HEAD_DIM, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, intermediate_size=EXPERT),
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        dict(
            TIED,
            num_hidden_layers=2,
            intermediate_size=2 * EXPERT,
            moe_num_experts=4,
            moe_k=2,
            moe_num_shared_experts=1,
            moe_intermediate_size=EXPERT,
            moe_layer_start_index=1,
            moe_layer_end_index=1,
        ),
    ),
    "afmoe": (
        "afmoe",
        dict(
            MOE,
            **layers(SLIDING, SLIDING, SLIDING, FULL),
            num_dense_layers=3,
            num_shared_experts=1,
            sliding_window=6,
            global_attn_every_n_layers=4,
            mup_enabled=True,
            route_scale=1.5
        ),
    ),
    "llama4_text": (
        "llama4_text",
        dict(
            **layers("chunked_attention", FULL),
            num_local_experts=4,
            num_experts_per_tok=1,
            intermediate_size=EXPERT,
            intermediate_size_mlp=INNER,
            interleave_moe_layer_step=2,
            no_rope_layers=[1, 0],
            attention_chunk_size=8,
            floor_scale=8
        ),
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        dict(
            **layers(FULL, SLIDING),
            mlp_layer_types=["dense", "sparse"],
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=EXPERT,
            num_key_value_heads=1,
            head_dim=12,
            v_head_dim=8,
            sliding_window=7
        ),
    ),
    "qwen3_5_moe": ("qwen3_5_moe_text", dict(MOE, **DELTA, shared_expert_intermediate_size=INNER, **MROPE)),
    "nemotron_h": (
        "nemotron_h",
        dict(
            num_hidden_layers=4,
            layers_block_type=["mamba", "moe", "attention", "mlp"],
            hybrid_override_pattern="ME*-",
            ssm_state_size=8,
            mamba_num_heads=4,
            mamba_head_dim=8,
            n_groups=2,
            chunk_size=8,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=EXPERT,
            moe_shared_expert_intermediate_size=INNER,
            use_mamba_kernels=False,
            time_step_min=0.001,
        ),
    ),
}

# A source for MLX conversions only.
LLAMA = dict(
    rope(500000.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
)
MLX_ONLY = {
    "llama": ("llama", LLAMA),
    "llama_64": ("llama", dict(LLAMA, **TIED, hidden_size=64, intermediate_size=64, head_dim=16, num_hidden_layers=1)),
}

FAMILIES = {**REQUIRED, **OPTIONAL, **MLX_ONLY}
# Quantized rows run along these.
ROWS = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_intermediate_size",
    "shared_expert_intermediate_size",
    "block_ff_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "hidden_size_per_layer_input",
)
TWICE_THE_HEADS = ("num_heads", "mamba_n_heads")


def fields(family, wide=False):
    """model_type and config fields, complete."""
    model_type, own = FAMILIES[family]
    f = {**BASE, **own}
    if wide:
        f.update({k: 32 for k in ROWS if f.get(k) and f[k] < 32})
        if f.get("v_head_dim"):
            f["v_head_dim"] = 8  # four heads of it make a row
        if f["num_attention_heads"] == 2:
            f.update(num_attention_heads=4, num_key_value_heads=2)
        if model_type == "gpt_oss":  # mlx-lm and llama.cpp round the ends of yarn's ramp: here that makes no difference
            f.update(yarn(16, truncate=False, **USUAL_BETAS | dict(theta=150000.0)))
        if model_type == "gemma2":  # GGUF has no key for it, so it is the size of a head elsewhere
            f["query_pre_attn_scalar"] = 12
        if model_type == "kimi_linear":
            f.update(linear_head_dim=32, linear_num_heads=2)
        if model_type in ("mamba2", "granitemoehybrid"):  # heads * head size = expand * hidden_size
            f.update({k: 2 * f[k] for k in TWICE_THE_HEADS if k in f})
    if model_type == "mamba2":
        f["intermediate_size"] = f["expand"] * f["hidden_size"]  # as on the hub; converters believe it
    for k in ("head_dim", "num_key_value_heads", "num_global_key_value_heads"):
        if f.get(k, 0) is None:
            del f[k]
    return model_type, f
