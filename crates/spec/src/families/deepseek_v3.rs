//! DeepSeek-V3 and R1, Kimi K2: latent attention, and experts chosen in groups with a learned
//! correction. GGUF writes DeepSeek-V2 and GLM-4.7-Flash as the same architecture.

use serde_json::json;

use super::common::{
    CorrectedDefaults, FURTHER_LAYERS, GGUF_LATENT, GGUF_OLDER_LATENT, LATENT, MLX_LATENT,
    MLX_LATENT_NAMES, Mixture, SWITCH_MLP, Sizes, corrected_experts, gguf_any_layer, gguf_latent,
    gguf_mixture, gguf_tied, latent, latent_rope, sparse_after_dense, without_further_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::Mixer;
use crate::model::ModelSpec;
use crate::naming::Naming;

pub(super) const FAMILY: Family = Family {
    model_types: &["deepseek_v3", "kimi_k2"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(MLX),
    gguf: Some(GgufFamily {
        architectures: &["deepseek2"],
        from_gguf,
        naming: Naming {
            fused: GGUF_LATENT,
            ignored: FURTHER_LAYERS,
            also: Some(&Naming {
                fused: GGUF_OLDER_LATENT,
                ignored: FURTHER_LAYERS,
                ..PLAIN.gguf
            }),
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::with_router(RouterPrecision::Unquantized),
};

pub(super) const HUGGING_FACE: Naming = Naming {
    fused: LATENT,
    ignored: FURTHER_LAYERS,
    ..PLAIN.hugging_face
};

pub(super) const MLX: Naming = Naming {
    overrides: &[MLX_LATENT_NAMES, SWITCH_MLP],
    fused: MLX_LATENT,
    ignored: FURTHER_LAYERS,
    also: Some(&OLDER_MLX),
    ..PLAIN.hugging_face
};

/// Before mlx-lm separated keys and values; its DeepSeek-V2 never does.
pub(super) const OLDER_MLX: Naming = Naming {
    overrides: &[SWITCH_MLP],
    ..HUGGING_FACE
};

const DEFAULTS: CorrectedDefaults = CorrectedDefaults {
    scale: 2.5,
    groups: 8,
    groups_kept: 4,
    shared: 1,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
        "q_lora_rank": 1536,
    }));
    let experts = corrected_experts(config, &DEFAULTS)?;
    let sparse = |layers| sparse_after_dense(config, 3, layers);
    latent_model(config, "deepseek_v3", experts, sparse)
}

/// A spec of layers with latent attention; `sparse` says which of all layers have experts.
pub(super) fn latent_model(
    config: &Config,
    family: &'static str,
    experts: Experts,
    sparse: impl FnOnce(usize) -> Result<Vec<bool>, SpecError>,
) -> Result<ModelSpec, SpecError> {
    // The parts of a head have different sizes; transformers calls the RoPE part `head_dim`.
    let sizes = Sizes::with_head_dim(config, "rms_norm_eps", config.usize("qk_rope_head_dim")?)?;
    let mixture = Mixture::new(&sizes, experts, sparse(sizes.layers)?);
    let latent = latent(config, sizes.heads, Some(latent_rope(config)?))?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(mixture.pre_norm_model(&sizes, family, tied, |_| Mixer::Latent(latent.clone())))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let rope_dim = config.usize("rope.dimension_count")?;
    let sizes = Sizes::gguf_with_heads(config, rope_dim, None)?;
    let sizes = without_further_layers(config, sizes)?;
    let latent = gguf_latent(config, sizes.heads)?;
    // Older files do not name the scores; a correction came with sigmoid.
    let base = if gguf_any_layer(config, sizes.layers, "exp_probs_b.bias") {
        Router::sigmoid()
    } else {
        Router::softmax(false)
    };
    let mixture = gguf_mixture(config, &sizes, base)?;
    let (family, tied) = ("deepseek_v3", gguf_tied(config));
    Ok(mixture.pre_norm_model(&sizes, family, tied, |_| Mixer::Latent(latent.clone())))
}
