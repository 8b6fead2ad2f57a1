//! Nemotron and Minitron: layer norms stored as `weight - 1`, a feed-forward of squared ReLUs
//! without gate, rope over a part of each head.

use serde_json::json;

use super::common::{Sizes, activation, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::model::{Activation, ModelSpec};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["nemotron"],
    from_config,
    hugging_face: Naming {
        norms_minus_one: true,
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily::plain(&["nemotron"], from_gguf)),
    facts: FamilyFacts::PLAIN,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"norm_eps": 1e-5, "partial_rotary_factor": 0.5}));
    let sizes = Sizes::with_eps(config, "norm_eps")?;
    let rope = Rope::partial_from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let feed_forward = sizes.plain(
        activation(config, "hidden_act", Activation::Relu2)?,
        config.bool_or("mlp_bias", false)?,
    );
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.layer_norm_model("nemotron", tied, attention, feed_forward))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let feed_forward = sizes.plain(Activation::Relu2, config.has("blk.0.ffn_up.bias"));
    let tied = gguf_tied(config);
    Ok(sizes.layer_norm_model("nemotron", tied, attention, feed_forward))
}
