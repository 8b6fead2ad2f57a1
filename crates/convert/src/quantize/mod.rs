//! Quantization of `f32` values, bit-identical to the format's reference quantizer.
//!
//! GGUF's types follow ggml's `quantize_row_*_ref`, MLX's `mx.quantize` on its CPU; both without
//! fused operations, so that the bytes are the same on every machine. The caller
//! checks that values are finite.

mod affine;
mod ggml;
mod k_blocks;
mod microscaling;

use half::{bf16, f16};
use loquat_weights::decode::{MlxMode, decode_mlx_row, decode_row};
use loquat_weights::{DecodeFault, Dtype};

/// How a tensor's rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A float type, or one of GGUF's block types.
    Plain(Dtype),
    /// Codes, scales and (if affine) biases of weights of type `float`.
    Mlx { mode: MlxMode, float: Dtype },
}

/// Encoded rows: codes, scales and biases, which are separate tensors in MLX.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

impl Encoding {
    /// Whether values change by more than rounding to a float type.
    pub fn is_quantized(self) -> bool {
        match self {
            Encoding::Plain(dtype) => dtype.block_len() > 1,
            Encoding::Mlx { .. } => true,
        }
    }

    /// The usual name.
    pub fn name(self) -> String {
        match self {
            Encoding::Plain(dtype) => dtype.name().to_owned(),
            Encoding::Mlx {
                mode: MlxMode::Affine { bits, group },
                ..
            } => format!("affine {bits}-bit g{group}"),
            Encoding::Mlx { mode, .. } => mode.name().to_owned(),
        }
    }

    /// Whether rows of `cols` values divide into whole blocks.
    pub fn fits(self, cols: usize) -> bool {
        match self {
            Encoding::Plain(dtype) => cols.is_multiple_of(dtype.block_len()),
            Encoding::Mlx { mode, .. } => cols.is_multiple_of(mode.group()),
        }
    }

    /// The type of MLX's scales.
    pub fn scale_dtype(mode: MlxMode, float: Dtype) -> Dtype {
        match mode {
            MlxMode::Affine { .. } => float,
            MlxMode::Mxfp4 | MlxMode::Mxfp8 | MlxMode::Nvfp4 => Dtype::U8,
        }
    }

    /// Appends the bytes of one row, which must [fit](Encoding::fits).
    pub fn encode(self, row: &[f32], out: &mut Encoded) {
        match self {
            Encoding::Plain(dtype) => encode_plain(dtype, row, &mut out.codes),
            Encoding::Mlx { mode, float } => match mode {
                MlxMode::Affine { bits, group } => affine::encode(bits, group, float, row, out),
                MlxMode::Mxfp4 | MlxMode::Mxfp8 | MlxMode::Nvfp4 => {
                    microscaling::encode(mode, float, row, out);
                }
            },
        }
    }

    /// Decodes the only row of `encoded`.
    pub fn decode(self, encoded: &Encoded, out: &mut [f32]) -> Result<(), DecodeFault> {
        match self {
            Encoding::Plain(dtype) => decode_row(dtype, &encoded.codes, out),
            Encoding::Mlx { mode, float } => {
                let biases = matches!(mode, MlxMode::Affine { .. })
                    .then_some((encoded.biases.as_slice(), float));
                let scales = Encoding::scale_dtype(mode, float);
                decode_mlx_row(mode, &encoded.codes, &encoded.scales, scales, biases, out)
            }
        }
    }
}

fn encode_plain(dtype: Dtype, row: &[f32], out: &mut Vec<u8>) {
    match dtype {
        Dtype::F16 => each(row, out, |value| f16::from_f32(value).to_le_bytes()),
        Dtype::BF16 => each(row, out, |value| bf16::from_f32(value).to_le_bytes()),
        Dtype::Q4_0 => blocks(row, out, ggml::q4_0),
        Dtype::Q4_1 => blocks(row, out, ggml::q4_1),
        Dtype::Q5_0 => blocks(row, out, ggml::q5_0),
        Dtype::Q5_1 => blocks(row, out, ggml::q5_1),
        Dtype::Q8_0 => blocks(row, out, ggml::q8_0),
        Dtype::Q4K => blocks(row, out, k_blocks::q4_k),
        Dtype::Q5K => blocks(row, out, k_blocks::q5_k),
        Dtype::Q6K => blocks(row, out, k_blocks::q6_k),
        // Other types are never chosen.
        _ => each(row, out, f32::to_le_bytes),
    }
}

fn each<const N: usize>(row: &[f32], out: &mut Vec<u8>, encode: impl Fn(f32) -> [u8; N]) {
    out.extend(row.iter().flat_map(|value| encode(*value)));
}

fn blocks<const LEN: usize, const BYTES: usize>(
    row: &[f32],
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; LEN]) -> [u8; BYTES],
) {
    out.extend(row.as_chunks().0.iter().flat_map(encode));
}

/// The value rounded to a float type.
pub(crate) fn rounded(float: Dtype, value: f32) -> f32 {
    match float {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

fn put_float(float: Dtype, value: f32, out: &mut Vec<u8>) {
    encode_plain(float, &[value], out);
}

#[cfg(test)]
mod tests;
