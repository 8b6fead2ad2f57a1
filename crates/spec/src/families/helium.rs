//! Helium: Llama's shape with rope over neighbouring values.

use serde_json::json;

use super::common::Sizes;
use super::{Family, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::Attention;
use crate::model::ModelSpec;
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["helium"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: None,
    facts: FamilyFacts::PLAIN,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 20,
        "head_dim": 128,
        "rms_norm_eps": 1e-8,
    }));
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let rope = Rope::from_config(config, None, 100_000.0, sizes.head_dim)?;
    let attention = Attention {
        qkv_bias: config.bool_or("attention_bias", false)?,
        ..sizes.attention(Some(rope.interleaved()))
    };
    let feed_forward = sizes.biased_gated(config)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("helium", tied, feed_forward, |_| attention.clone()))
}
