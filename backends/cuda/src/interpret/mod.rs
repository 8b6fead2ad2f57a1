//! Computes operations in plain Rust, so that programs can be tested without a GPU, and kernels
//! against something.
//!
//! It is also the sanitizer of the lowering: an access out of bounds, to freed or unwritten memory,
//! misaligned, or in conflict with another token of the same launch is an error that names the
//! operation and its operand.

mod access;
mod attention;
mod elementwise;
mod embedding;
mod experts;
#[cfg(test)]
mod fixture;
mod fused;
mod linear;
mod logits;
mod low_rank;
mod memory;
mod norm;
mod recurrent;
mod rotation;
mod tables;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(crate) use access::decode;
use access::{Access, AccessLog};
use memory::Memory;

use crate::device::{AccessFault, Device, DeviceError, RecordId, Ticket};
use crate::ops::{Address, Op, Step, Tables};

/// The total memory of an interpreter unless something else is asked for. What is allocated but
/// never written takes no memory of the machine.
const MEMORY: u64 = 4 << 30;

/// A device without a GPU.
pub struct Interpreter {
    memory: Memory,
    log: AccessLog,
    /// An invalid `free`, which the next call reports.
    misuse: Option<DeviceError>,
    records: Vec<Vec<(Op, Step)>>,
}

impl Default for Interpreter {
    fn default() -> Self {
        Self::with_memory(MEMORY)
    }
}

impl Interpreter {
    /// An interpreter with so many bytes of memory.
    pub fn with_memory(bytes: u64) -> Self {
        Self {
            memory: Memory::new(bytes),
            log: AccessLog::default(),
            misuse: None,
            records: Vec::new(),
        }
    }

    fn report_misuse(&mut self) -> Result<(), DeviceError> {
        self.misuse.take().map_or(Ok(()), Err)
    }
}

fn invalid(op: &'static str, operand: &'static str) -> impl Fn(AccessFault) -> DeviceError {
    move |fault| DeviceError::InvalidAccess { op, operand, fault }
}

impl Device for Interpreter {
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.report_misuse()?;
        let out_of_memory = DeviceError::OutOfMemory {
            wanted: bytes as u64,
            available: self.memory.free_bytes(),
        };
        self.memory.allocate(bytes).ok_or(out_of_memory)
    }

    fn free(&mut self, address: Address) {
        if address.is_none() {
            return;
        }
        if let Err(fault) = self.memory.free(address) {
            self.misuse.get_or_insert(invalid("free", "address")(fault));
        }
    }

    fn reserve(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.report_misuse()?;
        // Addresses are all that it takes.
        let out_of_memory = DeviceError::OutOfMemory {
            wanted: bytes as u64,
            available: self.memory.free_bytes(),
        };
        self.memory.reserve(bytes).ok_or(out_of_memory)
    }

    fn commit(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let available = self.memory.free_bytes();
        let committed = self.memory.commit(at, bytes);
        if committed.map_err(invalid("commit", "at"))? {
            return Ok(());
        }
        Err(DeviceError::OutOfMemory {
            wanted: bytes as u64,
            available,
        })
    }

    fn decommit(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let decommitted = self.memory.decommit(at, bytes);
        decommitted.map_err(invalid("decommit", "at"))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let span = self.memory.span(to, bytes.len(), 1);
        span.and_then(|span| self.memory.bytes_mut(span))
            .map_err(invalid("write", "to"))?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let span = self.memory.span(from, out.len(), 1);
        let bytes = span.and_then(|span| self.memory.bytes(span));
        out.copy_from_slice(bytes.map_err(invalid("read", "from"))?);
        Ok(())
    }

    fn read_any(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let span = self.memory.span(from, out.len(), 1);
        let bytes = span.and_then(|span| self.memory.any_bytes(span));
        out.copy_from_slice(bytes.map_err(invalid("read_any", "from"))?);
        Ok(())
    }

    fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let from = self.memory.span(from, bytes, 1);
        let from = from.map_err(invalid("copy", "from"))?;
        let to = self.memory.span(to, bytes, 1);
        let copied = to.and_then(|to| self.memory.copy(from, to));
        copied.map_err(invalid("copy", "to"))
    }

    fn launch(&mut self, op: &Op, step: &Step) -> Result<(), DeviceError> {
        self.report_misuse()?;
        let access = Access::new(&mut self.memory, &mut self.log, op.name());
        let mut launch = Launch {
            access,
            step,
            tables: &step.tables,
        };
        launch.run(op)?;
        launch.access.finish()
    }

    fn record(&mut self, launches: Vec<(Op, Step)>) -> Result<RecordId, DeviceError> {
        self.records.push(launches);
        Ok(RecordId(self.records.len() - 1))
    }

    fn replay(&mut self, record: RecordId) -> Result<(), DeviceError> {
        let launches = self.records.get(record.0).cloned().unwrap_or_default();
        launches
            .iter()
            .try_for_each(|(op, step)| self.launch(op, step))
    }

    fn forget(&mut self, record: RecordId) {
        if let Some(launches) = self.records.get_mut(record.0) {
            launches.clear();
        }
    }

    fn fetch(&mut self, from: Address, bytes: usize) -> Result<Ticket, DeviceError> {
        let mut fetched = vec![0; bytes];
        self.read(from, &mut fetched)?;
        Ok(Ticket::Ready(fetched))
    }

    fn collect(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), DeviceError> {
        if let Ticket::Ready(bytes) = ticket {
            out.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn memory(&self) -> (u64, u64) {
        (self.memory.free_bytes(), self.memory.total())
    }
}

/// One launch. The operations are methods, by subject in the modules here.
struct Launch<'a> {
    access: Access<'a>,
    step: &'a Step,
    tables: &'a Tables,
}

