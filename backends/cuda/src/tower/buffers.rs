//! The memory that a tower's batches are computed in.

use loquat_spec::{Projector, ProjectorStep, VisionSpec};

use crate::device::{Device, DeviceError};
use crate::ops::Address;

/// What a buffer holds, one vector per token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TowerBuffer {
    Stream,
    /// The stream after a norm, then a branch's output.
    Input,
    /// Also a feed-forward's inner values, and a projector's.
    Query,
    /// The same.
    Key,
    Value,
    Mixed,
    /// The bounded input of a matrix.
    Clamped,
}

const COUNT: usize = 7;

/// Buffers for batches of so many tokens, which grow with the batches.
pub struct TowerBuffers {
    /// Values of a token.
    widths: [usize; COUNT],
    addresses: [Address; COUNT],
    /// Tokens that there is room for.
    capacity: usize,
    /// Tokens of the largest planned batch.
    planned: usize,
    tables: (Address, usize),
}

impl TowerBuffers {
    pub fn new(spec: &VisionSpec, planned: usize) -> Self {
        Self {
            widths: widths(spec),
            addresses: [Address::NONE; COUNT],
            capacity: 0,
            planned,
            tables: (Address::NONE, 0),
        }
    }

    pub fn get(&self, buffer: TowerBuffer) -> Address {
        self.addresses[buffer as usize]
    }

    /// Makes room for a batch's tokens and the bytes of its tables, whose address it returns.
    pub fn fit(
        &mut self,
        device: &mut dyn Device,
        tokens: usize,
        table_bytes: usize,
    ) -> Result<Address, DeviceError> {
        if tokens > self.capacity {
            self.capacity = 0;
            for address in &mut self.addresses {
                device.free(std::mem::take(address));
            }
            let capacity = tokens.next_power_of_two().min(self.planned).max(tokens);
            for (address, width) in self.addresses.iter_mut().zip(self.widths) {
                if width > 0 {
                    *address = device.allocate(4 * width * capacity)?;
                }
            }
            self.capacity = capacity;
        }
        if table_bytes > self.tables.1 {
            device.free(self.tables.0);
            self.tables = (Address::NONE, 0);
            self.tables = (device.allocate(table_bytes)?, table_bytes);
        }
        Ok(self.tables.0)
    }

    /// Bytes for batches of so many tokens, without tables.
    pub fn bytes(spec: &VisionSpec, tokens: usize) -> u64 {
        let width: usize = widths(spec).iter().sum();
        4 * tokens as u64 * width as u64
    }
}

fn widths(spec: &VisionSpec) -> [usize; COUNT] {
    let block = &spec.block;
    let (hidden, heads, inner) = (
        spec.hidden_size,
        block.heads * block.head_dim,
        block.mlp.size,
    );
    let stacked = spec.deepstack.iter().map(|stacked| &stacked.projector);
    let projectors = [&spec.projector].into_iter().chain(stacked);
    let projected = projectors
        .map(|projector| projected_width(projector, hidden))
        .max();
    let projected = projected.unwrap_or(0);
    let clamped = if block.clamped {
        hidden.max(heads).max(inner)
    } else {
        0
    };
    [
        hidden,
        hidden,
        heads.max(inner).max(projected),
        heads.max(inner).max(projected),
        heads.max(projected),
        heads,
        clamped,
    ]
}

/// Values per patch of a projector's widest vectors.
fn projected_width(projector: &Projector, hidden: usize) -> usize {
    // Patches of a vector.
    let mut patches = 1;
    let sized = projector.sized(hidden).into_iter();
    let widths = sized.map(|(step, input, output)| {
        let before = patches;
        let inner = match step {
            ProjectorStep::Merge { side, .. } | ProjectorStep::AveragePool { side } => {
                patches *= side * side;
                0
            }
            ProjectorStep::Gated(dense) => dense.size,
            _ => 0,
        };
        let after = output.max(inner).div_ceil(patches);
        after.max(input.div_ceil(before))
    });
    widths.max().unwrap_or(0).max(hidden)
}
