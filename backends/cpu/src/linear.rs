//! Multiplies activations by matrices of any format.

use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{ActivationBlock, GROUP, Kernels, Rounded, TILE_ROWS, TileInput};
use loquat_session::{OpenError, Precision};
use loquat_weights::Matrix;
use smallvec::SmallVec;

use crate::buffers::{Buffer, fit};
use crate::pack::{Packed, Packer};
use crate::plain::{Plain, PlainJob};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// A matrix, and the slot by which adapters change it.
pub struct Linear {
    weights: Arc<LinearWeights>,
    /// `None` if adapters do not.
    slot: Option<usize>,
}

/// Rows of output are computed in tiles of [`TILE_ROWS`], each by one thread.
pub enum LinearWeights {
    /// Integer arithmetic over packed codes and rounded activations.
    Packed(Packed),
    /// Floating-point arithmetic over the mapped weights.
    Plain(Box<Plain>),
}

/// The activations of one step, and their rounded forms for the matrices that read them.
#[derive(Default)]
pub struct Activations {
    pub values: Buffer<f32>,
    tokens: usize,
    cols: usize,
    /// As a [`TileInput`] has them.
    blocks: Buffer<ActivationBlock>,
    bf16: Buffer<u32>,
    bf16_factors: Buffer<f32>,
}

/// A matrix times some rows of the activations; the results go to `[token][row]`.
pub struct Product<'a> {
    linear: &'a Linear,
    input: &'a Activations,
    tokens: Range<usize>,
    out: SharedMut<'a, f32>,
    /// Index of its first task among all products of a loop.
    first_task: usize,
    /// Neighbouring tiles that a task computes.
    tiles_per_task: usize,
    /// Tokens that a task computes at a time.
    tokens_per_task: usize,
}

/// Products of one loop. Those of a decode step are few enough to need no allocation.
pub type Products<'a> = SmallVec<[Product<'a>; 16]>;

impl<'a> Product<'a> {
    /// All of the activations' rows.
    pub fn new(linear: &'a Linear, input: &'a Activations, out: &'a mut [f32]) -> Self {
        Self::for_rows(linear, input, 0..input.tokens, out)
    }

    /// Some of the activations' rows.
    pub fn for_rows(
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
            first_task: 0,
            tiles_per_task: 1,
            tokens_per_task: 0,
        }
    }
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
        let weights = match packed {
            Some(packed) => LinearWeights::Packed(packed),
            None => LinearWeights::Plain(Box::new(Plain::new(matrix.clone(), precision))),
        };
        Ok(Self {
            weights: Arc::new(weights),
            slot: None,
        })
    }

    /// Reads activations as they are, whatever the matrix's format.
    pub fn exact(matrix: Matrix, slot: usize) -> Self {
        let plain = Plain::new(matrix, Precision::Reference);
        Self {
            weights: Arc::new(LinearWeights::Plain(Box::new(plain))),
            slot: Some(slot),
        }
    }

    pub fn set_slot(&mut self, slot: usize) {
        self.slot = Some(slot);
    }

    pub fn weights(&self) -> &Arc<LinearWeights> {
        &self.weights
    }

    /// The bytes that [`Linear::new`] would allocate, or `None` if it would read the mapped file.
    pub fn predict_packed(matrix: &Matrix, precision: Precision) -> Option<u64> {
        match precision {
            Precision::Fast => Packed::predict_bytes(matrix).map(|bytes| bytes as u64),
            Precision::Reference => None,
        }
    }

    pub fn rows(&self) -> usize {
        self.weights.rows()
    }

    /// Whether its products round activations.
    pub fn rounds(&self) -> bool {
        match &*self.weights {
            LinearWeights::Packed(_) => true,
            LinearWeights::Plain(plain) => plain.reads_bf16(),
        }
    }

    fn tiles(&self) -> usize {
        self.rows().div_ceil(TILE_ROWS)
    }

    /// How many tokens of `cols` activations stay in a second-level cache while several tiles are
    /// multiplied by them.
    fn cached_tokens(&self, cols: usize) -> usize {
        /// Half of the second-level cache of most processors.
        const BYTES: usize = 256 << 10;
        let per_token = match &*self.weights {
            LinearWeights::Packed(_) => cols / GROUP * size_of::<ActivationBlock>(),
            LinearWeights::Plain(plain) => match plain.activation_bytes() {
                Some(bytes) => cols * bytes,
                // Decoding a row costs more than reading activations again.
                None => return usize::MAX,
            },
        };
        (BYTES / per_token.max(1))
            .max(1)
            .next_multiple_of(KERNEL_TOKENS)
    }
}

