//! Quantized matrices repacked for the integer tiles.
//!
//! Every supported format becomes the same structure, at its size in the file: codes, with a scale
//! and perhaps a minimum for each group of columns.

mod interleave;
mod rows;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use loquat_cpu_kernels::{Codes, Element, GROUP, LINE, SubScales, TILE_ROWS, Tile, TileFormat};
use loquat_session::OpenError;
use loquat_weights::decode::MlxMode;
use loquat_weights::{Dtype, EncodedRow, Matrix, RawTensor, Storage, WeightsError};

use crate::arena::{Arena, Region};
use crate::pool::Pool;
use crate::shared::SharedMut;
use interleave::write_tile;
use rows::Row;

/// A matrix as tiles of sixteen rows; the last is padded with zero rows.
pub struct Packed {
    rows: usize,
    layout: PackedLayout,
    region: Region,
}

/// The layout of a packed matrix.
#[derive(Clone, Copy)]
struct PackedLayout {
    cols: usize,
    form: TileFormat,
}

/// Packs matrices one after the other, each with all threads.
pub struct Packer<'a> {
    arena: Arena,
    pool: &'a mut Pool,
}

/// Bytes that a thread reads and then packs. They stay in its cache meanwhile.
const WINDOW: usize = 512 << 10;

thread_local! {
    /// Bytes of the file.
    static FILE: RefCell<Vec<u8>> = RefCell::default();
    /// The rows being packed.
    static ROWS: RefCell<[Row; TILE_ROWS]> = RefCell::default();
}

impl<'a> Packer<'a> {
    /// A packer for matrices of about `expected` bytes in total.
    pub fn new(expected: usize, pool: &'a mut Pool) -> Self {
        Self {
            arena: Arena::new(expected),
            pool,
        }
    }

    /// `None` if the format or the shape has no integer form.
    pub fn pack(&mut self, matrix: &Matrix) -> Result<Option<Packed>, OpenError> {
        let Some(layout) = PackedLayout::for_matrix(matrix) else {
            return Ok(None);
        };
        let rows = matrix.rows();
        let tiles = rows.div_ceil(TILE_ROWS);
        let len = tiles * layout.tile_bytes();
        let region = self.arena.allocate(len);
        let mut region = region.map_err(|error| {
            OpenError::Device(format!("cannot allocate {len} bytes for weights ({error})"))
        })?;
        let bytes = SharedMut::new(region.bytes_mut());
        let fault = OnceLock::new();
        let window = (WINDOW / layout.tile_bytes()).max(1);
        // Small matrices have fewer windows than there are threads.
        let window = window.min(tiles.div_ceil(4 * self.pool.threads())).max(1);
        self.pool.run(tiles.div_ceil(window), &|task| {
            let first = task * window;
            let end = tiles.min(first + window);
            let at = first * layout.tile_bytes();
            // SAFETY: each task writes its own tiles.
            let tiles = unsafe { bytes.slice(at, (end - first) * layout.tile_bytes()) };
            let rows = first * TILE_ROWS..(end * TILE_ROWS).min(rows);
            if let Err(error) = layout.pack_tiles(matrix, rows, tiles) {
                // Reports any one of the errors.
                let _ = fault.set(error);
            }
        });
        // Formats of several tensors were mapped; neighbours of what was released before may be
        // mapped again.
        matrix.release(0..rows);
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
    /// The bytes that [`Packer::pack`] would allocate; `None` if it would not pack.
    pub fn predict_bytes(matrix: &Matrix) -> Option<usize> {
        let layout = PackedLayout::for_matrix(matrix)?;
        Some(matrix.rows().div_ceil(TILE_ROWS) * layout.tile_bytes())
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn tile(&self, index: usize) -> Tile<'_> {
        let size = self.layout.tile_bytes();
        Tile {
            form: self.layout.form,
            bytes: &self.region.bytes()[index * size..(index + 1) * size],
        }
    }

    /// Decodes `row` to the values that the file has.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (tile, row) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        let group = tile.form.group;
        let mut codes = [0; GROUP * TILE_ROWS];
        for (index, values) in out.chunks_mut(group).enumerate() {
            let first = index * group;
            if first.is_multiple_of(GROUP) {
                tile.unpack(first / GROUP, &mut codes);
            }
            let (scale, min) = (tile.scale(row, first), tile.min(row, first));
            for (col, value) in (first % GROUP..).zip(values) {
                let code = i32::from(codes[col / 4 * LINE + row * 4 + col % 4]);
                *value = (code - tile.form.zero()) as f32 * scale + min.unwrap_or(0.0);
            }
        }
    }
}

