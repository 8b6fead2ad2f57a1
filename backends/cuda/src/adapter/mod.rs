//! Adapters on the device: factors, lengths and replaced weights, each adapter in one allocation.

mod lengths;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use loquat_session::{AdapterWeights, OpenError, SessionError};
use loquat_spec::{Kind, ModelSpec, Role};
use loquat_weights::{LengthsOf, LowRank, Matrix};

use crate::device::Device;
use crate::launch::MAX_RANK;
use crate::lower::{Program, upload_rows};
use crate::ops::{Address, Format, MatrixRef, Op};

/// What adapters may change, by role.
pub struct AdapterTargets {
    /// Matrices that the program multiplies by or looks up.
    matrices: BTreeMap<Role, Target>,
    /// Lengths of the vectors that apply to each token by itself.
    vectors: BTreeMap<Role, usize>,
    format: Format,
}

/// The matrices of a role, which are contiguous.
#[derive(Clone, Copy)]
struct Target {
    first: MatrixRef,
    count: usize,
}

impl Target {
    fn member(&self, index: usize) -> MatrixRef {
        let MatrixRef { rows, cols, .. } = self.first;
        let bytes = rows as usize * cols as usize * self.first.format.bytes();
        MatrixRef {
            values: self.first.values.offset((index * bytes) as u64),
            ..self.first
        }
    }

    fn has_shape(&self, rows: usize, cols: usize) -> bool {
        (self.first.rows as usize, self.first.cols as usize) == (rows, cols)
    }
}

impl AdapterTargets {
    pub fn new(spec: &ModelSpec, program: &Program, format: Format) -> Self {
        let kinds: BTreeMap<Role, Kind> = spec.roles().into_iter().collect();
        let mut targets = Self {
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            format,
        };
        let parts = [&program.forward, &program.readout, &program.head];
        for instruction in parts.into_iter().flatten() {
            let mut vectors = [instruction.bias, None];
            let matrix = match &instruction.op {
                Op::Embed(op) => Some(op.table),
                Op::Linear(op) => Some(op.matrix),
                Op::ExpertLinear(op) => {
                    // Of a stack, which tokens do not have for themselves.
                    vectors = [None; 2];
                    Some(op.matrix)
                }
                Op::Norm(_) => {
                    vectors[1] = instruction.role;
                    None
                }
                _ => continue,
            };
            if let (Some(first), Some(role)) = (matrix, instruction.role) {
                // A tied head has no entry.
                let count = kinds.get(&role).map_or(1, |kind| kind.count());
                targets.matrices.insert(role, Target { first, count });
            }
            for role in vectors.into_iter().flatten() {
                if let Some(kind) = kinds.get(&role).filter(|_| role.is_token_vector()) {
                    let len = kind.count() * kind.rows() * kind.cols();
                    targets.vectors.insert(role, len);
                }
            }
        }
        targets
    }

    /// In which replaced matrices are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the role's matrices have the shape of the adapter's.
    fn fits(&self, role: Role, shapes: impl Iterator<Item = (usize, usize)>) -> bool {
        let Some(target) = self.matrices.get(&role) else {
            return false;
        };
        let mut count = 0;
        let fits = shapes.fold(true, |fits, (rows, cols)| {
            count += 1;
            fits && target.has_shape(rows, cols)
        });
        fits && count == target.count
    }

    /// Refuses an adapter that changes anything else.
    fn check(&self, adapter: &AdapterWeights) -> Result<(), SessionError> {
        if adapter.rank() > MAX_RANK {
            let max = MAX_RANK;
            let rank = adapter.rank();
            return Err(SessionError::AdapterRank { rank, max });
        }
        let mut unsupported = Vec::new();
        for (role, members) in stacks(adapter) {
            let has_lengths_of_rows = |change: &LowRank| {
                change.magnitude.is_some() && change.lengths_of == LengthsOf::Rows
            };
            if role == Role::Embedding && members.iter().flatten().any(has_lengths_of_rows) {
                let why = "DoRA of an embedding by mlx-lm is only supported on the CPU";
                return Err(SessionError::InvalidAdapter(why.to_owned()));
            }
            let shapes = members
                .iter()
                .map(|change| match (change, self.matrices.get(&role)) {
                    (Some(change), _) => (change.b.rows(), change.a.cols()),
                    (None, Some(target)) => {
                        (target.first.rows as usize, target.first.cols as usize)
                    }
                    (None, None) => (0, 0),
                });
            if !self.fits(role, shapes) {
                unsupported.push(role.to_string());
            }
        }
        let replaced = adapter.replaced();
        for role in replaced.roles() {
            let shape = |matrix: &Matrix| (matrix.rows(), matrix.cols());
            let fits = match replaced.stack(role) {
                Some(stack) => self.fits(role, stack.iter().map(shape)),
                None => {
                    let values = replaced.vector(role).unwrap_or_default();
                    self.vectors.get(&role) == Some(&values.len())
                }
            };
            if !fits {
                unsupported.push(role.to_string());
            }
        }
        if unsupported.is_empty() {
            return Ok(());
        }
        let roles = unsupported.join(", ");
        let why = format!("the cuda backend does not adapt {roles}");
        Err(SessionError::InvalidAdapter(why))
    }
}

