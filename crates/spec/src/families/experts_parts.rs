//! What configs and headers say of routers and experts, read once, and where their tensors
//! stand.

use super::parts::{Sizes, activation, interval, pre_norm_layer, word_per_layer};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{ExpertGroups, Experts, GroupScore, Router, Scores, SharedExpert};
use crate::mixers::Mixer;
use crate::model::{Activation, Dense, FeedForward, ModelSpec, Norm};
use crate::naming::{Ignored, join};
use crate::roles::LayerRole;
use crate::rope::Rope;

/// DeepSeek adds this to the sum it divides the weights by.
pub(super) const NORMALISE_EPS: f32 = 1e-20;

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

/// Experts in the layers that `sparse` marks, a dense feed-forward in the others.
pub(super) struct Mixture {
    pub experts: Experts,
    pub dense: FeedForward,
    pub sparse: Vec<bool>,
}

impl Mixture {
    pub fn feed_forward(&self, layer: usize) -> FeedForward {
        match self.sparse.get(layer) {
            Some(true) => FeedForward::Experts(self.experts.clone()),
            _ => self.dense.clone(),
        }
    }

    /// A spec of pre-norm layers, each with the mixer `mixer(layer)` says.
    pub fn pre_norm_model(
        &self,
        sizes: &Sizes,
        family: &'static str,
        tied: bool,
        mixer: impl Fn(usize) -> Mixer,
    ) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = (0..sizes.layers)
            .map(|layer| pre_norm_layer(norm, mixer(layer), self.feed_forward(layer)));
        sizes.model(family, tied, norm, layers.collect())
    }
}

/// Gated experts without biases; the fields that say how many there are, how many a position
/// gets, and how large they are.
pub(super) fn gated_experts(
    config: &Config,
    [count, top_k, size]: [&str; 3],
    router: Router,
) -> Result<Experts, SpecError> {
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    Ok(Experts {
        count: config.usize(count)?,
        top_k: config.usize(top_k)?,
        expert: Dense::gated(config.usize(size)?, activation),
        router,
        shared: None,
        weigh_input: false,
    })
}

/// The name under which the number of experts stands: transformers takes either.
pub(super) fn count_field(config: &Config) -> &'static str {
    match config.get("num_experts") {
        Some(_) => "num_experts",
        None => "num_local_experts",
    }
}

/// As many experts as `field` says that every position goes through, as one of their size
/// together.
pub(super) fn shared_experts(
    config: &Config,
    field: &str,
    default: usize,
    expert: &Dense,
) -> Result<Option<SharedExpert>, SpecError> {
    let count = match config.mentions(field) {
        true => config.usize_opt(field)?.unwrap_or(0),
        false => default,
    };
    Ok(shared(count, expert))
}

fn shared(count: usize, expert: &Dense) -> Option<SharedExpert> {
    (count > 0).then_some(SharedExpert {
        dense: Dense {
            size: expert.size * count,
            ..*expert
        },
        gated: false,
    })
}

/// What the families that took over DeepSeek-V3's router assume where their config is silent.
pub(super) struct CorrectedDefaults {
    pub scale: f64,
    pub groups: usize,
    pub groups_kept: usize,
    pub shared: usize,
}

