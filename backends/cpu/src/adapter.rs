//! Adapters in the layouts that a step reads.

use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{Format, LANES, LowRankTile, PlainRows};
use loquat_session::{AdapterWeights, SessionError};
use loquat_spec::Role;
use loquat_weights::{ColumnLengths, Factor, LengthsOf, LowRank, Matrix};

use crate::arena::{Arena, Region};
use crate::linear::{Linear, LinearWeights};
use crate::model::Model;
use crate::pool::Pool;
use crate::shared::SharedMut;

/// An adapter on this machine. Its places are the model's slots.
pub struct LoadedAdapter {
    /// By slot of a matrix.
    factors: Vec<Option<Box<Factors>>>,
    /// By slot of a matrix.
    replaced: Vec<Option<Linear>>,
    /// By slot of a vector.
    vectors: Vec<Option<Vec<f32>>>,
    /// Of the embedding, whose rows are looked up.
    embedding: Option<(LowRank, Option<ColumnLengths>)>,
    table: Option<Matrix>,
}

/// Low-rank factors of one matrix.
pub struct Factors {
    /// Rows of the first factor, and tiles of sixteen rows of the second, `[tile][rank][row]`. An
    /// adapter's are neighbours, on huge pages: a step reads all of them once.
    storage: Region,
    layout: Layout,
    pub scale: f32,
    pub lengths: Option<RowLengths>,
}

/// Where a matrix's factors are.
struct Layout {
    a_format: Format,
    b_format: Format,
    rank: usize,
    cols: usize,
    /// From where on the second factor is.
    b_start: usize,
    /// Of both.
    bytes: usize,
}

impl Layout {
    fn new(change: &LowRank) -> Self {
        let (a_format, b_format) = (format(&change.a), format(&change.b));
        let (rank, cols) = (change.rank(), change.a.cols());
        let b_start = (rank * cols * a_format.bytes()).next_multiple_of(CACHE_LINE);
        let padded = change.b.rows().next_multiple_of(LANES);
        let end = b_start + padded * rank * b_format.bytes();
        Self {
            a_format,
            b_format,
            rank,
            cols,
            b_start,
            bytes: end.next_multiple_of(CACHE_LINE),
        }
    }
}

const CACHE_LINE: usize = 64;

/// What the length of each adapted row follows from, for any scale (DoRA).
pub struct RowLengths {
    magnitude: Arc<[f32]>,
    /// Squared length of the model's row.
    base: Vec<f32>,
    /// Its product with the factors' row.
    cross: Vec<f32>,
    /// Squared length of the factors' row.
    own: Vec<f32>,
}

impl RowLengths {
    /// What the rows of a tile are multiplied by; 1 after the last row. Scales are equal.
    pub fn factors(&self, tile: usize, scales: &[f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| {
            let row = tile * LANES + lane;
            if row < self.base.len() {
                self.factor(row, scales[lane])
            } else {
                1.0
            }
        })
    }

    /// What row `row` of `W + scale · b · a` is multiplied by.
    fn factor(&self, row: usize, scale: f32) -> f32 {
        let square = self.base[row] + scale * (2.0 * self.cross[row] + scale * self.own[row]);
        // Rounding must not make it negative.
        self.magnitude[row] / square.max(f32::MIN_POSITIVE).sqrt()
    }
}

/// An adapter of a sequence in a step.
#[derive(Clone)]
pub struct Applied {
    pub adapter: Arc<LoadedAdapter>,
    /// Multiplies the adapter's own scales.
    pub scale: f32,
}

impl LoadedAdapter {
    /// Bytes of the loaded form.
    pub fn predict_bytes(adapter: &AdapterWeights) -> u64 {
        let factors = adapter.low_ranks().map(|(role, _, change)| {
            if role == Role::Embedding {
                let lengths = match (&change.magnitude, change.lengths_of) {
                    (None, _) => 0,
                    (Some(magnitude), LengthsOf::Rows) => magnitude.len() * 4,
                    (Some(_), LengthsOf::Columns) => ColumnLengths::bytes(change.a.cols()),
                };
                return (change.a.values().len() + change.b.values().len()) * 4 + lengths;
            }
            let magnitudes = change.magnitude.as_ref().map_or(0, |values| values.len());
            Layout::new(change).bytes + magnitudes * 4 * 4
        });
        let matrices = adapter.replaced().matrices();
        let matrices = matrices.map(|(_, matrix)| matrix.copied_bytes());
        let vectors = adapter.replaced().vectors();
        let vectors = vectors.map(|(_, values)| values.len() * 4);
        factors.chain(matrices).chain(vectors).sum::<usize>() as u64
    }

