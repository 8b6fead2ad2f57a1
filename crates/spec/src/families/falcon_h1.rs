//! Falcon-H1: attention and Mamba-2 side by side in every layer, and a multiplier on nearly every
//! matrix.

use serde_json::json;

use super::common::{
    FEED_FORWARD, MAMBA_FIELDS, Sizes, expect_switch, gguf_mamba2, gguf_rope, gguf_tied,
    refuse_field, require_silu,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, Mamba2, MambaNorm, Mixer};
use crate::model::{Activation, Block, Branch, Dense, FeedForward, Inner, Layer, ModelSpec, Norm};
use crate::naming::{ConvShape, Naming};
use crate::roles::LayerRole::*;
use crate::roles::Role;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["falcon_h1"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(Naming {
        conv_shape: ConvShape::ChannelLast,
        refit: Some(without_folded),
        ..HUGGING_FACE
    }),
    gguf: Some(GgufFamily {
        architectures: &["falcon-h1"],
        from_gguf,
        naming: Naming {
            overrides: &[&[(FeedForwardPreNorm, "ffn_norm")]],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::PLAIN,
};

const HUGGING_FACE: Naming = Naming {
    global_overrides: &[(Role::FinalNorm, "model.final_layernorm.weight")],
    overrides: &[
        FEED_FORWARD,
        &[(FeedForwardPreNorm, "pre_ff_layernorm.weight")],
    ],
    ..PLAIN.hugging_face
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"num_key_value_heads": 8, "mamba_d_ssm": 1024}));
    // Every layer has both mixers and a feed-forward.
    refuse_field(config, "attn_layer_indices")?;
    expect_switch(config, "mamba_use_mlp", true)?;
    let sizes = Sizes::from_config(config)?;
    require_silu(config, "hidden_act")?;
    let [gate_scale, down_scale] = multipliers(config, "mlp_multipliers")?;
    let parts = ModelParts {
        attention: attention(config, &sizes)?,
        mamba: mamba(config, &sizes)?,
        dense: Dense {
            bias: config.bool_or("mlp_bias", false)?,
            gate_scale,
            ..Dense::gated(sizes.feed_forward, Activation::Silu)
        },
        attention_scales: (
            multiplier(config, "attention_in_multiplier")?,
            multiplier(config, "attention_out_multiplier")?,
        ),
        mamba_scales: (
            multiplier(config, "ssm_in_multiplier")?,
            multiplier(config, "ssm_out_multiplier")?,
        ),
        dense_scales: (1.0, down_scale),
    };
    let mut spec = parts.model(&sizes, config.bool_or("tie_word_embeddings", false)?);
    spec.embedding.scale = multiplier(config, "embedding_multiplier")?;
    spec.head.scale = multiplier(config, "lm_head_multiplier")?;
    Ok(spec)
}

/// The converter folds every multiplier into the adjacent matrix.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let parts = ModelParts {
        attention: sizes.gguf_attention(config, Some(rope)),
        mamba: gguf_mamba2(config, sizes.layers, sizes.eps)?,
        dense: Dense {
            bias: config.has("blk.0.ffn_gate.bias"),
            ..Dense::gated(sizes.feed_forward, Activation::Silu)
        },
        attention_scales: (1.0, 1.0),
        mamba_scales: (1.0, 1.0),
        dense_scales: (1.0, 1.0),
    };
    Ok(parts.model(&sizes, gguf_tied(config)))
}

fn attention(config: &Config, sizes: &Sizes) -> Result<Attention, SpecError> {
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let plain = sizes.biased_attention(config, Some(rope))?;
    Ok(Attention {
        // A multiplier on keys only scales the scores.
        scale: plain.scale * multiplier(config, "key_multiplier")?,
        ..plain
    })
}

fn mamba(config: &Config, sizes: &Sizes) -> Result<Mamba2, SpecError> {
    let inner = match config.usize_opt("mamba_d_ssm")? {
        Some(inner) => inner,
        None => config.usize_or("mamba_expand", 2)? * sizes.hidden,
    };
    let plain = MAMBA_FIELDS.read(config, inner)?;
    let (norm, groups) = (Norm::rms(sizes.eps), plain.groups);
    let normed = config.bool_or("mamba_rms_norm", false)?;
    let before = config.bool_or("mamba_norm_before_gate", true)?;
    expect_switch(config, "projectors_bias", plain.projection_bias)?;
    Ok(Mamba2 {
        norm: match (normed, before) {
            (false, _) => MambaNorm::None,
            (true, false) => MambaNorm::AfterGate { norm, groups },
            (true, true) => MambaNorm::BeforeGate { norm, groups },
        },
        scales: multipliers(config, "ssm_multipliers")?,
        ..plain
    })
}

fn multipliers<const N: usize>(config: &Config, field: &str) -> Result<[f32; N], SpecError> {
    let mut read = [1.0; N];
    let listed = config.f64s(field, N)?.unwrap_or_default();
    for (read, listed) in read.iter_mut().zip(listed) {
        *read = listed as f32;
    }
    Ok(read)
}

fn multiplier(config: &Config, field: &str) -> Result<f32, SpecError> {
    Ok(config.f64_or(field, 1.0)? as f32)
}

struct ModelParts {
    attention: Attention,
    mamba: Mamba2,
    dense: Dense,
    /// Multipliers of inputs and outputs.
    attention_scales: (f32, f32),
    mamba_scales: (f32, f32),
    dense_scales: (f32, f32),
}

impl ModelParts {
    fn model(self, sizes: &Sizes, tied: bool) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let branch = |inner: Inner, (input_scale, output_scale)| Branch {
            input_scale,
            output_scale,
            ..Branch::pre_norm(norm, inner)
        };
        let attention = Mixer::Attention(self.attention);
        let layer = Layer::new(vec![
            Block::parallel(vec![
                branch(attention.into(), self.attention_scales),
                branch(Mixer::Mamba2(self.mamba).into(), self.mamba_scales),
            ]),
            branch(FeedForward::Dense(self.dense).into(), self.dense_scales).into(),
        ]);
        sizes.model("falcon_h1", tied, norm, vec![layer; sizes.layers])
    }
}

/// mlx-lm folds all multipliers but two during conversion: the keys' multiplier, and the one that
/// values share with queries and keys.
fn without_folded(spec: &mut ModelSpec) {
    spec.head.scale = if spec.head.tied {
        spec.head.scale / spec.embedding.scale
    } else {
        1.0
    };
    spec.embedding.scale = 1.0;
    let blocks = spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks);
    for branch in blocks.flat_map(|block| &mut block.branches) {
        match &mut branch.inner {
            Inner::Mixer(Mixer::Attention(attention)) => attention.value_scale = branch.input_scale,
            Inner::Mixer(Mixer::Mamba2(mamba)) => mamba.scales = [1.0; 5],
            Inner::FeedForward(FeedForward::Dense(dense)) => dense.gate_scale = 1.0,
            _ => {}
        }
        (branch.input_scale, branch.output_scale) = (1.0, 1.0);
    }
}
