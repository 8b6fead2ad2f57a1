//! Vision parts in llama.cpp's GGUF files (`mmproj`): their metadata become the fields of the
//! configs and processor files that the hub has for the same models, so that one description of a
//! tower serves both.

mod clip;
mod gemma4;
mod names;
mod pixtral;
mod qwen;
mod siglip;

use serde_json::{Map, Value, json};

use super::VisionFamily;
use crate::config::{Config, GgufConfig, GgufHeader};
use crate::error::SpecError;
use crate::families::DescribedVision;
use crate::model::ModelSpec;
use crate::vision_naming::{StepName, VisionNaming};

/// `general.architecture` of these files.
pub const MMPROJ_ARCHITECTURE: &str = "clip";

/// A parsed `mmproj` header.
pub struct DescribedMmproj {
    pub vision: DescribedVision,
    /// What the hub's `processor_config.json` of the model would say.
    pub processor: Map<String, Value>,
    pub order: MmprojOrder,
}

/// How the file's values differ in order from those of the hub's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmprojOrder {
    /// The columns of the patch matrix are `[channel][row][column]`, but the tower reads patches
    /// of `[row][column][channel]`.
    pub patch_channels_first: bool,
    /// The rows of queries and keys have the two values of each rotated pair next to each other,
    /// in heads of this many rows.
    pub interleaved_heads: Option<usize>,
    /// `ffn_up` and `ffn_down` have each other's names, as in files of older converters.
    pub swapped_feed_forward: bool,
}

