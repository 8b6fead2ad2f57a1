//! Quantized matrices repacked for the integer tiles.
//!
//! Every supported format becomes the same thing, at the size it has in the file: codes of some
//! bits, with a scale and perhaps a minimum for each group of columns.

mod rows;

use std::cell::RefCell;
use std::sync::OnceLock;

use loquat_session::OpenError;
use loquat_weights::decode::MlxMode;
use loquat_weights::{Dtype, Matrix, RawTensor, Storage, WeightsError};

use crate::arena::{Arena, Region};
use crate::kernels::{Codes, Element, FP4_ZERO, GROUP, LINE, Parts, Scales, TILE_ROWS, Tile};
use crate::pool::Pool;
use crate::shared::SharedMut;
use rows::Row;

/// A matrix as tiles of sixteen rows; the last is filled up with rows of zero.
pub struct Packed {
    rows: usize,
    layout: Layout,
    region: Region,
}

/// How a format's values look once packed.
#[derive(Clone, Copy)]
struct Layout {
    cols: usize,
    codes: Codes,
    group: usize,
    /// The code for 0; of no meaning where every group has its own minimum.
    zero: i32,
    scales: ScaleLayout,
    mins: Option<ScaleLayout>,
}

#[derive(Clone, Copy)]
struct ScaleLayout {
    element: Element,
    /// Columns that share an element, as a power of two.
    span: u32,
    parts: Option<PartLayout>,
}

#[derive(Clone, Copy)]
enum PartLayout {
    Unsigned,
    Signed,
}

/// Packs matrices one after the other, each with all threads.
pub struct Packer<'a> {
    arena: Arena,
    pool: &'a mut Pool,
}

/// What of the file's form is in memory beside the packed one at any time.
const WINDOW: usize = 16 << 20;

thread_local! {
    /// A row on its way.
    static ROW: RefCell<Row> = RefCell::default();
}

impl<'a> Packer<'a> {
    pub fn new(pool: &'a mut Pool) -> Self {
        Self {
            arena: Arena::default(),
            pool,
        }
    }

    /// `None` where the format or the shape has no integer form.
    pub fn pack(&mut self, matrix: &Matrix) -> Result<Option<Packed>, OpenError> {
        let Some(layout) = Layout::of(matrix) else {
            return Ok(None);
        };
        let rows = matrix.rows();
        let tiles = rows.div_ceil(TILE_ROWS);
        let len = tiles * layout.tile_bytes();
        let region = self.arena.take(len);
        let mut region = region.map_err(|error| {
            OpenError::Device(format!("no memory for {len} bytes of weights ({error})"))
        })?;
        let bytes = SharedMut::new(region.bytes_mut());
        let fault = OnceLock::new();
        let pack_tile = |tile: usize| {
            // SAFETY: each tile's task writes its own bytes.
            let bytes = unsafe { bytes.slice(tile * layout.tile_bytes(), layout.tile_bytes()) };
            let rows = tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(rows);
            for (within, row) in rows.enumerate() {
                if let Err(error) = layout.pack_row(matrix, row, within, bytes) {
                    // The first fault is as good as any other.
                    let _ = fault.set(error);
                    return;
                }
            }
        };
        let window = (WINDOW / layout.tile_bytes()).max(1);
        for first in (0..tiles).step_by(window) {
            let end = tiles.min(first + window);
            self.pool.run(end - first, &|task| pack_tile(first + task));
            matrix.release(first * TILE_ROWS..end * TILE_ROWS);
        }
        match fault.into_inner() {
            Some(error) => Err(error.into()),
            None => Ok(Some(Packed {
                rows,
                layout,
                region,
            })),
        }
    }
}

impl Packed {
    /// What [`Packer::pack`] would take, without packing; `None` where it gives none.
    pub fn predict_bytes(matrix: &Matrix) -> Option<usize> {
        let layout = Layout::of(matrix)?;
        Some(matrix.rows().div_ceil(TILE_ROWS) * layout.tile_bytes())
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn tile(&self, index: usize) -> Tile<'_> {
        let size = self.layout.tile_bytes();
        self.layout
            .tile(&self.region.bytes()[index * size..(index + 1) * size])
    }

    /// The values that the file has for `row`, one for each column.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (tile, row) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        for (index, values) in out.chunks_mut(tile.group).enumerate() {
            let first = index * tile.group;
            let of_group = |scales: Scales| scales.value(row, first, tile.group);
            let (scale, min) = (of_group(tile.scales), tile.mins.map(of_group));
            for (col, value) in (first..).zip(values) {
                let code = (tile.code(row, col) - tile.zero) as f32;
                *value = code * scale + min.unwrap_or(0.0);
            }
        }
    }
}

