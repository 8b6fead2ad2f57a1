//! Uploads bound weights as MLX arrays.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use loquat_session::loading::{LayerParts, LayerWeights, load_norm, matrix, stack, vector};
use loquat_session::{OpenError, Precision};
use loquat_spec::{
    Inner as InnerSpec, LayerRole, ModelSpec, Norm as NormSpec, Role, Rope as RopeSpec,
};
use loquat_weights::{Dtype, Matrix, Storage, Weights};

use crate::adapter::BaseRows;
use crate::array::{Array, Ops, Type};
use crate::blocks::Block;
use crate::linear::{JoinedLinear, JoinedStack, Kernel, Linear, Part, Run, Stack, Table};
use crate::norm::{Norm, Rope, SectionedRope, StreamNorm};
use crate::pack::{self, Form, UploadedMatrix};

/// Finds roles' weights and uploads them.
pub struct Loader<'a> {
    pub ops: &'a Ops,
    pub weights: &'a Weights,
    /// Of activations, and of weights that are not packed.
    pub dtype: Type,
    /// The session's, on which some ropes depend.
    pub context: usize,
    /// Cached because an embedding may also be the head.
    uploaded: RefCell<BTreeMap<Role, UploadedMatrix>>,
    adaptable: RefCell<Adaptable>,
}

/// What adapters may change.
#[derive(Default)]
pub struct Adaptable {
    pub matrices: BTreeMap<Role, BaseRows>,
    pub vectors: BTreeSet<Role>,
}

/// A loader for the roles of one layer.
#[derive(Clone, Copy)]
pub struct LayerLoader<'a> {
    loader: &'a Loader<'a>,
    weights: LayerWeights<'a>,
}

/// A role's matrices and biases, and how they will be stored.
struct RoleMatrices<'a> {
    role: Role,
    bias_role: Option<Role>,
    stack: &'a [Matrix],
    bias: Option<&'a [f32]>,
    form: Form,
}

impl RoleMatrices<'_> {
    fn rows(&self) -> usize {
        self.stack.first().map_or(0, Matrix::rows)
    }

    fn cols(&self) -> usize {
        self.stack.first().map_or(0, Matrix::cols)
    }

    fn part(&self) -> Part {
        Part {
            rows: self.rows(),
            matrix: self.role,
            bias: self.bias_role,
        }
    }

    /// Whether both can be multiplied as one.
    fn joins(&self, other: &RoleMatrices) -> bool {
        let shape = |part: &RoleMatrices| (part.stack.len(), part.cols(), part.form);
        shape(self) == shape(other)
    }
}

impl<'a> Loader<'a> {
    pub fn new(ops: &'a Ops, weights: &'a Weights, dtype: Type, context: usize) -> Self {
        Self {
            ops,
            weights,
            dtype,
            context,
            uploaded: RefCell::default(),
            adaptable: RefCell::default(),
        }
    }

    /// What adapters may change of the parts that were loaded.
    pub fn into_adaptable(self) -> Adaptable {
        self.adaptable.into_inner()
    }

    pub fn linear(&self, role: Role, bias: Option<Role>) -> Result<Linear, OpenError> {
        self.linear_as(role, role, bias)
    }

    /// The matrix that hidden states become logits by. Adapters change it as the head, even if it
    /// is also the embedding.
    pub fn head(&self, role: Role) -> Result<Linear, OpenError> {
        self.linear_as(role, Role::Head, Some(Role::HeadBias))
    }

    /// Adapters change it as the role `adapted`.
    fn linear_as(
        &self,
        role: Role,
        adapted: Role,
        bias: Option<Role>,
    ) -> Result<Linear, OpenError> {
        let part = Part {
            rows: matrix(self.weights, role)?.rows(),
            matrix: adapted,
            bias,
        };
        let kernel = self.upload_matrix(role)?.kernel(self.ops)?;
        self.record(&kernel, &[part], None);
        Ok(Linear {
            kernel,
            bias: bias.map_or(Ok(None), |role| self.optional(role))?,
            parts: vec![part],
        })
    }

    /// Records parts that adapters may change. `count`: matrices of the stack.
    fn record(&self, kernel: &Kernel, parts: &[Part], count: Option<usize>) {
        let mut adaptable = self.adaptable.borrow_mut();
        let mut first = 0;
        for part in parts {
            let base = BaseRows {
                kernel: kernel.clone(),
                first,
                rows: part.rows,
                count,
            };
            first += part.rows;
            adaptable.matrices.insert(part.matrix, base);
            adaptable.vectors.extend(part.bias);
        }
    }

