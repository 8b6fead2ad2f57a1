//! Seed-OSS: Llama's shape with biases on q, k and v, and on the output if the config sets them.

use serde_json::json;

use super::common::{GGUF_POST_ATTENTION, Sizes, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["seed_oss"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["seed_oss"],
        from_gguf,
        naming: Naming {
            overrides: &[GGUF_POST_ATTENTION],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("seed_oss")),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        qkv_bias: config.bool_or("attention_bias", true)?,
        output_bias: config.bool_or("attention_out_bias", false)?,
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.biased_gated(config)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("seed_oss", tied, feed_forward, |_| attention.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, config.has("blk.0.ffn_up.bias"));
    Ok(sizes.pre_norm_model("seed_oss", tied, feed_forward, |_| attention.clone()))
}
