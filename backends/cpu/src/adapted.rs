//! Products of a step some of whose tokens have adapters.
//!
//! The first factors are multiplied in a loop of their own, the second ones are added to the
//! outputs by the tasks that compute them. Tokens without adapters take no part in either.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, LANES, LowRankJob, PlainOut, prefetch};
use loquat_session::AdapterLimits;
use loquat_spec::{FeedForward, Inner, Mixer, ModelSpec};
use smallvec::SmallVec;

use crate::adapter::{Applied, Factors};
use crate::buffers::{Buffer, fit};
use crate::linear::{Product, Products, TASKS_PER_THREAD, arrange, multiply, run_product};
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
    inputs: Vec<InputTask>,
    outputs: Vec<Output>,
    /// The first factors' products, `[unit][row][rank]`.
    inner: Buffer<f32>,
}

/// Some rows of a product's input times an adapter's first factor.
struct Unit {
    product: usize,
    /// In the step's list.
    run: usize,
    /// From the product's first.
    rows: Range<usize>,
    rank: usize,
    /// In [`Scratch::inner`].
    at: usize,
    /// The adapter's scales, for each lane of a tile.
    scales: [f32; LANES],
}

/// A part of a unit's work.
struct InputTask {
    unit: usize,
    /// From the unit's first.
    rows: Range<usize>,
    /// Of the rank.
    factor_rows: Range<usize>,
}

/// Some rows of a product's output, to which units are added.
struct Output {
    product: usize,
    rows: Range<usize>,
    units: Range<usize>,
}

/// The factors of each unit. Those of a decode step need no allocation.
type FactorList<'a> = SmallVec<[&'a Factors; 32]>;

/// What is added to some neighbouring tiles. Those of a decode step need no allocation.
type Jobs<'a> = SmallVec<[LowRankJob<'a>; 16]>;

/// What computes.
pub struct Compute<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut Pool,
    pub scratch: &'a mut Scratch,
    pub adapters: &'a StepAdapters,
}

/// Rows of an input that a task multiplies by a first factor: whole blocks of the kernels.
const INPUT_ROWS: usize = 48;
/// Rows of a first factor that kernels multiply together.
const FACTOR_ROWS: usize = 4;

