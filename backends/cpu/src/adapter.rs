//! Adapters in the layouts that a step reads.

use std::sync::Arc;

use loquat_cpu_kernels::{Format, LANES, LowRankTile, PlainRows};
use loquat_session::{AdapterWeights, SessionError};
use loquat_spec::Role;
use loquat_weights::{Factor, LowRank, Matrix};

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
    embedding: Option<LowRank>,
    table: Option<Matrix>,
}

/// Low-rank factors of one matrix.
pub struct Factors {
    a: FactorRows,
    /// Tiles of sixteen rows, `[tile][rank][row]`.
    b: Vec<u8>,
    b_format: Format,
    rank: usize,
    pub scale: f32,
    pub lengths: Option<RowLengths>,
}

/// The rows of a factor, right after another.
struct FactorRows {
    format: Format,
    cols: usize,
    bytes: Vec<u8>,
}

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
    /// What row `row` of `W + scale · b · a` is multiplied by.
    pub fn factor(&self, row: usize, scale: f32) -> f32 {
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
                return (change.a.values().len() + change.b.values().len()) * 4;
            }
            let b = change.b.rows().next_multiple_of(LANES) * change.rank();
            let magnitudes = change.magnitude.as_ref().map_or(0, |values| values.len());
            change.a.values().len() * format(&change.a).bytes()
                + b * format(&change.b).bytes()
                + magnitudes * 4 * 4
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
        let mut unsupported = Vec::new();
        for (role, member, change) in adapter.low_ranks() {
            if role == Role::Embedding {
                loaded.embedding = Some(change.clone());
                continue;
            }
            match slots.matrix(role, member) {
                Some(slot) if change.b.rows() == slots.linears[slot].rows() => {
                    let factors = Factors::new(&slots.linears[slot], pool, change)?;
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

    /// Adds the change of a token's embedding.
    pub fn add_embedding(&self, token: usize, scale: f32, out: &mut [f32]) {
        let Some(change) = &self.embedding else {
            return;
        };
        let scale = scale * change.scale;
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

fn push(format: Format, value: f32, bytes: &mut Vec<u8>) {
    match format {
        // Exact, or it would not be the format.
        Format::Bf16 => bytes.extend_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes()),
        Format::F32 | Format::F16 => bytes.extend_from_slice(&value.to_le_bytes()),
    }
}

impl Factors {
    fn new(base: &LinearWeights, pool: &mut Pool, change: &LowRank) -> Result<Self, SessionError> {
        let (rank, rows) = (change.rank(), change.b.rows());
        let (a_format, b_format) = (format(&change.a), format(&change.b));
        let mut a = Vec::with_capacity(change.a.values().len() * a_format.bytes());
        for value in change.a.values() {
            push(a_format, *value, &mut a);
        }
        let padded = rows.next_multiple_of(LANES);
        let mut b = Vec::with_capacity(padded * rank * b_format.bytes());
        for tile in (0..padded).step_by(LANES) {
            for k in 0..rank {
                for row in tile..tile + LANES {
                    let value = if row < rows {
                        change.b.row(row)[k]
                    } else {
                        0.0
                    };
                    push(b_format, value, &mut b);
                }
            }
        }
        let lengths = match &change.magnitude {
            Some(magnitude) => Some(RowLengths::new(base, pool, change, magnitude)?),
            None => None,
        };
        Ok(Self {
            a: FactorRows {
                format: a_format,
                cols: change.a.cols(),
                bytes: a,
            },
            b,
            b_format,
            rank,
            scale: change.scale,
            lengths,
        })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The first factor, by which inputs are multiplied.
    pub fn a(&self) -> PlainRows<'_> {
        PlainRows {
            format: self.a.format,
            cols: self.a.cols,
            bytes: &self.a.bytes,
        }
    }

    /// Sixteen rows of the second factor.
    pub fn b(&self, tile: usize) -> LowRankTile<'_> {
        let len = LANES * self.rank * self.b_format.bytes();
        LowRankTile {
            format: self.b_format,
            bytes: &self.b[tile * len..(tile + 1) * len],
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