    /// Copies an adapter; refuses what the forward pass does not adapt.
    pub fn load(
        model: &Model,
        pool: &mut Pool,
        adapter: &AdapterWeights,
    ) -> Result<Self, SessionError> {
        let slots = &model.slots;
        let mut loaded = Self {
            factors: (0..slots.linears.len()).map(|_| None).collect(),
            replaced: (0..slots.linears.len()).map(|_| None).collect(),
            vectors: vec![None; slots.vectors.len()],
            embedding: None,
            table: None,
        };
        let of_factors = adapter
            .low_ranks()
            .filter(|(role, ..)| *role != Role::Embedding);
        let mut arena = Arena::new(
            of_factors
                .map(|(.., change)| Layout::new(change).bytes)
                .sum(),
        );
        let mut unsupported = Vec::new();
        for (role, member, change) in adapter.low_ranks() {
            if role == Role::Embedding {
                let decode = |token: usize, out: &mut [f32]| {
                    model.table_row(token, None, out);
                    Ok::<_, SessionError>(())
                };
                let lengths = ColumnLengths::compute(change, decode)?;
                let has_columns = change.lengths_of == LengthsOf::Columns;
                if lengths.is_none() && change.magnitude.is_some() && has_columns {
                    let why = "the lengths of the embedding's columns are not finite numbers";
                    return Err(SessionError::InvalidAdapter(why.to_owned()));
                }
                loaded.embedding = Some((change.clone(), lengths));
                continue;
            }
            match slots.matrix(role, member) {
                Some(slot) if change.b.rows() == slots.linears[slot].rows() => {
                    let base = &slots.linears[slot];
                    let factors = Factors::new(base, (&mut *pool, &mut arena), change)?;
                    loaded.factors[slot] = Some(Box::new(factors));
                }
                _ => unsupported.push(role),
            }
        }
        for role in adapter.replaced().roles() {
            let replaced = loaded.replace(model, adapter, role)?;
            if !replaced {
                unsupported.push(role);
            }
        }
        if unsupported.is_empty() {
            return Ok(loaded);
        }
        let roles: Vec<String> = unsupported.iter().map(Role::to_string).collect();
        Err(SessionError::InvalidAdapter(format!(
            "the cpu backend does not adapt {}",
            roles.join(", ")
        )))
    }

