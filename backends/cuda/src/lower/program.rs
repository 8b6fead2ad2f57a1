//! A lowered model: what a step launches.

use std::fmt;

use loquat_spec::Role;

use crate::ops::{Address, Op};

/// The launches of a step, in order.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// From tokens to the residual stream after the last layer.
    pub forward: Vec<Instruction>,
    /// From the stream to the hidden states of emitted positions.
    pub readout: Vec<Instruction>,
    /// From hidden states to logits, in blocks.
    pub head: Vec<Instruction>,
    /// From hidden states to the most likely tokens, in blocks.
    pub greedy: Vec<Instruction>,
    /// The head reads what the forward pass left at the emitted tokens, not `hidden`.
    pub reads_emitted: bool,
    /// Of eight tokens in the tiled buffers of the fast path.
    pub tile_groups: u32,
    /// `[emitted][hidden]`
    pub hidden: Address,
    /// `[emitted of a block][vocab]`
    pub logits: Address,
    /// `u32[emitted of a block]`
    pub chosen: Address,
}

/// One launch.
#[derive(Debug, Clone, Copy)]
pub struct Instruction {
    pub op: Op,
    pub domain: Domain,
    /// The weight that it reads, or the mixer it belongs to.
    pub role: Option<Role>,
    /// The bias that it reads.
    pub bias: Option<Role>,
    /// It changes nothing in a step without media.
    pub only_with_media: bool,
}

/// What a launch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    Tokens,
    Rows,
    /// The tokens of rows with one token, which come first.
    SingleRows,
    /// The tokens of rows with several.
    LongRows,
    /// Positions after which something is emitted.
    Emitted,
}

impl Instruction {
    pub fn new(op: Op, domain: Domain, role: Option<Role>) -> Self {
        Self {
            op,
            domain,
            role,
            bias: None,
            only_with_media: false,
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<15}", self.op.name())?;
        match self.domain {
            Domain::Tokens => write!(f, " tokens ")?,
            Domain::Rows => write!(f, " rows   ")?,
            Domain::SingleRows => write!(f, " single ")?,
            Domain::LongRows => write!(f, " long   ")?,
            Domain::Emitted => write!(f, " emitted")?,
        }
        if let Op::Linear(linear) = &self.op {
            let (rows, cols) = (linear.matrix.rows, linear.matrix.cols);
            write!(f, " {rows} x {cols}")?;
            if linear.batch > 1 {
                write!(f, " x {}", linear.batch)?;
            }
        }
        if let Some(role) = self.role {
            write!(f, " {role}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("forward", &self.forward),
            ("readout", &self.readout),
            ("head", &self.head),
            ("greedy", &self.greedy),
        ];
        for (name, instructions) in parts {
            writeln!(f, "{name}: {} launches", instructions.len())?;
            for instruction in instructions {
                writeln!(f, "  {instruction}")?;
            }
        }
        Ok(())
    }
}
