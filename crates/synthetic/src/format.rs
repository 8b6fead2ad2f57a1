//! Formats by name, and how each encodes a tensor.

use loquat_spec::{LayerRole, Role};
use loquat_weights::Dtype;

use crate::SyntheticError;

/// How a model's matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Not quantized.
    Float(Dtype),
    /// One of GGUF's block types for every matrix.
    Blocks(Dtype),
    /// llama.cpp's mix of `Q4_K` and `Q6_K`.
    Q4KM,
    /// MLX's affine codes of this many bits, with a scale and a bias per 64 values.
    Affine(u8),
    /// 4-bit floats with a power-of-two scale per 32 values, in MLX's or GGUF's layout.
    Mxfp4,
}

/// In the order that messages list them.
pub const FORMATS: &[(&str, Format)] = &[
    ("bf16", Format::Float(Dtype::BF16)),
    ("f16", Format::Float(Dtype::F16)),
    ("f32", Format::Float(Dtype::F32)),
    ("q4_0", Format::Blocks(Dtype::Q4_0)),
    ("q4_1", Format::Blocks(Dtype::Q4_1)),
    ("q5_0", Format::Blocks(Dtype::Q5_0)),
    ("q5_1", Format::Blocks(Dtype::Q5_1)),
    ("q8_0", Format::Blocks(Dtype::Q8_0)),
    ("q4_k", Format::Blocks(Dtype::Q4K)),
    ("q5_k", Format::Blocks(Dtype::Q5K)),
    ("q6_k", Format::Blocks(Dtype::Q6K)),
    ("q4_k_m", Format::Q4KM),
    ("mlx4", Format::Affine(4)),
    ("mlx8", Format::Affine(8)),
    ("mxfp4", Format::Mxfp4),
];

/// The kind of file, which decides tensor names and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    Gguf,
    /// With a `config.json`, as for MLX and transformers.
    Safetensors,
}

impl Container {
    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "a GGUF file",
            Self::Safetensors => "a folder of safetensors",
        }
    }
}

impl Format {
    pub fn parse(name: &str) -> Result<Self, SyntheticError> {
        let found = FORMATS.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let known: Vec<_> = FORMATS.iter().map(|(name, _)| *name).collect();
            SyntheticError::UnknownFormat {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    pub fn name(self) -> &'static str {
        let found = FORMATS.iter().find(|(_, format)| *format == self);
        found.map_or("unnamed", |(name, _)| name)
    }

    /// The containers that support it, the default first.
    pub fn containers(self) -> &'static [Container] {
        match self {
            Self::Float(_) | Self::Mxfp4 => &[Container::Safetensors, Container::Gguf],
            Self::Blocks(_) | Self::Q4KM => &[Container::Gguf],
            Self::Affine(_) => &[Container::Safetensors],
        }
    }

    /// An error that lists the container's formats, if this is not one of them.
    pub(crate) fn check(self, container: Container) -> Result<(), SyntheticError> {
        let fits = |format: Format| format.containers().contains(&container);
        if fits(self) {
            return Ok(());
        }
        let known = FORMATS.iter().filter(|(_, format)| fits(*format));
        let known: Vec<_> = known.map(|(name, _)| *name).collect();
        Err(SyntheticError::Container {
            format: self.name(),
            container: container.name(),
            known: known.join(", "),
        })
    }

    /// The type of vectors and of matrices that are never quantized.
    pub(crate) fn small(self, container: Container) -> Dtype {
        match (container, self) {
            (Container::Gguf, _) => Dtype::F32,
            (Container::Safetensors, Self::Float(dtype)) => dtype,
            (Container::Safetensors, _) => Dtype::BF16,
        }
    }

    pub(crate) fn encoding(self, container: Container, position: &MatrixPosition) -> Encoding {
        if position.is_router() {
            return Encoding::Plain(self.small(container));
        }
        match self {
            Self::Float(dtype) => Encoding::Plain(dtype),
            Self::Blocks(dtype) => Encoding::Plain(whole_blocks(dtype, position.cols)),
            Self::Q4KM => Encoding::Plain(whole_blocks(position.mixed(), position.cols)),
            Self::Affine(bits) => Encoding::Affine { bits },
            Self::Mxfp4 => match container {
                Container::Gguf => Encoding::Plain(Dtype::Mxfp4),
                Container::Safetensors => Encoding::Mxfp4,
            },
        }
    }
}

/// The properties of a matrix that a mix of types depends on.
pub(crate) struct MatrixPosition {
    pub role: Role,
    pub cols: usize,
    pub layers: usize,
    /// Whether the embedding is also the head.
    pub tied: bool,
}

impl MatrixPosition {
    fn is_router(&self) -> bool {
        use LayerRole::{Router, SharedRouter};
        matches!(self.role, Role::Layer(_, Router | SharedRouter))
    }