/// A row: what a file with this projector describes.
struct MmprojFamily {
    /// `clip.projector_type`
    projector: &'static str,
    /// A tensor that only this kind has, if others have the same projector type.
    marker: Option<&'static str>,
    family: &'static VisionFamily,
    naming: VisionNaming,
    /// The whole model's config.
    config: fn(&MmprojHeader<'_>) -> Result<Value, SpecError>,
    /// `processor_config.json`
    processor: fn(&MmprojHeader<'_>) -> Result<Value, SpecError>,
    patch_channels_first: bool,
    interleaved_heads: bool,
}

const FAMILIES: &[MmprojFamily] = &[
    clip::INTERNVL,
    clip::LLAVA,
    gemma4::FAMILY,
    pixtral::LLAMA4,
    pixtral::MISTRAL3,
    pixtral::PIXTRAL,
    qwen::GLM4V,
    qwen::QWEN2,
    qwen::QWEN2_5,
    qwen::QWEN3,
    siglip::GEMMA3,
    siglip::IDEFICS3,
    siglip::LFM2,
];

/// A header with the text model that the file belongs to.
struct MmprojHeader<'a> {
    config: GgufConfig<'a>,
    text: &'a ModelSpec,
}

/// Reads the header of an `mmproj` file for this text model.
pub fn from_mmproj(
    header: &dyn GgufHeader,
    text: &ModelSpec,
) -> Result<DescribedMmproj, SpecError> {
    let field = "general.architecture";
    let architecture = header.str(field).ok_or_else(|| SpecError::Missing {
        field: field.into(),
    })?;
    if architecture != MMPROJ_ARCHITECTURE {
        let expected = format!("`{MMPROJ_ARCHITECTURE}`, as in an mmproj file");
        return Err(SpecError::invalid(
            field,
            format!("`{architecture}`"),
            expected,
        ));
    }
    let header = MmprojHeader {
        config: GgufConfig {
            header,
            architecture: "clip.vision",
        },
        text,
    };
    let row = header.row()?;
    header.check_projection(row)?;
    let outer = Config::parse(&(row.config)(&header)?.to_string(), "the mmproj file")?;
    let (spec, naming) = row.family.describe_named(&outer, text, row.naming)?;
    let processor = match (row.processor)(&header)? {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let order = MmprojOrder {
        patch_channels_first: row.patch_channels_first,
        interleaved_heads: row.interleaved_heads.then_some(spec.block.head_dim),
        swapped_feed_forward: header.swapped_feed_forward(),
    };
    Ok(DescribedMmproj {
        vision: DescribedVision { spec, naming },
        processor,
        order,
    })
}

/// The projector types that are supported.
pub fn mmproj_projectors() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().map(|row| row.projector).collect();
    names.dedup();
    names
}

impl MmprojHeader<'_> {
    fn row(&self) -> Result<&'static MmprojFamily, SpecError> {
        let header = self.config.header;
        if header.bool("clip.has_vision_encoder") == Some(false) {
            let field = "clip.has_vision_encoder";
            return Err(SpecError::invalid(
                field,
                "false",
                "true: the file has no vision tower",
            ));
        }
        let fields = ["clip.projector_type", "clip.vision.projector_type"];
        let found = fields.iter().find_map(|field| header.str(field));
        let found = found.ok_or_else(|| SpecError::Missing {
            field: fields[0].into(),
        })?;
        let mut rows = FAMILIES.iter().filter(|row| row.projector == found);
        let fits = |row: &&MmprojFamily| row.marker.is_none_or(|name| self.config.has(name));
        rows.find(fits).ok_or_else(|| SpecError::UnknownProjector {
            field: fields[0],
            found: found.to_owned(),
            supported: mmproj_projectors(),
        })
    }

    /// Whether the projector ends at the width of the text model.
    fn check_projection(&self, row: &MmprojFamily) -> Result<(), SpecError> {
        let shape = |name: &str| self.config.header.tensor_shape(name);
        let (name, found) = match row.naming.projector.last() {
            Some(StepName::Matrix(module)) => {
                let name = format!("{module}.weight");
                let rows = shape(&name).and_then(|shape| shape.first().copied());
                (name, rows)
            }
            Some(StepName::Transposed(name)) => {
                let cols = shape(name).and_then(|shape| shape.last().copied());
                ((*name).to_owned(), cols)
            }
            Some(StepName::Gated([.., down])) => {
                let rows = shape(down).and_then(|shape| shape.first().copied());
                ((*down).to_owned(), rows)
            }
            _ => return Ok(()),
        };
        match found {
            Some(width) if width != self.text.hidden_size => Err(SpecError::ProjectorWidth {
                tensor: name,
                found: width,
                expected: self.text.hidden_size,
            }),
            _ => Ok(()),
        }
    }

    fn swapped_feed_forward(&self) -> bool {
        let rows = |name: &str| self.config.rows(name).ok();
        let (up, down) = ("v.blk.0.ffn_up.weight", "v.blk.0.ffn_down.weight");
        let hidden = self.config.usize("embedding_length").ok();
        rows(up) == hidden && rows(down) != hidden && !self.config.has("v.blk.0.ffn_gate.weight")
    }

    /// Rows of the first layer's matrix from the stream: some headers have another number.
    fn feed_forward(&self) -> Result<usize, SpecError> {
        self.config.rows(if self.swapped_feed_forward() {
            "v.blk.0.ffn_down.weight"
        } else {
            "v.blk.0.ffn_up.weight"
        })
    }

    fn usize_or(&self, field: &str, default: usize) -> Result<usize, SpecError> {
        Ok(self.config.usize_opt(field)?.unwrap_or(default))
    }

    fn image_size(&self) -> Result<usize, SpecError> {
        self.config.usize("image_size")
    }

    /// Patches along a side of the only image size.
    fn patches(&self) -> Result<usize, SpecError> {
        let patch = self.config.usize("patch_size")?;
        Ok(self.image_size()?.checked_div(patch).unwrap_or(0))
    }

    /// The number of patches that become one along each axis.
    fn scale_factor(&self, default: usize) -> Result<usize, SpecError> {
        match self.usize_or("projector.scale_factor", default)? {
            0 => {
                let field = self.config.key("projector.scale_factor");
                Err(SpecError::invalid(field, 0, "at least 1"))
            }
            factor => Ok(factor),
        }
    }

    /// `vision_config` with the sizes that all towers have, under the names of most configs, and
    /// `more`.
    fn tower(&self, more: Value) -> Result<Value, SpecError> {
        let config = &self.config;
        let mut fields = json!({
            "hidden_size": config.usize("embedding_length")?,
            "intermediate_size": self.feed_forward()?,
            "num_hidden_layers": config.usize("block_count")?,
            "num_attention_heads": config.usize("attention.head_count")?,
            "image_size": self.image_size()?,
            "patch_size": config.usize("patch_size")?,
            "layer_norm_eps": config.f64("attention.layer_norm_epsilon")?,
        });
        merge(&mut fields, more);
        Ok(fields)
    }

    /// The activation that the file's flags name, of the hub's two names for it.
    fn activation(&self, gelu: &str, neither: &str) -> String {
        let flag = |key: &str| self.config.header.bool(key) == Some(true);
        let name = match (flag("clip.use_silu"), flag("clip.use_gelu")) {
            (true, _) => "silu",
            (false, true) => gelu,
            (false, false) => neither,
        };
        name.to_owned()
    }

    /// The fields of an image processor's config, and how it scales values.
    fn image_processor(&self, class: &str, more: Value) -> Result<Value, SpecError> {
        let mut fields = json!({ "image_processor_type": class });
        for field in ["image_mean", "image_std"] {
            let key = self.config.key(field);
            match self.config.header.f64s(&key).as_deref() {
                // The hub's files have decimal numbers, these single precision.
                Some(values) if values.len() == 3 => {
                    let values = values.iter().map(|value| shortest(*value));
                    fields[field] = values.collect();
                }
                Some(values) => {
                    let found = format!("a list of {}", values.len());
                    return Err(SpecError::invalid(key, found, "three numbers"));
                }
                None => return Err(SpecError::Missing { field: key }),
            }
        }
        merge(&mut fields, more);
        Ok(fields)
    }
}

/// The decimal number that single precision rounds to `value`.
fn shortest(value: f64) -> f64 {
    let text = (value as f32).to_string();
    text.parse().unwrap_or(value)
}

fn merge(fields: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (fields, more) {
        fields.extend(more);
    }
}
