//! The launches of a step some of whose tokens have adapters.
//!
//! An instruction whose weights are replaced runs apart for the tokens that have the replacement.
//! Low-rank changes are added after it, by launches over the tokens that have them. Other tokens run
//! the same operations as in a step without adapters.

use std::ops::Range;
use std::sync::Arc;

use loquat_session::{AdapterId, AdapterLimits, AppliedAdapter};
use loquat_spec::Role;

use crate::adapter::{Factors, LoadedAdapter};
use crate::device::DeviceError;
use crate::lower::Instruction;
use crate::ops::{
    Address, Embed, EmbedLowRank, Linear, LowRank, MAX_ADAPTERS, MatrixRef, Norm, Op, ScaleRows,
    Step,
};

const _: () = assert!(MAX_ADAPTERS == AdapterLimits::PER_SEQUENCE);

/// An adapter of a sequence.
#[derive(Clone)]
pub struct Applied {
    pub id: AdapterId,
    pub adapter: Arc<LoadedAdapter>,
    /// Multiplies the adapter's own scales.
    pub scale: f32,
}

/// Adjacent tokens, or emitted positions, with the same adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterRun {
    pub tokens: Range<usize>,
    /// In [`StepAdapters`].
    group: usize,
}

/// The adapters of a step. Tokens that are in no run have none.
#[derive(Default)]
pub struct StepAdapters {
    applied: Vec<Applied>,
    /// Ranges of `applied`; equal lists of adapters are one group.
    groups: Vec<Range<usize>>,
    runs: Vec<AdapterRun>,
}

impl StepAdapters {
    pub fn clear(&mut self) {
        self.applied.clear();
        self.groups.clear();
        self.runs.clear();
    }

    /// Adds the tokens of a row. Rows with the same adapters are adjacent.
    pub fn push_row(
        &mut self,
        tokens: Range<usize>,
        own: &[AppliedAdapter],
        mut loaded: impl FnMut(AdapterId) -> Option<Arc<LoadedAdapter>>,
    ) {
        if own.is_empty() {
            return;
        }
        let is_same = |range: &Range<usize>| {
            let last = &self.applied[range.clone()];
            let mut pairs = last.iter().zip(own);
            last.len() == own.len()
                && pairs.all(|(last, own)| last.id == own.id && last.scale == own.scale)
        };
        if !self.groups.last().is_some_and(is_same) {
            let first = self.applied.len();
            // Sequences have only loaded adapters.
            self.applied.extend(own.iter().filter_map(|own| {
                Some(Applied {
                    id: own.id,
                    adapter: loaded(own.id)?,
                    scale: own.scale,
                })
            }));
            self.groups.push(first..self.applied.len());
        }
        let group = self.groups.len() - 1;
        match self.runs.last_mut() {
            Some(last) if last.group == group && last.tokens.end == tokens.start => {
                last.tokens.end = tokens.end;
            }
            _ => self.runs.push(AdapterRun { tokens, group }),
        }
    }

    /// The step's tokens with adapters.
    pub fn runs(&self) -> &[AdapterRun] {
        &self.runs
    }

    /// The runs of a list of tokens, by their places in the list.
    pub fn runs_of(&self, tokens: &[u32]) -> Vec<AdapterRun> {
        let mut runs: Vec<AdapterRun> = Vec::new();
        if self.runs.is_empty() {
            return runs;
        }
        for (place, token) in tokens.iter().enumerate() {
            let token = *token as usize;
            let run = self.runs.partition_point(|run| run.tokens.end <= token);
            let Some(run) = self.runs.get(run).filter(|run| run.tokens.start <= token) else {
                continue;
            };
            match runs.last_mut() {
                Some(last) if last.group == run.group && last.tokens.end == place => {
                    last.tokens.end = place + 1;
                }
                _ => runs.push(AdapterRun {
                    tokens: place..place + 1,
                    group: run.group,
                }),
            }
        }
        runs
    }

    /// Calls `launch` for each launch of an instruction over all tokens of the step, those of `runs`
    /// with their adapters.
    pub fn for_each(
        &self,
        instruction: &Instruction,
        (step, runs): (&Step, &[AdapterRun]),
        launch: &mut dyn FnMut(&Op, &Step) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut launch = |op: &Op, tokens: Range<usize>| {
            if tokens.is_empty() {
                return Ok(());
            }
            let step = Step {
                first: tokens.start as u32,
                count: tokens.len() as u32,
                ..*step
            };
            launch(op, &step)
        };
        let mut next = 0;
        for run in runs {
            if let Some(op) = self.replaced(instruction, run) {
                launch(&instruction.op, next..run.tokens.start)?;
                launch(&op, run.tokens.clone())?;
                next = run.tokens.end;
            }
        }
        launch(&instruction.op, next..step.count as usize)?;
        for run in runs {
            let op = self.replaced(instruction, run);
            for change in self.changes(instruction, &op.unwrap_or(instruction.op), run) {
                launch(&change, run.tokens.clone())?;
            }
        }
        Ok(())
    }

    fn applied(&self, run: &AdapterRun) -> &[Applied] {
        &self.applied[self.groups[run.group].clone()]
    }

