//! Adapters on the device.

mod lengths;

use std::collections::BTreeMap;

use loquat_session::{AdapterWeights, SessionError};
use loquat_spec::Role;
use loquat_weights::{ColumnLengths, Factor, LengthsOf, LowRank, Matrix};

use crate::adapted::Select;
use crate::array::{Array, Ops, Type};
use crate::error::MlxError;
use crate::linear::{Kernel, Table};
use crate::model::Model;
use crate::pack::{self, Form, UploadedMatrix};

pub use lengths::{BaseRows, LOAD_BYTES, RowLengths};

/// An adapter on the device, by the roles that it changes.
#[derive(Default)]
pub struct LoadedAdapter {
    low_rank: BTreeMap<Role, Change>,
    replaced: BTreeMap<Role, Kernel>,
    vectors: BTreeMap<Role, Array>,
    embedding: Option<EmbeddingChange>,
    table: Option<Table>,
}

/// The low-rank change of a matrix or a stack.
pub struct Change {
    /// One for each rank. A matrix has one.
    pub factors: Vec<Factors>,
    pub lengths: Option<RowLengths>,
}

/// Factors of one rank.
pub struct Factors {
    /// [cols, rank], or [members, cols, rank].
    a: Array,
    /// [rank, rows], or [members, rank, rows].
    b: Array,
    scale: f32,
    /// `None`: every matrix of the stack is a member, and all have this scale.
    members: Option<Members>,
}

/// For each matrix of a stack.
struct Members {
    /// The member with its factors; any, if its scale is 0.
    index: Vec<u32>,
    /// Multiplies [`Factors::scale`].
    scales: Vec<f32>,
}

/// A change of the rows that tokens look up.
pub struct EmbeddingChange {
    /// [rank, hidden]
    a: Array,
    /// [vocab, rank]
    b: Array,
    scale: f32,
    /// The columns are multiplied by factors that follow from these.
    lengths: Option<ColumnLengths>,
}

impl LoadedAdapter {
    /// Bytes on the device, and of an embedding's lengths on the host.
    pub fn predict_bytes(adapter: &AdapterWeights, dtype: Type) -> u64 {
        let of_type = dtype.bytes();
        let mut bytes = 0;
        let mut roles_with_lengths = BTreeMap::new();
        for (role, _, change) in adapter.low_ranks() {
            bytes += (change.a.values().len() + change.b.values().len()) * of_type;
            if change.magnitude.is_some() && role == Role::Embedding {
                bytes += ColumnLengths::bytes(change.a.cols());
            } else if change.magnitude.is_some() {
                roles_with_lengths.insert(role, change.b.rows());
            }
        }
        for (role, rows) in roles_with_lengths {
            let count = adapter.low_rank(role).map_or(0, <[_]>::len);
            bytes += count * RowLengths::bytes(rows);
        }
        let matrices = adapter.replaced().matrices();
        let matrices = matrices.map(|(_, matrix)| matrix.rows() * matrix.cols());
        let vectors = adapter.replaced().vectors().map(|(_, values)| values.len());
        let replaced = matrices.chain(vectors).sum::<usize>() * of_type;
        (bytes + replaced) as u64
    }

    /// Copies an adapter; refuses what the forward pass does not adapt.
    pub fn load(ops: &Ops, model: &Model, adapter: &AdapterWeights) -> Result<Self, SessionError> {
        let mut loaded = Self::default();
        let mut unsupported = Vec::new();
        let mut roles: Vec<Role> = adapter.low_ranks().map(|(role, ..)| role).collect();
        roles.dedup();
        for role in roles {
            let members = adapter.low_rank(role).unwrap_or_default();
            if role == Role::Embedding {
                let change = members.first().and_then(Option::as_ref);
                let change = change.map(|change| EmbeddingChange::load(ops, model, change));
                loaded.embedding = change.transpose()?;
                continue;
            }
            match model.adaptable.matrices.get(&role) {
                Some(base) if base.fits(members) => {
                    let change = Change::load(ops, model.dtype, base, members)?;
                    loaded.low_rank.insert(role, change);
                }
                _ => unsupported.push(role),
            }
        }
        for role in adapter.replaced().roles() {
            if !loaded.replace(ops, model, adapter, role)? {
                unsupported.push(role);
            }
        }
        if unsupported.is_empty() {
            return Ok(loaded);
        }
        let roles: Vec<String> = unsupported.iter().map(Role::to_string).collect();
        Err(SessionError::InvalidAdapter(format!(
            "the mlx backend does not adapt {}",
            roles.join(", ")
        )))
    }