impl Layout {
    /// `None` where there is no integer form.
    fn of(matrix: &Matrix) -> Option<Self> {
        let cols = matrix.cols();
        if !cols.is_multiple_of(GROUP) {
            return None;
        }
        let layout = |codes, group, zero, scales, mins| Self {
            cols,
            codes,
            group,
            zero,
            scales,
            mins,
        };
        let signed = |codes, zero, scales| layout(codes, GROUP, zero, scales, None);
        let shifted = |codes, scales, mins| layout(codes, GROUP, 0, scales, Some(mins));
        let (half, parted) = (ScaleLayout::HALVES, ScaleLayout::parted);
        Some(match matrix.storage() {
            Storage::Plain(tensor) => match tensor.dtype {
                Dtype::Q4_0 => signed(Codes::Four, 8, half),
                Dtype::Q4_1 => shifted(Codes::Four, half, half),
                Dtype::Q5_0 => signed(Codes::Five, 16, half),
                Dtype::Q5_1 => shifted(Codes::Five, half, half),
                Dtype::Q8_0 => signed(Codes::Eight, 128, half),
                Dtype::Q4K | Dtype::Q5K => {
                    let scales = parted(PartLayout::Unsigned);
                    let five = tensor.dtype == Dtype::Q5K;
                    shifted(if five { Codes::Five } else { Codes::Four }, scales, scales)
                }
                Dtype::Q6K => layout(Codes::Six, 16, 32, parted(PartLayout::Signed), None),
                Dtype::Mxfp4 => signed(Codes::Fp4, FP4_ZERO, ScaleLayout::POWERS),
                _ => return None,
            },
            Storage::Mlx {
                mode,
                scales,
                biases,
                ..
            } => match mode {
                MlxMode::Affine { bits, .. } => {
                    let codes = match bits {
                        0..=4 => Codes::Four,
                        5 => Codes::Five,
                        6 => Codes::Six,
                        _ => Codes::Eight,
                    };
                    let of = |tensor| ScaleLayout::of(tensor, mode.group());
                    shifted(codes, of(scales)?, of(biases.as_ref()?)?)
                }
                MlxMode::Mxfp4 => signed(Codes::Fp4, FP4_ZERO, ScaleLayout::POWERS),
                MlxMode::Nvfp4 => {
                    let scales = ScaleLayout::new(Element::F16, 16);
                    layout(Codes::Fp4, 16, FP4_ZERO, scales, None)
                }
                MlxMode::Mxfp8 => return None,
            },
            Storage::Fp8 { .. } => return None,
        })
    }

    fn tile_bytes(&self) -> usize {
        let (lines, planes) = self.codes.block_bytes();
        let scales = [Some(self.scales), self.mins];
        let scales = scales.into_iter().flatten();
        let scales: usize = scales.map(|s| s.elements(self) + s.parts(self)).sum();
        (self.cols / GROUP * (lines + planes) + scales).next_multiple_of(LINE)
    }

    /// The parts of a tile in the order they lie.
    fn tile<'a>(&self, bytes: &'a [u8]) -> Tile<'a> {
        let (lines, planes) = self.codes.block_bytes();
        let blocks = self.cols / GROUP;
        let (lines, rest) = bytes.split_at(blocks * lines);
        let (planes, rest) = rest.split_at(blocks * planes);
        let (scales, rest) = self.scales.split(self, rest);
        Tile {
            codes: self.codes,
            group: self.group,
            zero: self.zero,
            lines,
            planes,
            scales,
            mins: self.mins.map(|mins| mins.split(self, rest).0),
        }
    }

    fn pack_row(
        &self,
        matrix: &Matrix,
        row: usize,
        within: usize,
        tile: &mut [u8],
    ) -> Result<(), WeightsError> {
        let encoded = matrix.encoded_row(row).ok_or(WeightsError::RowOutOfRange {
            row,
            rows: matrix.rows(),
        })?;
        ROW.with_borrow_mut(|row| {
            row.read(&encoded, self.codes, self.cols)?;
            self.place(row, within, tile);
            Ok(())
        })
    }

    /// Writes a row's values to where a kernel will look for those of row `within`.
    fn place(&self, row: &Row, within: usize, tile: &mut [u8]) {
        let (line_bytes, plane_bytes) = self.codes.block_bytes();
        let blocks = self.cols / GROUP;
        let (lines, rest) = tile.split_at_mut(blocks * line_bytes);
        let (planes, rest) = rest.split_at_mut(blocks * plane_bytes);
        scatter::<4>(&row.lines, within, lines);
        match self.codes {
            Codes::Five => scatter_bits(&row.planes, within, planes),
            Codes::Six => scatter::<4>(&row.planes, within, planes),
            Codes::Four | Codes::Fp4 | Codes::Eight => {}
        }
        let rest = self.scales.place(&row.scales, within, self, rest);
        if let Some(mins) = self.mins {
            mins.place(&row.mins, within, self, rest);
        }
    }
}

/// Writes a row's values, `N` bytes each, to its places in `[value][row]`.
fn scatter<const N: usize>(values: &[u8], within: usize, out: &mut [u8]) {
    let of_rows = out.as_chunks_mut::<N>().0.chunks_exact_mut(TILE_ROWS);
    for (rows, value) in of_rows.zip(values.as_chunks::<N>().0) {
        rows[within] = *value;
    }
}