    pub fn table(&self, role: Role) -> Result<Table, OpenError> {
        Ok(self.upload_matrix(role)?.table())
    }

    /// The rows of all of the role's matrices, one matrix after another.
    pub fn joined_table(&self, role: Role) -> Result<Table, OpenError> {
        let stack = stack(self.weights, role)?;
        let rows = stack.iter().map(Matrix::rows).sum();
        let form = Form::common(stack, self.dtype);
        let matrices: Vec<&Matrix> = stack.iter().collect();
        Ok(UploadedMatrix::upload(self.ops, form, &matrices, &[rows])?.table())
    }

    fn upload_matrix(&self, role: Role) -> Result<UploadedMatrix, OpenError> {
        if let Some(uploaded) = self.uploaded.borrow().get(&role) {
            return Ok(uploaded.clone());
        }
        let matrix = matrix(self.weights, role)?;
        let form = Form::for_matrix(matrix, self.dtype);
        let uploaded = UploadedMatrix::upload(self.ops, form, &[matrix], &[matrix.rows()])?;
        self.uploaded.borrow_mut().insert(role, uploaded.clone());
        Ok(uploaded)
    }

    /// Matrices that read the same input, and their biases.
    pub fn joined(&self, roles: &[(Role, Option<Role>)]) -> Result<JoinedLinear, OpenError> {
        let parts = self.parts(roles)?;
        let runs = parts.chunk_by(RoleMatrices::joins).map(|run| {
            let rows: Vec<usize> = run.iter().map(RoleMatrices::rows).collect();
            let dims = [rows.iter().sum()];
            let parts: Vec<Part> = run.iter().map(RoleMatrices::part).collect();
            let kernel = self.kernel(run, &dims)?;
            self.record(&kernel, &parts, None);
            let joined = Linear {
                kernel,
                bias: self.bias(run, &dims)?,
                parts,
            };
            Ok(Run { joined, rows })
        });
        Ok(JoinedLinear::new(runs.collect::<Result<_, OpenError>>()?))
    }

    /// Stacks that read the same input, and their biases.
    pub fn joined_stack(&self, roles: &[(Role, Option<Role>)]) -> Result<JoinedStack, OpenError> {
        let parts = self.parts(roles)?;
        let runs = parts.chunk_by(RoleMatrices::joins).map(|run| {
            let rows = run.iter().map(RoleMatrices::rows).collect();
            let joined = self.join_stacks(run)?;
            Ok(Run { joined, rows })
        });
        Ok(JoinedStack::new(runs.collect::<Result<_, OpenError>>()?))
    }

    pub fn stack(&self, role: Role, bias: Option<Role>) -> Result<Stack, OpenError> {
        self.join_stacks(&self.parts(&[(role, bias)])?)
    }

    fn join_stacks(&self, run: &[RoleMatrices]) -> Result<Stack, OpenError> {
        let count = run.first().map_or(0, |part| part.stack.len());
        let dims = [count, run.iter().map(RoleMatrices::rows).sum()];
        let parts: Vec<Part> = run.iter().map(RoleMatrices::part).collect();
        let kernel = self.kernel(run, &dims)?;
        self.record(&kernel, &parts, Some(count));
        Ok(Stack {
            kernel,
            bias: self.bias(run, &dims)?,
            parts,
        })
    }