    /// Returns false for a role that cannot be replaced.
    fn replace(
        &mut self,
        ops: &Ops,
        model: &Model,
        adapter: &AdapterWeights,
        role: Role,
    ) -> Result<bool, SessionError> {
        let weights = adapter.replaced();
        if let Some(values) = weights.vector(role) {
            if !model.adaptable.vectors.contains(&role) || !role.is_token_vector() {
                return Ok(false);
            }
            let vector = upload(ops, values, &[values.len()], model.dtype)?;
            self.vectors.insert(role, vector);
        }
        let Some(stack) = weights.stack(role) else {
            return Ok(true);
        };
        let matrices: Vec<&Matrix> = stack.iter().collect();
        let rows = matrices.first().map_or(0, |matrix| matrix.rows());
        let upload = |dims: &[usize]| {
            let uploaded = UploadedMatrix::upload(ops, Form::Plain(model.dtype), &matrices, dims);
            uploaded.map_err(|error| SessionError::InvalidAdapter(error.to_string()))
        };
        if role == Role::Embedding {
            self.table = Some(upload(&[rows])?.table());
            return Ok(true);
        }
        let Some(base) = model.adaptable.matrices.get(&role) else {
            return Ok(false);
        };
        let uploaded = if base.is_stack() {
            upload(&[stack.len(), rows])?
        } else {
            upload(&[rows])?
        };
        self.replaced.insert(role, uploaded.kernel(ops)?);
        Ok(true)
    }

    pub fn low_rank(&self, role: Role) -> Option<&Change> {
        self.low_rank.get(&role)
    }

    pub fn replaced(&self, role: Role) -> Option<&Kernel> {
        self.replaced.get(&role)
    }

    pub fn vector(&self, role: Role) -> Option<&Array> {
        self.vectors.get(&role)
    }

    pub fn embedding(&self) -> Option<&EmbeddingChange> {
        self.embedding.as_ref()
    }

    /// The table that replaces the model's.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    pub fn changes_matrix(&self, role: Role) -> bool {
        self.low_rank.contains_key(&role) || self.replaced.contains_key(&role)
    }

    /// Whether it only adds to the outputs of the matrix.
    pub fn adds_only(&self, role: Role) -> bool {
        let change = self.low_rank.get(&role);
        let has_lengths = change.is_some_and(|change| change.lengths.is_some());
        !has_lengths && !self.replaced.contains_key(&role)
    }
}

fn upload(ops: &Ops, values: &[f32], dims: &[usize], of: Type) -> Result<Array, MlxError> {
    let mut bytes = vec![0; values.len() * of.bytes()];
    pack::encode(values, of, &mut bytes);
    let dims: Vec<i32> = dims.iter().map(|dim| *dim as i32).collect();
    ops.upload_weight(&[&bytes], &dims, of)
}