    /// llama.cpp's choice for `Q4_K_M` (`llama_tensor_get_type`): six bits for the head, and for
    /// value and down projections in the first and last eighth of the layers and every third layer
    /// between.
    fn mixed(&self) -> Dtype {
        use LayerRole::{Down, ExpertDown, Value};
        let eighth = self.layers / 8;
        let more = match self.role {
            Role::Head => true,
            Role::Embedding => self.tied,
            Role::Layer(layer, Value | Down | ExpertDown) => {
                layer < eighth || layer >= 7 * self.layers / 8 || (layer - eighth) % 3 == 2
            }
            _ => false,
        };
        if more { Dtype::Q6K } else { Dtype::Q4K }
    }
}

/// The type, or llama.cpp's fallback when rows are not whole blocks of 256.
fn whole_blocks(dtype: Dtype, cols: usize) -> Dtype {
    match dtype {
        _ if cols.is_multiple_of(dtype.block_len()) => dtype,
        Dtype::Q4K => Dtype::Q5_0,
        Dtype::Q5K => Dtype::Q5_1,
        Dtype::Q6K => Dtype::Q8_0,
        dtype => dtype,
    }
}

/// How one matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// One tensor of this type.
    Plain(Dtype),
    /// MLX's affine codes, in groups of [`AFFINE_GROUP`].
    Affine { bits: u8 },
    /// MLX's 4-bit floats.
    Mxfp4,
}

pub(crate) const AFFINE_GROUP: usize = 64;
pub(crate) const MXFP4_GROUP: usize = 32;

/// One of the tensors that a matrix is stored in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Replaces the `.weight` of the matrix's name.
    pub ending: &'static str,
    pub dtype: Dtype,
    /// Values of the matrix per element.
    pub covers: usize,
}

impl Part {
    const fn new(ending: &'static str, dtype: Dtype, covers: usize) -> Self {
        Self {
            ending,
            dtype,
            covers,
        }
    }

    /// Its size for `values` values of the matrix.
    pub(crate) fn bytes(self, values: usize) -> usize {
        values / self.covers / self.dtype.block_len() * self.dtype.block_bytes()
    }
}

impl Encoding {
    pub(crate) fn parts(self) -> Vec<Part> {
        match self {
            Self::Plain(dtype) => vec![Part::new(".weight", dtype, 1)],
            Self::Affine { bits } => vec![
                Part::new(".weight", Dtype::U32, 32 / usize::from(bits)),
                Part::new(".scales", Dtype::BF16, AFFINE_GROUP),
                Part::new(".biases", Dtype::BF16, AFFINE_GROUP),
            ],
            Self::Mxfp4 => vec![
                Part::new(".weight", Dtype::U32, 8),
                Part::new(".scales", Dtype::U8, MXFP4_GROUP),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_matches_llama_cpp() {
        let six_bits = |role: LayerRole, layers: usize| -> Vec<usize> {
            let mixed = |layer| MatrixPosition {
                role: Role::Layer(layer, role),
                cols: 2048,
                layers,
                tied: false,
            };
            let all = 0..layers;
            all.filter(|layer| mixed(*layer).mixed() == Dtype::Q6K)
                .collect()
        };
        for role in [LayerRole::Value, LayerRole::Down, LayerRole::ExpertDown] {
            // As in llama.cpp's files of Llama-3.2-1B and Llama-3.1-8B.
            let of_16 = [0, 1, 4, 7, 10, 13, 14, 15];
            let of_32 = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
            assert_eq!(six_bits(role, 16), of_16, "{role:?}");
            assert_eq!(six_bits(role, 32), of_32, "{role:?}");
        }
        assert_eq!(six_bits(LayerRole::Up, 16), Vec::<usize>::new());
    }

    #[test]
    fn partial_blocks_fall_back() {
        for (dtype, cols, expected) in [
            (Dtype::Q4K, 512, Dtype::Q4K),
            (Dtype::Q4K, 576, Dtype::Q5_0),
            (Dtype::Q5K, 576, Dtype::Q5_1),
            (Dtype::Q6K, 640, Dtype::Q8_0),
            (Dtype::Q4_0, 576, Dtype::Q4_0),
        ] {
            assert_eq!(whole_blocks(dtype, cols), expected, "{dtype} {cols}");
        }
    }

    #[test]
    fn unknown_format_lists_all_names() {
        for (name, format) in FORMATS {
            assert_eq!(Format::parse(name).unwrap(), *format);
            assert_eq!(format.name(), *name);
        }
        let error = Format::parse("q3_k").unwrap_err().to_string();
        assert!(
            error.contains("`q3_k`") && error.contains("q4_k_m"),
            "{error}"
        );
    }
}
