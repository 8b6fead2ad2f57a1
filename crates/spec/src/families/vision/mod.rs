//! The vision parts of families: towers and projectors as data, one file per kind.

mod gemma4;
mod glm4v;
mod internvl;
mod llama4;
mod llava;
pub(super) mod mmproj;
mod pixtral;
mod qwen2_vl;
mod qwen3_vl;
mod siglip;
mod sizes;

use crate::config::Config;
use crate::error::SpecError;
use crate::model::ModelSpec;
use crate::vision::VisionSpec;
use crate::vision_naming::VisionNaming;

/// A row: how a config becomes a [`VisionSpec`], and what its tensors are called.
pub(super) struct VisionFamily {
    /// `model_type`s of the whole model.
    model_types: &'static [&'static str],
    /// `model_type`s of `vision_config`; empty: any.
    towers: &'static [&'static str],
    from_config: fn(&VisionConfig<'_>) -> Result<VisionSpec, SpecError>,
    naming: VisionNaming,
    /// Fields of the text model's config that the vision part answers for.
    text_fields: &'static [&'static str],
}

/// What a vision part is read from.
pub(super) struct VisionConfig<'a> {
    /// The whole model's config.
    outer: &'a Config,
    /// Its `vision_config`.
    tower: Config,
    text: &'a ModelSpec,
}

const FAMILIES: &[VisionFamily] = &[
    gemma4::FAMILY,
    glm4v::FAMILY,
    internvl::FAMILY,
    llama4::FAMILY,
    llava::CLIP,
    llava::ONEVISION,
    pixtral::MISTRAL3,
    pixtral::PIXTRAL,
    qwen2_vl::QWEN2,
    qwen2_vl::QWEN2_5,
    qwen3_vl::FAMILY,
    siglip::GEMMA3,
    siglip::IDEFICS3,
    siglip::LFM2,
    siglip::PALIGEMMA,
];

/// The family of a config's vision part. `None` if it has none, or none that is known.
pub(super) fn find(config: &Config) -> Result<Option<&'static VisionFamily>, SpecError> {
    let Some(tower) = config.object("vision_config")? else {
        return Ok(None);
    };
    let (outer, inner) = (config.str("model_type")?, tower.str("model_type")?);
    let mut rows = FAMILIES.iter();
    Ok(rows.find(|family| {
        let has = |types: &[&str], found: Option<&str>| found.is_some_and(|t| types.contains(&t));
        has(family.model_types, outer) && (family.towers.is_empty() || has(family.towers, inner))
    }))
}

impl VisionFamily {
    /// The text model's config without what this part answers for.
    pub fn text_config(&self, text: &Config) -> Config {
        text.without(self.text_fields)
    }

    pub fn describe(
        &self,
        outer: &Config,
        text: &ModelSpec,
    ) -> Result<(VisionSpec, VisionNaming), SpecError> {
        self.describe_named(outer, text, self.naming)
    }

    /// For files with other names of tensors.
    fn describe_named(
        &self,
        outer: &Config,
        text: &ModelSpec,
        naming: VisionNaming,
    ) -> Result<(VisionSpec, VisionNaming), SpecError> {
        let tower = outer.object("vision_config")?;
        let tower = tower.ok_or_else(|| SpecError::Missing {
            field: outer.path("vision_config"),
        })?;
        let spec = (self.from_config)(&VisionConfig { outer, tower, text })?;
        spec.validate(text.hidden_size, text.layers.len())?;
        Ok((spec, naming))
    }

    /// Whether text alone cannot be computed without this part.
    pub fn is_essential(&self) -> bool {
        !self.text_fields.is_empty()
    }
}