    /// The operation with the weights that the run's adapters replace, if they do.
    fn replaced(&self, instruction: &Instruction, run: &AdapterRun) -> Option<Op> {
        let mut applied = self.applied(run).iter();
        let mut matrix = |of: MatrixRef| {
            let role = instruction.role?;
            let values = applied.find_map(|applied| applied.adapter.matrix(role))?;
            Some(MatrixRef { values, ..of })
        };
        let vector = |role: Option<Role>| {
            let mut applied = self.applied(run).iter();
            applied.find_map(|applied| applied.adapter.vector(role?))
        };
        match instruction.op {
            Op::Embed(op) => {
                let table = matrix(op.table)?;
                Some(Embed { table, ..op }.into())
            }
            Op::Linear(op) => {
                let (matrix, bias) = (matrix(op.matrix), vector(instruction.bias));
                if matrix.is_none() && bias.is_none() {
                    return None;
                }
                let op = Linear {
                    matrix: matrix.unwrap_or(op.matrix),
                    bias: bias.unwrap_or(op.bias),
                    ..op
                };
                Some(op.into())
            }
            Op::ExpertLinear(op) => {
                let matrix = matrix(op.matrix)?;
                Some(crate::ops::ExpertLinear { matrix, ..op }.into())
            }
            Op::Norm(op) => {
                let (weight, bias) = (vector(instruction.role), vector(instruction.bias));
                if weight.is_none() && bias.is_none() {
                    return None;
                }
                let op = Norm {
                    weight: weight.unwrap_or(op.weight),
                    bias: bias.unwrap_or(op.bias),
                    ..op
                };
                Some(op.into())
            }
            _ => None,
        }
    }

    /// What the run's adapters add to the output of `op`.
    fn changes(&self, instruction: &Instruction, op: &Op, run: &AdapterRun) -> Vec<Op> {
        let Some(role) = instruction.role else {
            return Vec::new();
        };
        let factors = || {
            let applied = self.applied(run).iter();
            applied.filter_map(|applied| Some((applied.adapter.factors(role)?, applied.scale)))
        };
        let product = match op {
            Op::Embed(op) => {
                return factors()
                    .map(|(factors, scale)| embed_low_rank(op, factors, scale))
                    .collect();
            }
            Op::Linear(op) => Product {
                matrix: op.matrix,
                input: op.input,
                out: op.out,
                bias: op.bias,
                experts: Address::NONE,
                weights: Address::NONE,
                parts: op.batch,
                input_stride: op.input_stride,
                input_step: op.input_step,
                out_stride: op.out_stride,
                out_step: op.out_step,
            },
            Op::ExpertLinear(op) => {
                let of_routes = op.input_per_route == 1;
                Product {
                    matrix: op.matrix,
                    input: op.input,
                    out: op.out,
                    bias: op.bias,
                    experts: op.experts,
                    weights: op.weights,
                    parts: op.top_k,
                    input_stride: op.input_stride * if of_routes { op.top_k } else { 1 },
                    input_step: if of_routes { op.input_stride } else { 0 },
                    out_stride: op.top_k * op.matrix.rows,
                    out_step: op.matrix.rows,
                }
            }
            _ => return Vec::new(),
        };
        let lengths = factors().filter(|(factors, _)| !factors.lengths.is_none());
        let scaled = product.scale_rows(lengths);
        let added = factors().map(|(factors, scale)| product.low_rank(factors, scale));
        scaled.into_iter().chain(added).collect()
    }
}

fn embed_low_rank(op: &Embed, factors: &Factors, scale: f32) -> Op {
    EmbedLowRank {
        out: op.out,
        table: op.table,
        a: factors.a,
        b: factors.b,
        lengths: factors.lengths,
        rank: factors.rank,
        scale: factors.scale * scale,
        factor: op.scale,
        reserved: 0,
    }
    .into()
}

/// A matrix's product, with an input and an output for each of a token's parts.
struct Product {
    matrix: MatrixRef,
    input: Address,
    out: Address,
    bias: Address,
    experts: Address,
    weights: Address,
    parts: u32,
    input_stride: u32,
    input_step: u32,
    out_stride: u32,
    out_step: u32,
}

impl Product {
    fn low_rank(&self, factors: &Factors, scale: f32) -> Op {
        LowRank {
            a: factors.a,
            b: factors.b,
            lengths: factors.lengths,
            input: self.input,
            out: self.out,
            experts: self.experts,
            weights: self.weights,
            rows: self.matrix.rows,
            cols: self.matrix.cols,
            rank: factors.rank,
            parts: self.parts,
            input_stride: self.input_stride,
            input_step: self.input_step,
            out_stride: self.out_stride,
            out_step: self.out_step,
            scale: factors.scale * scale,
            reserved: 0,
        }
        .into()
    }

    /// None if no change has lengths.
    fn scale_rows<'f>(&self, adapters: impl Iterator<Item = (&'f Factors, f32)>) -> Option<Op> {
        let mut op = ScaleRows {
            out: self.out,
            bias: self.bias,
            experts: self.experts,
            lengths: [Address::NONE; MAX_ADAPTERS],
            scales: [0.0; MAX_ADAPTERS],
            rows: self.matrix.rows,
            parts: self.parts,
            out_stride: self.out_stride,
            out_step: self.out_step,
        };
        for (index, (factors, scale)) in adapters.take(MAX_ADAPTERS).enumerate() {
            op.lengths[index] = factors.lengths;
            op.scales[index] = factors.scale * scale;
        }
        (!op.lengths[0].is_none()).then(|| op.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens: Range<usize>, group: usize) -> AdapterRun {
        AdapterRun { tokens, group }
    }

    #[test]
    fn emitted_positions_have_the_runs_of_their_tokens() {
        let adapters = StepAdapters {
            applied: Vec::new(),
            groups: vec![0..0, 0..0],
            runs: vec![run(3..5, 0), run(5..9, 1)],
        };
        for (tokens, expected) in [
            (&[][..], vec![]),
            (&[0, 2, 9], vec![]),
            (&[3, 4, 5], vec![run(0..2, 0), run(2..3, 1)]),
            (
                &[4, 0, 8, 3, 3],
                vec![run(0..1, 0), run(2..3, 1), run(3..5, 0)],
            ),
        ] {
            assert_eq!(adapters.runs_of(tokens), expected, "{tokens:?}");
        }
    }
}
