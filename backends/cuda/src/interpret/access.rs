//! An operation's accesses to memory: whole vectors, checked, with the operand's name in errors.
//!
//! A GPU computes the tokens of a launch in any order, so they must not depend on each other by way
//! of memory. The interpreter computes them in order, which would hide that; therefore it keeps a
//! log of what each token or row reads and writes, and checks it after the operation.

use half::bf16;

use super::memory::Memory;
use crate::device::{AccessFault, DeviceError};
use crate::ops::{Address, Format};

/// The unit of reads that no token or row does for itself.
const SHARED: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    end: u64,
    /// The token or row that does it.
    unit: u32,
    operand: &'static str,
    /// A read of what the same unit may replace.
    in_place: bool,
}

/// Accesses of one launch. Kept between launches for its memory.
#[derive(Default)]
pub struct AccessLog {
    reads: Vec<Entry>,
    writes: Vec<Entry>,
}

/// Access to memory for one launch.
pub struct Access<'a> {
    memory: &'a mut Memory,
    log: &'a mut AccessLog,
    op: &'static str,
    unit: u32,
}

type Result<T, E = DeviceError> = std::result::Result<T, E>;

impl<'a> Access<'a> {
    pub fn new(memory: &'a mut Memory, log: &'a mut AccessLog, op: &'static str) -> Self {
        log.reads.clear();
        log.writes.clear();
        Self {
            memory,
            log,
            op,
            unit: SHARED,
        }
    }

    /// What follows is done for a token or row.
    pub fn set_unit(&mut self, unit: usize) {
        self.unit = unit as u32;
    }

    /// What follows is done once for the launch.
    pub fn set_shared(&mut self) {
        self.unit = SHARED;
    }

    pub fn error(&self, operand: &'static str, fault: AccessFault) -> DeviceError {
        DeviceError::InvalidAccess {
            op: self.op,
            operand,
            fault,
        }
    }

    /// An error about a parameter or a value in a table.
    pub fn invalid(&self, operand: &'static str, why: impl Into<String>) -> DeviceError {
        self.error(operand, AccessFault::Invalid { why: why.into() })
    }

    /// Fails unless the condition holds.
    pub fn require(&self, holds: bool, operand: &'static str, why: &str) -> Result<()> {
        if holds {
            return Ok(());
        }
        Err(self.invalid(operand, why))
    }

    fn log_read(&mut self, operand: &'static str, at: Address, bytes: usize, in_place: bool) {
        self.log.reads.push(Entry {
            start: at.0,
            end: at.0.saturating_add(bytes as u64),
            unit: self.unit,
            operand,
            in_place,
        });
    }

    /// Logs a read whose parts are accessed by [`Self::unlogged`].
    pub fn note_read(&mut self, operand: &'static str, at: Address, bytes: usize) {
        self.log_read(operand, at, bytes, false);
    }

    /// Bytes, checked but not logged: for many small parts of a large whole.
    pub fn unlogged(
        &self,
        operand: &'static str,
        at: Address,
        bytes: usize,
        alignment: usize,
    ) -> Result<&[u8]> {
        let span = self.memory.span(at, bytes, alignment);
        span.and_then(|span| self.memory.bytes(span))
            .map_err(|fault| self.error(operand, fault))
    }

    fn read(
        &mut self,
        operand: &'static str,
        at: Address,
        bytes: usize,
        alignment: usize,
        in_place: bool,
    ) -> Result<&[u8]> {
        if bytes == 0 {
            return Ok(&[]);
        }
        self.log_read(operand, at, bytes, in_place);
        self.unlogged(operand, at, bytes, alignment)
    }

    pub fn f32s(&mut self, operand: &'static str, at: Address, len: usize) -> Result<Vec<f32>> {
        Ok(decode_f32(self.read(
            operand,
            at,
            len.saturating_mul(4),
            4,
            false,
        )?))
    }

    /// Values that the same token or row may overwrite, where they are.
    pub fn f32s_in_place(
        &mut self,
        operand: &'static str,
        at: Address,
        len: usize,
    ) -> Result<Vec<f32>> {
        Ok(decode_f32(self.read(
            operand,
            at,
            len.saturating_mul(4),
            4,
            true,
        )?))
    }

    /// `None` if the address is.
    pub fn optional_f32s(
        &mut self,
        operand: &'static str,
        at: Address,
        len: usize,
    ) -> Result<Option<Vec<f32>>> {
        if at.is_none() {
            return Ok(None);
        }
        self.f32s(operand, at, len).map(Some)
    }

