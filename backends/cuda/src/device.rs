//! What a program runs on: a GPU, or the interpreter.

use crate::ops::{Address, Op, Step};

/// Memory, and launches that are computed in order.
pub trait Device: Send {
    /// The memory may hold anything until it is written: callers never read it before.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees what [`allocate`](Self::allocate) returned; none: does nothing.
    fn free(&mut self, address: Address);

    /// A range of addresses whose memory is [committed](Self::commit) in parts. Freed like an
    /// allocation.
    fn reserve(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.allocate(bytes)
    }

    /// Fills memory with zeros, which does not count as writing it: some kernels read parts of
    /// pages and tiles that hold nothing yet, whose values they drop.
    fn clear(&mut self, _at: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Backs a part of a reserved range with memory.
    fn commit(&mut self, _at: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Takes the memory of a committed part back, whose contents are lost.
    fn decommit(&mut self, _at: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for earlier launches.
    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads bytes, of which those that were never written may be anything.
    fn read_any(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read(from, out)
    }

    /// Copies bytes, which may include some that were never written.
    fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// A device may report a launch's failure later, by whichever call comes next.
    fn launch(&mut self, op: &Op, step: &Step) -> Result<(), DeviceError>;

    /// Records launches that will be replayed as they are.
    fn record(&mut self, launches: Vec<(Op, Step)>) -> Result<RecordId, DeviceError>;

    /// Starts recorded launches.
    fn replay(&mut self, record: RecordId) -> Result<(), DeviceError>;

    fn forget(&mut self, record: RecordId);

    /// Starts to copy bytes to the host, after earlier launches and before later ones.
    fn fetch(&mut self, from: Address, bytes: usize) -> Result<Ticket, DeviceError>;

    /// Waits for fetched bytes.
    fn collect(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Free and total bytes.
    fn memory(&self) -> (u64, u64);
}

/// Names recorded launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordId(pub usize);

/// A copy to the host that was started.
#[derive(Debug)]
pub enum Ticket {
    /// The bytes.
    Ready(Vec<u8>),
    /// A device's own number for it.
    Pending(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("out of device memory: {wanted} bytes are needed, {available} are free")]
    OutOfMemory { wanted: u64, available: u64 },
    /// Nothing on the device can be used again.
    #[error("the device is lost: {why}")]
    Lost { why: String },
    #[error("{what} failed: {why}")]
    Failed { what: String, why: String },
    /// Found by the interpreter. A GPU may do anything at all.
    #[error("invalid access by {op} to {operand}: {fault}")]
    InvalidAccess {
        op: &'static str,
        operand: &'static str,
        fault: AccessFault,
    },
}

/// What is wrong with an access to memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessFault {
    #[error("the address is none")]
    Missing,
    #[error("address {address:#x} is not in allocated memory")]
    NotAllocated { address: u64 },
    #[error("the memory was freed")]
    Freed,
    #[error("bytes {offset}..{end} of an allocation of {size}")]
    OutOfBounds { offset: u64, end: u64, size: u64 },
    #[error("byte {offset} of an allocation is not a multiple of {alignment}")]
    Misaligned { offset: u64, alignment: u64 },
    #[error("byte {offset} of a reservation is not committed")]
    NotCommitted { offset: u64 },
    #[error("byte {offset} of an allocation was never written")]
    NeverWritten { offset: u64 },
    /// Two parts of a launch, which a GPU runs at the same time, access the same memory, and at
    /// least one writes it.
    #[error("it overlaps {other}, which the same launch writes")]
    Overlap { other: &'static str },
    /// A parameter or a value in a table that the operation does not allow.
    #[error("{why}")]
    Invalid { why: String },
}
