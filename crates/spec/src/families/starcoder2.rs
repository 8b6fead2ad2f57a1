//! StarCoder 2: layer norms, a feed-forward without gate, biases everywhere.

use serde_json::json;

use super::common::{Sizes, activation, gguf_rope, gguf_tied, reach};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["starcoder2"],
    from_config,
    hugging_face: Naming {
        overrides: &[&[(Up, "mlp.c_fc.weight"), (Down, "mlp.c_proj.weight")]],
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily::plain(&["starcoder2"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("starcoder2")),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"num_key_value_heads": 2, "norm_epsilon": 1e-5}));
    let sizes = Sizes::with_eps(config, "norm_epsilon")?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let bias = config.bool_or("use_bias", true)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        reach: reach(config.usize_opt("sliding_window")?),
        ..sizes.attention(Some(rope))
    };
    let activation = activation(config, "hidden_act", Activation::GeluTanh)?;
    let feed_forward = sizes.plain(activation, bias);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(sizes.layer_norm_model("starcoder2", tied, attention, feed_forward))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = Attention {
        reach: reach(config.usize_opt("attention.sliding_window")?),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let feed_forward = sizes.plain(Activation::GeluTanh, config.has("blk.0.ffn_up.bias"));
    let tied = gguf_tied(config);
    Ok(sizes.layer_norm_model("starcoder2", tied, attention, feed_forward))
}
