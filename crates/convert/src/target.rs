//! Target formats and types by name.

use loquat_weights::Dtype;
use loquat_weights::decode::MlxMode;

use crate::ConvertError;

/// The target format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder that mlx-lm loads.
    Mlx,
    /// A file that llama.cpp loads.
    Gguf,
    /// A folder as on the hub, without quantization.
    Safetensors,
}

impl Target {
    pub const ALL: [Target; 3] = [Target::Mlx, Target::Gguf, Target::Safetensors];

    pub const fn name(self) -> &'static str {
        match self {
            Target::Mlx => "mlx",
            Target::Gguf => "gguf",
            Target::Safetensors => "safetensors",
        }
    }
}

/// The type of matrices that the format quantizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// Every tensor in this float type, or in its own.
    Plain(Option<Dtype>),
    Mlx(MlxMode),
    /// One of GGUF's block types, and whether the tensors that matter most get a larger one.
    Blocks {
        dtype: Dtype,
        mixture: bool,
    },
}

const FLOATS: &[(&str, Dtype)] = &[
    ("bf16", Dtype::BF16),
    ("f16", Dtype::F16),
    ("f32", Dtype::F32),
];

const BLOCKS: &[(&str, Dtype, bool)] = &[
    ("q4_0", Dtype::Q4_0, false),
    ("q4_1", Dtype::Q4_1, false),
    ("q5_0", Dtype::Q5_0, false),
    ("q5_1", Dtype::Q5_1, false),
    ("q8_0", Dtype::Q8_0, false),
    ("q4_k", Dtype::Q4K, false),
    ("q4_k_m", Dtype::Q4K, true),
    ("q5_k", Dtype::Q5K, false),
    ("q5_k_m", Dtype::Q5K, true),
    ("q6_k", Dtype::Q6K, false),
];

const AFFINE: &[(&str, u8)] = &[
    ("q2", 2),
    ("q3", 3),
    ("q4", 4),
    ("q5", 5),
    ("q6", 6),
    ("q8", 8),
];

const MICROSCALING: &[(&str, MlxMode)] = &[
    ("mxfp4", MlxMode::Mxfp4),
    ("mxfp8", MlxMode::Mxfp8),
    ("nvfp4", MlxMode::Nvfp4),
];

/// mlx-lm's default number of values that share a scale.
const GROUP: usize = 64;

impl Quant {
    /// The default of the format's own tools.
    pub fn default_of(target: Target) -> Self {
        match target {
            Target::Mlx => Quant::Mlx(MlxMode::Affine {
                bits: 4,
                group: GROUP,
            }),
            Target::Gguf => Quant::Blocks {
                dtype: Dtype::Q4K,
                mixture: true,
            },
            Target::Safetensors => Quant::Plain(None),
        }
    }

    /// By a name of `target`, in upper or lower case; `group` is only for MLX's affine types.
    pub fn parse(target: Target, name: &str, group: Option<usize>) -> Result<Self, ConvertError> {
        let found = Self::named(target, &name.to_ascii_lowercase());
        match (found, group) {
            (Some(Quant::Mlx(MlxMode::Affine { bits, .. })), Some(group)) => {
                let mode = MlxMode::affine(bits, group).map_err(loquat_weights::WeightsError::from);
                Ok(Quant::Mlx(mode?))
            }
            (Some(quant), None) => Ok(quant),
            (Some(_), Some(_)) | (None, _) => Err(ConvertError::UnknownQuant {
                name: match group {
                    Some(group) => format!("{name} in groups of {group}"),
                    None => name.to_owned(),
                },
                target: target.name(),
                known: Self::names(target).join(", "),
            }),
        }
    }

    fn named(target: Target, name: &str) -> Option<Self> {
        let float = FLOATS.iter().find(|(known, _)| *known == name);
        if let Some((_, dtype)) = float {
            return Some(Quant::Plain(Some(*dtype)));
        }
        match target {
            Target::Safetensors => None,
            Target::Gguf => {
                let (_, dtype, mixture) = BLOCKS.iter().find(|(known, ..)| *known == name)?;
                Some(Quant::Blocks {
                    dtype: *dtype,
                    mixture: *mixture,
                })
            }
            Target::Mlx => {
                let affine = AFFINE.iter().find(|(known, _)| *known == name);
                let affine = affine.map(|(_, bits)| MlxMode::Affine {
                    bits: *bits,
                    group: GROUP,
                });
                let small = MICROSCALING.iter().find(|(known, _)| *known == name);
                affine.or(small.map(|(_, mode)| *mode)).map(Quant::Mlx)
            }
        }
    }

    /// Every name of `target`.
    pub fn names(target: Target) -> Vec<&'static str> {
        let mut names: Vec<&str> = match target {
            Target::Safetensors => Vec::new(),
            Target::Gguf => BLOCKS.iter().map(|(name, ..)| *name).collect(),
            Target::Mlx => {
                let affine = AFFINE.iter().map(|(name, _)| *name);
                affine
                    .chain(MICROSCALING.iter().map(|(name, _)| *name))
                    .collect()
            }
        };
        names.extend(FLOATS.iter().map(|(name, _)| *name));
        names
    }

    pub(crate) fn is_quantized(self) -> bool {
        !matches!(self, Quant::Plain(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_one_target() {
        for target in Target::ALL {
            for name in Quant::names(target) {
                assert!(
                    Quant::parse(target, name, None).is_ok(),
                    "{target:?} {name}"
                );
            }
        }
        let refused = [
            (Target::Mlx, "q4_0", None),
            (Target::Gguf, "q4", None),
            (Target::Safetensors, "q8_0", None),
            (Target::Mlx, "mxfp4", Some(64)),
            (Target::Gguf, "q4_0", Some(32)),
        ];
        for (target, name, group) in refused {
            let error = Quant::parse(target, name, group).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("bf16"), "{error}");
        }
        assert!(Quant::parse(Target::Mlx, "q4", Some(48)).is_err());
        assert_eq!(
            Quant::parse(Target::Mlx, "Q3", Some(32)).unwrap(),
            Quant::Mlx(MlxMode::Affine { bits: 3, group: 32 })
        );
    }
}
