//! Matrices as MLX multiplies by them.

use crate::array::{Array, Ops, Packed, Type};
use crate::error::MlxError;

/// One matrix of [rows, cols], or a stack of [count, rows, cols].
pub enum Kernel {
    /// As it is multiplied, [..., cols, rows]: a view of what was uploaded.
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

    /// `x`: [..., 1, cols] by those of the stack that `chosen` names, whose shape the batch
    /// dimensions of `x` are stretched to.
    fn gather(
        &self,
        ops: &Ops,
        x: &Array,
        chosen: &Array,
        sorted: bool,
    ) -> Result<Array, MlxError> {
        match self {
            Self::Plain(weight) => ops.gather_matmul(x, weight, chosen, sorted),
            Self::Packed(packed) => ops.gather_quantized_matmul(x, packed, chosen, sorted),
        }
    }
}

/// A matrix that activations are multiplied by, and perhaps a bias.
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

/// Several matrices that read the same input; adjacent ones of one form are multiplied as one.
pub struct JoinedLinear {
    runs: Vec<Run<Linear>>,
}

/// Matrices, or stacks, one under another.
pub struct Run<T> {
    pub whole: T,
    /// Each one's rows.
    pub rows: Vec<usize>,
}

impl JoinedLinear {
    pub fn new(runs: Vec<Run<Linear>>) -> Self {
        Self { runs }
    }

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
        let mut answers = Vec::new();
        for run in &self.runs {
            let whole = run.whole.apply(ops, x)?;
            split(ops, whole, &run.rows, &mut answers)?;
        }
        Ok(answers)
    }
}

/// The parts of the last dimension.
fn split(
    ops: &Ops,
    whole: Array,
    parts: &[usize],
    answers: &mut Vec<Array>,
) -> Result<(), MlxError> {
    if parts.len() == 1 {
        answers.push(whole);
        return Ok(());
    }
    let mut stop = whole.shape();
    let mut start = vec![0; stop.len()];
    let last = stop.len() - 1;
    for part in parts {
        stop[last] = start[last] + *part as i32;
        answers.push(ops.slice(&whole, &start, &stop)?);
        start[last] = stop[last];
    }
    Ok(())
}

/// Many matrices of one shape, of which each token uses some.
pub struct Stack {
    pub kernel: Kernel,
    /// [count, rows], added to the chosen ones' answers.
    pub bias: Option<Array>,
}

impl Stack {
    /// `x`: [..., 1, cols], `chosen`: the matrix for each, to whose shape the batch dimensions of
    /// `x` are stretched; gives [..., 1, rows]. `sorted` promises that `chosen` ascends.
    pub fn apply(
        &self,
        ops: &Ops,
        x: &Array,
        chosen: &Array,
        sorted: bool,
    ) -> Result<Array, MlxError> {
        let out = self.kernel.gather(ops, x, chosen, sorted)?;
        match &self.bias {
            Some(bias) => {
                let own = ops.take_rows(bias, chosen, 0)?;
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

/// Several stacks that read the same input; adjacent ones of one form are multiplied as one.
pub struct JoinedStack {
    runs: Vec<Run<Stack>>,
}

impl JoinedStack {
    pub fn new(runs: Vec<Run<Stack>>) -> Self {
        Self { runs }
    }

    /// One output for each stack, in their order, as [`Stack::apply`] returns it.
    pub fn apply(
        &self,
        ops: &Ops,
        x: &Array,
        chosen: &Array,
        sorted: bool,
    ) -> Result<Vec<Array>, MlxError> {
        let mut answers = Vec::new();
        for run in &self.runs {
            let whole = run.whole.apply(ops, x, chosen, sorted)?;
            split(ops, whole, &run.rows, &mut answers)?;
        }
        Ok(answers)
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