impl PackedLayout {
    /// `None` if there is no integer form.
    fn for_matrix(matrix: &Matrix) -> Option<Self> {
        let cols = matrix.cols();
        let form = form(matrix.storage())?;
        let divides = cols.is_multiple_of(GROUP * form.run);
        divides.then_some(Self { cols, form })
    }

    fn tile_bytes(&self) -> usize {
        self.form.tile_bytes(self.cols)
    }

    /// Packs these rows to the bytes of their tiles.
    fn pack_tiles(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        tiles: &mut [u8],
    ) -> Result<(), WeightsError> {
        let tiles = tiles.chunks_exact_mut(self.tile_bytes());
        let tiles = rows.clone().step_by(TILE_ROWS).zip(tiles);
        FILE.with_borrow_mut(|file| {
            if let Some(dtype) = matrix.read_rows(rows.clone(), file) {
                let row_bytes = file.len() / rows.len().max(1);
                for (first, tile) in tiles {
                    let of_tile = first..rows.end.min(first + TILE_ROWS);
                    self.pack_tile(of_tile, tile, |row| {
                        let at = (row - rows.start) * row_bytes;
                        let bytes = &file[at..at + row_bytes];
                        Ok(EncodedRow::Plain { dtype, bytes })
                    })?;
                }
                return Ok(());
            }
            for (first, tile) in tiles {
                let rows = first..rows.end.min(first + TILE_ROWS);
                self.pack_tile(rows, tile, |row| {
                    let rows = matrix.rows();
                    let encoded = matrix.encoded_row(row);
                    encoded.ok_or(WeightsError::RowOutOfRange { row, rows })
                })?;
            }
            matrix.release(rows);
            Ok(())
        })
    }

    /// Packs these rows, at most sixteen, to the bytes of a tile.
    fn pack_tile<'a>(
        &self,
        rows: Range<usize>,
        tile: &mut [u8],
        encoded: impl Fn(usize) -> Result<EncodedRow<'a>, WeightsError>,
    ) -> Result<(), WeightsError> {
        ROWS.with_borrow_mut(|buffers| {
            for (within, buffer) in buffers.iter_mut().enumerate() {
                let row = rows.start + within;
                if row < rows.end {
                    buffer.read(&encoded(row)?, &self.form, self.cols)?;
                } else {
                    buffer.clear(&self.form, self.cols);
                }
            }
            write_tile(buffers, &self.form, tile);
            Ok(())
        })
    }
}

