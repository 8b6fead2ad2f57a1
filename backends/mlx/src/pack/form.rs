//! How a matrix is stored on the device.

use loquat_weights::decode::MlxMode;
use loquat_weights::{Dtype, Matrix, Storage};

use super::blocks;
use crate::array::{Packing, Type};

/// The properties of a matrix that a kernel depends on; matrices of the same form can be multiplied
/// as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain(Type),
    /// Codes, and for each group a scale and a bias of the type.
    Affine {
        bits: u8,
        group: usize,
        scales: Type,
    },
    /// Floats of four or eight bits, and for each group a scale of one byte.
    SmallFloats(MlxMode),
}

/// One of the arrays that a form consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    Values,
    Codes,
    Scales,
    Biases,
}

impl Form {
    /// The form of a matrix that multiplies activations of type `dtype`. MLX has kernels for every
    /// packed form that this returns, on each of its devices.
    pub fn for_matrix(matrix: &Matrix, dtype: Type) -> Self {
        match matrix.storage() {
            Storage::Plain(tensor) if tensor.dtype == Dtype::Mxfp4 => {
                Self::SmallFloats(MlxMode::Mxfp4)
            }
            Storage::Plain(tensor) => match blocks::affine_bits(tensor.dtype) {
                Some(bits) => Self::Affine {
                    bits,
                    group: blocks::GROUP,
                    scales: dtype,
                },
                None => Self::Plain(dtype),
            },
            Storage::Mlx { mode, .. } => match *mode {
                MlxMode::Affine { bits, group } => Self::Affine {
                    bits,
                    group,
                    scales: dtype,
                },
                mode => Self::SmallFloats(mode),
            },
            Storage::Fp8 { .. } => Self::Plain(dtype),
        }
    }

    /// A form in which all can be stored.
    pub fn common<'a>(matrices: impl IntoIterator<Item = &'a Matrix>, dtype: Type) -> Self {
        let mut forms = matrices
            .into_iter()
            .map(|matrix| Self::for_matrix(matrix, dtype));
        match forms.next() {
            Some(first) if forms.all(|form| form == first) => first,
            _ => Self::Plain(dtype),
        }
    }

    pub fn planes(self) -> &'static [Plane] {
        match self {
            Self::Plain(_) => &[Plane::Values],
            Self::Affine { .. } => &[Plane::Codes, Plane::Scales, Plane::Biases],
            Self::SmallFloats(_) => &[Plane::Codes, Plane::Scales],
        }
    }

    pub fn plane_type(self, plane: Plane) -> Type {
        match (plane, self) {
            (Plane::Codes, _) => Type::U32,
            (_, Self::Plain(of) | Self::Affine { scales: of, .. }) => of,
            (_, Self::SmallFloats(_)) => Type::U8,
        }
    }

    /// Elements of a row of `cols` values in `plane`, of the plane's type.
    pub fn plane_cols(self, plane: Plane, cols: usize) -> usize {
        let (bits, group) = match self {
            Self::Plain(_) => return cols,
            Self::Affine { bits, group, .. } => (bits, group),
            Self::SmallFloats(mode) => (mode.bits(), mode.group()),
        };
        match plane {
            Plane::Codes => cols * usize::from(bits) / 32,
            Plane::Values | Plane::Scales | Plane::Biases => cols / group,
        }
    }

    pub fn row_bytes(self, cols: usize) -> usize {
        let bytes = |plane: &Plane| self.plane_cols(*plane, cols) * self.plane_type(*plane).bytes();
        self.planes().iter().map(bytes).sum()
    }

    pub fn packing(self) -> Option<Packing> {
        Some(match self {
            Self::Plain(_) => return None,
            Self::Affine { bits, group, .. } => Packing {
                mode: c"affine",
                bits: i32::from(bits),
                group: group as i32,
            },
            Self::SmallFloats(mode) => Packing {
                mode: match mode {
                    MlxMode::Affine { .. } => c"affine",
                    MlxMode::Mxfp4 => c"mxfp4",
                    MlxMode::Mxfp8 => c"mxfp8",
                    MlxMode::Nvfp4 => c"nvfp4",
                },
                bits: i32::from(mode.bits()),
                group: mode.group() as i32,
            },
        })
    }
}

/// The device's type for a file's float type.
pub fn float_type(dtype: Dtype) -> Option<Type> {
    match dtype {
        Dtype::F32 => Some(Type::F32),
        Dtype::F16 => Some(Type::F16),
        Dtype::BF16 => Some(Type::BF16),
        _ => None,
    }
}
