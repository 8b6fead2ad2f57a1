//! Products of a step some of whose tokens have adapters.
//!
//! The first factors are multiplied in the same loop as the model's matrices, the second ones added
//! to the outputs in one more. Tokens without adapters take no part in either.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, LANES, PlainOut};
use loquat_session::AdapterLimits;
use loquat_spec::{FeedForward, Inner, Mixer, ModelSpec};

use crate::adapter::{Applied, Factors};
use crate::buffers::{Buffer, fit};
use crate::linear::{Product, Products, arrange, multiply, run_product};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// The adapters of a step.
#[derive(Default)]
pub struct StepAdapters {
    pub applied: Vec<Applied>,
    /// Ranges of `applied`; equal lists of adapters are one group.
    pub groups: Vec<Range<usize>>,
    /// The step's tokens that have adapters.
    pub runs: Vec<Run>,
}

/// Adjacent rows of an input whose tokens have the same adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub rows: Range<usize>,
    /// In [`StepAdapters::groups`].
    pub group: usize,
}

impl StepAdapters {
    pub fn clear(&mut self) {
        self.applied.clear();
        self.groups.clear();
        self.runs.clear();
    }

    /// The adapters of a group's tokens.
    pub fn for_group(&self, group: Option<usize>) -> &[Applied] {
        group.map_or(&[], |group| &self.applied[self.groups[group].clone()])
    }
}

/// Adds a row to the last run if that is of the same group and adjacent.
pub fn extend_runs(runs: &mut Vec<Run>, row: usize, group: Option<usize>) {
    let Some(group) = group else {
        return;
    };
    match runs.last_mut() {
        Some(last) if last.group == group && last.rows.end == row => last.rows.end = row + 1,
        _ => runs.push(Run {
            rows: row..row + 1,
            group,
        }),
    }
}

/// Buffers that are reused between steps.
#[derive(Default)]
pub struct Scratch {
    units: Vec<Unit>,
    outputs: Vec<Output>,
    /// The first factors' products, `[unit][row][rank]`.
    inner: Buffer<f32>,
}

/// Some rows of a product's input times an adapter's first factor.
struct Unit {
    product: usize,
    /// From the product's first.
    rows: Range<usize>,
    /// In [`StepAdapters::applied`].
    applied: usize,
    rank: usize,
    /// In [`Scratch::inner`].
    at: usize,
    first_task: usize,
}

/// Some rows of a product's output, to which units are added.
struct Output {
    product: usize,
    rows: Range<usize>,
    units: Range<usize>,
    first_task: usize,
}

/// What computes.
pub struct Compute<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Scratch,
    pub adapters: &'a StepAdapters,
}

/// Rows of an input that a task multiplies by a first factor: whole blocks of the kernels.
const INPUT_ROWS: usize = 48;
/// Tiles and rows of an output that a task adds to.
const OUTPUT_TILES: usize = 16;
const OUTPUT_ROWS: usize = 64;

/// Runs several products in one parallel loop, with the adapters of `runs`, which are rows of the
/// products' inputs.
pub fn multiply_adapted<'a>(
    compute: Compute<'_>,
    runs: &[Run],
    mut products: impl AsMut<[Product<'a>]>,
) {
    let Compute {
        kernels,
        pool,
        scratch,
        adapters,
    } = compute;
    if runs.is_empty() {
        return multiply(kernels, pool, products);
    }
    let products = products.as_mut();
    let values = scratch.plan(adapters, runs, products);
    fit(&mut scratch.inner, values);
    let mut split = split_replaced(adapters, runs, products);
    let tasks = if split.is_empty() {
        arrange(pool, products)
    } else {
        arrange(pool, &mut split)
    };
    let products = &*products;
    let base: &[Product] = if split.is_empty() { products } else { &split };
    let (inputs, outputs) = scratch.arrange(products);
    let (units, added) = (&scratch.units, &scratch.outputs);
    let inner = SharedMut::new(&mut scratch.inner);
    pool.run(tasks + inputs, &|task| match task.checked_sub(tasks) {
        None => run_product(kernels, base, task),
        Some(task) => {
            let after = units.partition_point(|unit| unit.first_task <= task);
            let unit = &units[after - 1];
            let part = task - unit.first_task;
            unit.multiply(kernels, adapters, &products[unit.product], part, &inner);
        }
    });
    let inner = &*scratch.inner;
    pool.run(outputs, &|task| {
        let after = added.partition_point(|output| output.first_task <= task);
        let output = &added[after - 1];
        let part = task - output.first_task;
        let add = OutputTask {
            kernels,
            adapters,
            units: &units[output.units.clone()],
            product: &products[output.product],
            inner,
        };
        add.run(output.rows.clone(), part);
    });
}