impl Change {
    fn load(
        ops: &Ops,
        dtype: Type,
        base: &BaseRows,
        members: &[Option<LowRank>],
    ) -> Result<Self, SessionError> {
        let mut ranks: Vec<usize> = members.iter().flatten().map(LowRank::rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let factors = ranks
            .into_iter()
            .map(|rank| Factors::upload(ops, dtype, rank, base.is_stack(), members));
        let has_lengths = |change: &LowRank| change.magnitude.is_some();
        Ok(Self {
            factors: factors.collect::<Result<_, _>>()?,
            lengths: if members.iter().flatten().any(has_lengths) {
                Some(RowLengths::load(ops, base, members)?)
            } else {
                None
            },
        })
    }
}

impl Factors {
    fn upload(
        ops: &Ops,
        dtype: Type,
        rank: usize,
        is_stack: bool,
        members: &[Option<LowRank>],
    ) -> Result<Self, MlxError> {
        let own = |member: &Option<LowRank>| {
            let own = member.as_ref().filter(|change| change.rank() == rank);
            own.cloned()
        };
        let members: Vec<Option<LowRank>> = members.iter().map(own).collect();
        let present: Vec<&LowRank> = members.iter().flatten().collect();
        let scale = present.first().map_or(1.0, |change| change.scale);
        let factor = |of: fn(&LowRank) -> &Factor| {
            let (rows, cols) = present.first().map_or((0, 0), |change| {
                let factor = of(change);
                (factor.rows(), factor.cols())
            });
            let values = present.iter().flat_map(|change| of(change).values());
            let values: Vec<f32> = values.copied().collect();
            if is_stack {
                let factor = upload(ops, &values, &[present.len(), rows, cols], dtype)?;
                ops.transpose(&factor, &[0, 2, 1])
            } else {
                ops.transpose(&upload(ops, &values, &[rows, cols], dtype)?, &[1, 0])
            }
        };
        let same = |member: &Option<LowRank>| {
            let change = member.as_ref();
            change.is_some_and(|change| change.scale == scale)
        };
        let is_uniform = members.iter().all(same);
        Ok(Self {
            a: factor(|change| &change.a)?,
            b: factor(|change| &change.b)?,
            scale: if is_uniform { scale } else { 1.0 },
            members: (!is_uniform).then(|| Members::new(&members)),
        })
    }

    /// `x` times the first factor and the scale.
    fn narrow(&self, ops: &Ops, x: &Array, scale: f32, select: &Select) -> Result<Array, MlxError> {
        let narrow = match select {
            Select::Matrix => ops.matmul(x, &self.a)?,
            Select::Each => ops.matmul(x, &self.each(ops, &self.a)?)?,
            Select::Chosen(choice) => {
                let (matrices, sorted) = self.chosen(ops, choice.matrices, choice.sorted)?;
                ops.gather_matmul(x, &self.a, &matrices, sorted)?
            }
        };
        let scale = scale * self.scale;
        let narrow = match scale {
            1.0 => narrow,
            scale => ops.scale(&narrow, scale)?,
        };
        let Some(members) = &self.members else {
            return Ok(narrow);
        };
        let count = members.scales.len() as i32;
        let scales = ops.upload_f32(&members.scales, &[count])?;
        let scales = match select {
            Select::Matrix | Select::Each => ops.reshape(&scales, &[count, 1, 1])?,
            Select::Chosen(choice) => {
                let mut dims = choice.matrices.shape();
                dims.extend([1, 1]);
                ops.reshape(&ops.take_rows(&scales, choice.matrices, 0)?, &dims)?
            }
        };
        ops.multiply(&narrow, &ops.astype(&scales, narrow.dtype())?)
    }

    /// `x` times both factors and the scales.
    pub fn product(
        &self,
        ops: &Ops,
        x: &Array,
        scale: f32,
        select: &Select,
    ) -> Result<Array, MlxError> {
        let narrow = self.narrow(ops, x, scale, select)?;
        match select {
            Select::Matrix => ops.matmul(&narrow, &self.b),
            Select::Each => ops.matmul(&narrow, &self.each(ops, &self.b)?),
            Select::Chosen(choice) => {
                let (matrices, sorted) = self.chosen(ops, choice.matrices, choice.sorted)?;
                ops.gather_matmul(&narrow, &self.b, &matrices, sorted)
            }
        }
    }

    /// `out` plus the product.
    pub fn add(
        &self,
        ops: &Ops,
        out: &Array,
        x: &Array,
        scale: f32,
        select: &Select,
    ) -> Result<Array, MlxError> {
        match select {
            Select::Matrix => ops.addmm(out, &self.narrow(ops, x, scale, select)?, &self.b),
            _ => ops.add(out, &self.product(ops, x, scale, select)?),
        }
    }

    /// A factor for every matrix of the stack.
    fn each(&self, ops: &Ops, factor: &Array) -> Result<Array, MlxError> {
        match &self.members {
            None => Ok(factor.clone()),
            Some(members) => ops.take_rows(factor, &members.indices(ops)?, 0),
        }
    }