/// Runs several products with the adapters of `runs`, which are rows of the products' inputs.
///
/// One parallel loop multiplies the first factors. In a second one, which computes the products
/// themselves, each task adds the second factors to its outputs while they are in the cache.
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
    let mut split = split_replaced(adapters, runs, products);
    let tasks = if split.is_empty() {
        arrange(pool, products)
    } else {
        arrange(pool, &mut split)
    };
    let products: &[Product] = if split.is_empty() { products } else { &split };
    let mut factors = FactorList::new();
    let values = scratch.plan((adapters, runs), products, &mut factors);
    scratch.divide_inputs(pool.threads());
    fit(&mut scratch.inner, values);
    let (units, inputs) = (&scratch.units, &scratch.inputs);
    let inner = SharedMut::new(&mut scratch.inner);
    pool.run(inputs.len(), &|task| {
        let task = &inputs[task];
        let unit = &units[task.unit];
        task.run(
            kernels,
            unit,
            factors[task.unit],
            &products[unit.product],
            &inner,
        );
    });
    let inner = &*scratch.inner;
    let outputs = &scratch.outputs;
    pool.run(tasks, &|task| {
        run_product(kernels, products, task, &|product, tiles, rows| {
            let end = |output: &Output| (output.product, output.rows.end);
            let first = outputs.partition_point(|output| end(output) <= (product, rows.start));
            let reached = outputs[first..]
                .iter()
                .take_while(|output| output.product == product && output.rows.start < rows.end);
            // Those of all adapters together: one token's sum alone waits for every multiplication.
            let mut jobs = Jobs::new();
            for output in reached {
                let own = output.rows.start.max(rows.start)..output.rows.end.min(rows.end);
                let add = OutputTask {
                    kernels,
                    units: &units[output.units.clone()],
                    factors: &factors[output.units.clone()],
                    product: &products[product],
                    inner,
                };
                for tile in tiles.clone() {
                    add.add_tile(own.clone(), tile, &mut jobs);
                    add.prefetch(tile + tiles.len());
                }
            }
            // SAFETY: this task alone writes the outputs of its tiles; the table was chosen for
            // this machine.
            unsafe { (kernels.add_low_rank)(&jobs) };
        });
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
    /// Lists the work that adapters add to products, and the factors of each unit. Returns the
    /// values that units compute.
    fn plan<'s>(
        &mut self,
        (adapters, runs): (&'s StepAdapters, &[Run]),
        products: &[Product],
        all_factors: &mut FactorList<'s>,
    ) -> usize {
        self.units.clear();
        self.outputs.clear();
        let mut values = 0;
        for (index, product) in products.iter().enumerate() {
            let Some(slot) = product.slot() else {
                continue;
            };
            for (run_index, run) in runs.iter().enumerate() {
                let Some(rows) = product.own_rows(&run.rows) else {
                    continue;
                };
                let first = self.units.len();
                for at in adapters.groups[run.group].clone() {
                    let applied = &adapters.applied[at];
                    let Some(factors) = applied.adapter.factors(slot) else {
                        continue;
                    };
                    all_factors.push(factors);
                    self.units.push(Unit {
                        product: index,
                        run: run_index,
                        rows: rows.clone(),
                        rank: factors.rank(),
                        at: values,
                        scales: [factors.scale * applied.scale; LANES],
                    });
                    values += rows.len() * factors.rank();
                }
                if self.units.len() > first {
                    self.outputs.push(Output {
                        product: index,
                        rows,
                        units: first..self.units.len(),
                    });
                }
            }
        }
        values
    }

    /// Divides the first factors' products into tasks. Units with the same rows of input are
    /// neighbours, so that the rows are in the cache for all but the first.
    fn divide_inputs(&mut self, threads: usize) {
        self.inputs.clear();
        let blocks = |unit: &Unit| unit.rows.len().div_ceil(INPUT_ROWS);
        let all: usize = self.units.iter().map(blocks).sum();
        // With few blocks, threads share a factor.
        let parts = (TASKS_PER_THREAD * threads).div_ceil(all.max(1));
        for (index, unit) in self.units.iter().enumerate() {
            let factor_rows = unit.rank.div_ceil(parts).next_multiple_of(FACTOR_ROWS);
            for block in 0..blocks(unit) {
                let end = ((block + 1) * INPUT_ROWS).min(unit.rows.len());
                for first in (0..unit.rank).step_by(factor_rows) {
                    self.inputs.push(InputTask {
                        unit: index,
                        rows: block * INPUT_ROWS..end,
                        factor_rows: first..(first + factor_rows).min(unit.rank),
                    });
                }
            }
        }
        if all > self.units.len() {
            let units = &self.units;
            self.inputs
                .sort_by_key(|task| (units[task.unit].run, task.rows.start, task.unit));
        }
    }
}

impl InputTask {
    fn run(
        &self,
        kernels: &Kernels,
        unit: &Unit,
        factors: &Factors,
        product: &Product,
        inner: &SharedMut<f32>,
    ) {
        let first = unit.rows.start + self.rows.start;
        let x = product.input_rows(first..first + self.rows.len());
        let at = unit.at + self.rows.start * unit.rank + self.factor_rows.start;
        // SAFETY: this task alone writes these columns of the rows' products, which the buffer has
        // room for; the table was chosen for this machine.
        unsafe {
            let out = PlainOut {
                start: inner.pointer(at),
                stride: unit.rank,
            };
            (kernels.plain)(&factors.a(self.factor_rows.clone()), x, out);
        }
    }
}

/// Adds an output's units to tiles of it.
struct OutputTask<'a> {
    kernels: &'a Kernels,
    units: &'a [Unit],
    /// Of the units.
    factors: &'a [&'a Factors],
    product: &'a Product<'a>,
    inner: &'a [f32],
}

