//! Generates the tensors of a recipe.

use std::collections::HashSet;
use std::str::FromStr;

use half::{bf16, f16};
use loquat_spec::families::{self, Described};
use loquat_spec::{Kind, Naming, Role, Slot, Transform};
use loquat_weights::gguf::{Gguf, Metadata};
use loquat_weights::{Blob, Checkpoint, Dtype, Mismatch, RawTensor, WeightsError};

use crate::format::{Container, Encoding, Format, MatrixPosition};
use crate::pool::{Drawing, Pools};
use crate::random::SplitMix64;
use crate::save::config_text;
use crate::shapes::Shape;
use crate::{SyntheticError, gguf};

/// A shape and a format, written `SHAPE` or `SHAPE:FORMAT`.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    pub shape: &'static Shape,
    pub format: Format,
}

/// The tensors and the metadata of a generated checkpoint.
pub struct Synthetic {
    pub(crate) description: Description,
    pub(crate) tensors: Vec<RawTensor>,
}

/// A checkpoint's metadata.
pub(crate) enum Description {
    Gguf(Metadata),
    /// The text of `config.json`.
    Config(String),
}

impl FromStr for Recipe {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let (shape, format) = text.split_once(':').unwrap_or((text, "bf16"));
        Ok(Self {
            shape: Shape::find(shape)?,
            format: Format::parse(format)?,
        })
    }
}

impl Recipe {
    pub fn name(&self) -> String {
        format!("{}:{}", self.shape.name, self.format.name())
    }

    /// The usual container of its format.
    pub fn container(&self) -> Container {
        self.format.containers()[0]
    }

    /// Draws the weights; equal seeds give equal weights.
    pub fn make(&self, container: Container, seed: u64) -> Result<Synthetic, SyntheticError> {
        self.format.check(container)?;
        let config = self.shape.config()?;
        let described = families::from_config(&config)?;
        let (description, naming) = match container {
            Container::Gguf => (
                Description::Gguf(gguf::metadata(self.shape, &config)?),
                families::gguf_naming(self.shape.series.architecture)?,
            ),
            Container::Safetensors => (
                Description::Config(config_text(self.shape, self.format)?),
                mlx_naming(&described)?,
            ),
        };
        let drawing = Drawing {
            // Dot products with a row then have a standard deviation of about 1 at every width.
            deviation: 1.0 / (described.spec.hidden_size as f32).sqrt(),
            seed,
            pool_bytes: Drawing::POOL_BYTES,
        };
        let tensors = Tensors {
            format: self.format,
            container,
            slots: distinct(naming.slots(&described.spec)),
            layers: described.spec.layers.len(),
            tied: described.spec.head.tied,
        };
        Ok(Synthetic {
            description,
            tensors: tensors.draw(drawing)?,
        })
    }
}

impl Synthetic {
    /// The model as its file would be opened.
    pub fn checkpoint(&self) -> Result<Checkpoint, SyntheticError> {
        let tensors = self.tensors.clone();
        Ok(match &self.description {
            Description::Gguf(metadata) => {
                Checkpoint::from_gguf(Gguf::from_parts(metadata.clone(), tensors))?
            }
            Description::Config(text) => {
                let config = loquat_spec::Config::parse(text, "config.json")?;
                Checkpoint::from_config(&config, tensors)?
            }
        })
    }

    /// Bytes of the tensors in a file.
    pub fn bytes(&self) -> u64 {
        let lens = self.tensors.iter().map(|tensor| tensor.data.len() as u64);
        lens.sum()
    }
}

/// The last naming, which is mlx-lm's if it differs.
fn mlx_naming(described: &Described) -> Result<Naming, WeightsError> {
    let last = described.namings.last().copied();
    last.ok_or_else(|| WeightsError::Binding(Mismatch::default()))
}

/// One slot for each tensor: several roles may share one.
fn distinct(slots: Vec<Slot>) -> Vec<Slot> {
    let mut seen = HashSet::new();
    let mut slots = slots;
    slots.retain(|slot| seen.insert(slot.names.clone()));
    slots
}

/// The tensors to draw.
struct Tensors {
    format: Format,
    container: Container,
    slots: Vec<Slot>,
    layers: usize,
    tied: bool,
}