    /// The members that have the chosen matrices' factors, and whether they are ascending.
    fn chosen(&self, ops: &Ops, matrices: &Array, sorted: bool) -> Result<(Array, bool), MlxError> {
        match &self.members {
            None => Ok((matrices.clone(), sorted)),
            Some(members) => Ok((ops.take_rows(&members.indices(ops)?, matrices, 0)?, false)),
        }
    }
}

impl Members {
    fn new(members: &[Option<LowRank>]) -> Self {
        let mut next = 0;
        let index = members.iter().map(|member| {
            let own = next;
            next += u32::from(member.is_some());
            if member.is_some() { own } else { 0 }
        });
        let index = index.collect();
        let scale = |member: &Option<LowRank>| member.as_ref().map_or(0.0, |change| change.scale);
        Self {
            index,
            scales: members.iter().map(scale).collect(),
        }
    }

    fn indices(&self, ops: &Ops) -> Result<Array, MlxError> {
        ops.upload_u32(&self.index, &[self.index.len() as i32])
    }
}

impl EmbeddingChange {
    fn load(ops: &Ops, model: &Model, change: &LowRank) -> Result<Self, SessionError> {
        let factor = |factor: &Factor| {
            let dims = [factor.rows(), factor.cols()];
            upload(ops, factor.values(), &dims, model.dtype)
        };
        if change.magnitude.is_some() && change.lengths_of == LengthsOf::Rows {
            let why = "DoRA of an embedding by mlx-lm is only supported on the CPU";
            return Err(SessionError::InvalidAdapter(why.to_owned()));
        }
        let lengths = column_lengths(ops, model, change)?;
        if lengths.is_none() && change.magnitude.is_some() {
            let why = "the lengths of the embedding's columns are not finite numbers";
            return Err(SessionError::InvalidAdapter(why.to_owned()));
        }
        Ok(Self {
            a: factor(&change.a)?,
            b: factor(&change.b)?,
            scale: change.scale,
            lengths,
        })
    }

    /// The tokens' rows `x` plus their changes. `base`: the rows without adapters, both
    /// [tokens, hidden].
    pub fn add(
        &self,
        ops: &Ops,
        [x, base]: [&Array; 2],
        ids: &Array,
        scale: f32,
    ) -> Result<Array, MlxError> {
        let scale = scale * self.scale;
        let narrow = ops.take_rows(&self.b, ids, 0)?;
        let narrow = ops.scale(&narrow, scale)?;
        let Some(lengths) = &self.lengths else {
            return ops.addmm(x, &narrow, &self.a);
        };
        let factors: Vec<f32> = lengths.factors(scale).collect();
        let less: Vec<f32> = factors.iter().map(|factor| factor - 1.0).collect();
        let cols = |values: &[f32]| upload(ops, values, &[values.len()], x.dtype());
        let own = ops.multiply(&ops.matmul(&narrow, &self.a)?, &cols(&factors)?)?;
        let change = ops.add(&ops.multiply(base, &cols(&less)?)?, &own)?;
        ops.add(x, &change)
    }
}

/// Reads the model's table from the device, some rows at a time.
fn column_lengths(
    ops: &Ops,
    model: &Model,
    change: &LowRank,
) -> Result<Option<ColumnLengths>, MlxError> {
    /// Values that are read at once.
    const READ: usize = 1 << 20;
    let (rows, cols) = (change.b.rows(), change.a.cols());
    let step = (READ / cols.max(1)).max(1);
    let mut values = Vec::new();
    ColumnLengths::compute(change, |token, out| {
        let at = token % step;
        if at == 0 {
            let ids: Vec<u32> = (token..rows.min(token + step))
                .map(|id| id as u32)
                .collect();
            let ids = ops.upload_u32(&ids, &[ids.len() as i32])?;
            let part = model.table_rows(ops, &ids, Type::F32)?;
            values.resize(rows.min(token + step).saturating_sub(token) * cols, 0.0);
            ops.read_f32(&part, &mut values)?;
        }
        out.copy_from_slice(&values[at * cols..(at + 1) * cols]);
        Ok(())
    })
}

#[cfg(test)]
mod tests;