    /// Returns false for a role that cannot be replaced.
    fn replace(
        &mut self,
        model: &Model,
        adapter: &AdapterWeights,
        role: Role,
    ) -> Result<bool, SessionError> {
        let copy = |matrix: &Matrix| {
            let copied = matrix.copied();
            copied.map_err(|error| SessionError::InvalidAdapter(error.to_string()))
        };
        let weights = adapter.replaced();
        if role == Role::Embedding {
            self.table = weights.matrix(role).map(copy).transpose()?;
            return Ok(true);
        }
        for (member, matrix) in weights.stack(role).unwrap_or_default().iter().enumerate() {
            let Some(slot) = model.slots.matrix(role, member) else {
                return Ok(false);
            };
            self.replaced[slot] = Some(Linear::exact(copy(matrix)?, slot));
        }
        if let Some(values) = weights.vector(role) {
            match model.slots.vectors.get(&role) {
                Some(slot) if role.is_token_vector() => self.vectors[*slot] = Some(values.to_vec()),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    pub fn factors(&self, slot: usize) -> Option<&Factors> {
        self.factors[slot].as_deref()
    }

    pub fn replaced(&self, slot: usize) -> Option<&Linear> {
        self.replaced[slot].as_ref()
    }

    pub fn vector(&self, slot: usize) -> Option<&[f32]> {
        self.vectors[slot].as_deref()
    }

    /// The table that replaces the model's.
    pub fn table(&self) -> Option<&Matrix> {
        self.table.as_ref()
    }

    /// Whether it multiplies the model's own embeddings.
    pub fn scales_embedding(&self) -> bool {
        let embedding = self.embedding.as_ref();
        embedding.is_some_and(|(change, _)| change.magnitude.is_some())
    }

    /// Adds the change of a token's embedding, which is `base` without adapters.
    pub fn add_embedding(&self, token: usize, scale: f32, base: &[f32], out: &mut [f32]) {
        let Some((change, lengths)) = &self.embedding else {
            return;
        };
        let scale = scale * change.scale;
        if let Some(magnitude) = &change.magnitude {
            let mut own = vec![0.0f32; out.len()];
            for (k, factor) in change.b.row(token).iter().enumerate() {
                let factor = scale * factor;
                for (own, value) in own.iter_mut().zip(change.a.row(k)) {
                    *own = factor.mul_add(*value, *own);
                }
            }
            let values = out.iter_mut().zip(base).zip(&own);
            if let Some(lengths) = lengths {
                for (((out, base), own), factor) in values.zip(lengths.factors(scale)) {
                    *out += (base + own) * factor - base;
                }
                return;
            }
            let sums = base.iter().zip(&own).map(|(base, own)| base + own);
            let square: f64 = sums.map(|sum| f64::from(sum).powi(2)).sum();
            let factor = magnitude[token] / (square as f32).max(f32::MIN_POSITIVE).sqrt();
            for ((out, base), own) in values {
                *out += (base + own) * factor - base;
            }
            return;
        }
        for (k, factor) in change.b.row(token).iter().enumerate() {
            let factor = scale * factor;
            for (out, value) in out.iter_mut().zip(change.a.row(k)) {
                *out = factor.mul_add(*value, *out);
            }
        }
    }
}

/// Both formats that kernels read; f16 is decoded.
fn format(factor: &Factor) -> Format {
    if factor.is_bf16() {
        Format::Bf16
    } else {
        Format::F32
    }
}

/// Writes a value at its place among others of the format.
fn put(format: Format, value: f32, bytes: &mut [u8], at: usize) {
    let (width, bits) = (format.bytes(), value.to_bits());
    let place = &mut bytes[at * width..(at + 1) * width];
    match format {
        // Exact, or it would not be the format.
        Format::Bf16 => place.copy_from_slice(&((bits >> 16) as u16).to_le_bytes()),
        Format::F32 | Format::F16 => place.copy_from_slice(&bits.to_le_bytes()),
    }
}

impl Factors {
    fn new(
        base: &LinearWeights,
        (pool, arena): (&mut Pool, &mut Arena),
        change: &LowRank,
    ) -> Result<Self, SessionError> {
        let layout = Layout::new(change);
        let no_memory =
            |error: std::io::Error| SessionError::Device(format!("memory of an adapter: {error}"));
        let mut storage = arena.allocate(layout.bytes).map_err(no_memory)?;
        let (a, b) = storage.bytes_mut().split_at_mut(layout.b_start);
        for (at, value) in change.a.values().iter().enumerate() {
            put(layout.a_format, *value, a, at);
        }
        // Rows after the last one stay zero.
        for row in 0..change.b.rows() {
            let tile = row / LANES * layout.rank;
            for (k, value) in change.b.row(row).iter().enumerate() {
                put(layout.b_format, *value, b, (tile + k) * LANES + row % LANES);
            }
        }
        let lengths = match &change.magnitude {
            Some(magnitude) => Some(RowLengths::new(base, pool, change, magnitude)?),
            None => None,
        };
        Ok(Self {
            storage,
            layout,
            scale: change.scale,
            lengths,
        })
    }

    pub fn rank(&self) -> usize {
        self.layout.rank
    }

    /// Some rows of the first factor, by which inputs are multiplied.
    pub fn a(&self, rows: Range<usize>) -> PlainRows<'_> {
        let Layout { a_format, cols, .. } = self.layout;
        let row_bytes = cols * a_format.bytes();
        PlainRows {
            format: a_format,
            cols,
            bytes: &self.storage.bytes()[rows.start * row_bytes..rows.end * row_bytes],
        }
    }

    /// Sixteen rows of the second factor.
    pub fn b(&self, tile: usize) -> LowRankTile<'_> {
        let Layout {
            b_format,
            rank,
            b_start,
            ..
        } = self.layout;
        let len = LANES * rank * b_format.bytes();
        LowRankTile {
            format: b_format,
            bytes: &self.storage.bytes()[b_start + tile * len..b_start + (tile + 1) * len],
        }
    }
}

impl RowLengths {
    fn new(
        base: &LinearWeights,
        pool: &mut Pool,
        change: &LowRank,
        magnitude: &Arc<[f32]>,
    ) -> Result<Self, SessionError> {
        let (rows, cols) = (change.b.rows(), change.a.cols());
        let mut sums = vec![[0.0f32; 3]; rows];
        let shared = SharedMut::new(&mut sums);
        pool.run(rows, &|row| {
            let mut weights = vec![0.0; cols];
            base.decode_row(row, &mut weights);
            let mut own = vec![0.0f32; cols];
            for (k, factor) in change.b.row(row).iter().enumerate() {
                for (own, value) in own.iter_mut().zip(change.a.row(k)) {
                    *own += factor * value;
                }
            }
            let pairs = || weights.iter().zip(&own);
            let sum = |term: fn(f64, f64) -> f64| {
                let terms = pairs().map(|(w, d)| term(f64::from(*w), f64::from(*d)));
                terms.sum::<f64>() as f32
            };
            let sums = [sum(|w, _| w * w), sum(|w, d| w * d), sum(|_, d| d * d)];
            // SAFETY: each row's task writes its own sums.
            unsafe { shared.slice(row, 1)[0] = sums };
        });
        if sums.iter().flatten().any(|sum| !sum.is_finite()) {
            let why = "the lengths of its rows are not finite numbers";
            return Err(SessionError::InvalidAdapter(why.to_owned()));
        }
        let part = |index: usize| sums.iter().map(|sums| sums[index]).collect();
        Ok(Self {
            magnitude: Arc::clone(magnitude),
            base: part(0),
            cross: part(1),
            own: part(2),
        })
    }
}
