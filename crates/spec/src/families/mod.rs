//! One file per family, named for its `model_type`, with the family's row: its [`Family`].
//!
//! The rows contain all knowledge about families. Other crates use a [`ModelSpec`] to know what to
//! compute and its [`FamilyFacts`] to know how other tools treat it.

mod afmoe;
mod cohere;
mod cohere2;
mod common;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3_text;
mod gemma4_text;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm4v_text;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod helium;
mod hunyuan_v1_dense;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4_text;
mod mamba2;
mod mimo_v2_flash;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mixtral;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl_moe;
mod seed_oss;
mod smollm3;
mod starcoder2;
mod vision;

use serde_json::json;

pub use vision::mmproj::{
    DescribedMmproj, MMPROJ_ARCHITECTURE, MmprojOrder, from_mmproj, mmproj_projectors,
};

use crate::config::{Config, GgufConfig, GgufHeader};
use crate::error::SpecError;
use crate::facts::{ConfigExport, FamilyFacts};
use crate::model::ModelSpec;
use crate::naming::{GGUF, HUGGING_FACE, Naming};
use crate::vision::VisionSpec;
use crate::vision_naming::VisionNaming;

/// A family's row: how each kind of config becomes a spec, what its tensors are called there, and
/// how other tools treat the family.
pub struct Family {
    /// `model_type`s in `config.json`, the text model's first. A config that wraps the text model's
    /// in `text_config` may have the type of either.
    pub model_types: &'static [&'static str],
    pub(crate) from_config: fn(&Config) -> Result<ModelSpec, SpecError>,
    /// The tensor names of transformers.
    pub(crate) hugging_face: Naming,
    /// The tensor names of mlx-lm, if they differ.
    pub(crate) mlx: Option<Naming>,
    pub(crate) gguf: Option<GgufFamily>,
    pub facts: FamilyFacts,
}

/// How GGUF files of llama.cpp describe the family.
pub(crate) struct GgufFamily {
    /// `general.architecture`s.
    pub architectures: &'static [&'static str],
    pub from_gguf: fn(&GgufConfig) -> Result<ModelSpec, SpecError>,
    pub naming: Naming,
}

impl GgufFamily {
    /// A family whose tensors have the usual names.
    const fn plain(
        architectures: &'static [&'static str],
        from_gguf: fn(&GgufConfig) -> Result<ModelSpec, SpecError>,
    ) -> Self {
        Self {
            architectures,
            from_gguf,
            naming: PLAIN.gguf,
        }
    }
}

const FAMILIES: &[Family] = &[
    afmoe::FAMILY,
    cohere::FAMILY,
    cohere2::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    ernie4_5::FAMILY,
    ernie4_5_moe::FAMILY,
    exaone4::FAMILY,
    falcon_h1::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3_text::FAMILY,
    gemma4_text::FAMILY,
    glm4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm4v_text::FAMILY,
    gpt2::FAMILY,
    gpt_neox::FAMILY,
    gpt_oss::FAMILY,
    granite::FAMILY,
    granitemoe::FAMILY,
    granitemoehybrid::FAMILY,
    helium::FAMILY,
    hunyuan_v1_dense::FAMILY,
    kimi_linear::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    llama::FAMILY,
    llama4_text::FAMILY,
    mamba2::FAMILY,
    mimo_v2_flash::FAMILY,
    minimax_m2::FAMILY,
    ministral3::FAMILY,
    mistral::FAMILY,
    mixtral::FAMILY,
    nemotron::FAMILY,
    nemotron_h::FAMILY,
    olmo2::FAMILY,
    olmo3::FAMILY,
    olmoe::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_vl_moe::FAMILY,
    seed_oss::FAMILY,
    smollm3::FAMILY,
    starcoder2::FAMILY,
];

/// The namings that most families use.
struct PlainNamings {
    hugging_face: Naming,
    /// For families with experts.
    mlx_experts: Naming,
    gguf: Naming,
}

const PLAIN: PlainNamings = PlainNamings {
    hugging_face: HUGGING_FACE,
    mlx_experts: Naming {
        overrides: &[common::SWITCH_MLP],
        ..HUGGING_FACE
    },
    gguf: GGUF,
};

/// A parsed config: the model, and the namings its tensors may follow, likeliest first.
pub struct Described {
    pub spec: ModelSpec,
    pub namings: Vec<Naming>,
    /// The text model is part of a larger one, whose other tensors are ignored.
    pub wrapped: bool,
    /// mlx-lm's tensor names for a Hugging Face style checkpoint, if they differ.
    pub mlx: Option<Naming>,
    /// The vision part, if the config has one that is known; it is not part of `spec` yet, since a
    /// file may contain the text model alone.
    pub vision: Option<DescribedVision>,
}

