//! Phi-3, 3.5 and 4: Llama's shape with q, k and v in one matrix and gate and up in another;
//! two sets of frequencies, one for long contexts.

use serde_json::json;

use super::glm4::GGUF_GATE_UP;
use super::parts::{Sizes, activation, gguf_rope, gguf_tied, reach};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::naming::{Fused, Naming, Split};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs, RopeScaling};

pub(super) const FAMILY: Family = Family {
    model_types: &["phi3"],
    from_config,
    hugging_face: Naming {
        fused: &[
            Fused {
                name: "self_attn.qkv_proj.weight",
                parts: &[LayerRole::Query, LayerRole::Key, LayerRole::Value],
                split: Split::Sequential,
            },
            Fused {
                name: "mlp.gate_up_proj.weight",
                parts: &[LayerRole::Gate, LayerRole::Up],
                split: Split::Sequential,
            },
        ],
        ..PLAIN.0
    },
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["phi3"],
        from_gguf,
        naming: Naming {
            fused: &[GGUF_QKV, GGUF_GATE_UP],
            ..PLAIN.1
        },
    }),
};

pub(super) const GGUF_QKV: Fused = Fused {
    name: "attn_qkv.weight",
    parts: &[LayerRole::Query, LayerRole::Key, LayerRole::Value],
    split: Split::Sequential,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 4096,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    if let RopeScaling::Yarn(_) = rope.scaling {
        // This family's own code took the word for longrope.
        return Err(SpecError::Unsupported {
            field: config.path("rope_scaling.type"),
            found: "`yarn`".into(),
            supported: "default, longrope, su",
        });
    }
    let attention = Attention {
        reach: reach(config.usize_opt("sliding_window")?),
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("phi3", tied, feed_forward, |_| attention.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    // No window is written as 0.
    let window = config.usize_opt("attention.sliding_window")?;
    let attention = Attention {
        reach: reach(window.filter(|window| *window > 0)),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(sizes.pre_norm_model("phi3", tied, feed_forward, |_| attention.clone()))
}
