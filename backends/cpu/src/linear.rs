//! A matrix times activations, whatever the matrix's format.

use std::cell::RefCell;
use std::ops::Range;

use loquat_session::{OpenError, Precision};
use loquat_weights::{Dtype, EncodedRow, Matrix};
use smallvec::SmallVec;

use crate::buffers::fit;
use crate::kernels::{GROUP, Kernels, Quantized, SUM_GROUP, TILE_ROWS, TileInput};
use crate::pack::{Packed, Packer};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// Rows of output are computed in tiles of [`TILE_ROWS`], each by one thread.
pub enum Linear {
    /// Integer arithmetic over packed codes and rounded activations.
    Packed(Packed),
    /// Rows decoded to `f32` as they are needed, times exact activations.
    Decoded(Box<Matrix>),
}

/// The activations of one step, and their rounded form where a packed matrix will read them.
#[derive(Default)]
pub struct Activations {
    pub values: Vec<f32>,
    tokens: usize,
    cols: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    scaled_sums: Vec<f32>,
}

/// A matrix times some rows of the activations; the results go to `[token][row]`.
pub struct Product<'a> {
    linear: &'a Linear,
    input: &'a Activations,
    tokens: Range<usize>,
    out: SharedMut<'a, f32>,
    /// Its first tile's place among those of all products of a loop.
    first_tile: usize,
}

/// Products of one loop. Those of a decode step are few enough to need no allocation.
pub type Products<'a> = SmallVec<[Product<'a>; 16]>;

impl<'a> Product<'a> {
    /// All of the activations' rows.
    pub fn new(linear: &'a Linear, input: &'a Activations, out: &'a mut [f32]) -> Self {
        Self::of_rows(linear, input, 0..input.tokens, out)
    }

    /// Some of the activations' rows.
    pub fn of_rows(
        linear: &'a Linear,
        input: &'a Activations,
        tokens: Range<usize>,
        out: &'a mut [f32],
    ) -> Self {
        assert_eq!(out.len(), tokens.len() * linear.rows());
        Self {
            linear,
            input,
            tokens,
            out: SharedMut::new(out),
            first_tile: 0,
        }
    }
}

thread_local! {
    static DECODED_ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Linear {
    pub fn new(
        matrix: &Matrix,
        precision: Precision,
        packer: &mut Packer,
    ) -> Result<Self, OpenError> {
        let packed = match precision {
            Precision::Fast => packer.pack(matrix)?,
            Precision::Reference => None,
        };
        Ok(packed.map_or_else(|| Self::Decoded(Box::new(matrix.clone())), Self::Packed))
    }

    /// What [`Linear::new`] would allocate, or `None` where it would read the mapped file.
    pub fn predict_packed(matrix: &Matrix, precision: Precision) -> Option<u64> {
        match precision {
            Precision::Fast => Packed::predict_bytes(matrix).map(|bytes| bytes as u64),
            Precision::Reference => None,
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.rows(),
            Self::Decoded(matrix) => matrix.rows(),
        }
    }

    fn tiles(&self) -> usize {
        self.rows().div_ceil(TILE_ROWS)
    }
}

impl Product<'_> {
    fn run_tile(&self, kernels: &Kernels, tile: usize) {
        let Product {
            linear, input, out, ..
        } = self;
        let first = tile * TILE_ROWS;
        let rows = TILE_ROWS.min(linear.rows() - first);
        match linear {
            Linear::Packed(packed) => {
                let tile = packed.tile(tile);
                let write = |input: &TileInput, at: *mut f32, stride: usize| {
                    // SAFETY: the table was chosen for this machine, and `at` is valid for
                    // sixteen values at every token's stride, as both callers below arrange.
                    unsafe { (kernels.tile)(&tile, input, at, stride) };
                };
                if rows == TILE_ROWS {
                    // SAFETY: tile `tile` alone writes columns `first..first + 16`.
                    let at = unsafe { out.pointer(first) };
                    write(&input.tile_input(self.tokens.clone()), at, linear.rows());
                } else {
                    // The last tile's padding must not land in the next token's row.
                    for (row, token) in self.tokens.clone().enumerate() {
                        let mut padded = [0.0; TILE_ROWS];
                        write(
                            &input.tile_input(token..token + 1),
                            padded.as_mut_ptr(),
                            TILE_ROWS,
                        );
                        // SAFETY: this tile alone writes these columns of this token.
                        let place = unsafe { out.slice(row * linear.rows() + first, rows) };
                        place.copy_from_slice(&padded[..rows]);
                    }
                }
            }
            Linear::Decoded(matrix) => DECODED_ROW.with_borrow_mut(|decoded| {
                decoded.resize(matrix.cols(), 0.0);
                for row in first..first + rows {
                    decode(kernels, matrix, row, decoded);
                    for (place, token) in self.tokens.clone().enumerate() {
                        // SAFETY: the table was chosen for this machine.
                        let dot = unsafe { (kernels.dot)(decoded, input.row(token)) };
                        // SAFETY: this tile alone writes this row of every token.
                        unsafe { out.slice(place * linear.rows() + row, 1)[0] = dot };
                    }
                }
            }),
        }
    }
}

