//! MLX-quantized rows: packed codes with scales (and biases) in tensors of
//! their own.

use super::float8::{e2m1, e4m3, e8m0};
use super::{check_len, decode_row};
use crate::{DecodeFault, Dtype};

/// How a quantized MLX tensor stores its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlxMode {
    /// `scale * code + bias` for each group of values.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// 32, 64 or 128.
        group: usize,
    },
    /// 4-bit floats, one power-of-two scale for each 32.
    Mxfp4,
    /// 8-bit floats, one power-of-two scale for each 32.
    Mxfp8,
    /// 4-bit floats, one 8-bit float scale for each 16.
    Nvfp4,
}

impl MlxMode {
    /// An affine mode; fails if decoding does not support it.
    pub fn affine(bits: u8, group: usize) -> Result<MlxMode, DecodeFault> {
        let mode = MlxMode::Affine { bits, group };
        mode.check()?;
        Ok(mode)
    }

    fn check(self) -> Result<(), DecodeFault> {
        match self {
            MlxMode::Affine { bits, group } => {
                check_bits(bits)?;
                if !matches!(group, 32 | 64 | 128) {
                    return Err(DecodeFault::Group { group });
                }
                Ok(())
            }
            MlxMode::Mxfp4 | MlxMode::Mxfp8 | MlxMode::Nvfp4 => Ok(()),
        }
    }

    /// MLX's name for the mode.
    pub const fn name(self) -> &'static str {
        match self {
            MlxMode::Affine { .. } => "affine",
            MlxMode::Mxfp4 => "mxfp4",
            MlxMode::Mxfp8 => "mxfp8",
            MlxMode::Nvfp4 => "nvfp4",
        }
    }

    /// Bits of one code.
    pub const fn bits(self) -> u8 {
        match self {
            MlxMode::Affine { bits, .. } => bits,
            MlxMode::Mxfp4 | MlxMode::Nvfp4 => 4,
            MlxMode::Mxfp8 => 8,
        }
    }

    /// Values that share a scale.
    pub const fn group(self) -> usize {
        match self {
            MlxMode::Affine { group, .. } => group,
            MlxMode::Mxfp4 | MlxMode::Mxfp8 => 32,
            MlxMode::Nvfp4 => 16,
        }
    }
}

fn check_bits(bits: u8) -> Result<(), DecodeFault> {
    match bits {
        2 | 3 | 4 | 5 | 6 | 8 => Ok(()),
        _ => Err(DecodeFault::Bits { bits }),
    }
}

/// Unpacks one row's codes, low bits first.
///
/// MLX stores `u32` words, but for every width the codes form one
/// little-endian stream of bits: 3-, 5- and 6-bit codes straddle bytes and words.
pub fn unpack_codes(bits: u8, packed: &[u8], out: &mut [u8]) -> Result<(), DecodeFault> {
    check_bits(bits)?;
    let width = usize::from(bits);
    let total = (out.len().checked_mul(width))
        .filter(|total| total.is_multiple_of(32))
        .ok_or(DecodeFault::PartialWord {
            cols: out.len(),
            bits,
        })?;
    check_len("packed codes", total / 8, packed)?;
    let mask = (1u16 << bits) - 1;
    for (i, code) in out.iter_mut().enumerate() {
        let (byte, shift) = (i * width / 8, i * width % 8);
        let low = u16::from(packed[byte]);
        let high = packed.get(byte + 1).copied().unwrap_or(0);
        *code = ((low | u16::from(high) << 8) >> shift & mask) as u8;
    }
    Ok(())
}

/// Decodes one row; `out` is as long as the row has values. Affine rows need
/// biases, the other modes have none.
pub fn decode_mlx_row(
    mode: MlxMode,
    packed: &[u8],
    scales: &[u8],
    scales_dtype: Dtype,
    biases: Option<(&[u8], Dtype)>,
    out: &mut [f32],
) -> Result<(), DecodeFault> {
    mode.check()?;
    let group = mode.group();
    if !out.len().is_multiple_of(group) {
        return Err(DecodeFault::PartialBlock {
            cols: out.len(),
            block: group,
        });
    }
    let mut codes = vec![0; out.len()];
    unpack_codes(mode.bits(), packed, &mut codes)?;
    let groups = out.len() / group;
    let scales = decode_mlx_scales(mode, scales, scales_dtype, groups)?;
    let biases = decode_biases(mode, biases, groups)?;
    for (i, (value, &code)) in out.iter_mut().zip(&codes).enumerate() {
        let scale = scales[i / group];
        *value = match mode {
            MlxMode::Affine { .. } => scale * f32::from(code) + biases[i / group],
            MlxMode::Mxfp4 | MlxMode::Nvfp4 => scale * e2m1(code),
            MlxMode::Mxfp8 => scale * e4m3(code),
        };
    }
    Ok(())
}

/// One scale for each group of a row.
pub fn decode_mlx_scales(
    mode: MlxMode,
    scales: &[u8],
    dtype: Dtype,
    groups: usize,
) -> Result<Vec<f32>, DecodeFault> {
    let decode = match (mode, dtype) {
        (MlxMode::Affine { .. }, Dtype::F32 | Dtype::F16 | Dtype::BF16) => {
            return decode_floats("scales", scales, dtype, groups);
        }
        (MlxMode::Mxfp4 | MlxMode::Mxfp8, Dtype::U8 | Dtype::F8E8M0) => e8m0,
        (MlxMode::Nvfp4, Dtype::U8 | Dtype::F8E4M3) => e4m3,
        _ => {
            return Err(DecodeFault::ScaleType {
                mode: mode.name(),
                dtype,
            });
        }
    };
    check_len("scales", groups, scales)?;
    Ok(scales.iter().map(|&code| decode(code)).collect())
}

/// One bias for each group of an affine row, nothing for other modes.
fn decode_biases(
    mode: MlxMode,
    biases: Option<(&[u8], Dtype)>,
    groups: usize,
) -> Result<Vec<f32>, DecodeFault> {
    let refuse = |rule| DecodeFault::Biases {
        mode: mode.name(),
        rule,
    };
    match (mode, biases) {
        (MlxMode::Affine { .. }, Some((bytes, dtype))) => {
            decode_floats("biases", bytes, dtype, groups)
        }
        (MlxMode::Affine { .. }, None) => Err(refuse("needs biases")),
        (_, Some(_)) => Err(refuse("must not have biases")),
        (_, None) => Ok(Vec::new()),
    }
}

fn decode_floats(
    what: &'static str,
    bytes: &[u8],
    dtype: Dtype,
    count: usize,
) -> Result<Vec<f32>, DecodeFault> {
    check_len(what, count.saturating_mul(dtype.block_bytes()), bytes)?;
    let mut out = vec![0.0; count];
    decode_row(dtype, bytes, &mut out)?;
    Ok(out)
}