impl LinearWeights {
    pub fn rows(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.rows(),
            Self::Plain(plain) => plain.rows(),
        }
    }

    /// Row `row` as the products see it.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Packed(packed) => packed.decode_row(row, out),
            Self::Plain(plain) => plain.decode_row(row, out),
        }
    }
}

impl<'a> Product<'a> {
    /// Its matrix's slot.
    pub fn slot(&self) -> Option<usize> {
        self.linear.slot
    }

    /// Rows of its output.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Columns of its output.
    pub fn cols(&self) -> usize {
        self.linear.rows()
    }

    /// Its rows among some of the input's, counted from its first; `None` if there are none.
    pub fn own_rows(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        let (start, end) = (
            rows.start.max(self.tokens.start),
            rows.end.min(self.tokens.end),
        );
        (start < end).then(|| start - self.tokens.start..end - self.tokens.start)
    }

    /// The values of some of its rows of the input.
    pub fn input_rows(&self, rows: Range<usize>) -> &[f32] {
        let first = self.tokens.start;
        self.input.rows(first + rows.start..first + rows.end)
    }

    /// # Safety
    /// As for [`SharedMut::pointer`].
    pub unsafe fn output(&self, at: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.out.pointer(at) }
    }

    /// Some of its rows, by another matrix if one is given; `None` if there are none.
    pub fn part<'s>(&self, rows: Range<usize>, linear: Option<&'s Linear>) -> Option<Product<'s>>
    where
        'a: 's,
    {
        let cols = self.cols();
        (!rows.is_empty()).then(|| Product {
            linear: linear.unwrap_or(self.linear),
            input: self.input,
            tokens: self.tokens.start + rows.start..self.tokens.start + rows.end,
            out: self.out.part(rows.start * cols, rows.len() * cols),
            first_task: 0,
            tiles_per_task: 1,
            tokens_per_task: 0,
        })
    }
}

impl Product<'_> {
    /// Parts that the tokens are divided into; 1 if there are none.
    fn token_parts(&self) -> usize {
        self.tokens.len().div_ceil(self.tokens_per_task).max(1)
    }

    fn tasks(&self) -> usize {
        self.linear.tiles().div_ceil(self.tiles_per_task) * self.token_parts()
    }

    /// Computes some neighbouring tiles for one part of the tokens. Parts of a tile are
    /// consecutive. Calls `finish` with tiles and tokens as soon as their outputs are there, when
    /// they are still in the cache.
    fn run_task(
        &self,
        kernels: &Kernels,
        task: usize,
        finish: &impl Fn(Range<usize>, Range<usize>),
    ) {
        let parts = self.token_parts();
        let first = task % parts * self.tokens_per_task;
        let end = (first + self.tokens_per_task).min(self.tokens.len());
        let tile = task / parts * self.tiles_per_task;
        let tiles = tile..self.linear.tiles().min(tile + self.tiles_per_task);
        let chunk = self.linear.cached_tokens(self.input.cols);
        for start in (first..end).step_by(chunk) {
            let tokens = start..start.saturating_add(chunk).min(end);
            let mut tile = tiles.start;
            while tile < tiles.end {
                let done = if tile + 1 < tiles.end && self.run_pair(kernels, tile, tokens.clone()) {
                    2
                } else {
                    self.run_tile(kernels, tile, tokens.clone());
                    1
                };
                finish(tile..tile + done, tokens.clone());
                tile += done;
            }
        }
    }

    /// Computes this tile and the next together; returns whether that was possible.
    fn run_pair(&self, kernels: &Kernels, tile: usize, of_product: Range<usize>) -> bool {
        let (LinearWeights::Packed(packed), Some(tile_pair)) =
            (&*self.linear.weights, kernels.tile_pair)
        else {
            return false;
        };
        let rows = self.linear.rows();
        let first = tile * TILE_ROWS;
        if first + 2 * TILE_ROWS > rows {
            return false;
        }
        let tokens = self.tokens.start + of_product.start..self.tokens.start + of_product.end;
        let pair = [packed.tile(tile), packed.tile(tile + 1)];
        // SAFETY: this task alone writes columns `first..first + 32` of its tokens, and the table
        // was chosen for this machine.
        unsafe {
            let at = self.out.pointer(of_product.start * rows + first);
            tile_pair(&pair, &self.input.tile_input(tokens), at, rows);
        }
        true
    }

    /// Computes one tile for some of the product's tokens.
    fn run_tile(&self, kernels: &Kernels, tile: usize, of_product: Range<usize>) {
        let Product {
            linear, input, out, ..
        } = self;
        let tokens = self.tokens.start + of_product.start..self.tokens.start + of_product.end;
        let before = of_product.start * linear.rows();
        let first = tile * TILE_ROWS;
        let rows = TILE_ROWS.min(linear.rows() - first);
        match &*linear.weights {
            LinearWeights::Packed(packed) => {
                let tile = packed.tile(tile);
                let write = |input: &TileInput, at: *mut f32, stride: usize| {
                    // SAFETY: the table was chosen for this machine, and `at` is valid for
                    // sixteen values at every token's stride, as both callers below arrange.
                    unsafe { (kernels.tile)(&tile, input, at, stride) };
                };
                if rows == TILE_ROWS {
                    // SAFETY: this task alone writes columns `first..first + 16` of its tokens.
                    let at = unsafe { out.pointer(before + first) };
                    write(&input.tile_input(tokens), at, linear.rows());
                } else {
                    // The last tile's padding must not overwrite the next token's row.
                    for (row, token) in of_product.zip(tokens) {
                        let mut padded = [0.0; TILE_ROWS];
                        write(
                            &input.tile_input(token..token + 1),
                            padded.as_mut_ptr(),
                            TILE_ROWS,
                        );
                        // SAFETY: this tile alone writes these columns of this token.
                        let columns = unsafe { out.slice(row * linear.rows() + first, rows) };
                        columns.copy_from_slice(&padded[..rows]);
                    }
                }
            }
            LinearWeights::Plain(plain) => {
                let job = PlainJob {
                    input,
                    tokens,
                    rows: first..first + rows,
                    out,
                    out_start: before,
                };
                plain.multiply(kernels, &job);
            }
        }
    }
}

