//! Hunyuan (dense): queries and keys normalised after rope; a rope base stretched by a constant
//! that the configs call dynamic.

use serde_json::json;

use super::common::{Sizes, activation, expect_switch, gguf_rope, gguf_tied, rope_table};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["hunyuan_v1_dense"],
    from_config,
    hugging_face: Naming {
        overrides: &[&[
            (QueryNorm, "self_attn.query_layernorm.weight"),
            (KeyNorm, "self_attn.key_layernorm.weight"),
        ]],
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily::plain(&["hunyuan-dense"], from_gguf)),
    facts: FamilyFacts::PLAIN,
};

const THETA: f64 = 10_000.0;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"rms_norm_eps": 1e-5}));
    expect_switch(config, "use_qk_norm", true)?;
    // Layers that read others' keys and values.
    expect_switch(config, "use_cla", false)?;
    let sizes = Sizes::from_config(config)?;
    let rope = rope(config, sizes.head_dim)?;
    let attention = Attention {
        qk_norm: Some(qk_norm(&sizes)),
        ..sizes.biased_attention(config, Some(rope))?
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(
        sizes.pre_norm_model("hunyuan_v1_dense", tied, feed_forward, |_| {
            attention.clone()
        }),
    )
}

fn rope(config: &Config, head_dim: usize) -> Result<Rope, SpecError> {
    let Some(table) = rope_table(config)? else {
        return Rope::from_config(config, None, THETA, head_dim);
    };
    let kind = match table.str("rope_type")? {
        Some(kind) => Some(kind),
        None => table.str("type")?,
    };
    let alpha = table.f64_opt("alpha")?.filter(|alpha| *alpha != 0.0);
    match (kind, alpha) {
        (Some("dynamic"), Some(alpha)) => {
            let outside = config.f64_or("rope_theta", THETA)?;
            let theta = table.f64_or("rope_theta", outside)?;
            let dims = head_dim as f64;
            let stretched = theta * alpha.powf(dims / (dims - 2.0));
            Ok(Rope::plain(stretched as f32, head_dim))
        }
        _ => Rope::from_config(config, None, THETA, head_dim),
    }
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = Attention {
        qk_norm: Some(qk_norm(&sizes)),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(
        sizes.pre_norm_model("hunyuan_v1_dense", tied, feed_forward, |_| {
            attention.clone()
        }),
    )
}

fn qk_norm(sizes: &Sizes) -> QkNorm {
    QkNorm {
        after_rope: true,
        ..QkNorm::per_head(Norm::rms(sizes.eps))
    }
}