    fn parts(&self, roles: &[(Role, Option<Role>)]) -> Result<Vec<RoleMatrices<'a>>, OpenError> {
        let parts = roles.iter().map(|(role, bias)| {
            let stack = stack(self.weights, *role)?;
            Ok(RoleMatrices {
                role: *role,
                bias_role: *bias,
                stack,
                bias: bias.and_then(|role| self.weights.vector(role)),
                form: Form::common(stack, self.dtype),
            })
        });
        parts.collect()
    }

    /// The parts concatenated by rows, for each member of their stacks.
    fn kernel(&self, run: &[RoleMatrices], dims: &[usize]) -> Result<Kernel, OpenError> {
        let Some(first) = run.first() else {
            return Err(OpenError::Device("no matrices to load".to_owned()));
        };
        let members = 0..first.stack.len();
        let matrices: Vec<&Matrix> = members
            .flat_map(|member| run.iter().map(move |part| &part.stack[member]))
            .collect();
        let uploaded = UploadedMatrix::upload(self.ops, first.form, &matrices, dims)?;
        Ok(uploaded.kernel(self.ops)?)
    }

    /// The biases in the same order, zeros for parts without one.
    fn bias(&self, run: &[RoleMatrices], dims: &[usize]) -> Result<Option<Array>, OpenError> {
        if run.iter().all(|part| part.bias.is_none()) {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(dims.iter().product());
        for member in 0..run[0].stack.len() {
            for part in run {
                let rows = member * part.rows()..(member + 1) * part.rows();
                match part.bias.and_then(|bias| bias.get(rows)) {
                    Some(bias) => values.extend_from_slice(bias),
                    None => values.resize(values.len() + part.rows(), 0.0),
                }
            }
        }
        self.upload(&values, dims, self.dtype).map(Some)
    }

    /// [len], of the activations' type.
    pub fn vector(&self, role: Role) -> Result<Array, OpenError> {
        let values = vector(self.weights, role)?;
        self.upload(values, &[values.len()], self.dtype)
    }

    pub fn optional(&self, role: Role) -> Result<Option<Array>, OpenError> {
        match self.weights.vector(role) {
            Some(values) => self.upload(values, &[values.len()], self.dtype).map(Some),
            None => Ok(None),
        }
    }

    /// [len], float32.
    pub fn vector_f32(&self, role: Role) -> Result<Array, OpenError> {
        let values = vector(self.weights, role)?;
        self.upload(values, &[values.len()], Type::F32)
    }

    fn upload(&self, values: &[f32], dims: &[usize], to: Type) -> Result<Array, OpenError> {
        let mut bytes = vec![0; values.len() * to.bytes()];
        pack::encode(values, to, &mut bytes);
        let dims: Vec<i32> = dims.iter().map(|dim| *dim as i32).collect();
        Ok(self.ops.upload_weight(&[&bytes], &dims, to)?)
    }

    pub fn norm(
        &self,
        norm: &NormSpec,
        weight: Role,
        bias: Option<Role>,
    ) -> Result<Norm, OpenError> {
        let mut parts = self;
        Ok(load_norm(&mut parts, self.weights, norm, weight, bias)?.norm)
    }

    /// For heads of `head_dim` values.
    pub fn rope(&self, rope: &RopeSpec, head_dim: usize) -> Result<Rope, OpenError> {
        let frequencies = rope.frequencies(self.context, |role| self.weights.vector(role));
        let periods: Vec<f32> = frequencies.iter().map(|angle| 1.0 / angle).collect();
        let factor = rope.attention_factor();
        let factors = (factor != 1.0).then(|| {
            let mut factors = vec![1.0; head_dim];
            factors[..rope.dims].fill(factor);
            factors
        });
        Ok(Rope {
            dims: rope.dims as i32,
            pairs: rope.pairs,
            periods: self.upload(&periods, &[periods.len()], Type::F32)?,
            factors: match factors {
                Some(factors) => Some(self.upload(&factors, &[head_dim], self.dtype)?),
                None => None,
            },
            sectioned: rope.sections.map(|sections| SectionedRope {
                sections,
                frequencies,
                factor,
            }),
        })
    }
}

impl LayerParts for &Loader<'_> {
    type Norm = StreamNorm;
    type Inner = Block;
    type Scale = Array;

    fn norm(
        &mut self,
        spec: &NormSpec,
        weight: Option<(Role, &[f32])>,
        bias: Option<(Role, &[f32])>,
    ) -> Result<StreamNorm, OpenError> {
        let roles = [weight, bias].map(|vector| vector.map(|(role, _)| role));
        let mut adaptable = self.adaptable.borrow_mut();
        adaptable.vectors.extend(roles.into_iter().flatten());
        let upload = |(_, values): (Role, &[f32])| self.upload(values, &[values.len()], self.dtype);
        let norm = Norm {
            kind: spec.kind,
            eps: spec.eps,
            weight: weight.map(upload).transpose()?,
            bias: bias.map(upload).transpose()?,
        };
        Ok(StreamNorm { norm, roles })
    }

    fn inner(&mut self, weights: LayerWeights, spec: &InnerSpec) -> Result<Block, OpenError> {
        Block::load(LayerLoader::new(self, weights), spec)
    }

    fn scale(&mut self, values: &[f32]) -> Result<Array, OpenError> {
        self.upload(values, &[values.len()], self.dtype)
    }
}

impl<'a> LayerLoader<'a> {
    pub fn new(loader: &'a Loader<'a>, weights: LayerWeights<'a>) -> Self {
        Self { loader, weights }
    }