/// The low-rank changes of each role, one for each of its matrices.
fn stacks(adapter: &AdapterWeights) -> impl Iterator<Item = (Role, &[Option<LowRank>])> {
    let roles: BTreeSet<Role> = adapter.low_ranks().map(|(role, ..)| role).collect();
    roles
        .into_iter()
        .filter_map(|role| Some((role, adapter.low_rank(role)?)))
}

/// Low-rank factors of a role's matrices, all of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// `f32[matrix][rank][cols]`
    pub a: Address,
    /// `f32[matrix][rows][rank]`
    pub b: Address,
    /// As in [`LowRank`](crate::ops::LowRank); none: ones.
    pub lengths: Address,
    pub rank: u32,
    pub scale: f32,
}

/// An adapter in the device's memory.
pub struct LoadedAdapter {
    pub memory: Address,
    factors: BTreeMap<Role, Factors>,
    matrices: BTreeMap<Role, Address>,
    vectors: BTreeMap<Role, Address>,
}

impl LoadedAdapter {
    pub fn factors(&self, role: Role) -> Option<&Factors> {
        self.factors.get(&role)
    }

    /// What takes the place of the role's matrices, of the same shape.
    pub fn matrix(&self, role: Role) -> Option<Address> {
        self.matrices.get(&role).copied()
    }

    pub fn vector(&self, role: Role) -> Option<Address> {
        self.vectors.get(&role).copied()
    }

    /// Copies an adapter to the device; refuses what the program does not adapt. Its `memory` is to
    /// be freed.
    pub fn load(
        device: &mut dyn Device,
        targets: &AdapterTargets,
        adapter: &AdapterWeights,
    ) -> Result<Self, SessionError> {
        targets.check(adapter)?;
        let memory = device.allocate(predict_bytes(adapter, targets.format) as usize)?;
        let mut upload = Upload {
            device,
            next: memory,
            targets,
            loaded: Self {
                memory,
                factors: BTreeMap::new(),
                matrices: BTreeMap::new(),
                vectors: BTreeMap::new(),
            },
        };
        match upload.all(adapter) {
            Ok(()) => Ok(upload.loaded),
            Err(error) => {
                upload.device.free(memory);
                Err(error)
            }
        }
    }
}

/// Bytes of an adapter on the device.
pub fn predict_bytes(adapter: &AdapterWeights, format: Format) -> u64 {
    let factors = stacks(adapter).map(|(role, members)| {
        let [a, b, lengths] = StackShape::new(role, members).bytes();
        a + b + lengths
    });
    let replaced = adapter.replaced();
    let matrices = replaced.matrices();
    let matrices = matrices.map(|(_, matrix)| matrix.rows() * matrix.cols());
    let matrices = matrices.sum::<usize>() * format.bytes();
    let vectors = replaced.vectors().map(|(_, values)| 4 * values.len());
    let total = factors.sum::<usize>() + matrices.next_multiple_of(4) + vectors.sum::<usize>();
    total as u64
}

/// Factors begin at multiples of this, so that kernels read several values at once.
const ALIGNMENT: usize = 16;

/// The stored form of a role's changes. A matrix without a change, or of a smaller rank, has zeros.
struct StackShape {
    matrices: usize,
    rank: usize,
    rows: usize,
    cols: usize,
    /// Lengths of a matrix; 0: none.
    lengths: usize,
    /// Of all changes; none if they differ, and the second factors are multiplied by them.
    scale: Option<f32>,
}

impl StackShape {
    fn new(role: Role, members: &[Option<LowRank>]) -> Self {
        let changes = || members.iter().flatten();
        let (rows, cols) = changes()
            .next()
            .map_or((0, 0), |change| (change.b.rows(), change.a.cols()));
        let has_lengths = changes().any(|change| change.magnitude.is_some());
        let of_matrix = if role == Role::Embedding { cols } else { rows };
        let scale = changes().next().map_or(1.0, |change| change.scale);
        Self {
            matrices: members.len(),
            rank: changes().map(LowRank::rank).max().unwrap_or(0),
            rows,
            cols,
            lengths: if has_lengths { of_matrix } else { 0 },
            scale: changes()
                .all(|change| change.scale == scale)
                .then_some(scale),
        }
    }

    /// Of the first factors, the second ones and the lengths.
    fn bytes(&self) -> [usize; 3] {
        let of_values = |values: usize| (4 * self.matrices * values).next_multiple_of(ALIGNMENT);
        [
            of_values(self.rank * self.cols),
            of_values(self.rows * self.rank),
            of_values(4 * self.lengths),
        ]
    }