impl<'a> OutputTask<'a> {
    /// Requests a tile's factors, which are needed after the model's tile has been multiplied.
    fn prefetch(&self, tile: usize) {
        if tile * LANES < self.product.cols() {
            for factors in self.factors {
                prefetch(factors.b(tile).bytes);
            }
        }
    }

    /// Adds to sixteen columns of some of the product's rows, which are the units' too, or lists
    /// the jobs that do.
    fn add_tile(&self, rows: Range<usize>, tile: usize, jobs: &mut Jobs<'a>) {
        let cols = self.product.cols();
        let width = LANES.min(cols - tile * LANES);
        if width == LANES {
            let at = rows.start * cols + tile * LANES;
            // SAFETY: this task alone writes these columns of these rows, and all exist.
            let first = unsafe { self.product.output(at) };
            let out = PlainOut {
                start: first,
                stride: cols,
            };
            // SAFETY: as above.
            unsafe { self.list(rows, tile, out, jobs) };
            return;
        }
        // The last tile's padding must not overwrite the next row.
        for row in rows {
            let mut padded = [0.0; LANES];
            // SAFETY: this task alone writes these columns of this row.
            let values = unsafe {
                let at = self.product.output(row * cols + tile * LANES);
                std::slice::from_raw_parts_mut(at, width)
            };
            padded[..width].copy_from_slice(values);
            let out = PlainOut {
                start: padded.as_mut_ptr(),
                stride: LANES,
            };
            // SAFETY: there are sixteen values for one row; the table was chosen for this machine.
            unsafe {
                let mut jobs = Jobs::new();
                self.list(row..row + 1, tile, out, &mut jobs);
                (self.kernels.add_low_rank)(&jobs);
            }
            values.copy_from_slice(&padded[..width]);
        }
    }

    /// Scales the output and lists what is to be added to it.
    ///
    /// # Safety
    /// `out` must be valid for sixteen values of each of the rows, for this thread alone.
    unsafe fn list(&self, rows: Range<usize>, tile: usize, out: PlainOut, jobs: &mut Jobs<'a>) {
        if let Some(own) = self.own_factors(tile) {
            for row in 0..rows.len() {
                // SAFETY: the caller's promise.
                let values =
                    unsafe { &mut *out.start.add(row * out.stride).cast::<[f32; LANES]>() };
                for (value, factor) in values.iter_mut().zip(own) {
                    *value *= factor;
                }
            }
        }
        for (unit, factors) in self.units.iter().zip(self.factors) {
            let at = unit.at + (rows.start - unit.rows.start) * unit.rank;
            let inner = &self.inner[at..at + rows.len() * unit.rank];
            let scales = match &factors.lengths {
                None => unit.scales,
                Some(lengths) => {
                    let of_tile = lengths.factors(tile, &unit.scales);
                    std::array::from_fn(|lane| unit.scales[lane] * of_tile[lane])
                }
            };
            jobs.push(LowRankJob {
                tile: factors.b(tile),
                inner,
                scales,
                out,
            });
        }
    }

    /// What a tile's own values are multiplied by, if any unit has magnitudes.
    fn own_factors(&self, tile: usize) -> Option<[f32; LANES]> {
        let mut own = None;
        for (unit, factors) in self.units.iter().zip(self.factors) {
            let Some(lengths) = &factors.lengths else {
                continue;
            };
            let own = own.get_or_insert([1.0; LANES]);
            let of_tile = lengths.factors(tile, &unit.scales);
            for (own, factor) in own.iter_mut().zip(of_tile) {
                *own += factor - 1.0;
            }
        }
        own
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
