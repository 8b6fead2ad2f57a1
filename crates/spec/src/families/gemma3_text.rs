//! Gemma 3 (text): Gemma 2 with normalised queries and keys instead of caps, and a
//! separate RoPE for local layers.

use serde_json::json;

use super::common::{
    Sizes, activation, expect_switch, gguf_rope, gguf_tied, gguf_windowed_layers, interval,
    refuse_field, windowed_layers,
};
use super::gemma2::{self, ModelParts};
use super::{Family, GgufFamily};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport, GgufKeys};
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma3_text", "gemma3"],
    from_config,
    hugging_face: gemma2::NAMING,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["gemma3"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport {
            keys: &[GgufKeys::Softcaps, GgufKeys::LocalRope],
            windowed: true,
            ..GgufExport::plain("gemma3")
        }),
        config_export: Some(ConfigExport {
            class: "Gemma3ForCausalLM",
            fields: &[
                ConfigFields::HiddenActivation,
                ConfigFields::GemmaAttention,
                ConfigFields::LocalRope,
            ],
        }),
        ..FamilyFacts::PLAIN
    },
};

const LOCAL_THETA: f64 = 10_000.0;
const GLOBAL_THETA: f64 = 1_000_000.0;
/// Every sixth layer is global unless the config says otherwise.
const PATTERN: usize = 6;
const LAYERS_OF_27B: usize = 62;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // The text part of the released multimodal configs omits these defaults.
    let config = &config.with_defaults(json!({
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    }));
    // Embedding models share the family's name, not its attention.
    expect_switch(config, "use_bidirectional_attention", false)?;
    refuse_field(config, "attn_logit_softcapping")?;
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let pattern = interval(config, "sliding_window_pattern", PATTERN)?;
    let rope = |group, theta| Rope::from_config(config, Some(group), theta, sizes.head_dim);
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = ModelParts {
        windowed: windowed_layers(config, sizes.layers, |layer| (layer + 1) % pattern != 0)?,
        window: Some(config.usize("sliding_window")?),
        global: rope("full_attention", GLOBAL_THETA)?,
        local: match config.object("rope_parameters")? {
            Some(_) => rope("sliding_attention", LOCAL_THETA)?,
            None => Rope::plain(
                config.f64_or("rope_local_base_freq", LOCAL_THETA)? as f32,
                sizes.head_dim,
            ),
        },
        attention: Attention {
            qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
            scale: gemma2::query_scale(config)?,
            ..sizes.biased_attention(config, None)?
        },
        activation: activation(config, "hidden_activation", Activation::GeluTanh)?,
        tied: config.bool_or("tie_word_embeddings", true)?,
        softcap: softcap.map(|cap| cap as f32),
    };
    Ok(parts.model("gemma3_text", &sizes))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let mut global = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    if config.f64_opt("rope.freq_base")?.is_none() {
        global.theta = GLOBAL_THETA as f32;
    }
    let local_theta = config.f64_opt("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = ModelParts {
        windowed: gguf_windowed_layers(config, sizes.layers, PATTERN)?,
        window: Some(config.usize("attention.sliding_window")?),
        global,
        local: Rope::plain(local_theta as f32, sizes.head_dim),
        attention: Attention {
            qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
            scale: gemma2::gguf_query_scale(&sizes, LAYERS_OF_27B),
            ..sizes.gguf_attention(config, None)
        },
        activation: Activation::GeluTanh,
        tied: gguf_tied(config),
        softcap: softcap.map(|cap| cap as f32),
    };
    Ok(parts.model("gemma3_text", &sizes))
}
