//! Quantized matrices repacked for the integer tiles.
//!
//! Every supported format becomes the same thing: codes of four or eight bits, with a scale
//! and perhaps a minimum for each group of columns.

use half::f16;
use loquat_weights::decode::{MlxMode, decode_mlx_scales, decode_row, unpack_codes};
use loquat_weights::{DecodeFault, Dtype, EncodedRow, Matrix, Storage, WeightsError};

use crate::kernels::{GROUP, Scales, TILE_ROWS, Tile};

/// A cache line, so that a tile's loads never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A matrix as tiles of sixteen rows; the last is filled up with rows of zero.
pub struct Packed {
    rows: usize,
    cols: usize,
    shape: Shape,
    codes: Vec<Line>,
    scales: ScaleStore,
    mins: Option<ScaleStore>,
}

enum ScaleStore {
    F16(Vec<u16>),
    F32(Vec<f32>),
}

/// How a format's values look once packed.
#[derive(Clone, Copy)]
struct Shape {
    four_bit: bool,
    group: usize,
    /// The code for 0, or `None` where every group has its own minimum.
    zero: Option<u8>,
    /// Scales and minimums are halves in the file.
    half_scales: bool,
}

/// One row in the common form, before interleaving.
struct AffineRow {
    codes: Vec<u8>,
    scales: Vec<f32>,
    mins: Vec<f32>,
}

impl Packed {
    /// `None` where the format or the shape has no integer form; such a matrix is decoded row
    /// by row instead.
    pub fn new(matrix: &Matrix) -> Result<Option<Self>, WeightsError> {
        let Some(shape) = Shape::of(matrix) else {
            return Ok(None);
        };
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let tiles = rows.div_ceil(TILE_ROWS);
        let lines = cols / if shape.four_bit { 8 } else { 4 };
        let groups = cols / shape.group;
        let store = || match shape.half_scales {
            true => ScaleStore::F16(vec![0; tiles * groups * TILE_ROWS]),
            false => ScaleStore::F32(vec![0.0; tiles * groups * TILE_ROWS]),
        };
        let mut packed = Self {
            rows,
            cols,
            shape,
            codes: vec![Line([0; 64]); tiles * lines],
            scales: store(),
            mins: shape.zero.is_none().then(store),
        };
        let mut row = AffineRow {
            codes: vec![0; cols],
            scales: vec![0.0; groups],
            mins: vec![0.0; groups],
        };
        for index in 0..rows {
            let encoded = matrix.encoded_row(index);
            let missing = WeightsError::RowOutOfRange { row: index, rows };
            row.read(&encoded.ok_or(missing)?)?;
            packed.place(index, &row);
        }
        Ok(Some(packed))
    }

    /// What [`Packed::new`] would take, without packing; `None` where it gives none.
    pub fn predict_bytes(matrix: &Matrix) -> Option<usize> {
        let shape = Shape::of(matrix)?;
        let values = matrix.rows().next_multiple_of(TILE_ROWS) * matrix.cols();
        let codes = values / if shape.four_bit { 2 } else { 1 };
        let stores = if shape.zero.is_none() { 2 } else { 1 };
        let scale_bytes = if shape.half_scales { 2 } else { 4 };
        Some(codes + values / shape.group * stores * scale_bytes)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let scales = self.scales.bytes() + self.mins.as_ref().map_or(0, ScaleStore::bytes);
        self.codes.len() * 64 + scales
    }

