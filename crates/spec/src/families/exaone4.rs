//! EXAONE 4: norms after attention and feed-forward, normalised queries and keys; if there
//! is a window, the other layers have no rope.

use serde_json::json;

use super::common::{
    Sizes, activation, all_but_each, gguf_rope, gguf_tied, gguf_windowed_layers, interval, reach,
    windowed_layers,
};
use super::{Family, GgufFamily, olmo2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts, MlxLayerTypes};
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["exaone4"],
    from_config,
    hugging_face: olmo2::NAMING,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["exaone4"], from_gguf)),
    facts: FamilyFacts {
        mlx: MlxFacts {
            layer_types: Some(MlxLayerTypes::Letters),
            ..MlxFacts::PLAIN
        },
        ..FamilyFacts::PLAIN
    },
};

/// Every fourth layer is global.
const PATTERN: usize = 4;
const WINDOW: usize = 4096;
/// The size whose first GGUF files omit their window.
const LAYERS_OF_32B: usize = 64;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": WINDOW,
    }));
    let sizes = Sizes::explicit(config, &["num_key_value_heads"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let window = config.usize_opt("sliding_window")?;
    let windowed = match window {
        Some(_) => {
            let pattern = pattern(config, sizes.layers)?;
            windowed_layers(config, sizes.layers, |layer| pattern[layer])?
        }
        None => vec![false; sizes.layers],
    };
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let parts = ModelParts {
        windowed,
        window,
        rope,
        attention: sizes.attention(None),
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes, activation))
}

/// Which layers have a window if the config does not list them: an interval of layers without one,
/// or a repeated pattern of `L` (local) and `G` (global); the last layer is global.
fn pattern(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let field = "sliding_window_pattern";
    if let Some(word) = config.get(field).and_then(|value| value.as_str()) {
        if word.is_empty() || word.chars().any(|letter| !"LG".contains(letter)) {
            let expected = "a number, or a word of L and G";
            return Err(SpecError::invalid(config.path(field), word, expected));
        }
        let letters = word.chars().cycle().take(layers).enumerate();
        return Ok(letters
            .map(|(layer, letter)| letter == 'L' && layer + 1 < layers)
            .collect());
    }
    Ok(all_but_each(interval(config, field, PATTERN)?, layers))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let implied = (sizes.layers == LAYERS_OF_32B).then_some(WINDOW);
    let window = config.usize_opt("attention.sliding_window")?.or(implied);
    let parts = ModelParts {
        windowed: match window {
            Some(_) => gguf_windowed_layers(config, sizes.layers, PATTERN)?,
            None => vec![false; sizes.layers],
        },
        window,
        rope: gguf_rope(config, sizes.head_dim, RopePairs::Halves)?,
        attention: sizes.gguf_attention(config, None),
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes, Activation::Silu))
}

struct ModelParts {
    windowed: Vec<bool>,
    window: Option<usize>,
    rope: Rope,
    /// Without RoPE and reach, which differ by layer.
    attention: Attention,
    tied: bool,
}

impl ModelParts {
    fn model(self, sizes: &Sizes, activation: Activation) -> ModelSpec {
        let feed_forward = sizes.gated(activation, false);
        let scheme = olmo2::scheme(sizes);
        sizes.attention_model("exaone4", self.tied, scheme, feed_forward, |layer| {
            let local = self.windowed[layer];
            Attention {
                qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
                rope: (local || self.window.is_none()).then(|| self.rope.clone()),
                reach: reach(self.window.filter(|_| local)),
                ..self.attention.clone()
            }
        })
    }
}
