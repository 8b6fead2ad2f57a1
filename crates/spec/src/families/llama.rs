//! Llama 2, 3, 3.x, and the many that kept its shape (SmolLM2, Yi, TinyLlama…).

use super::common::{Sizes, gguf_experts_of, gguf_rope, gguf_tied, gguf_window, reach};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{
    ConfigExport, ConfigFields, FamilyFacts, GgufExport, GgufVariant, VariantTrait,
};
use crate::mixers::Attention;
use crate::model::{Activation, FeedForward, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["llama"], from_gguf)),
    facts: FamilyFacts {
        templates: &["llama2"],
        gguf_export: Some(GgufExport::plain("llama")),
        config_export: Some(ConfigExport {
            class: "LlamaForCausalLM",
            fields: &[ConfigFields::Biases],
        }),
        gguf_variants: &[
            GgufVariant {
                when: VariantTrait::Experts,
                model_type: "mixtral",
            },
            GgufVariant {
                when: VariantTrait::Windowed,
                model_type: "mistral",
            },
        ],
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let feed_forward = sizes.biased_gated(config)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("llama", tied, feed_forward, |_| attention.clone()))
}

/// Mistral and Mixtral checkpoints are written with this architecture too, with their window if
/// they have one.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let attention = Attention {
        reach: reach(gguf_window(config)?),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let feed_forward = match config.usize_opt("expert_count")? {
        None | Some(0) => sizes.gated(Activation::Silu, config.has("blk.0.ffn_gate.bias")),
        Some(_) => {
            let (size, router) = (sizes.feed_forward, Router::softmax(true));
            FeedForward::Experts(gguf_experts_of(config, size, router)?)
        }
    };
    let tied = gguf_tied(config);
    Ok(sizes.pre_norm_model("llama", tied, feed_forward, |_| attention.clone()))
}
