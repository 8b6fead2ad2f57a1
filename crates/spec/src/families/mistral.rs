//! Mistral 7B and its kin: Llama's shape, optionally with a sliding window on every layer.

use super::parts::{Sizes, activation};
use super::{Family, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::model::{Activation, Attention, ModelSpec};
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "",
    from_config,
    from_gguf: written_as_llama,
    hugging_face: PLAIN.0,
    gguf: PLAIN.1,
};

/// Where the config does not mention a window at all; `null` is how it says that there is none.
const DEFAULT_WINDOW: usize = 4096;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let window = match config.mentions("sliding_window") {
        true => config.usize_opt("sliding_window")?,
        false => Some(DEFAULT_WINDOW),
    };
    let attention = Attention {
        window,
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("mistral", tied, feed_forward, |_| attention.clone()))
}

fn written_as_llama(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    Err(SpecError::invalid(
        "general.architecture",
        config.architecture,
        "`llama`, as GGUF writes Mistral models",
    ))
}
