//! Exact scalar decoding to `f32`.
//!
//! Every formula is evaluated in `f32`, in the order the format's own reference
//! implementation writes it and without fused operations, so that results are
//! the same bits on every machine.

mod float8;
mod ggml;
mod mlx;

use half::{bf16, f16};

use crate::{DecodeFault, Dtype};

pub use mlx::{MlxMode, decode_mlx_row, decode_mlx_scales, unpack_codes};

/// Decodes one row of a float or GGUF block type; `out` is as long as the row
/// has values.
pub fn decode_row(dtype: Dtype, row: &[u8], out: &mut [f32]) -> Result<(), DecodeFault> {
    let expected = (dtype.row_bytes(out.len())).ok_or(DecodeFault::PartialBlock {
        cols: out.len(),
        block: dtype.block_len(),
    })?;
    check_len("row", expected, row)?;
    match dtype {
        Dtype::F32 => each(row, out, f32::from_le_bytes),
        Dtype::F16 => each(row, out, |v| f16::from_le_bytes(v).to_f32()),
        Dtype::BF16 => each(row, out, |v| bf16::from_le_bytes(v).to_f32()),
        Dtype::Q4_0 => blocks(row, out, ggml::q4_0),
        Dtype::Q4_1 => blocks(row, out, ggml::q4_1),
        Dtype::Q5_0 => blocks(row, out, ggml::q5_0),
        Dtype::Q5_1 => blocks(row, out, ggml::q5_1),
        Dtype::Q8_0 => blocks(row, out, ggml::q8_0),
        Dtype::Q4K => blocks(row, out, ggml::q4_k),
        Dtype::Q5K => blocks(row, out, ggml::q5_k),
        Dtype::Q6K => blocks(row, out, ggml::q6_k),
        Dtype::Mxfp4 => blocks(row, out, ggml::mxfp4),
        Dtype::F64
        | Dtype::F8E4M3
        | Dtype::F8E5M2
        | Dtype::F8E8M0
        | Dtype::I64
        | Dtype::I32
        | Dtype::I16
        | Dtype::I8
        | Dtype::U64
        | Dtype::U32
        | Dtype::U16
        | Dtype::U8
        | Dtype::Bool => return Err(DecodeFault::Dtype { dtype }),
    }
    Ok(())
}

/// Decodes one row of 8-bit floats with a scale for each `block` values.
pub fn decode_fp8_row(
    codes: &[u8],
    scales: &[u8],
    scales_dtype: Dtype,
    block: usize,
    out: &mut [f32],
) -> Result<(), DecodeFault> {
    check_len("row", out.len(), codes)?;
    let mut factors = vec![0.0; out.len().div_ceil(block.max(1))];
    decode_row(scales_dtype, scales, &mut factors)?;
    let blocks = out.chunks_mut(block.max(1)).zip(codes.chunks(block.max(1)));
    for ((out, codes), factor) in blocks.zip(factors) {
        for (value, code) in out.iter_mut().zip(codes) {
            *value = float8::e4m3(*code) * factor;
        }
    }
    Ok(())
}

fn check_len(what: &'static str, expected: usize, bytes: &[u8]) -> Result<(), DecodeFault> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(DecodeFault::Length {
        what,
        expected,
        found: bytes.len(),
    })
}

fn each<const N: usize>(row: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (value, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
        *value = decode(bytes);
    }
}

fn blocks<const BYTES: usize, const LEN: usize>(
    row: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (values, block) in out.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
        decode(block, values);
    }
}
