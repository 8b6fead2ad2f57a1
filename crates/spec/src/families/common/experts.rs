//! Routers and experts in configs.

use super::fields::{activation, expect_word, interval, layer_numbers, word_per_layer};
use super::layers::pre_norm_layer;
use super::sizes::Sizes;
use crate::config::Config;
use crate::error::SpecError;
use crate::experts::{ExpertGroups, Experts, GroupScore, Router, SharedExpert};
use crate::mixers::Mixer;
use crate::model::{Activation, Dense, FeedForward, ModelSpec, Norm};

/// DeepSeek adds this to the sum it divides the weights by.
pub(crate) const NORMALISE_EPS: f32 = 1e-20;

/// Experts in the layers that `sparse` marks, a dense feed-forward in the others.
pub(crate) struct Mixture {
    pub experts: Experts,
    pub dense: FeedForward,
    pub sparse: Vec<bool>,
}

impl Mixture {
    /// Dense layers use the experts' activation and have no biases.
    pub fn new(sizes: &Sizes, experts: Experts, sparse: Vec<bool>) -> Self {
        Self {
            dense: sizes.gated(experts.expert.activation, false),
            experts,
            sparse,
        }
    }

    pub fn feed_forward(&self, layer: usize) -> FeedForward {
        match self.sparse.get(layer) {
            Some(true) => FeedForward::Experts(self.experts.clone()),
            _ => self.dense.clone(),
        }
    }

    /// A spec of pre-norm layers, each with the mixer `mixer(layer)`.
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

/// The usual field for experts per position.
pub(crate) const TOP_K: &str = "num_experts_per_tok";

/// Gated experts without biases; the fields are their count, the experts per position and their
/// size.
pub(crate) fn gated_experts(
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

/// The field with the number of experts: transformers reads either.
pub(crate) fn count_field(config: &Config) -> &'static str {
    match config.get("num_experts") {
        Some(_) => "num_experts",
        None => "num_local_experts",
    }
}

/// The `field` experts that every position goes through, as one of their total size.
pub(crate) fn shared_experts(
    config: &Config,
    field: &str,
    default: usize,
    expert: &Dense,
) -> Result<Option<SharedExpert>, SpecError> {
    let count = if config.mentions(field) {
        config.usize_opt(field)?.unwrap_or(0)
    } else {
        default
    };
    Ok(shared(count, expert))
}

pub(super) fn shared(count: usize, expert: &Dense) -> Option<SharedExpert> {
    (count > 0).then_some(SharedExpert {
        dense: Dense {
            size: expert.size * count,
            ..*expert
        },
        gated: false,
    })
}

/// Defaults of the families with DeepSeek-V3's router.
pub(crate) struct CorrectedDefaults {
    pub scale: f64,
    pub groups: usize,
    pub groups_kept: usize,
    pub shared: usize,
}

/// For families without groups.
pub(crate) const UNGROUPED: CorrectedDefaults = CorrectedDefaults {
    scale: 1.0,
    groups: 1,
    groups_kept: 1,
    shared: 1,
};

/// Sigmoid scores; the chosen ones are divided by their sum and `eps`.
pub(crate) fn normalised_sigmoid(eps: f32) -> Router {
    Router {
        normalise: Some(eps),
        ..Router::sigmoid()
    }
}

/// DeepSeek-V3's experts: sigmoid scores, a correction for the choice, groups, shared experts.
pub(crate) fn corrected_experts(
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
    let fields = ["n_routed_experts", TOP_K, "moe_intermediate_size"];
    let experts = gated_experts(config, fields, router)?;
    Ok(Experts {
        shared: shared_experts(config, "n_shared_experts", defaults.shared, &experts.expert)?,
        ..experts
    })
}

/// A single group means no groups.
pub(crate) fn groups(count: usize, keep: usize, score: GroupScore) -> Option<ExpertGroups> {
    (count != 1).then_some(ExpertGroups { count, keep, score })
}

/// Experts from layer `first` on.
pub(crate) fn sparse_from(first: usize, layers: usize) -> Vec<bool> {
    (0..layers).map(|layer| layer >= first).collect()
}

/// Experts in every layer past the first `first_k_dense_replace`.
pub(crate) fn sparse_after_dense(
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

/// From `mlp_layer_types`, else as [`sparse_after_dense`].
pub(crate) fn sparse_layers(
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

/// Qwen's rule: experts in every layer whose 1-based number is a multiple of the step, except the
/// listed ones.
pub(crate) fn sparse_by_step(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let step = interval(config, "decoder_sparse_step", 1)?;
    let dense = layer_numbers(config, "mlp_only_layers")?.unwrap_or_default();
    let sparse = (0..layers).map(|layer| !dense.contains(&layer) && (layer + 1) % step == 0);
    Ok(sparse.collect())
}
