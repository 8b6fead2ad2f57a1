//! Runs a program's instructions over the tokens of a step.

use crate::adapted::{AdapterRun, StepAdapters};
use crate::device::{Device, DeviceError};
use crate::fused::{Epilogue, FusedOp};
use crate::fused_launch::MAX_TOKENS;
use crate::lower::{Domain, Instruction};
use crate::ops::{Op, Step};

/// A step that is being computed.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    /// Covers all tokens.
    pub step: Step,
    /// Rows of one token, which come first.
    pub single_rows: u32,
    /// Tokens of the step, whatever a launch covers.
    pub tokens: u32,
    /// Of eight tokens in tiled buffers.
    pub tile_groups: u32,
    /// None: no token has adapters.
    pub adapters: Option<&'a StepAdapters>,
    /// The tokens of the step with adapters.
    pub runs: &'a [AdapterRun],
    /// The step's tokens after which something is emitted.
    pub emitted: &'a [u32],
}

impl Execution<'_> {
    /// Whether the vectors of the fast path are in tiles.
    fn is_tiled(&self) -> bool {
        self.tokens > MAX_TOKENS
    }

    /// Calls `launch` for each launch of the instructions, in order.
    pub fn for_each(
        &self,
        instructions: &[Instruction],
        launch: &mut dyn FnMut(&Op, &Step) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let step = &self.step;
        for instruction in instructions {
            if instruction.only_with_media && step.tables.features.is_none() {
                continue;
            }
            let is_of_tokens = matches!(instruction.domain, Domain::Tokens | Domain::Emitted);
            if let Some(adapters) = self.adapters
                && is_of_tokens
                && !self.runs.is_empty()
            {
                adapters.for_each(instruction, (step, self.runs), launch)?;
                continue;
            }
            let (first, count) = match instruction.domain {
                Domain::Tokens | Domain::Emitted => (0, step.count),
                Domain::Rows => (0, step.rows),
                Domain::SingleRows => (0, self.single_rows),
                Domain::LongRows => (self.single_rows, step.count - self.single_rows),
            };
            let mut op = instruction.op;
            let mut most = u32::MAX;
            if let Op::Fused(fused) = &mut op {
                if let FusedOp::PromptAttention(attention) = fused {
                    attention.first_row = self.single_rows;
                    attention.row_count = step.rows - self.single_rows;
                }
                if self.is_tiled() {
                    *fused = fused.tiled(self.tile_groups);
                } else if matches!(fused, FusedOp::Linear(..)) {
                    most = MAX_TOKENS;
                }
            }
            let mut done = 0;
            while done < count {
                let part = Step {
                    first: first + done,
                    count: most.min(count - done),
                    ..*step
                };
                launch(&op, &part)?;
                done += part.count;
            }
        }
        Ok(())
    }

    /// Launches the instructions.
    pub fn run(
        &self,
        device: &mut dyn Device,
        instructions: &[Instruction],
    ) -> Result<(), DeviceError> {
        self.for_each(instructions, &mut |op, step| device.launch(op, step))
    }

    /// Launches instructions over `count` emitted positions from `first` of the step's on, which they
    /// number from 0.
    pub fn run_emitted(
        &self,
        device: &mut dyn Device,
        instructions: &[Instruction],
        (first, count): (usize, usize),
    ) -> Result<(), DeviceError> {
        let mut step = self.step;
        step.count = count as u32;
        step.tables.emitted = step.tables.emitted.values(first);
        let runs = self.adapters.map_or_else(Vec::new, |adapters| {
            adapters.runs_of(&self.emitted[first..first + count])
        });
        let emitted = Execution {
            step,
            runs: &runs,
            ..*self
        };
        emitted.for_each(instructions, &mut |op, step| {
            let Op::Fused(FusedOp::Linear(epilogue, linear)) = op else {
                return device.launch(op, step);
            };
            // It reads the tokens that the table names, some at a time, and counts its results
            // from 0.
            for first in (0..step.count).step_by(MAX_TOKENS as usize) {
                let mut linear = *linear;
                let from = (step.first + first) as usize;
                linear.index = step.tables.emitted.values(from);
                match epilogue {
                    Epilogue::Largest => linear.tokens = linear.tokens.values(from),
                    _ => linear.out = linear.out.values(from * linear.rows as usize),
                }
                let part = Step {
                    first: 0,
                    count: MAX_TOKENS.min(step.count - first),
                    ..*step
                };
                device.launch(&FusedOp::Linear(*epilogue, linear).into(), &part)?;
            }
            Ok(())
        })
    }
}