    pub fn loader(&self) -> &'a Loader<'a> {
        self.loader
    }

    fn with_bias(&self, role: LayerRole) -> (Role, Option<Role>) {
        let bias = role.bias().map(|bias| self.weights.role(bias));
        (self.weights.role(role), bias)
    }

    /// With its bias, if the checkpoint has one.
    pub fn linear(&self, role: LayerRole) -> Result<Linear, OpenError> {
        let (matrix, bias) = self.with_bias(role);
        self.loader.linear(matrix, bias)
    }

    pub fn optional_linear(
        &self,
        present: bool,
        role: LayerRole,
    ) -> Result<Option<Linear>, OpenError> {
        present.then(|| self.linear(role)).transpose()
    }

    pub fn joined(&self, roles: &[LayerRole]) -> Result<JoinedLinear, OpenError> {
        let roles: Vec<_> = roles.iter().map(|role| self.with_bias(*role)).collect();
        self.loader.joined(&roles)
    }

    pub fn stack(&self, role: LayerRole) -> Result<Stack, OpenError> {
        let (stack, bias) = self.with_bias(role);
        self.loader.stack(stack, bias)
    }

    pub fn joined_stack(&self, roles: &[LayerRole]) -> Result<JoinedStack, OpenError> {
        let roles: Vec<_> = roles.iter().map(|role| self.with_bias(*role)).collect();
        self.loader.joined_stack(&roles)
    }

    /// Of the activations' type.
    pub fn vector(&self, role: LayerRole) -> Result<Array, OpenError> {
        self.loader.vector(self.weights.role(role))
    }

    pub fn optional(&self, role: LayerRole) -> Result<Option<Array>, OpenError> {
        self.loader.optional(self.weights.role(role))
    }

    /// float32.
    pub fn vector_f32(&self, role: LayerRole) -> Result<Array, OpenError> {
        self.loader.vector_f32(self.weights.role(role))
    }

    /// The values of the checkpoint.
    pub fn values(&self, role: LayerRole) -> Result<&'a [f32], OpenError> {
        self.weights.vector(role)
    }

    pub fn norm(&self, role: LayerRole, norm: &NormSpec) -> Result<Norm, OpenError> {
        Ok(self.stream_norm(role, norm)?.norm)
    }

    /// One that adapters may change.
    pub fn stream_norm(&self, role: LayerRole, norm: &NormSpec) -> Result<StreamNorm, OpenError> {
        let mut parts = self.loader;
        self.weights.required_norm(&mut parts, role, norm)
    }

    pub fn optional_norm(
        &self,
        role: LayerRole,
        norm: Option<&NormSpec>,
    ) -> Result<Option<Norm>, OpenError> {
        norm.map(|norm| self.norm(role, norm)).transpose()
    }
}

/// The type of activations: the one that most of the checkpoint's values use.
pub fn activation_type(spec: &ModelSpec, weights: &Weights, precision: Precision) -> Type {
    if precision == Precision::Reference {
        return Type::F32;
    }
    let mut values = [(Type::F32, 0), (Type::F16, 0), (Type::BF16, 0)];
    let of_text = |role: &Role| !matches!(role, Role::Vision(_));
    for (_, matrix) in weights.matrices().filter(|(role, _)| of_text(role)) {
        let own = own_type(matrix.storage());
        for (_, sum) in values.iter_mut().filter(|(of, _)| *of == own) {
            *sum += matrix.rows() as u64 * matrix.cols() as u64;
        }
    }
    let most_used = values.into_iter().max_by_key(|(_, sum)| *sum);
    match most_used {
        // With a scaled embedding the stream exceeds the range of f16.
        Some((Type::F16, _)) if spec.embedding.scale != 1.0 => Type::BF16,
        Some((of, _)) => of,
        None => Type::F32,
    }
}

fn own_type(storage: &Storage) -> Type {
    let dtype = match storage {
        Storage::Plain(tensor) => tensor.dtype,
        Storage::Mlx { scales, .. } => scales.dtype,
        Storage::Fp8 { .. } => Dtype::BF16,
    };
    match pack::float_type(dtype) {
        Some(of) => of,
        // It represents powers of two and 8-bit floats exactly.
        None if dtype == Dtype::Mxfp4 || dtype.block_len() == 1 => Type::BF16,
        // GGUF blocks have f16 scales.
        None => Type::F16,
    }
}