/// Writes a row's bits, one for each column, four to a quad, to their places in `[quad][row]`.
fn scatter_bits(bits: &[u8], within: usize, out: &mut [u8]) {
    // Half a byte for each row.
    let of_rows = out.chunks_exact_mut(TILE_ROWS / 2);
    let quads = bits.iter().flat_map(|bits| [bits & 15, bits >> 4]);
    for (rows, quad) in of_rows.zip(quads) {
        rows[within / 2] |= quad << (within % 2 * 4);
    }
}

impl ScaleLayout {
    /// A half for each block.
    const HALVES: Self = Self::new(Element::F16, GROUP);
    /// A power of two for each block.
    const POWERS: Self = Self::new(Element::HalfE8m0, GROUP);

    const fn new(element: Element, span: usize) -> Self {
        Self {
            element,
            span: span.trailing_zeros(),
            parts: None,
        }
    }

    /// A half for each 256 columns, and a byte for each group, which multiplies it.
    const fn parted(parts: PartLayout) -> Self {
        Self {
            parts: Some(parts),
            ..Self::new(Element::F16, 256)
        }
    }

    fn of(tensor: &RawTensor, span: usize) -> Option<Self> {
        let element = match tensor.dtype {
            Dtype::F32 => Element::F32,
            Dtype::F16 => Element::F16,
            Dtype::BF16 => Element::Bf16,
            _ => return None,
        };
        Some(Self::new(element, span))
    }

    fn elements(&self, layout: &Layout) -> usize {
        layout.cols.div_ceil(1 << self.span) * TILE_ROWS * self.element.bytes()
    }

    fn parts(&self, layout: &Layout) -> usize {
        match self.parts {
            Some(_) => layout.cols / layout.group * TILE_ROWS,
            None => 0,
        }
    }

    fn split<'a>(&self, layout: &Layout, bytes: &'a [u8]) -> (Scales<'a>, &'a [u8]) {
        let (elements, rest) = bytes.split_at(self.elements(layout));
        let (parts, rest) = rest.split_at(self.parts(layout));
        let scales = Scales {
            element: self.element,
            span: self.span,
            elements,
            parts: match self.parts {
                None => Parts::None,
                Some(PartLayout::Unsigned) => Parts::Unsigned(parts),
                Some(PartLayout::Signed) => Parts::Signed(parts),
            },
        };
        (scales, rest)
    }

    /// Writes a row's scales and gives back what of the tile comes after all rows' scales.
    fn place<'a>(
        &self,
        row: &rows::RowScales,
        within: usize,
        layout: &Layout,
        bytes: &'a mut [u8],
    ) -> &'a mut [u8] {
        let (elements, rest) = bytes.split_at_mut(self.elements(layout));
        let (parts, rest) = rest.split_at_mut(self.parts(layout));
        match self.element.bytes() {
            1 => scatter::<1>(&row.elements, within, elements),
            2 => scatter::<2>(&row.elements, within, elements),
            _ => scatter::<4>(&row.elements, within, elements),
        }
        scatter::<1>(&row.parts, within, parts);
        rest
    }
}

#[cfg(test)]
mod tests {
    use loquat_spec::{Config, Kind, Role, families};
    use loquat_weights::{Blob, Weights, bind};

    use super::*;

    fn pack(matrix: &Matrix) -> Option<Packed> {
        let mut pool = Pool::new(2).unwrap();
        Packer::new(&mut pool).pack(matrix).unwrap()
    }

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
            let packed = pack(matrix).unwrap();
            let bytes = packed.region.bytes().len();
            assert_eq!(Packed::predict_bytes(matrix), Some(bytes));
            let (mut expected, mut found) = (vec![0.0; cols], vec![0.0; cols]);
            for row in 0..rows {
                matrix.decode_row(row, &mut expected).unwrap();
                packed.decode_row(row, &mut found);
                // Compared as numbers: a zero's sign is nothing to a sum.
                assert_eq!(found, expected, "{dtype} {row}");
            }
        }
    }

    #[test]
    fn packing_takes_no_more_than_the_file() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.block_len() > 1) {
            let weights = embedding(dtype, 64, 2048);
            let matrix = weights.matrix(Role::Embedding).unwrap();
            let packed = Packed::predict_bytes(matrix).unwrap() as f64;
            // Six-bit scales become bytes: 148 bytes where Q4_K has 144.
            let allowed = matrix.bytes() as f64 * 1.03;
            assert!(
                packed <= allowed,
                "{dtype}: {packed} for {}",
                matrix.bytes()
            );
        }
    }

    #[test]
    fn what_has_no_integer_form_is_left_alone() {
        for (dtype, cols) in [(Dtype::BF16, 64), (Dtype::F32, 64), (Dtype::F16, 64)] {
            let weights = embedding(dtype, 4, cols);
            assert!(pack(weights.matrix(Role::Embedding).unwrap()).is_none());
        }
    }
}
