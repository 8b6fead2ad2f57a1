//! Matrices as MLX multiplies by them.

use loquat_spec::Role;

use crate::adapted::{self, Applied, Select, StepAdapters};
use crate::array::{Array, Ops, Packed, Type};
use crate::error::MlxError;

/// One matrix of [rows, cols], or a stack of [count, rows, cols].
#[derive(Clone)]
pub enum Kernel {
    /// Transposed for multiplication, [..., cols, rows]: a view of the uploaded array.
    Plain(Array),
    Packed(Packed),
}

impl Kernel {
    /// `x`: [..., cols] to [..., rows]; with a stack, each matrix for its entry of the batch.
    pub fn multiply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match self {
            Self::Plain(weight) => ops.matmul(x, weight),
            Self::Packed(packed) => ops.quantized_matmul(x, packed),
        }
    }

    /// `x`: [..., 1, cols] by the chosen matrices of the stack.
    pub fn gather(&self, ops: &Ops, x: &Array, choice: StackChoice) -> Result<Array, MlxError> {
        let StackChoice { matrices, sorted } = choice;
        match self {
            Self::Plain(weight) => ops.gather_matmul(x, weight, matrices, sorted),
            Self::Packed(packed) => ops.gather_quantized_matmul(x, packed, matrices, sorted),
        }
    }
}

/// The matrices of a stack that inputs are multiplied by.
#[derive(Clone, Copy)]
pub struct StackChoice<'a> {
    /// The matrix for each input; the inputs' batch dimensions are broadcast to this shape.
    pub matrices: &'a Array,
    /// Whether `matrices` is ascending.
    pub sorted: bool,
}

/// Rows of a matrix with the roles by which adapters change them.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    pub rows: usize,
    pub matrix: Role,
    pub bias: Option<Role>,
}

/// A matrix that activations are multiplied by, with an optional bias.
pub struct Linear {
    pub kernel: Kernel,
    pub bias: Option<Array>,
    /// All rows, in their order; empty if adapters change none.
    pub parts: Vec<Part>,
}

impl Linear {
    /// `x`: [..., cols] to [..., rows].
    pub fn apply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match (&self.kernel, &self.bias) {
            (Kernel::Plain(weight), Some(bias)) => ops.addmm(bias, x, weight),
            (kernel, Some(bias)) => ops.add(&kernel.multiply(ops, x)?, bias),
            (kernel, None) => kernel.multiply(ops, x),
        }
    }
}

/// Several matrices, or stacks, that read the same input; adjacent ones of one form are multiplied
/// as one.
pub struct Joined<T> {
    runs: Vec<Run<T>>,
}

pub type JoinedLinear = Joined<Linear>;
pub type JoinedStack = Joined<Stack>;

/// Matrices, or stacks, concatenated by rows.
pub struct Run<T> {
    pub joined: T,
    /// The number of rows of each.
    pub rows: Vec<usize>,
}

impl<T> Joined<T> {
    pub fn new(runs: Vec<Run<T>>) -> Self {
        Self { runs }
    }

    /// One output for each matrix or stack, in their order.
    fn outputs(
        &self,
        ops: &Ops,
        apply: impl Fn(&T) -> Result<Array, MlxError>,
    ) -> Result<Vec<Array>, MlxError> {
        let mut outputs = Vec::new();
        for run in &self.runs {
            split(ops, apply(&run.joined)?, &run.rows, &mut outputs)?;
        }
        Ok(outputs)
    }
}

impl JoinedLinear {
    /// Returns the outputs of the first two matrices as one from now on, if they are multiplied as
    /// one. Returns whether they are.
    pub fn pair_first(&mut self) -> bool {
        match self.runs.first_mut() {
            Some(run) if run.rows.len() > 1 => {
                run.rows[0] += run.rows.remove(1);
                true
            }
            _ => false,
        }
    }

    /// One output for each matrix, in their order. `x`: [tokens, cols].
    pub fn apply(
        &self,
        ops: &Ops,
        x: &Array,
        adapters: &StepAdapters,
    ) -> Result<Vec<Array>, MlxError> {
        self.outputs(ops, |linear| linear.adapted(ops, x, adapters))
    }
}

/// The parts of the last dimension.
fn split(
    ops: &Ops,
    joined: Array,
    parts: &[usize],
    outputs: &mut Vec<Array>,
) -> Result<(), MlxError> {
    if parts.len() == 1 {
        outputs.push(joined);
        return Ok(());
    }
    let mut stop = joined.shape();
    let mut start = vec![0; stop.len()];
    let last = stop.len() - 1;
    for part in parts {
        stop[last] = start[last] + *part as i32;
        outputs.push(ops.slice(&joined, &start, &stop)?);
        start[last] = stop[last];
    }
    Ok(())
}

/// Many matrices of one shape, of which each token uses some.
pub struct Stack {
    pub kernel: Kernel,
    /// [count, rows], added to the outputs of the chosen matrices.
    pub bias: Option<Array>,
    /// As those of a [`Linear`].
    pub parts: Vec<Part>,
}

impl Stack {
    /// `x`: [..., 1, cols] to [..., 1, rows], for tokens with these adapters.
    pub fn apply(
        &self,
        ops: &Ops,
        x: &Array,
        choice: StackChoice,
        applied: &[Applied],
    ) -> Result<Array, MlxError> {
        let out = self.kernel.gather(ops, x, choice)?;
        let select = Select::Chosen(choice);
        let out = adapted::change(ops, out, x, &self.parts, applied, &select)?;
        match &self.bias {
            Some(bias) => {
                let own = ops.take_rows(bias, choice.matrices, 0)?;
                ops.add(&out, &ops.reshape(&own, &out.shape())?)
            }
            None => Ok(out),
        }
    }

    /// One matrix for each entry of the batch: `x`: [count, tokens, cols] to [count, tokens, rows].
    pub fn apply_each(
        &self,
        ops: &Ops,
        x: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        let out = self.kernel.multiply(ops, x)?;
        if !adapters.change_matrices(&self.parts) {
            return Ok(out);
        }
        adapters.each_segment(ops, 1, |segment| {
            let (out, x) = (segment.part(ops, &out, 1)?, segment.part(ops, x, 1)?);
            adapted::change(ops, out, &x, &self.parts, &segment.applied, &Select::Each)
        })
    }
}

impl JoinedStack {
    /// One output for each stack, in their order, as [`Stack::apply`] returns it.
    pub fn apply(
        &self,
        ops: &Ops,
        x: &Array,
        choice: StackChoice,
        applied: &[Applied],
    ) -> Result<Vec<Array>, MlxError> {
        self.outputs(ops, |stack| stack.apply(ops, x, choice, applied))
    }

    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.runs.iter().flat_map(|run| &run.joined.parts)
    }
}

/// A table of rows by token.
pub enum Table {
    /// [rows, cols]
    Plain(Array),
    Packed(Packed),
}

impl Table {
    /// `ids`: [tokens] to [tokens, cols] of type `to`.
    pub fn rows(&self, ops: &Ops, ids: &Array, to: Type) -> Result<Array, MlxError> {
        match self {
            Self::Plain(rows) => ops.astype(&ops.take_rows(rows, ids, 0)?, to),
            Self::Packed(packed) => {
                let take = |part: &Array| ops.take_rows(part, ids, 0);
                let rows = Packed {
                    codes: take(&packed.codes)?,
                    scales: take(&packed.scales)?,
                    biases: packed.biases.as_ref().map(take).transpose()?,
                    packing: packed.packing,
                };
                ops.dequantize(&rows, to)
            }
        }
    }
}