/// `None` if the format has no integer form.
fn form(storage: &Storage) -> Option<TileFormat> {
    const HALF: Element = Element::F16;
    /// Blocks of a superblock.
    const SUPER: usize = 256 / GROUP;
    let plain = TileFormat {
        codes: Codes::Four,
        group: GROUP,
        run: 1,
        scale: HALF,
        min: None,
        sub_scales: SubScales::None,
    };
    let signed = |codes| TileFormat { codes, ..plain };
    let shifted = |codes| TileFormat {
        codes,
        min: Some(HALF),
        ..plain
    };
    let superblock = |codes| TileFormat {
        run: SUPER,
        sub_scales: SubScales::Unsigned,
        ..shifted(codes)
    };
    let floats = TileFormat {
        scale: Element::HalfE8m0,
        ..signed(Codes::Fp4)
    };
    Some(match storage {
        Storage::Plain(tensor) => match tensor.dtype {
            Dtype::Q4_0 => signed(Codes::Four),
            Dtype::Q4_1 => shifted(Codes::Four),
            Dtype::Q5_0 => signed(Codes::Five),
            Dtype::Q5_1 => shifted(Codes::Five),
            Dtype::Q8_0 => signed(Codes::Eight),
            Dtype::Q4K => superblock(Codes::Four),
            Dtype::Q5K => superblock(Codes::Five),
            Dtype::Q6K => TileFormat {
                group: 16,
                run: SUPER,
                sub_scales: SubScales::Signed,
                ..signed(Codes::Six)
            },
            Dtype::Mxfp4 => floats,
            _ => return None,
        },
        Storage::Mlx {
            mode,
            scales,
            biases,
            ..
        } => match mode {
            MlxMode::Affine { bits, .. } => TileFormat {
                codes: match bits {
                    0..=4 => Codes::Four,
                    5 => Codes::Five,
                    6 => Codes::Six,
                    _ => Codes::Eight,
                },
                run: mode.group() / GROUP,
                scale: element(scales)?,
                min: Some(element(biases.as_ref()?)?),
                ..plain
            },
            MlxMode::Mxfp4 => floats,
            // A scale for each half of a block: as sub-scales of a run's element these would not be
            // exact, so such matrices are decoded.
            MlxMode::Nvfp4 | MlxMode::Mxfp8 => return None,
        },
        Storage::Fp8 { .. } => return None,
    })
}

fn element(tensor: &RawTensor) -> Option<Element> {
    match tensor.dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::F16 => Some(Element::F16),
        Dtype::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use loquat_spec::{Config, Kind, Role, families};
    use loquat_synthetic::SplitMix64;
    use loquat_weights::{Blob, Weights, bind};

    use super::*;

    fn pack(matrix: &Matrix) -> Option<Packed> {
        let mut pool = Pool::new(2).unwrap();
        Packer::new(0, &mut pool).pack(matrix).unwrap()
    }

    /// A model whose embedding has this type.
    fn embedding(dtype: Dtype, rows: usize, cols: usize) -> Weights {
        let config = format!(
            r#"{{"model_type": "llama", "vocab_size": {rows}, "hidden_size": {cols},
                "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32,
                "max_position_embeddings": 8, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}}"#
        );
        let config = Config::parse(&config, "test").unwrap();
        let described = families::from_config(&config).unwrap();
        let (spec, naming) = (described.spec, described.namings[0]);
        let mut random = SplitMix64::new(9);
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
                    // Exponents stay small, so that every scale is finite.
                    (random.next_u64() >> 32) as u8 & 0xbf
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
    fn packed_rows_decode_to_file_values() {
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
                // Compared as numbers: the sign of zero does not matter in a sum.
                assert_eq!(found, expected, "{dtype} {row}");
            }
        }
    }

    #[test]
    fn packed_size_is_close_to_file_size() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.block_len() > 1) {
            let weights = embedding(dtype, 64, 2048);
            let matrix = weights.matrix(Role::Embedding).unwrap();
            let packed = Packed::predict_bytes(matrix).unwrap() as f64;
            // Six-bit scales become bytes: 148 bytes instead of Q4_K's 144.
            let allowed = matrix.bytes() as f64 * 1.03;
            assert!(
                packed <= allowed,
                "{dtype}: {packed} for {}",
                matrix.bytes()
            );
        }
    }

    #[test]
    fn plain_formats_are_not_packed() {
        for (dtype, cols) in [(Dtype::BF16, 64), (Dtype::F32, 64), (Dtype::F16, 64)] {
            let weights = embedding(dtype, 4, cols);
            assert!(pack(weights.matrix(Role::Embedding).unwrap()).is_none());
        }
    }
}
