//! Granite 4: Granite's multipliers, Mamba-2 in most layers, and an
//! expert for all positions besides the routed ones, if there are any.

use super::common::{
    BLOCK_SPARSE_SWITCH, GRANITE_EXPERT_INPUT, GRANITE_EXPERT_OUTPUT, GRANITE_ROUTER, Hybrid,
    MAMBA_FIELDS, Multipliers, Sizes, TOP_K, gated_experts, gguf_hybrid, gguf_mamba2, gguf_rope,
    gguf_tied, recurrent_layers, require_silu,
};
use super::granitemoe::gguf_granite_experts;
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, SharedExpert};
use crate::facts::{FamilyFacts, MlxFacts, MlxLayerTypes, RouterPrecision};
use crate::mixers::{Mamba2, MambaNorm, Mixer};
use crate::model::{Activation, Dense, FeedForward, ModelSpec, Norm};
use crate::naming::{ConvShape, Fused, LayerNames, Naming};
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoehybrid"],
    from_config,
    hugging_face: Naming {
        overrides: &[
            GRANITE_ROUTER,
            GRANITE_EXPERT_OUTPUT,
            SHARED_OUTPUT,
            ONLY_OUTPUT,
        ],
        fused: &[
            GRANITE_EXPERT_INPUT,
            SHARED_INPUT,
            // Without routed experts only the shared one exists.
            Fused {
                parts: &[Gate, Up],
                ..SHARED_INPUT
            },
        ],
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        // Without routed experts mlx-lm gives the shared one the usual names.
        overrides: &[GRANITE_ROUTER, SHARED_OUTPUT, BLOCK_SPARSE_SWITCH],
        fused: &[SHARED_INPUT],
        conv_shape: ConvShape::ChannelLast,
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily::plain(&["granitehybrid"], from_gguf)),
    facts: FamilyFacts {
        mlx: MlxFacts {
            layer_types: Some(MlxLayerTypes::Mamba),
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

const SHARED_INPUT: Fused =
    Fused::sequential("shared_mlp.input_linear.weight", &[SharedGate, SharedUp]);

const SHARED_OUTPUT: LayerNames = &[(SharedDown, "shared_mlp.output_linear.weight")];
const ONLY_OUTPUT: LayerNames = &[(Down, "shared_mlp.output_linear.weight")];

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.renamed(&[("layers_block_type", "layer_types")]);
    let sizes = Sizes::from_config(config)?;
    require_silu(config, "hidden_act")?;
    let known = &["mamba", "linear_attention", "attention", "full_attention"];
    let recurrent = recurrent_layers(config, sizes.layers, known)?;
    let rope = rope(config, sizes.head_dim)?;
    let inner = config.usize_or("mamba_expand", 2)? * sizes.hidden;
    let mixers = Hybrid {
        recurrent: recurrent.unwrap_or_else(|| vec![true; sizes.layers]),
        mixer: Mixer::Mamba2(Mamba2 {
            norm: MambaNorm::AfterGate {
                norm: Norm::rms(sizes.eps),
                groups: 1,
            },
            ..MAMBA_FIELDS.read(config, inner)?
        }),
        attention: Mixer::Attention(sizes.biased_attention(config, rope)?),
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let feed_forward = feed_forward(config)?;
    let spec = mixers.model(&sizes, "granitemoehybrid", tied, |_| feed_forward.clone());
    Ok(Multipliers::from_config(config)?.applied(spec))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    // For this architecture the key says whether there is RoPE.
    let turns = config.bool_or("rope.scaling.finetuned", true)?;
    let mixers = Hybrid {
        recurrent,
        mixer: Mixer::Mamba2(gguf_mamba2(config, sizes.layers, sizes.eps)?),
        attention: Mixer::Attention(sizes.gguf_attention(config, turns.then_some(rope))),
    };
    let feed_forward = match config.usize_opt("expert_count")? {
        None | Some(0) => sizes.gated(Activation::Silu, false),
        Some(_) => FeedForward::Experts(gguf_granite_experts(config, &sizes)?),
    };
    let tied = gguf_tied(config);
    let spec = mixers.model(&sizes, "granitemoehybrid", tied, |_| feed_forward.clone());
    Ok(Multipliers::from_gguf(config)?.applied(spec))
}

fn feed_forward(config: &Config) -> Result<FeedForward, SpecError> {
    let shared = Dense::gated(config.usize("shared_intermediate_size")?, Activation::Silu);
    if config.usize("num_local_experts")? == 0 {
        return Ok(FeedForward::Dense(shared));
    }
    let fields = ["num_local_experts", TOP_K, "intermediate_size"];
    Ok(FeedForward::Experts(Experts {
        shared: Some(SharedExpert {
            dense: shared,
            gated: false,
        }),
        ..gated_experts(config, fields, Router::softmax(true))?
    }))
}

/// Most of its models have no rope; the recurrent layers encode positions.
fn rope(config: &Config, head_dim: usize) -> Result<Option<Rope>, SpecError> {
    match config.str("position_embedding_type")? {
        Some("rope") => Rope::from_config(config, None, 10_000.0, head_dim).map(Some),
        _ => Ok(None),
    }
}
