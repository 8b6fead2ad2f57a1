//! Matrices as MLX multiplies by them.

use crate::array::{Array, Ops, Packed, Type};
use crate::error::MlxError;

/// One matrix of [rows, cols], or a stack of [count, rows, cols].
pub enum Kernel {
    /// Transposed for multiplication, [..., cols, rows]: a view of the uploaded array.
    Plain(Array),
    Packed(Packed),
}

impl Kernel {
    /// `x`: [..., cols] to [..., rows]; with a stack, each matrix for its entry of the batch.
    fn multiply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match self {
            Self::Plain(weight) => ops.matmul(x, weight),
            Self::Packed(packed) => ops.quantized_matmul(x, packed),
        }
    }

    /// `x`: [..., 1, cols] by the chosen matrices of the stack.
    fn gather(&self, ops: &Ops, x: &Array, choice: StackChoice) -> Result<Array, MlxError> {
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

/// A matrix that activations are multiplied by, with an optional bias.
pub struct Linear {
    pub kernel: Kernel,
    pub bias: Option<Array>,
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

    /// One output for each matrix, in their order. `x`: [..., cols].
    pub fn apply(&self, ops: &Ops, x: &Array) -> Result<Vec<Array>, MlxError> {
        self.outputs(ops, |linear| linear.apply(ops, x))
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
}

impl Stack {
    /// `x`: [..., 1, cols] to [..., 1, rows].
    pub fn apply(&self, ops: &Ops, x: &Array, choice: StackChoice) -> Result<Array, MlxError> {
        let out = self.kernel.gather(ops, x, choice)?;
        match &self.bias {
            Some(bias) => {
                let own = ops.take_rows(bias, choice.matrices, 0)?;
                ops.add(&out, &ops.reshape(&own, &out.shape())?)
            }
            None => Ok(out),
        }
    }

    /// One matrix for each entry of the batch: `x`: [count, tokens, cols] to [count, tokens, rows].
    pub fn apply_each(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        self.kernel.multiply(ops, x)
    }
}

impl JoinedStack {
    /// One output for each stack, in their order, as [`Stack::apply`] returns it.
    pub fn apply(&self, ops: &Ops, x: &Array, choice: StackChoice) -> Result<Vec<Array>, MlxError> {
        self.outputs(ops, |stack| stack.apply(ops, x, choice))
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