/// The vision part of a config.
pub struct DescribedVision {
    pub spec: VisionSpec,
    pub naming: VisionNaming,
}

/// Reads the spec of a Hugging Face style checkpoint (plain or MLX-quantized safetensors).
pub fn from_config(config: &Config) -> Result<Described, SpecError> {
    let vision = vision::find(config)?;
    let inner = text_config(config)?;
    // Older configs have the text model's fields beside `vision_config`.
    let wrapped = inner.is_some() || config.get("vision_config").is_some();
    let text = inner.as_ref().unwrap_or(config);
    let text = &match vision {
        Some(vision) => vision.text_config(text),
        None => text.clone(),
    };
    let field = "model_type";
    let outer_type = config.str(field)?.ok_or_else(|| SpecError::Missing {
        field: field.into(),
    })?;
    let inner_type = text.str(field)?.unwrap_or(outer_type);
    let family = by_model_type(inner_type).or_else(|| by_model_type(outer_type));
    let family = family.ok_or_else(|| SpecError::UnknownFamily {
        field,
        found: inner_type.to_owned(),
        supported: model_types(),
    })?;
    let mut spec = (family.from_config)(text)?;
    spec.validate()?;
    let vision = match vision.map(|vision| (vision, vision.describe(config, &spec))) {
        Some((_, Ok((spec, naming)))) => Some(DescribedVision { spec, naming }),
        Some((family, Err(error))) if family.is_essential() => return Err(error),
        // Text works without it, and files of text alone are common.
        Some((_, Err(error))) => {
            spec.vision_refusal = Some(error.to_string());
            None
        }
        None => None,
    };
    Ok(Described {
        spec,
        namings: [Some(family.hugging_face), family.mlx]
            .into_iter()
            .flatten()
            .flat_map(Naming::variants)
            .collect(),
        wrapped,
        mlx: family.mlx,
        vision,
    })
}

/// The rows of all families.
pub fn all() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter()
}

fn by_model_type(name: &str) -> Option<&'static Family> {
    all().find(|family| family.model_types.contains(&name))
}

impl ModelSpec {
    /// How other tools treat the family. A spec of no listed family has plain facts.
    pub fn facts(&self) -> &'static FamilyFacts {
        by_model_type(self.family).map_or(&FamilyFacts::PLAIN, |family| &family.facts)
    }

    /// The namings of files for transformers and mlx-lm; none for a spec of no listed family.
    pub fn config_namings(&self) -> Vec<Naming> {
        let family = by_model_type(self.family);
        let namings = family.map(|family| [Some(family.hugging_face), family.mlx]);
        let namings = namings.into_iter().flatten().flatten();
        namings.flat_map(Naming::variants).collect()
    }

    /// Whether a `model_type` is surely another family's: both are listed, and neither begins as the
    /// other does, as with types of a text model and of the model around it.
    pub fn contradicts_model_type(&self, model_type: &str) -> bool {
        let (own, other) = (by_model_type(self.family), by_model_type(model_type));
        let (Some(own), Some(other)) = (own, other) else {
            return false;
        };
        let alike = |own: &str, other: &str| own.starts_with(other) || other.starts_with(own);
        let mut own_types = own.model_types.iter();
        !own_types.any(|own| other.model_types.iter().any(|other| alike(own, other)))
    }

    /// The architectures under which llama.cpp writes models of the family.
    pub fn gguf_architectures(&self) -> Vec<&'static str> {
        let Some(family) = by_model_type(self.family) else {
            return Vec::new();
        };
        let own = family.gguf.iter().flat_map(|gguf| gguf.architectures);
        let exported = family.facts.gguf_export.iter();
        let exported = exported.map(|export| &export.architecture);
        let mut all: Vec<&str> = own.chain(exported).copied().collect();
        all.dedup();
        all
    }

    /// The `model_type` under which the hub lists a model read from GGUF, and how to write its
    /// config.
    pub fn config_export(&self) -> Option<(&'static str, &'static ConfigExport)> {
        let mut variants = self.facts().gguf_variants.iter();
        let variant = variants.find(|variant| variant.when.applies(self));
        let name = variant.map_or(self.family, |variant| variant.model_type);
        let family = by_model_type(name)?;
        let export = family.facts.config_export.as_ref()?;
        Some((family.model_types[0], export))
    }
}

