//! Ministral 3: Mistral with a yarn rope and queries that grow with the context.

use serde_json::json;

use super::common::{Sizes, activation, gguf_rope, gguf_scale, gguf_tied, reach, rope_table};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, Temperature};
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs, RopeScaling, yarn_magnitude};

pub(super) const FAMILY: Family = Family {
    model_types: &["ministral3"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["mistral3"], from_gguf)),
    facts: FamilyFacts {
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    }));
    let sizes = Sizes::from_config(config)?;
    let table = rope_table(config)?.ok_or_else(|| SpecError::Missing {
        field: config.path("rope_parameters"),
    })?;
    let temperature = match table.f64_opt("llama_4_scaling_beta")? {
        None => None,
        Some(beta) => Some(Temperature {
            beta: beta as f32,
            span: table.usize("original_max_position_embeddings")?,
            offset: 0,
        }),
    };
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        temperature,
        reach: reach(config.usize_opt("sliding_window")?),
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("ministral3", tied, feed_forward, |_| attention.clone()))
}

/// Mistral Small 3 is written with this architecture too, without yarn or temperature.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let mut rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let weight = config.f64_opt("rope.scaling.yarn_log_multiplier")?;
    if let (RopeScaling::Yarn(yarn), Some(weight)) = (&mut rope.scaling, weight) {
        yarn.attention_factor /= yarn_magnitude(f64::from(yarn.factor), weight) as f32;
    }
    let temperature = match gguf_scale(config, "attention.temperature_scale")? {
        None => None,
        Some(beta) => Some(Temperature {
            beta,
            span: config.usize("rope.scaling.original_context_length")?,
            offset: 0,
        }),
    };
    let attention = Attention {
        temperature,
        ..sizes.gguf_attention(config, Some(rope))
    };
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(sizes.pre_norm_model("ministral3", tied, feed_forward, |_| attention.clone()))
}
