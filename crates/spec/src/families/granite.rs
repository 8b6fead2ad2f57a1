//! Granite 3 and 4 (dense): Llama's shape with multipliers on embeddings, scores, residuals and
//! logits.

use serde_json::json;

use super::common::{Multipliers, Sizes, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport, GgufKeys, MlxFacts};
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["granite"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["granite"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport {
            keys: &[GgufKeys::Multipliers],
            ..GgufExport::plain("granite")
        }),
        config_export: Some(ConfigExport {
            class: "GraniteForCausalLM",
            fields: &[ConfigFields::Biases, ConfigFields::Multipliers],
        }),
        mlx: MlxFacts {
            eight_bit_outputs: true,
            ..MlxFacts::PLAIN
        },
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"rms_norm_eps": 1e-6}));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let feed_forward = sizes.biased_gated(config)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let spec = sizes.pre_norm_model("granite", tied, feed_forward, |_| attention.clone());
    Ok(Multipliers::from_config(config)?.applied(spec))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    // For this architecture the key says whether there is RoPE.
    let has_rope = config.bool_or("rope.scaling.finetuned", true)?;
    let attention = sizes.gguf_attention(config, has_rope.then_some(rope));
    let tied = gguf_tied(config);
    let feed_forward = sizes.gated(Activation::Silu, config.has("blk.0.ffn_up.bias"));
    let spec = sizes.pre_norm_model("granite", tied, feed_forward, |_| attention.clone());
    Ok(Multipliers::from_gguf(config)?.applied(spec))
}
