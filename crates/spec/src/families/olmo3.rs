//! OLMo 3: OLMo 2 with a window on three layers of four; only the other layers scale their RoPE.

use serde_json::json;

use super::common::{
    Sizes, activation, gguf_rope, gguf_tied, gguf_window, gguf_windowed_layers, reach,
    windowed_layers,
};
use super::{Family, GgufFamily, olmo2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, GgufVariant, VariantTrait};
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs, RopeScaling};

pub(super) const FAMILY: Family = Family {
    model_types: &["olmo3"],
    from_config,
    hugging_face: olmo2::NAMING,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["olmo2"], from_gguf)),
    facts: FamilyFacts {
        gguf_variants: &[GgufVariant {
            when: VariantTrait::NotWindowed,
            model_type: "olmo2",
        }],
        ..FamilyFacts::PLAIN
    },
};

const THETA: f64 = 500_000.0;
/// Every fourth layer is global.
const PATTERN: usize = 4;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"rms_norm_eps": 1e-5, "sliding_window": 4096}));
    let sizes = Sizes::from_config(config)?;
    let windowed = windowed_layers(config, sizes.layers, |layer| (layer + 1) % PATTERN != 0)?;
    let window = config.usize_opt("sliding_window")?;
    let rope = |group| Rope::from_config(config, Some(group), THETA, sizes.head_dim);
    let global = rope("full_attention")?;
    let local = match config.object("rope_parameters")? {
        Some(_) => rope("sliding_attention")?,
        None => without_scaling(&global),
    };
    let attention = olmo2::attention(config, &sizes)?;
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let scheme = olmo2::scheme(&sizes);
    Ok(
        sizes.attention_model("olmo3", tied, scheme, feed_forward, |layer| {
            let rope = if windowed[layer] { &local } else { &global };
            Attention {
                rope: Some(rope.clone()),
                reach: reach(window.filter(|_| windowed[layer])),
                ..attention.clone()
            }
        }),
    )
}

/// OLMo 2 has no window, and so no local layers.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let window = gguf_window(config)?;
    let windowed = match window {
        Some(_) => gguf_windowed_layers(config, sizes.layers, PATTERN)?,
        None => vec![false; sizes.layers],
    };
    let global = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let mut local = without_scaling(&global);
    if let Some(theta) = config.f64_opt("rope.freq_base_swa")? {
        local.theta = theta as f32;
    }
    let attention = sizes.gguf_attention(config, None);
    let tied = gguf_tied(config);
    let family = if window.is_some() { "olmo3" } else { "olmo2" };
    let feed_forward = sizes.gated(Activation::Silu, false);
    let scheme = olmo2::scheme(&sizes);
    Ok(
        sizes.attention_model(family, tied, scheme, feed_forward, |layer| {
            let rope = if windowed[layer] { &local } else { &global };
            Attention {
                qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
                rope: Some(rope.clone()),
                reach: reach(window.filter(|_| windowed[layer])),
                ..attention.clone()
            }
        }),
    )
}

fn without_scaling(rope: &Rope) -> Rope {
    Rope {
        scaling: RopeScaling::None,
        ..rope.clone()
    }
}