/// The products with replaced matrices apart, or none if nothing is replaced.
fn split_replaced<'s>(
    adapters: &'s StepAdapters,
    runs: &[Run],
    products: &[Product<'s>],
) -> Products<'s> {
    let mut split = Products::new();
    let replaced = |product: &Product, run: &Run| {
        let slot = product.slot()?;
        let mut applied = adapters.for_group(Some(run.group)).iter();
        applied.find_map(|applied| applied.adapter.replaced(slot))
    };
    let any = |product: &Product| {
        let mut runs = runs.iter();
        runs.any(|run| product.own_rows(&run.rows).is_some() && replaced(product, run).is_some())
    };
    if !products.iter().any(any) {
        return split;
    }
    for product in products {
        let mut next = 0;
        for run in runs {
            let Some(rows) = product.own_rows(&run.rows) else {
                continue;
            };
            if let Some(linear) = replaced(product, run) {
                split.extend(product.part(next..rows.start, None));
                next = rows.end;
                split.extend(product.part(rows, Some(linear)));
            }
        }
        split.extend(product.part(next..product.rows(), None));
    }
    split
}

impl Scratch {
    /// Lists the work that adapters add to products. Returns the values that units compute.
    fn plan(&mut self, adapters: &StepAdapters, runs: &[Run], products: &[Product]) -> usize {
        self.units.clear();
        self.outputs.clear();
        let mut values = 0;
        for (index, product) in products.iter().enumerate() {
            let Some(slot) = product.slot() else {
                continue;
            };
            for run in runs {
                let Some(rows) = product.own_rows(&run.rows) else {
                    continue;
                };
                let first = self.units.len();
                for applied in adapters.groups[run.group].clone() {
                    let Some(factors) = adapters.applied[applied].adapter.factors(slot) else {
                        continue;
                    };
                    self.units.push(Unit {
                        product: index,
                        rows: rows.clone(),
                        applied,
                        rank: factors.rank(),
                        at: values,
                        first_task: 0,
                    });
                    values += rows.len() * factors.rank();
                }
                if self.units.len() > first {
                    self.outputs.push(Output {
                        product: index,
                        rows,
                        units: first..self.units.len(),
                        first_task: 0,
                    });
                }
            }
        }
        values
    }

    /// Numbers the tasks of units and of outputs, and returns how many there are.
    fn arrange(&mut self, products: &[Product]) -> (usize, usize) {
        let (mut inputs, mut outputs) = (0, 0);
        for unit in &mut self.units {
            unit.first_task = inputs;
            inputs += unit.rows.len().div_ceil(INPUT_ROWS);
        }
        for output in &mut self.outputs {
            output.first_task = outputs;
            let parts = output_parts(&products[output.product]);
            outputs += parts * output.rows.len().div_ceil(OUTPUT_ROWS);
        }
        (inputs, outputs)
    }
}

/// Parts of a product's columns, each for a task.
fn output_parts(product: &Product) -> usize {
    product.cols().div_ceil(LANES * OUTPUT_TILES)
}

impl Unit {
    fn factors<'a>(&self, adapters: &'a StepAdapters, product: &Product) -> Option<&'a Factors> {
        let adapter = &adapters.applied[self.applied].adapter;
        adapter.factors(product.slot()?)
    }

    fn multiply(
        &self,
        kernels: &Kernels,
        adapters: &StepAdapters,
        product: &Product,
        part: usize,
        inner: &SharedMut<f32>,
    ) {
        let Some(factors) = self.factors(adapters, product) else {
            return;
        };
        let first = part * INPUT_ROWS;
        let count = INPUT_ROWS.min(self.rows.len() - first);
        let from = self.rows.start + first;
        let x = product.input_rows(from..from + count);
        // SAFETY: this task alone writes the rows' products, which the buffer has room for; the
        // table was chosen for this machine.
        unsafe {
            let at = self.at + first * self.rank;
            let out = PlainOut {
                start: inner.slice(at, count * self.rank).as_mut_ptr(),
                stride: self.rank,
            };
            (kernels.plain)(&factors.a(), x, out);
        }
    }
}

struct OutputTask<'a> {
    kernels: &'a Kernels,
    adapters: &'a StepAdapters,
    units: &'a [Unit],
    product: &'a Product<'a>,
    inner: &'a [f32],
}