/// Decodes a row with the machine's kernels where they have one. Binding has matched every
/// length, so decoding cannot fail; a row that did would be NaN, not silently zero.
fn decode(kernels: &Kernels, matrix: &Matrix, row: usize, out: &mut [f32]) {
    let half = match matrix.encoded_row(row) {
        Some(EncodedRow::Plain { dtype, bytes }) => match dtype {
            Dtype::BF16 => Some((kernels.decode_bf16, bytes)),
            Dtype::F16 => Some((kernels.decode_f16, bytes)),
            _ => None,
        },
        _ => None,
    };
    match half {
        // SAFETY: the table was chosen for this machine.
        Some((kernel, bytes)) => unsafe { kernel(bytes, out) },
        None => {
            if matrix.decode_row(row, out).is_err() {
                out.fill(f32::NAN);
            }
        }
    }
}

impl Activations {
    /// Room for `tokens` rows of `cols`, to be filled through `values`.
    pub fn resize(&mut self, tokens: usize, cols: usize) {
        self.tokens = tokens;
        self.cols = cols;
        fit(&mut self.values, tokens * cols);
    }

    pub fn row(&self, token: usize) -> &[f32] {
        &self.values[token * self.cols..(token + 1) * self.cols]
    }

    /// Rounds the values for `readers`, if any of them is packed.
    pub fn prepare<'l>(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        readers: impl IntoIterator<Item = &'l Linear>,
    ) {
        if !readers
            .into_iter()
            .any(|linear| matches!(linear, Linear::Packed(_)))
        {
            return;
        }
        let (tokens, cols) = (self.tokens, self.cols);
        fit(&mut self.codes, tokens * cols);
        fit(&mut self.scales, tokens * cols / GROUP);
        fit(&mut self.sums, tokens * cols / SUM_GROUP);
        fit(&mut self.scaled_sums, tokens * cols / GROUP);
        let codes = SharedMut::new(&mut self.codes);
        let scales = SharedMut::new(&mut self.scales);
        let sums = SharedMut::new(&mut self.sums);
        let scaled_sums = SharedMut::new(&mut self.scaled_sums);
        let values = &self.values;
        for_tokens(pool, tokens, cols, &|token| {
            // SAFETY: each token's task writes its own rows, and the table was chosen for this
            // machine.
            unsafe {
                let out = Quantized {
                    codes: codes.slice(token * cols, cols),
                    scales: scales.slice(token * cols / GROUP, cols / GROUP),
                    sums: sums.slice(token * cols / SUM_GROUP, cols / SUM_GROUP),
                    scaled_sums: scaled_sums.slice(token * cols / GROUP, cols / GROUP),
                };
                (kernels.quantize)(&values[token * cols..(token + 1) * cols], out);
            }
        });
    }

    fn tile_input(&self, tokens: Range<usize>) -> TileInput<'_> {
        TileInput {
            tokens: tokens.len(),
            cols: self.cols,
            codes: &self.codes[tokens.start * self.cols..],
            scales: &self.scales[tokens.start * self.cols / GROUP..],
            sums: &self.sums[tokens.start * self.cols / SUM_GROUP..],
            scaled_sums: &self.scaled_sums[tokens.start * self.cols / GROUP..],
        }
    }
}

/// Runs several products in one parallel loop.
pub fn multiply<'a>(kernels: &Kernels, pool: &mut Pool, mut products: impl AsMut<[Product<'a>]>) {
    let products = products.as_mut();
    let mut tiles = 0;
    for product in &mut *products {
        product.first_tile = tiles;
        tiles += product.linear.tiles();
    }
    let products = &*products;
    pool.run(tiles, &|tile| {
        let after = products.partition_point(|product| product.first_tile <= tile);
        let product = &products[after - 1];
        product.run_tile(kernels, tile - product.first_tile);
    });
}

/// Runs `body` for each token, in parallel once that pays for the hand-over.
pub fn for_tokens(pool: &mut Pool, tokens: usize, cost: usize, body: &(dyn Fn(usize) + Sync)) {
    const WORTH_A_TASK: usize = 8192;
    let per_task = (WORTH_A_TASK / cost.max(1)).max(1);
    pool.run(tokens.div_ceil(per_task), &|task| {
        (task * per_task..((task + 1) * per_task).min(tokens)).for_each(body);
    });
}
