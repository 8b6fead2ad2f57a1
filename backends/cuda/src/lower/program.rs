//! A lowered model: what a step launches.

use loquat_spec::Role;

use crate::ops::{Address, DrawTokens, Op};

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
    /// From hidden states to drawn tokens, in blocks.
    pub drawn: Vec<Instruction>,
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

impl Domain {
    pub fn name(self) -> &'static str {
        match self {
            Domain::Tokens => "tokens",
            Domain::Rows => "rows",
            Domain::SingleRows => "single rows",
            Domain::LongRows => "long rows",
            Domain::Emitted => "emitted",
        }
    }
}

impl Program {
    /// The lists by name.
    pub fn parts(&self) -> [(&'static str, &[Instruction]); 5] {
        [
            ("forward", &self.forward),
            ("readout", &self.readout),
            ("head", &self.head),
            ("greedy", &self.greedy),
            ("drawn", &self.drawn),
        ]
    }
}

/// From a block's logits to its drawn tokens.
pub fn draw_tokens(logits: Address, out: Address, vocab: usize) -> Instruction {
    let draw = DrawTokens {
        logits,
        out,
        vocab: vocab as u32,
        reserved: 0,
    };
    Instruction::new(draw.into(), Domain::Emitted, None)
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