    pub fn u32s(&mut self, operand: &'static str, at: Address, len: usize) -> Result<Vec<u32>> {
        let bytes = self.read(operand, at, len.saturating_mul(4), 4, false)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Words that the same token or row may overwrite, where they are.
    pub fn u32s_in_place(
        &mut self,
        operand: &'static str,
        at: Address,
        len: usize,
    ) -> Result<Vec<u32>> {
        let bytes = self.read(operand, at, len.saturating_mul(4), 4, true)?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
    }

    pub fn u64s(&mut self, operand: &'static str, at: Address, len: usize) -> Result<Vec<u64>> {
        let bytes = self.read(operand, at, len.saturating_mul(8), 8, false)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Stored values, to be decoded by [`decode`].
    pub fn stored(
        &mut self,
        operand: &'static str,
        at: Address,
        len: usize,
        format: Format,
    ) -> Result<&[u8]> {
        self.read(
            operand,
            at,
            len.saturating_mul(format.bytes()),
            format.bytes(),
            false,
        )
    }

    pub fn write(&mut self, operand: &'static str, at: Address, values: &[f32]) -> Result<()> {
        self.write_stored(operand, at, values, Format::F32)
    }

    pub fn write_stored(
        &mut self,
        operand: &'static str,
        at: Address,
        values: &[f32],
        format: Format,
    ) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        self.log_write(operand, at, values.len() * format.bytes());
        self.write_unlogged(operand, at, values, format)
    }

    pub fn write_unlogged(
        &mut self,
        operand: &'static str,
        at: Address,
        values: &[f32],
        format: Format,
    ) -> Result<()> {
        let size = format.bytes();
        let out = self.bytes_mut(operand, at, values.len() * size, size)?;
        match format {
            Format::F32 => {
                for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *out = value.to_le_bytes();
                }
            }
            Format::Bf16 => {
                for (out, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *out = bf16::from_f32(*value).to_le_bytes();
                }
            }
        }
        Ok(())
    }

    pub fn write_u32s(&mut self, operand: &'static str, at: Address, values: &[u32]) -> Result<()> {
        self.log_write(operand, at, 4 * values.len());
        let out = self.bytes_mut(operand, at, 4 * values.len(), 4)?;
        for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *out = value.to_le_bytes();
        }
        Ok(())
    }

    /// Memory that a kernel may use as it likes, and which nothing may read afterwards.
    pub fn scratch(
        &mut self,
        operand: &'static str,
        at: Address,
        bytes: usize,
        alignment: usize,
    ) -> Result<()> {
        self.log_write(operand, at, bytes);
        self.check_span(operand, at, bytes, alignment)
    }

    /// Fails unless the bytes are in one allocation, and aligned.
    pub fn check_span(
        &self,
        operand: &'static str,
        at: Address,
        bytes: usize,
        alignment: usize,
    ) -> Result<()> {
        let span = self.memory.span(at, bytes, alignment);
        span.map(|_| ()).map_err(|fault| self.error(operand, fault))
    }

    fn log_write(&mut self, operand: &'static str, at: Address, bytes: usize) {
        self.log.writes.push(Entry {
            start: at.0,
            end: at.0.saturating_add(bytes as u64),
            unit: self.unit,
            operand,
            in_place: false,
        });
    }

    fn bytes_mut(
        &mut self,
        operand: &'static str,
        at: Address,
        bytes: usize,
        alignment: usize,
    ) -> Result<&mut [u8]> {
        let op = self.op;
        let span = self.memory.span(at, bytes, alignment);
        span.and_then(|span| self.memory.bytes_mut(span))
            .map_err(|fault| DeviceError::InvalidAccess { op, operand, fault })
    }

    /// Fails if a token or row accesses what another one writes, or what it writes itself other
    /// than in place.
    pub fn finish(self) -> Result<()> {
        let writes = &mut self.log.writes;
        writes.sort_unstable_by_key(|write| write.start);
        let overlap = |operand, other| {
            Err(DeviceError::InvalidAccess {
                op: self.op,
                operand,
                fault: AccessFault::Overlap { other },
            })
        };
        for pair in writes.windows(2) {
            if pair[1].start < pair[0].end {
                return overlap(pair[0].operand, pair[1].operand);
            }
        }
        for read in &self.log.reads {
            let first = writes.partition_point(|write| write.end <= read.start);
            for write in writes[first..]
                .iter()
                .take_while(|write| write.start < read.end)
            {
                let same = write.start == read.start && write.end == read.end;
                if !(read.in_place && same && read.unit == write.unit) {
                    return overlap(read.operand, write.operand);
                }
            }
        }
        Ok(())
    }
}

fn decode_f32(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// Decodes as many stored values as `out` has.
pub fn decode(bytes: &[u8], format: Format, out: &mut [f32]) {
    match format {
        Format::F32 => {
            for (out, word) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*word);
            }
        }
        Format::Bf16 => {
            for (out, half) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
            }
        }
    }
}
