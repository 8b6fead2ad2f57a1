//! The buffers of a step, each for one vector per token.

use std::collections::BTreeMap;

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

/// The widths that lowering asked for, and the buffers if they are allocated.
#[derive(Default)]
pub struct Buffers {
    widths: BTreeMap<Buffer, usize>,
    addresses: BTreeMap<Buffer, Address>,
}

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
