//! Names of tensors that several families share.

/// Files of models that also predict further tokens, in layers after the last.
pub(super) const FURTHER_LAYERS: Ignored = Ignored {
    beginnings: &["mtp."],
    endings: &[".rotary_emb.inv_freq"],
    further_layers: true,
};

/// mlx-lm's stacks, where transformers has a tensor for each expert.
pub(super) const SWITCH_MLP: [(LayerRole, &str); 3] = [
    (LayerRole::ExpertGate, "mlp.switch_mlp.gate_proj.weight"),
    (LayerRole::ExpertUp, "mlp.switch_mlp.up_proj.weight"),
    (LayerRole::ExpertDown, "mlp.switch_mlp.down_proj.weight"),
];

/// The same where it keeps the module's name.
pub(super) const STACKED: [(LayerRole, &str); 3] = [
    (LayerRole::ExpertGate, "mlp.experts.gate_proj.weight"),
    (LayerRole::ExpertUp, "mlp.experts.up_proj.weight"),
    (LayerRole::ExpertDown, "mlp.experts.down_proj.weight"),
];

/// Qwen's one shared expert, which has a gate.
pub(super) const SHARED_EXPERT: [(LayerRole, &str); 4] = [
    (LayerRole::SharedRouter, "mlp.shared_expert_gate.weight"),
    (LayerRole::SharedGate, "mlp.shared_expert.gate_proj.weight"),
    (LayerRole::SharedUp, "mlp.shared_expert.up_proj.weight"),
    (LayerRole::SharedDown, "mlp.shared_expert.down_proj.weight"),
];

/// The same beside mlx-lm's stacks.
pub(super) const SHARED_EXPERT_MLX: [(LayerRole, &str); 7] = join(&[&SHARED_EXPERT, &SWITCH_MLP]);

const BLOCK_SPARSE_ROUTER: (LayerRole, &str) = (LayerRole::Router, "block_sparse_moe.gate.weight");

const BLOCK_SPARSE_CORRECTION: (LayerRole, &str) = (
    LayerRole::RouterCorrection,
    "block_sparse_moe.e_score_correction_bias",
);

/// Mixtral's names for it all.
pub(super) const BLOCK_SPARSE: [(LayerRole, &str); 5] = [
    BLOCK_SPARSE_ROUTER,
    BLOCK_SPARSE_CORRECTION,
    (
        LayerRole::ExpertGate,
        "block_sparse_moe.experts.{e}.w1.weight",
    ),
    (
        LayerRole::ExpertUp,
        "block_sparse_moe.experts.{e}.w3.weight",
    ),
    (
        LayerRole::ExpertDown,
        "block_sparse_moe.experts.{e}.w2.weight",
    ),
];

/// mlx-lm's stacks under the same module.
pub(super) const BLOCK_SPARSE_SWITCH: [(LayerRole, &str); 3] = [
    (
        LayerRole::ExpertGate,
        "block_sparse_moe.switch_mlp.gate_proj.weight",
    ),
    (
        LayerRole::ExpertUp,
        "block_sparse_moe.switch_mlp.up_proj.weight",
    ),
    (
        LayerRole::ExpertDown,
        "block_sparse_moe.switch_mlp.down_proj.weight",
    ),
];

pub(super) const BLOCK_SPARSE_MLX: [(LayerRole, &str); 5] = join(&[
    &[BLOCK_SPARSE_ROUTER, BLOCK_SPARSE_CORRECTION],
    &BLOCK_SPARSE_SWITCH,
]);