    pub fn tile(&self, index: usize) -> Tile<'_> {
        let lines = self.cols / if self.shape.four_bit { 8 } else { 4 };
        let scales = self.cols / self.shape.group * TILE_ROWS;
        let scales = index * scales..(index + 1) * scales;
        let lines = &self.codes[index * lines..(index + 1) * lines];
        Tile {
            codes: bytes_of(lines),
            four_bit: self.shape.four_bit,
            group: self.shape.group,
            scales: self.scales.slice(scales.clone()),
            mins: self.mins.as_ref().map(|mins| mins.slice(scales)),
            zero: self.shape.zero.map_or(0, i32::from),
        }
    }

    fn place(&mut self, index: usize, row: &AffineRow) {
        let (tile, within) = (index / TILE_ROWS, index % TILE_ROWS);
        let lines = self.cols / if self.shape.four_bit { 8 } else { 4 };
        let lines = &mut self.codes[tile * lines..(tile + 1) * lines];
        if self.shape.four_bit {
            for (group, codes) in row.codes.chunks_exact(GROUP).enumerate() {
                let (low, high) = codes.split_at(GROUP / 2);
                for (i, (low, high)) in low.iter().zip(high).enumerate() {
                    lines[group * 4 + i / 4].0[within * 4 + i % 4] = low | high << 4;
                }
            }
        } else {
            for (line, quad) in lines.iter_mut().zip(row.codes.chunks_exact(4)) {
                line.0[within * 4..within * 4 + 4].copy_from_slice(quad);
            }
        }
        let groups = self.cols / self.shape.group;
        for group in 0..groups {
            let at = (tile * groups + group) * TILE_ROWS + within;
            self.scales.set(at, row.scales[group]);
            if let Some(mins) = &mut self.mins {
                mins.set(at, row.mins[group]);
            }
        }
    }
}

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a Line is exactly 64 bytes, all of them initialised.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 64) }
}

impl ScaleStore {
    #[cfg(test)]
    fn bytes(&self) -> usize {
        match self {
            ScaleStore::F16(values) => values.len() * 2,
            ScaleStore::F32(values) => values.len() * 4,
        }
    }

    fn slice(&self, range: std::ops::Range<usize>) -> Scales<'_> {
        match self {
            ScaleStore::F16(values) => Scales::F16(&values[range]),
            ScaleStore::F32(values) => Scales::F32(&values[range]),
        }
    }

    fn set(&mut self, at: usize, value: f32) {
        match self {
            ScaleStore::F16(values) => values[at] = f16::from_f32(value).to_bits(),
            ScaleStore::F32(values) => values[at] = value,
        }
    }
}

impl Shape {
    fn of(matrix: &Matrix) -> Option<Self> {
        let shape = |four_bit, group, zero, half_scales| {
            Some(Self {
                four_bit,
                group,
                zero,
                half_scales,
            })
        };
        if !matrix.cols().is_multiple_of(GROUP) {
            return None;
        }
        match matrix.storage() {
            Storage::Plain(tensor) => match tensor.dtype {
                Dtype::Q4_0 => shape(true, 32, Some(8), true),
                Dtype::Q4_1 => shape(true, 32, None, true),
                Dtype::Q5_0 => shape(false, 32, Some(16), true),
                Dtype::Q5_1 => shape(false, 32, None, true),
                Dtype::Q8_0 => shape(false, 32, Some(128), true),
                Dtype::Q4K => shape(true, 32, None, false),
                Dtype::Q5K => shape(false, 32, None, false),
                Dtype::Q6K => shape(false, 16, Some(32), false),
                Dtype::Mxfp4 => shape(false, 32, Some(FP4_ZERO), false),
                _ => None,
            },
            Storage::Mlx {
                mode,
                scales,
                biases,
                ..
            } => match mode {
                MlxMode::Affine { bits, .. } => {
                    let stored = [Some(scales), biases.as_ref()];
                    let halves = stored.into_iter().flatten().all(|t| t.dtype == Dtype::F16);
                    shape(*bits <= 4, 32, None, halves)
                }
                MlxMode::Mxfp4 => shape(false, 32, Some(FP4_ZERO), false),
                MlxMode::Nvfp4 => shape(false, 16, Some(FP4_ZERO), false),
                MlxMode::Mxfp8 => None,
            },
            Storage::Fp8 { .. } => None,
        }
    }
}