impl OutputTask<'_> {
    fn run(&self, rows: Range<usize>, part: usize) {
        let columns = output_parts(self.product);
        let (first, column) = (part / columns * OUTPUT_ROWS, part % columns * OUTPUT_TILES);
        let count = OUTPUT_ROWS.min(rows.len() - first);
        let tiles = self.product.cols().div_ceil(LANES);
        for tile in column..tiles.min(column + OUTPUT_TILES) {
            self.add_tile(rows.start, first..first + count, tile);
        }
    }

    /// Adds to sixteen columns of some rows, counted from `start`.
    fn add_tile(&self, start: usize, rows: Range<usize>, tile: usize) {
        let cols = self.product.cols();
        let width = LANES.min(cols - tile * LANES);
        let Some((own, scales)) = self.scales(tile, width) else {
            return;
        };
        if width == LANES {
            let at = (start + rows.start) * cols + tile * LANES;
            // SAFETY: this task alone writes these columns of these rows, and all exist.
            let first = unsafe { self.product.output(at) };
            let out = PlainOut {
                start: first,
                stride: cols,
            };
            // SAFETY: as above.
            unsafe { self.add(own.as_ref(), &scales, rows, tile, out) };
            return;
        }
        // The last tile's padding must not overwrite the next row.
        for row in rows {
            let mut padded = [0.0; LANES];
            // SAFETY: this task alone writes these columns of this row.
            let values = unsafe {
                let at = self.product.output((start + row) * cols + tile * LANES);
                std::slice::from_raw_parts_mut(at, width)
            };
            padded[..width].copy_from_slice(values);
            let out = PlainOut {
                start: padded.as_mut_ptr(),
                stride: LANES,
            };
            // SAFETY: there are sixteen values for one row.
            unsafe { self.add(own.as_ref(), &scales, row..row + 1, tile, out) };
            values.copy_from_slice(&padded[..width]);
        }
    }

    /// # Safety
    /// `out` must be valid for sixteen values of each of the rows, for this thread alone.
    unsafe fn add(
        &self,
        own: Option<&[f32; LANES]>,
        scales: &[[f32; LANES]; MAX_UNITS],
        rows: Range<usize>,
        tile: usize,
        out: PlainOut,
    ) {
        if let Some(own) = own {
            for row in 0..rows.len() {
                // SAFETY: the caller's promise.
                let values =
                    unsafe { &mut *out.start.add(row * out.stride).cast::<[f32; LANES]>() };
                for (value, factor) in values.iter_mut().zip(own) {
                    *value *= factor;
                }
            }
        }
        for (unit, scales) in self.units.iter().zip(scales) {
            let Some(factors) = unit.factors(self.adapters, self.product) else {
                continue;
            };
            let at = unit.at + rows.start * unit.rank;
            let inner = &self.inner[at..at + rows.len() * unit.rank];
            // SAFETY: the caller's promise; the table was chosen for this machine.
            unsafe { (self.kernels.add_low_rank)(&factors.b(tile), inner, scales, out) };
        }
    }

    /// What a tile's own values are multiplied by, if by anything, and each unit's.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn scales(
        &self,
        tile: usize,
        width: usize,
    ) -> Option<(Option<[f32; LANES]>, [[f32; LANES]; MAX_UNITS])> {
        let mut own = None;
        let mut all = [[0.0; LANES]; MAX_UNITS];
        for (unit, scales) in self.units.iter().zip(&mut all) {
            let factors = unit.factors(self.adapters, self.product)?;
            let scale = factors.scale * self.adapters.applied[unit.applied].scale;
            scales.fill(scale);
            if let Some(lengths) = &factors.lengths {
                let own = own.get_or_insert([1.0; LANES]);
                for lane in 0..width {
                    let factor = lengths.factor(tile * LANES + lane, scale);
                    own[lane] += factor - 1.0;
                    scales[lane] *= factor;
                }
            }
        }
        Some((own, all))
    }
}

/// Adapters of one sequence.
const MAX_UNITS: usize = AdapterLimits::PER_SEQUENCE;

/// Bytes of the first factors' products after the largest step.
pub fn predict_bytes(spec: &ModelSpec, tokens: usize, limits: &AdapterLimits) -> u64 {
    /// Of one attention: query, key, value and gate.
    const PRODUCTS: usize = 4;
    if !limits.any() {
        return 0;
    }
    let experts = spec.branches().map(|(_, branch)| match &branch.inner {
        Inner::FeedForward(FeedForward::Experts(experts)) => 2 * experts.top_k,
        Inner::Mixer(Mixer::Latent(latent)) => latent.heads,
        _ => PRODUCTS,
    });
    let products = experts.max().unwrap_or(0).max(PRODUCTS + 1) as u64;
    let per_row = (MAX_UNITS * limits.rank * size_of::<f32>()) as u64;
    products
        .saturating_mul(per_row)
        .saturating_mul(tokens as u64)
}
