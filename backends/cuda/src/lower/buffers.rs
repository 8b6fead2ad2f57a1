//! The buffers of a step, each for one vector per token.

use std::collections::BTreeMap;
use std::fmt;

use crate::device::{Device, DeviceError};
use crate::ops::Address;

use super::HEAD_BLOCK;

/// What a buffer holds. Layers reuse buffers, each with its own width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// The residual stream.
    Stream,
    /// The stream after a branch's norm.
    Input,
    Query,
    Key,
    Value,
    Gate,
    Mixed,
    /// What a branch's last matrix reads.
    Inner,
    Narrow,
    /// A branch's output.
    Branch,
    /// The sum of a block's branches.
    Sum,
    PerLayer,
    Beta,
    Decay,
    RouterInput,
    RouterLogits,
    Experts,
    ExpertWeights,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    Shared,
    SharedGate,
    /// Parts of the stream's sum of squares.
    Sums,
    /// Of one of the model's ropes.
    Cos(usize),
    Sin(usize),
    /// Of emitted positions.
    Hidden,
    /// Of a block of emitted positions.
    Logits,
    Chosen,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Stream => "stream",
            Self::Input => "input",
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::Gate => "gate",
            Self::Mixed => "mixed",
            Self::Inner => "inner",
            Self::Narrow => "narrow",
            Self::Branch => "branch",
            Self::Sum => "sum",
            Self::PerLayer => "per-layer",
            Self::Beta => "beta",
            Self::Decay => "decay",
            Self::RouterInput => "router-input",
            Self::RouterLogits => "router-logits",
            Self::Experts => "experts",
            Self::ExpertWeights => "expert-weights",
            Self::ExpertGate => "expert-gate",
            Self::ExpertUp => "expert-up",
            Self::ExpertDown => "expert-down",
            Self::Shared => "shared",
            Self::SharedGate => "shared-gate",
            Self::Sums => "sums",
            Self::Cos(rope) => return write!(f, "cos{rope}"),
            Self::Sin(rope) => return write!(f, "sin{rope}"),
            Self::Hidden => "hidden",
            Self::Logits => "logits",
            Self::Chosen => "chosen",
        };
        f.write_str(name)
    }
}

/// The widths that lowering asked for, and the buffers if they are allocated.
#[derive(Default)]
pub struct Buffers {
    widths: BTreeMap<Buffer, usize>,
    addresses: BTreeMap<Buffer, Address>,
}

/// More than any buffer has.
const NUMBERED_BYTES: u64 = 1 << 48;

/// Bytes of all buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferBytes(pub u64);

impl Buffers {
    /// A buffer of vectors of `width` values. An address that is only counted is not none.
    pub fn address(&mut self, buffer: Buffer, width: usize) -> Address {
        let known = self.widths.entry(buffer).or_default();
        *known = width.max(*known);
        self.addresses.get(&buffer).copied().unwrap_or(Address(1))
    }

    /// Bytes of the buffers for steps of `tokens`.
    pub fn bytes(&self, tokens: usize) -> BufferBytes {
        let sizes = self.sizes(tokens).map(|(_, bytes)| bytes as u64);
        BufferBytes(sizes.sum())
    }

    fn sizes(&self, tokens: usize) -> impl Iterator<Item = (Buffer, usize)> {
        self.widths.iter().map(move |(buffer, width)| {
            let vectors = match buffer {
                Buffer::Logits | Buffer::Chosen => HEAD_BLOCK,
                _ => tokens,
            };
            (*buffer, 4 * width * vectors)
        })
    }

    /// The buffers with their widths and bytes.
    pub fn iter(&self, tokens: usize) -> impl Iterator<Item = (Buffer, usize, usize)> {
        let sizes = self.sizes(tokens);
        sizes.map(|(buffer, bytes)| (buffer, self.widths[&buffer], bytes))
    }

    /// Gives every buffer addresses that nothing has, to tell which one an operation means.
    pub fn number(&mut self) {
        for (index, buffer) in self.widths.keys().enumerate() {
            let address = Address((index as u64 + 1) * NUMBERED_BYTES);
            self.addresses.insert(*buffer, address);
        }
    }

    /// The [numbered](Self::number) buffer in which an address is.
    pub fn numbered(&self, address: Address) -> Option<Buffer> {
        let index = (address.0 / NUMBERED_BYTES).checked_sub(1)?;
        self.widths.keys().nth(index as usize).copied()
    }

    /// Allocates the buffers that were asked for.
    pub fn allocate(&mut self, device: &mut dyn Device, tokens: usize) -> Result<(), DeviceError> {
        let sizes: Vec<_> = self.sizes(tokens).collect();
        for (buffer, bytes) in sizes {
            let address = device.allocate(bytes)?;
            // Tiles have room for tokens that a step does not have.
            device.clear(address, bytes)?;
            self.addresses.insert(buffer, address);
        }
        Ok(())
    }
}
