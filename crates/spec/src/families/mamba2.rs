//! Mamba-2: a mixer in every layer, no attention and no feed-forward.

use super::common::{MambaFields, Sizes, bounded_layers, gguf_mamba2, gguf_tied, require_silu};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Mamba2, MambaNorm, Mixer};
use crate::model::{Branch, Layer, ModelSpec, Norm};
use crate::naming::{ConvShape, LayerNames, Naming};
use crate::roles::LayerRole::*;
use crate::roles::Role;

pub(super) const FAMILY: Family = Family {
    model_types: &["mamba2"],
    from_config,
    hugging_face: BACKBONE,
    mlx: Some(Naming {
        conv_shape: ConvShape::ChannelLast,
        ..BACKBONE
    }),
    gguf: Some(GgufFamily::plain(&["mamba2"], from_gguf)),
    facts: FamilyFacts::PLAIN,
};

pub(super) const BACKBONE: Naming = Naming {
    global_overrides: &[
        (Role::Embedding, "backbone.embeddings.weight"),
        (Role::FinalNorm, "backbone.norm_f.weight"),
    ],
    layers: "backbone.layers.{}.",
    overrides: &[MIXER],
    ..PLAIN.hugging_face
};

pub(super) const MIXER: LayerNames = &[
    (MixerPreNorm, "norm.weight"),
    (MambaIn, "mixer.in_proj.weight"),
    (MambaConv, "mixer.conv1d.weight"),
    (MambaStepBias, "mixer.dt_bias"),
    (MambaRate, "mixer.A_log"),
    (MambaSkip, "mixer.D"),
    (MambaOutNorm, "mixer.norm.weight"),
    (MambaOut, "mixer.out_proj.weight"),
];

const FIELDS: MambaFields = MambaFields {
    heads: "num_heads",
    head_dim: "head_dim",
    groups: "n_groups",
    state: "state_size",
    kernel: "conv_kernel",
    conv_bias: "use_conv_bias",
    projection_bias: "use_bias",
};

/// The state has no limit; GGUF files contain this number.
const CONTEXT: usize = 1 << 20;

/// Sizes of a model without attention and feed-forwards.
const NO_ATTENTION: Sizes = Sizes {
    vocab: 0,
    hidden: 0,
    layers: 0,
    heads: 0,
    kv_heads: 0,
    head_dim: 0,
    feed_forward: 0,
    context: CONTEXT,
    eps: 0.0,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    require_silu(config, "hidden_act")?;
    let layers = config.usize("num_hidden_layers")?;
    let sizes = Sizes {
        vocab: config.usize("vocab_size")?,
        hidden: config.usize("hidden_size")?,
        layers: bounded_layers("num_hidden_layers", layers)?,
        context: config.usize_or("max_position_embeddings", CONTEXT)?,
        eps: config.f64_or("layer_norm_epsilon", 1e-5)? as f32,
        ..NO_ATTENTION
    };
    let inner = config.usize_or("expand", 2)? * sizes.hidden;
    let norm = Norm::rms(sizes.eps);
    let mamba = Mamba2 {
        norm: MambaNorm::AfterGate { norm, groups: 1 },
        ..FIELDS.read(config, inner)?
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(model(&sizes, tied, mamba))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let layers = config.usize("block_count")?;
    let sizes = Sizes {
        vocab: config.rows("token_embd.weight")?,
        hidden: config.usize("embedding_length")?,
        layers: bounded_layers(&config.key("block_count"), layers)?,
        context: config.usize("context_length")?,
        eps: config.f64("attention.layer_norm_rms_epsilon")? as f32,
        ..NO_ATTENTION
    };
    let mamba = gguf_mamba2(config, sizes.layers, sizes.eps)?;
    Ok(model(&sizes, gguf_tied(config), mamba))
}

fn model(sizes: &Sizes, tied: bool, mamba: Mamba2) -> ModelSpec {
    let norm = Norm::rms(sizes.eps);
    let layer = Layer::new(vec![Branch::pre_norm(norm, Mixer::Mamba2(mamba)).into()]);
    sizes.model("mamba2", tied, norm, vec![layer; sizes.layers])
}