type Result<T, E = DeviceError> = std::result::Result<T, E>;

impl Launch<'_> {
    fn run(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Embed(op) => self.embed(op),
            Op::AddEmbedding(op) => self.add_embedding(op),
            Op::AddFeatures(op) => self.add_features(op),
            Op::Norm(op) => self.norm(op),
            Op::Linear(op) => self.linear(op),
            Op::LowRank(op) => self.low_rank(op),
            Op::ScaleRows(op) => self.scale_rows(op),
            Op::EmbedLowRank(op) => self.embed_low_rank(op),
            Op::Angles(op) => self.angles(op),
            Op::Rope(op) => self.rope(op),
            Op::Temperature(op) => self.temperature(op),
            Op::WriteKv(op) => self.write_kv(op),
            Op::Attend(op) => self.attend(op),
            Op::AttendDense(op) => self.attend_dense(op),
            Op::Activate(op) => self.activate(op),
            Op::Add(op) => self.add(op),
            Op::Multiply(op) => self.multiply(op),
            Op::Affine(op) => self.affine(op),
            Op::Clamp(op) => self.clamp(op),
            Op::Convolve(op) => self.convolve(op),
            Op::DeltaGates(op) => self.delta_gates(op),
            Op::DeltaUpdate(op) => self.delta_update(op),
            Op::MambaUpdate(op) => self.mamba_update(op),
            Op::Route(op) => self.route(op),
            Op::ExpertLinear(op) => self.expert_linear(op),
            Op::CombineExperts(op) => self.combine_experts(op),
            Op::Gather(op) => self.gather(op),
            Op::SumRows(op) => self.sum_rows(op),
            Op::CopyParts(op) => self.copy_parts(op),
            Op::FinishLogits(op) => self.finish_logits(op),
            Op::Largest(op) => self.largest(op),
            Op::DrawTokens(op) => self.draw_tokens(op),
            Op::Fused(op) => self.fused(op),
        }
    }

    /// The tokens, emitted positions or rows that the launch covers.
    fn covered(&self) -> Range<usize> {
        let first = self.step.first as usize;
        first..first + self.step.count as usize
    }
}

/// The vector of a token: vectors are `stride` values apart.
fn vector(buffer: Address, token: usize, stride: u32) -> Address {
    at(buffer, token * stride as usize)
}

/// `values` of 4 bytes further.
fn at(buffer: Address, values: usize) -> Address {
    bytes_at(buffer, 4 * values as u64)
}

/// `bytes` further; none stays none. An address may be anything, and must not panic.
fn bytes_at(buffer: Address, bytes: u64) -> Address {
    if buffer.is_none() {
        return buffer;
    }
    Address(buffer.0.wrapping_add(bytes))
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Σ a·b, in several chains so that one addition's latency does not bound the next.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const CHAINS: usize = 8;
    let mut sums = [0.0; CHAINS];
    let (a_blocks, a_rest) = a.as_chunks::<CHAINS>();
    let (b_blocks, b_rest) = b.as_chunks::<CHAINS>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..CHAINS {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