impl Activations {
    /// Resizes to `tokens` rows of `cols`; the caller fills `values`.
    pub fn resize(&mut self, tokens: usize, cols: usize) {
        self.tokens = tokens;
        self.cols = cols;
        fit(&mut self.values, tokens * cols);
    }

    pub fn row(&self, token: usize) -> &[f32] {
        &self.values[token * self.cols..(token + 1) * self.cols]
    }

    /// The values of some rows.
    pub fn rows(&self, tokens: Range<usize>) -> &[f32] {
        &self.values[tokens.start * self.cols..tokens.end * self.cols]
    }

    /// Rounds the values for `readers`.
    pub fn prepare<'l>(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        readers: impl IntoIterator<Item = &'l Linear>,
    ) {
        let (mut packed, mut bf16) = (false, false);
        for linear in readers {
            match &*linear.weights {
                LinearWeights::Packed(_) => packed = true,
                LinearWeights::Plain(plain) => bf16 |= plain.reads_bf16(),
            }
        }
        if packed {
            self.quantize(kernels, pool);
        }
        if bf16 {
            self.round_to_bf16(kernels, pool);
        }
    }

    fn round_to_bf16(&mut self, kernels: &Kernels, pool: &mut Pool) {
        let (tokens, cols) = (self.tokens, self.cols);
        let pairs = cols.div_ceil(2);
        fit(&mut self.bf16, tokens * pairs);
        fit(&mut self.bf16_factors, tokens);
        let rounded = SharedMut::new(&mut self.bf16);
        let factors = SharedMut::new(&mut self.bf16_factors);
        let values = &self.values;
        for_tokens(pool, tokens, cols, &|token| {
            let values = &values[token * cols..(token + 1) * cols];
            // SAFETY: each token's task writes its own row and factor, and the table was chosen
            // for this machine.
            unsafe {
                let row = rounded.slice(token * pairs, pairs);
                factors.slice(token, 1)[0] = (kernels.round_bf16)(values, row);
            }
        });
    }

    fn quantize(&mut self, kernels: &Kernels, pool: &mut Pool) {
        let (tokens, cols) = (self.tokens, self.cols);
        let stride = self.stride();
        fit(&mut self.blocks, stride * (cols / GROUP));
        let blocks = SharedMut::new(&mut self.blocks);
        let values = &self.values;
        for_parts(pool, (tokens, cols), 2, &|token, part| {
            let first = part.start / GROUP * stride + token;
            // SAFETY: each task writes its own blocks, and the table was chosen for this machine.
            unsafe {
                let out = blocks.pointer(first);
                (kernels.quantize)(&values[token * cols..][part], out, stride);
            }
        });
    }

    /// From a token's block to its next one. It is odd, so that blocks of many tokens do not meet
    /// in few sets of a cache.
    fn stride(&self) -> usize {
        self.tokens | 1
    }

    /// Some rows as [`Activations::prepare`] has rounded them to bf16.
    pub fn rounded(&self, tokens: Range<usize>) -> Rounded<'_> {
        let pairs = self.cols.div_ceil(2);
        Rounded {
            pairs: &self.bf16[tokens.start * pairs..tokens.end * pairs],
            factors: &self.bf16_factors[tokens],
        }
    }

    fn tile_input(&self, tokens: Range<usize>) -> TileInput<'_> {
        TileInput {
            tokens: tokens.len(),
            cols: self.cols,
            stride: self.stride(),
            blocks: &self.blocks[tokens.start..],
        }
    }
}