impl Tensors {
    fn draw(&self, drawing: Drawing) -> Result<Vec<RawTensor>, WeightsError> {
        let matrices = self.slots.iter().filter(|slot| is_matrix(slot.kind));
        let announced: Vec<_> = matrices
            .flat_map(|slot| {
                let each = (self.encoding(slot), shape(slot).iter().product());
                slot.names.iter().map(move |_| each)
            })
            .collect();
        let mut pools = Pools::new(&announced, drawing);
        // A separate stream: vectors do not depend on the size of pools.
        let mut random = SplitMix64::new(!drawing.seed);
        let mut tensors = Vec::new();
        for slot in &self.slots {
            for name in &slot.names {
                if is_matrix(slot.kind) {
                    tensors.extend(self.matrix(slot, name, &mut pools)?);
                } else {
                    let values = values(slot, drawing.deviation, &mut random);
                    tensors.push(self.vector(slot, name, &values)?);
                }
            }
        }
        Ok(tensors)
    }

    fn encoding(&self, slot: &Slot) -> Encoding {
        let position = MatrixPosition {
            role: slot.role,
            cols: slot.kind.cols(),
            layers: self.layers,
            tied: self.tied,
        };
        self.format.encoding(self.container, &position)
    }

    /// The tensors that hold the matrix or matrices called `name`.
    fn matrix(
        &self,
        slot: &Slot,
        name: &str,
        pools: &mut Pools,
    ) -> Result<Vec<RawTensor>, WeightsError> {
        let (encoding, shape) = (self.encoding(slot), shape(slot));
        // Binding reports a matrix without a pool as missing.
        let blobs = pools.take(encoding, shape.iter().product());
        let blobs = blobs.unwrap_or_default();
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let parts = encoding.parts().into_iter().zip(blobs);
        parts
            .map(|(part, data)| {
                let mut shape = shape.clone();
                if let Some(cols) = shape.last_mut() {
                    *cols /= part.covers;
                }
                RawTensor::new(format!("{module}{}", part.ending), part.dtype, shape, data)
            })
            .collect()
    }

    fn vector(&self, slot: &Slot, name: &str, values: &[f32]) -> Result<RawTensor, WeightsError> {
        let dtype = self.format.small(self.container);
        let values = values.iter();
        let bytes = match dtype {
            Dtype::F16 => values
                .flat_map(|v| f16::from_f32(*v).to_le_bytes())
                .collect(),
            Dtype::BF16 => values
                .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
                .collect(),
            _ => values.flat_map(|v| v.to_le_bytes()).collect(),
        };
        RawTensor::new(name, dtype, shape(slot), Blob::from_vec(bytes))
    }
}

fn is_matrix(kind: Kind) -> bool {
    matches!(kind, Kind::Matrix { .. } | Kind::Stack { .. })
}

/// The shape of each tensor of the slot. Binding refuses namings that transpose or reshape.
fn shape(slot: &Slot) -> Vec<usize> {
    let (count, rows, cols) = (slot.kind.count(), slot.layout.total, slot.kind.cols());
    let stacked = slot.names.len() < count;
    match slot.kind {
        Kind::Matrix { .. } | Kind::Conv { .. } => vec![rows, cols],
        Kind::Stack { .. } if stacked => vec![count, rows, cols],
        Kind::Stack { .. } => vec![rows, cols],
        Kind::Vector { .. } => vec![rows],
        Kind::Vectors { .. } => vec![count, rows],
    }
}

/// Norms get a weight of one; other vectors get small values.
fn values(slot: &Slot, deviation: f32, random: &mut SplitMix64) -> Vec<f32> {
    let len = shape(slot).iter().product();
    let norm = match slot.transform {
        Transform::AddOne => 0.0,
        Transform::None | Transform::NegExp => 1.0,
    };
    (0..len)
        .map(|_| {
            if is_norm(slot.role) {
                norm
            } else {
                random.within(deviation)
            }
        })
        .collect()
}

fn is_norm(role: Role) -> bool {
    match role {
        Role::FinalNorm => true,
        Role::Layer(_, role) => role.is_stream_norm(),
        _ => false,
    }
}
