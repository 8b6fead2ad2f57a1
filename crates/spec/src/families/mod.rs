//! One file per family, named for its `model_type`; this table is the only list of them.

mod gemma3_text;
mod llama;
mod mistral;
mod parts;
mod qwen2;
mod qwen3;
mod smollm3;

use crate::config::{Config, GgufConfig, GgufHeader};
use crate::error::SpecError;
use crate::model::ModelSpec;
use crate::naming::{GGUF, HUGGING_FACE, Naming};

/// A family: how each kind of config becomes a spec, and what its tensors are called there.
pub(crate) struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// `general.architecture` in a GGUF header; empty where another family's entry reads it.
    pub architecture: &'static str,
    pub from_config: fn(&Config) -> Result<ModelSpec, SpecError>,
    pub from_gguf: fn(&GgufConfig) -> Result<ModelSpec, SpecError>,
    pub hugging_face: Naming,
    pub gguf: Naming,
}

const FAMILIES: &[Family] = &[
    gemma3_text::FAMILY,
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    smollm3::FAMILY,
];

/// What a family's file leaves unsaid.
const PLAIN: (Naming, Naming) = (HUGGING_FACE, GGUF);

/// Reads the spec of a Hugging Face style checkpoint (plain or MLX-quantized safetensors).
pub fn from_config(config: &Config) -> Result<(ModelSpec, Naming), SpecError> {
    let found = config
        .str("model_type")?
        .ok_or_else(|| SpecError::Missing {
            field: "model_type".into(),
        })?;
    let family = FAMILIES.iter().find(|family| family.model_type == found);
    let family = family.ok_or_else(|| SpecError::UnknownFamily {
        field: "model_type",
        found: found.to_owned(),
        supported: model_types(),
    })?;
    let spec = (family.from_config)(config)?;
    spec.validate()?;
    Ok((spec, family.hugging_face))
}

/// Reads the spec of a GGUF file.
pub fn from_gguf(header: &dyn GgufHeader) -> Result<(ModelSpec, Naming), SpecError> {
    let architecture = header
        .str("general.architecture")
        .ok_or_else(|| SpecError::Missing {
            field: "general.architecture".into(),
        })?;
    let family = FAMILIES
        .iter()
        .find(|family| !family.architecture.is_empty() && family.architecture == architecture);
    let family = family.ok_or_else(|| SpecError::UnknownFamily {
        field: "general.architecture",
        found: architecture.to_owned(),
        supported: architectures(),
    })?;
    let spec = (family.from_gguf)(&GgufConfig {
        header,
        architecture,
    })?;
    spec.validate()?;
    if family.gguf.interleaved_rope {
        whole_head_rope(&spec, architecture)?;
    }
    Ok((spec, family.gguf))
}

/// Rows stored for interleaved rope are put back by whole heads, which is right only where
/// the whole head turns.
fn whole_head_rope(spec: &ModelSpec, architecture: &str) -> Result<(), SpecError> {
    let mut ropes = spec
        .attentions()
        .filter_map(|a| a.rope.as_ref().map(|rope| (rope.dims, a.head_dim)));
    match ropes.find(|(dims, head_dim)| dims != head_dim) {
        None => Ok(()),
        Some((dims, head_dim)) => Err(SpecError::invalid(
            format!("{architecture}.rope.dimension_count"),
            dims,
            format!("the head's whole length ({head_dim})"),
        )),
    }
}

/// The `model_type`s that load.
pub fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.model_type).collect()
}

/// The GGUF architectures that load.
pub fn architectures() -> Vec<&'static str> {
    FAMILIES
        .iter()
        .map(|family| family.architecture)
        .filter(|name| !name.is_empty())
        .collect()
}