    /// The factors of one matrix, as stored.
    fn factors(&self, change: Option<&LowRank>) -> (Vec<f32>, Vec<f32>) {
        let mut a = vec![0.0; self.rank * self.cols];
        let mut b = vec![0.0; self.rows * self.rank];
        if let Some(change) = change {
            a[..change.a.values().len()].copy_from_slice(change.a.values());
            let factor = self.scale.map_or(change.scale, |_| 1.0);
            for (row, to) in b.chunks_exact_mut(self.rank).enumerate() {
                for (to, value) in to.iter_mut().zip(change.b.row(row)) {
                    *to = value * factor;
                }
            }
        }
        (a, b)
    }
}

/// An adapter that is being copied.
struct Upload<'a> {
    device: &'a mut dyn Device,
    next: Address,
    targets: &'a AdapterTargets,
    loaded: LoadedAdapter,
}

impl Upload<'_> {
    fn all(&mut self, adapter: &AdapterWeights) -> Result<(), SessionError> {
        for (role, members) in stacks(adapter) {
            self.factors(role, members)?;
        }
        let replaced = adapter.replaced();
        let start = self.next;
        for role in replaced.roles() {
            for (index, matrix) in replaced.stack(role).unwrap_or_default().iter().enumerate() {
                if index == 0 {
                    self.loaded.matrices.insert(role, self.next);
                }
                self.matrix(matrix)?;
            }
        }
        let of_matrices = self.next.0 - start.0;
        self.next = start.offset(of_matrices.next_multiple_of(4));
        for (role, values) in replaced.vectors() {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let at = self.take(bytes.len());
            self.device.write(at, bytes)?;
            self.loaded.vectors.insert(role, at);
        }
        Ok(())
    }

    /// The next bytes of the adapter's memory.
    fn take(&mut self, bytes: usize) -> Address {
        let at = self.next;
        self.next = at.offset(bytes as u64);
        at
    }

    fn factors(&mut self, role: Role, members: &[Option<LowRank>]) -> Result<(), SessionError> {
        let shape = StackShape::new(role, members);
        let [a_bytes, b_bytes, length_bytes] = shape.bytes();
        let [mut a, mut b] = [self.take(a_bytes), self.take(b_bytes)];
        let mut lengths = self.take(length_bytes);
        let factors = Factors {
            a,
            b,
            lengths: if shape.lengths == 0 {
                Address::NONE
            } else {
                lengths
            },
            rank: shape.rank as u32,
            scale: shape.scale.unwrap_or(1.0),
        };
        for (index, change) in members.iter().enumerate() {
            let (own_a, own_b) = shape.factors(change.as_ref());
            let mut own_lengths = Vec::new();
            if shape.lengths > 0 {
                own_lengths =
                    self.lengths(role, index, &shape, (change.as_ref(), &own_a, &own_b))?;
            }
            for (at, values) in [
                (&mut a, own_a),
                (&mut b, own_b),
                (&mut lengths, own_lengths),
            ] {
                let bytes: &[u8] = bytemuck::cast_slice(&values);
                if !bytes.is_empty() {
                    self.device.write(*at, bytes)?;
                }
                *at = at.offset(bytes.len() as u64);
            }
        }
        self.loaded.factors.insert(role, factors);
        Ok(())
    }

    /// What the lengths of a matrix's rows, or of an embedding's columns, follow from.
    fn lengths(
        &mut self,
        role: Role,
        index: usize,
        shape: &StackShape,
        (change, a, b): (Option<&LowRank>, &[f32], &[f32]),
    ) -> Result<Vec<f32>, SessionError> {
        let magnitude = change.and_then(|change| change.magnitude.as_ref());
        let (Some(magnitude), Some(target)) = (magnitude, self.targets.matrices.get(&role)) else {
            // Of length one for any scale.
            let mut lengths = vec![0.0; 4 * shape.lengths];
            lengths[..2 * shape.lengths].fill(1.0);
            return Ok(lengths);
        };
        let base = target.member(index);
        let change = lengths::Change {
            a,
            b,
            rank: shape.rank,
        };
        let sums = if role == Role::Embedding {
            lengths::column_sums(self.device, &base, &change)?
        } else {
            lengths::row_sums(self.device, &base, &change)?
        };
        if sums.iter().flatten().any(|sum| !sum.is_finite()) {
            let why = format!("the lengths of {role} are not finite numbers");
            return Err(SessionError::InvalidAdapter(why));
        }
        let mut lengths = magnitude.to_vec();
        for part in 0..3 {
            lengths.extend(sums.iter().map(|sums| sums[part]));
        }
        Ok(lengths)
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<(), SessionError> {
        let format = self.targets.format;
        let at = self.take(matrix.rows() * matrix.cols() * format.bytes());
        let mut chunk = Vec::new();
        let copied = upload_rows(self.device, at, matrix, format, &mut chunk);
        copied.map_err(|error| match error {
            OpenError::Device(why) => SessionError::Device(why),
            other => SessionError::InvalidAdapter(other.to_string()),
        })
    }
}
