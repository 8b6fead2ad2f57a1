//! ERNIE 4.5 (dense): Llama's shape with rope over neighbouring values.

use serde_json::json;

use super::common::{Sizes, activation, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["ernie4_5"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["ernie4_5"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("ernie4_5")),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 500_000.0, sizes.head_dim)?;
    let bias = config.bool_or("use_bias", false)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        ..sizes.attention(Some(rope.interleaved()))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, bias);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(sizes.pre_norm_model("ernie4_5", tied, feed_forward, |_| attention.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, config.has("blk.0.ffn_up.bias"));
    Ok(sizes.pre_norm_model("ernie4_5", tied, feed_forward, |_| attention.clone()))
}