/// Runs several products in one parallel loop.
pub fn multiply<'a>(kernels: &Kernels, pool: &mut Pool, mut products: impl AsMut<[Product<'a>]>) {
    let products = products.as_mut();
    let tasks = arrange(pool, products);
    let products = &*products;
    pool.run(tasks, &|task| {
        run_product(kernels, products, task, &|_, _, _| {});
    });
}

/// Divides products into tasks, and returns how many there are.
pub fn arrange(pool: &Pool, products: &mut [Product]) -> usize {
    let tiles: usize = products.iter().map(|product| product.linear.tiles()).sum();
    let threads = pool.threads();
    // With few tiles for each thread, the last ones would leave most threads without work. With
    // many, neighbours share activations that are in the cache.
    let parts = (TASKS_PER_THREAD * threads).div_ceil(tiles.max(1));
    let tiles_per_task = (tiles / (TASKS_PER_THREAD * threads)).clamp(1, MAX_TASK_TILES);
    let mut tasks = 0;
    for product in &mut *products {
        let tokens = product.tokens.len();
        product.tokens_per_task = tokens.div_ceil(parts).max(MIN_TASK_TOKENS);
        product.tiles_per_task = if tokens < MIN_TASK_TOKENS {
            1
        } else {
            tiles_per_task
        };
        product.first_task = tasks;
        tasks += product.tasks();
    }
    tasks
}

/// Runs a task of arranged products. Calls `finish` with a product's index and the tiles and the
/// product's tokens that were computed, on the same thread, before others are.
pub fn run_product(
    kernels: &Kernels,
    products: &[Product],
    task: usize,
    finish: &impl Fn(usize, Range<usize>, Range<usize>),
) {
    let after = products.partition_point(|product| product.first_task <= task);
    let product = &products[after - 1];
    product.run_task(kernels, task - product.first_task, &|tiles, tokens| {
        finish(after - 1, tiles, tokens);
    });
}

/// Tasks of a product for each thread, if it has enough tokens.
pub const TASKS_PER_THREAD: usize = 4;
/// Neighbouring tiles that a task computes for the same tokens at most.
const MAX_TASK_TILES: usize = 8;
/// Tokens that kernels multiply together.
const KERNEL_TOKENS: usize = 16;
/// The fewest tokens for which it is worth to unpack a tile once more.
const MIN_TASK_TOKENS: usize = 64;

/// The smallest work that is worth a task, in simple operations on a value.
const MIN_TASK_COST: usize = 8192;

/// Runs `body` for each token, in parallel if the work is worth it.
pub fn for_tokens(pool: &mut Pool, tokens: usize, cost: usize, body: &(dyn Fn(usize) + Sync)) {
    let per_task = (MIN_TASK_COST / cost.max(1)).max(1);
    pool.run(tokens.div_ceil(per_task), &|task| {
        (task * per_task..((task + 1) * per_task).min(tokens)).for_each(body);
    });
}

/// Runs `body` for parts of each token's `width` values, in parallel if the work is worth it: with
/// fewer tokens than threads, a token's values are divided too. Parts are whole groups of
/// [`GROUP`], except for the last. `cost` is for each value.
pub fn for_parts(
    pool: &mut Pool,
    (tokens, width): (usize, usize),
    cost: usize,
    body: &(dyn Fn(usize, Range<usize>) + Sync),
) {
    let all = width.saturating_mul(cost);
    let parts = if tokens < 2 * pool.threads() {
        (all / MIN_TASK_COST).clamp(1, 2 * pool.threads())
    } else {
        1
    };
    let len = width.div_ceil(parts).next_multiple_of(GROUP);
    let parts = width.div_ceil(len.max(1)).max(1);
    for_tokens(pool, tokens * parts, all / parts, &|task| {
        let first = task % parts * len;
        body(task / parts, first..(first + len).min(width));
    });
}