/// DeepSeek-V3's experts: sigmoid scores, a correction for choosing, groups, experts for all.
pub(super) fn corrected_experts(
    config: &Config,
    defaults: &CorrectedDefaults,
) -> Result<Experts, SpecError> {
    expect_word(config, "scoring_func", "sigmoid")?;
    expect_word(config, "topk_method", "noaux_tc")?;
    let normalise = config.bool_or("norm_topk_prob", true)?;
    let router = Router {
        correction: true,
        groups: groups(
            config.usize_or("n_group", defaults.groups)?,
            config.usize_or("topk_group", defaults.groups_kept)?,
            GroupScore::BestTwo,
        ),
        normalise: normalise.then_some(NORMALISE_EPS),
        scale: config.f64_or("routed_scaling_factor", defaults.scale)? as f32,
        ..Router::sigmoid()
    };
    let fields = [
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    let experts = gated_experts(config, fields, router)?;
    Ok(Experts {
        shared: shared_experts(config, "n_shared_experts", defaults.shared, &experts.expert)?,
        ..experts
    })
}

/// A single group is none.
pub(super) fn groups(count: usize, keep: usize, score: GroupScore) -> Option<ExpertGroups> {
    (count != 1).then_some(ExpertGroups { count, keep, score })
}

/// Refuses any word but the one we know, where the field stands at all.
pub(super) fn expect_word(
    config: &Config,
    field: &str,
    known: &'static str,
) -> Result<(), SpecError> {
    match config.str(field)? {
        Some(found) if found != known => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{found}`"),
            supported: known,
        }),
        _ => Ok(()),
    }
}

/// Refuses a switch that does not stand as the family has it.
pub(super) fn expect_switch(config: &Config, field: &str, known: bool) -> Result<(), SpecError> {
    match config.bool_or(field, known)? {
        found if found != known => Err(SpecError::Unsupported {
            field: config.path(field),
            found: found.to_string(),
            supported: if known { "true" } else { "false" },
        }),
        _ => Ok(()),
    }
}

/// Experts from layer `first` on.
pub(super) fn sparse_from(first: usize, layers: usize) -> Vec<bool> {
    (0..layers).map(|layer| layer >= first).collect()
}

/// Experts in every layer past the first `first_k_dense_replace`.
pub(super) fn sparse_after_dense(
    config: &Config,
    default: usize,
    layers: usize,
) -> Result<Vec<bool>, SpecError> {
    let frequency = "moe_layer_freq";
    match config.usize_or(frequency, 1)? {
        1 => {}
        other => {
            return Err(SpecError::Unsupported {
                field: config.path(frequency),
                found: other.to_string(),
                supported: "1",
            });
        }
    }
    let first = config.usize_or("first_k_dense_replace", default)?;
    Ok(sparse_from(first, layers))
}

/// What `mlp_layer_types` says, else as [`sparse_after_dense`].
pub(super) fn sparse_layers(
    config: &Config,
    default: usize,
    layers: usize,
) -> Result<Vec<bool>, SpecError> {
    let known = &["dense", "sparse"];
    match word_per_layer(config, "mlp_layer_types", layers, known)? {
        Some(words) => Ok(words.iter().map(|word| *word == "sparse").collect()),
        None => sparse_after_dense(config, default, layers),
    }
}

/// Qwen's rule: experts in every layer whose number, counted from one, the step divides, but
/// for the listed ones.
pub(super) fn sparse_by_step(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let step = interval(
        config.path("decoder_sparse_step"),
        config.usize_or("decoder_sparse_step", 1)?,
    )?;
    let dense = layer_numbers(config, "mlp_only_layers")?.unwrap_or_default();
    let sparse = (0..layers).map(|layer| !dense.contains(&layer) && (layer + 1) % step == 0);
    Ok(sparse.collect())
}

/// A list of layers, by number.
pub(super) fn layer_numbers(config: &Config, field: &str) -> Result<Option<Vec<usize>>, SpecError> {
    let Some(list) = config.array(field)? else {
        return Ok(None);
    };
    let numbers = list.iter().map(|value| match value.as_u64() {
        Some(number) => Ok(number as usize),
        None => Err(SpecError::invalid(
            config.path(field),
            format!("a list with {value}"),
            "a list of layers' numbers",
        )),
    });
    numbers.collect::<Result<_, _>>().map(Some)
}

/// Rope for families in which only `default` of a head turns unless the config says otherwise.
pub(super) fn partial_rope(
    config: &Config,
    default_theta: f64,
    head_dim: usize,
    default: usize,
) -> Result<Rope, SpecError> {
    let rope = Rope::from_config(config, None, default_theta, head_dim)?;
    let field = "partial_rotary_factor";
    let table = config.object("rope_parameters")?;
    let stated = table.is_some_and(|table| table.get(field).is_some());
    Ok(match stated || config.get(field).is_some() {
        true => rope,
        false => Rope {
            dims: default,
            ..rope
        },
    })
}

/// Gated experts of `size` as a GGUF header states them.
pub(super) fn gguf_experts(
    config: &GgufConfig,
    size: usize,
    router: Router,
) -> Result<Experts, SpecError> {
    let expert = Dense::gated(size, Activation::Silu);
    let together = config.usize_opt("expert_shared_count")?.unwrap_or(0);
    Ok(Experts {
        count: config.usize("expert_count")?,
        top_k: config.usize("expert_used_count")?,
        expert,
        router,
        shared: shared(together, &expert),
        weigh_input: false,
    })
}

/// What a header says of the router, `base` being what the architecture assumes.
/// `first_sparse` is the first layer with experts.
pub(super) fn gguf_router(
    config: &GgufConfig,
    base: Router,
    first_sparse: usize,
) -> Result<Router, SpecError> {
    let scores = match config.usize_opt("expert_gating_func")? {
        None | Some(0) => base.scores,
        Some(1) => Scores::Softmax,
        Some(2) => Scores::Sigmoid,
        Some(other) => {
            return Err(SpecError::Unsupported {
                field: config.key("expert_gating_func"),
                found: other.to_string(),
                supported: "1 (softmax), 2 (sigmoid)",
            });
        }
    };
    let normalise = config.bool_or("expert_weights_norm", base.normalise.is_some())?;
    let scale = config.f64_opt("expert_weights_scale")?;
    // DeepSeek-V2 has the one, all that came later the other.
    let group_score = match scores {
        Scores::Softmax => GroupScore::Best,
        Scores::Sigmoid => GroupScore::BestTwo,
    };
    Ok(Router {
        scores,
        correction: config.has(&format!("blk.{first_sparse}.exp_probs_b.bias")),
        groups: groups(
            config.usize_opt("expert_group_count")?.unwrap_or(1).max(1),
            config.usize_opt("expert_group_used_count")?.unwrap_or(1),
            group_score,
        ),
        normalise: normalise.then_some(base.normalise.unwrap_or(NORMALISE_EPS)),
        // How llama.cpp says that there is none.
        scale: match scale {
            None | Some(0.0) => base.scale,
            Some(scale) => scale as f32,
        },
        ..base
    })
}

/// The layers a header counts, without those that predict further tokens.
pub(super) fn without_further_layers(
    config: &GgufConfig,
    sizes: Sizes,
) -> Result<Sizes, SpecError> {
    let further = config.usize_opt("nextn_predict_layers")?.unwrap_or(0);
    Ok(Sizes {
        layers: sizes.layers.saturating_sub(further),
        ..sizes
    })
}
