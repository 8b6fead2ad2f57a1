//! Command R7B and A: Command R with a window on three layers of four; the others have no
//! rope.

use serde_json::json;

use super::common::{
    Sizes, activation, gguf_rope, gguf_tied, gguf_windowed_layers, interval, reach, windowed_layers,
};
use super::{Family, GgufFamily, cohere};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["cohere2"],
    from_config,
    hugging_face: cohere::NAMING,
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["cohere2"],
        from_gguf,
        naming: cohere::GGUF_NAMING,
    }),
    facts: FamilyFacts::PLAIN,
};

/// Every fourth layer is global unless the config says otherwise.
const PATTERN: usize = 4;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
    }));
    let sizes = Sizes::with_eps(config, "layer_norm_eps")?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?.interleaved();
    let pattern = interval(config, "sliding_window_pattern", PATTERN)?;
    let windowed = windowed_layers(config, sizes.layers, |layer| (layer + 1) % pattern != 0)?;
    let window = config.usize_opt("sliding_window")?;
    let attention = sizes.biased_attention(config, None)?;
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let scheme = cohere::scheme(&sizes);
    let mut spec = sizes.attention_model("cohere2", tied, scheme, feed_forward, |layer| {
        let window = window.filter(|_| windowed[layer]);
        Attention {
            rope: window.map(|_| rope.clone()),
            reach: reach(window),
            ..attention.clone()
        }
    });
    spec.head.scale = config.f64("logit_scale")? as f32;
    Ok(spec)
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let windowed = gguf_windowed_layers(config, sizes.layers, PATTERN)?;
    let window = config.usize("attention.sliding_window")?;
    let attention = sizes.gguf_attention(config, None);
    let feed_forward = sizes.gated(Activation::Silu, false);
    let tied = gguf_tied(config);
    let scheme = cohere::scheme(&sizes);
    let mut spec = sizes.attention_model("cohere2", tied, scheme, feed_forward, |layer| {
        let window = windowed[layer].then_some(window);
        Attention {
            rope: window.map(|_| rope.clone()),
            reach: reach(window),
            ..attention.clone()
        }
    });
    spec.head.scale = cohere::gguf_logit_scale(config)?;
    Ok(spec)
}
