//! Phi-3, 3.5 and 4: Llama's shape with q, k and v in one matrix and gate and up in another;
//! two sets of frequencies, one for long contexts.

use serde_json::json;

use super::common::{
    GATE_UP, GGUF_GATE_UP, GGUF_QKV, Sizes, activation, gguf_rope, gguf_tied, gguf_window, reach,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::naming::{Fused, Naming};
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs, RopeScaling};

pub(super) const FAMILY: Family = Family {
    model_types: &["phi3"],
    from_config,
    hugging_face: Naming {
        fused: &[
            Fused::sequential("self_attn.qkv_proj.weight", &[Query, Key, Value]),
            GATE_UP,
        ],
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["phi3"],
        from_gguf,
        naming: Naming {
            fused: &[GGUF_QKV, GGUF_GATE_UP],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        templates: &["phi3"],
        gguf_export: Some(GgufExport::plain("phi3")),
        config_export: Some(ConfigExport {
            class: "Phi3ForCausalLM",
            fields: &[ConfigFields::SlidingWindow, ConfigFields::PartialRope],
        }),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 4096,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::partial_from_config(config, None, 10_000.0, sizes.head_dim)?;
    if let RopeScaling::Yarn(_) = rope.scaling {
        // In this family, the word means longrope.
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
    let attention = Attention {
        reach: reach(gguf_window(config)?),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(sizes.pre_norm_model("phi3", tied, feed_forward, |_| attention.clone()))
}