/// Twice a four-bit float is a whole number of at most this size.
const FP4_ZERO: u8 = 12;
/// Twice each e2m1 value, by code, sign last.
const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl AffineRow {
    fn read(&mut self, row: &EncodedRow) -> Result<(), WeightsError> {
        match *row {
            EncodedRow::Plain { dtype, bytes } => self.read_blocks(dtype, bytes),
            EncodedRow::Mlx {
                mode,
                codes,
                scales: (scales, scales_dtype),
                biases,
            } => {
                unpack_codes(mode.bits(), codes, &mut self.codes)?;
                let groups = self.codes.len() / mode.group();
                let file_scales = decode_mlx_scales(mode, scales, scales_dtype, groups)?;
                // MLX's larger groups become several of ours.
                let repeat = self.scales.len() / groups;
                for (i, scale) in self.scales.iter_mut().enumerate() {
                    *scale = file_scales[i / repeat];
                }
                match biases {
                    Some((biases, dtype)) => {
                        let mut file_biases = vec![0.0; groups];
                        decode_row(dtype, biases, &mut file_biases)?;
                        for (i, min) in self.mins.iter_mut().enumerate() {
                            *min = file_biases[i / repeat];
                        }
                    }
                    None => {
                        for code in &mut self.codes {
                            *code = fp4_code(*code);
                        }
                        self.scales.iter_mut().for_each(|scale| *scale *= 0.5);
                    }
                }
                Ok(())
            }
            // `Shape::of` has given these no integer form.
            EncodedRow::Fp8 { codes, .. } => Err(DecodeFault::Length {
                what: "row of integers",
                expected: 0,
                found: codes.len(),
            }
            .into()),
        }
    }

    fn read_blocks(&mut self, dtype: Dtype, bytes: &[u8]) -> Result<(), WeightsError> {
        let len = dtype.block_len();
        let blocks = bytes.chunks_exact(dtype.block_bytes());
        let per_block = self.scales.len() * len / self.codes.len();
        let scales = self.scales.chunks_exact_mut(per_block);
        let outputs = scales.zip(self.mins.chunks_exact_mut(per_block));
        for ((block, codes), (scales, mins)) in
            blocks.zip(self.codes.chunks_exact_mut(len)).zip(outputs)
        {
            match dtype {
                Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q8_0 => {
                    read_simple(dtype, block, codes, scales, mins);
                }
                Dtype::Q4K | Dtype::Q5K => read_q4k_q5k(dtype, block, codes, scales, mins),
                Dtype::Mxfp4 => {
                    let scale = decode_mlx_scales(MlxMode::Mxfp4, &block[..1], Dtype::U8, 1)?;
                    scales[0] = scale[0] * 0.5;
                    for (i, code) in codes.iter_mut().enumerate() {
                        let byte = block[1 + i % 16];
                        *code = fp4_code(if i < 16 { byte & 15 } else { byte >> 4 });
                    }
                }
                _ => read_q6k(block, codes, scales),
            }
        }
        Ok(())
    }
}

/// The code of twice a four-bit float.
fn fp4_code(code: u8) -> u8 {
    (FP4_DOUBLED[usize::from(code & 15)] + FP4_ZERO as i8) as u8
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Blocks of 32 with their own half-precision scale.
fn read_simple(dtype: Dtype, block: &[u8], codes: &mut [u8], scales: &mut [f32], mins: &mut [f32]) {
    scales[0] = half_at(block, 0);
    let has_min = matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1);
    if has_min {
        mins[0] = half_at(block, 2);
    }
    let mut rest = &block[if has_min { 4 } else { 2 }..];
    if dtype == Dtype::Q8_0 {
        for (code, byte) in codes.iter_mut().zip(rest) {
            *code = byte ^ 0x80;
        }
        return;
    }
    let mut high_bits = 0;
    if matches!(dtype, Dtype::Q5_0 | Dtype::Q5_1) {
        high_bits = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        rest = &rest[4..];
    }
    for (i, code) in codes.iter_mut().enumerate() {
        let byte = rest[i % 16];
        let low = if i < 16 { byte & 15 } else { byte >> 4 };
        *code = low | ((high_bits >> i & 1) as u8) << 4;
    }
}

/// Superblocks of eight groups of 32, their scales and minimums in six bits each.
fn read_q4k_q5k(
    dtype: Dtype,
    block: &[u8],
    codes: &mut [u8],
    scales: &mut [f32],
    mins: &mut [f32],
) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    for group in 0..8 {
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            (
                packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            )
        };
        scales[group] = d * f32::from(scale);
        mins[group] = -(dmin * f32::from(min));
    }
    let (high, low) = match dtype {
        Dtype::Q5K => (Some(&block[16..48]), &block[48..176]),
        _ => (None, &block[16..144]),
    };
    for (i, code) in codes.iter_mut().enumerate() {
        let (group, within) = (i / 32, i % 32);
        let byte = low[group / 2 * 32 + within];
        let fifth = high.map_or(0, |high| high[within] >> group & 1);
        *code = (if group % 2 == 0 { byte & 15 } else { byte >> 4 }) | fifth << 4;
    }
}