/// The text model's own config, if a larger model's config wraps it.
fn text_config(config: &Config) -> Result<Option<Config>, SpecError> {
    // Some configs state only in the outer part whether the head is tied.
    let field = "tie_word_embeddings";
    let tied = config.get(field).cloned();
    let text = config.object("text_config")?;
    Ok(match tied {
        Some(tied) => text.map(|text| text.with_defaults(json!({ field: tied }))),
        None => text,
    })
}

/// Reads the spec of a GGUF file.
pub fn from_gguf(header: &dyn GgufHeader) -> Result<Described, SpecError> {
    let architecture = header
        .str("general.architecture")
        .ok_or_else(|| SpecError::Missing {
            field: "general.architecture".into(),
        })?;
    let family = gguf_family(architecture)?;
    let spec = (family.from_gguf)(&GgufConfig {
        header,
        architecture,
    })?;
    spec.validate()?;
    Ok(Described {
        spec,
        namings: family.naming.variants().collect(),
        wrapped: false,
        mlx: None,
        vision: None,
    })
}

/// llama.cpp's tensor names for an architecture.
pub fn gguf_naming(architecture: &str) -> Result<Naming, SpecError> {
    Ok(gguf_family(architecture)?.naming)
}

fn gguf_family(architecture: &str) -> Result<&'static GgufFamily, SpecError> {
    let mut families = all().filter_map(|family| family.gguf.as_ref());
    let family = families.find(|family| family.architectures.contains(&architecture));
    family.ok_or_else(|| SpecError::UnknownFamily {
        field: "general.architecture",
        found: architecture.to_owned(),
        supported: architectures(),
    })
}

/// The `model_type`s that load.
pub fn model_types() -> Vec<&'static str> {
    let types = all().flat_map(|family| family.model_types);
    types.copied().collect()
}

/// The GGUF architectures that load.
pub fn architectures() -> Vec<&'static str> {
    let families = all().filter_map(|family| family.gguf.as_ref());
    families
        .flat_map(|family| family.architectures)
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn described(config: &Value) -> Result<Described, SpecError> {
        from_config(&Config::parse(&config.to_string(), "config.json")?)
    }

    /// A config with enough fields for every family here, and `changes`.
    fn tiny(model_type: &str, changes: Value) -> Value {
        let mut config = json!({
            "model_type": model_type,
            "vocab_size": 32,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 24,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "norm_eps": 1e-6,
        });
        for (field, value) in changes.as_object().into_iter().flatten() {
            config[field] = value.clone();
        }
        config
    }

    #[test]
    fn only_listed_unlike_types_contradict() {
        let own = described(&tiny("gemma3_text", json!({}))).unwrap().spec;
        for (model_type, expected) in [
            ("llama", true),
            ("mistral", true),
            ("gemma3_text", false),
            ("gemma3", false),
            ("gemma2", true),
            ("unheard_of", false),
            ("", false),
        ] {
            assert_eq!(
                own.contradicts_model_type(model_type),
                expected,
                "{model_type}"
            );
        }
    }

    #[test]
    fn outer_config_decides_tied_head() {
        // Outside, inside, tied: Qwen3.5's own default is not to tie.
        let table = [
            (Value::Null, Value::Null, false),
            (json!(true), Value::Null, true),
            (json!(true), json!(false), false),
            (json!(false), json!(true), true),
        ];
        for (outer, inner, tied) in table {
            let mut text = tiny("qwen3_5_text", json!({}));
            if !inner.is_null() {
                text["tie_word_embeddings"] = inner.clone();
            }
            let config = json!({
                "model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": outer,
            });
            let described = described(&config).unwrap();
            assert!(described.wrapped);
            assert_eq!(described.spec.head.tied, tied, "{outer} {inner}");
        }
    }

    #[test]
    fn unsupported_switch_is_refused() {
        let table = [
            ("hunyuan_v1_dense", "use_qk_norm", json!(false)),
            ("hunyuan_v1_dense", "use_cla", json!(true)),
            ("falcon_h1", "attn_layer_indices", json!([0])),
            ("falcon_h1", "mamba_use_mlp", json!(false)),
            ("qwen3_5_text", "attn_output_gate", json!(false)),
            ("lfm2", "block_use_swiglu", json!(false)),
            ("lfm2", "use_pos_enc", json!(false)),
            ("ernie4_5_moe", "moe_norm_min", json!(0.5)),
            ("gemma4_text", "use_bidirectional_attention", json!("all")),
        ];
        for (family, field, value) in table {
            let error = described(&tiny(family, json!({ field: value }))).err();
            assert!(
                matches!(&error, Some(SpecError::Unsupported { field: named, .. }) if named == field),
                "{family}: {error:?}"
            );
        }
    }
}