/// Superblocks of sixteen groups of 16, with signed eight-bit scales.
fn read_q6k(block: &[u8], codes: &mut [u8], scales: &mut [f32]) {
    let (low, high) = (&block[..128], &block[128..192]);
    let d = half_at(block, 208);
    for (scale, byte) in scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(*byte as i8);
    }
    for (i, code) in codes.iter_mut().enumerate() {
        let (half, within) = (i / 128, i % 128);
        let (part, l) = (within / 32, within % 32);
        let byte = low[half * 64 + (part % 2) * 32 + l];
        let four = if part < 2 { byte & 15 } else { byte >> 4 };
        let two = high[half * 32 + l] >> (2 * part) & 3;
        *code = four | two << 4;
    }
}

#[cfg(test)]
mod tests {
    use loquat_spec::{Config, Kind, Role, families};
    use loquat_weights::{Blob, RawTensor, Weights, bind};

    use super::*;

    /// Binds `tensor` as the embedding of a model that needs nothing else of it.
    fn embedding(dtype: Dtype, rows: usize, cols: usize) -> Weights {
        let config = format!(
            r#"{{"model_type": "llama", "vocab_size": {rows}, "hidden_size": {cols},
                "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32,
                "max_position_embeddings": 8, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}}"#
        );
        let config = Config::parse(&config, "test").unwrap();
        let described = families::from_config(&config).unwrap();
        let (spec, naming) = (described.spec, described.namings[0]);
        let mut state = 9u64;
        let tensors: Vec<RawTensor> = naming
            .slots(&spec)
            .iter()
            .map(|slot| {
                let (dtype, shape) = match slot.kind {
                    Kind::Matrix { rows, cols } if slot.role == Role::Embedding => {
                        (dtype, vec![rows, cols])
                    }
                    Kind::Matrix { rows, cols } => (Dtype::BF16, vec![rows, cols]),
                    kind => (Dtype::BF16, vec![kind.rows()]),
                };
                let bytes = dtype.row_bytes(shape[shape.len() - 1]).unwrap();
                let bytes = bytes * if shape.len() == 2 { shape[0] } else { 1 };
                let data = (0..bytes).map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Exponents stay small, so that every scale is finite.
                    (state >> 32) as u8 & 0xbf
                });
                RawTensor::new(
                    slot.names[0].clone(),
                    dtype,
                    shape,
                    Blob::from_vec(data.collect()),
                )
                .unwrap()
            })
            .collect();
        bind(&spec, &naming, &tensors, None).unwrap()
    }

    #[test]
    fn packed_codes_stand_for_the_decoded_values() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.block_len() > 1) {
            let (rows, cols) = (19, 512);
            let weights = embedding(dtype, rows, cols);
            let matrix = weights.matrix(Role::Embedding).unwrap();
            let packed = Packed::new(matrix).unwrap().unwrap();
            assert_eq!(Packed::predict_bytes(matrix), Some(packed.bytes()));
            let mut expected = vec![0.0; cols];
            for row in 0..rows {
                matrix.decode_row(row, &mut expected).unwrap();
                let tile = packed.tile(row / TILE_ROWS);
                for (col, expected) in expected.iter().enumerate() {
                    let at = col / tile.group * TILE_ROWS + row % TILE_ROWS;
                    let code = (tile.code(row % TILE_ROWS, col) - tile.zero) as f32;
                    let scaled = code * tile.scales.get(at);
                    let value = scaled + tile.mins.map_or(0.0, |mins| mins.get(at));
                    let tolerance = 1e-6 * scaled.abs().max(expected.abs());
                    assert!(
                        (value - expected).abs() <= tolerance,
                        "{dtype} {row} {col}: {value} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_has_no_integer_form_is_left_alone() {
        for (dtype, cols) in [(Dtype::BF16, 64), (Dtype::F32, 64), (Dtype::F16, 64)] {
            let weights = embedding(dtype, 4, cols);
            assert!(
                Packed::new(weights.matrix(Role::Embedding).unwrap())
                    .unwrap()
                    .is_none()
            );
        }
    }
}
