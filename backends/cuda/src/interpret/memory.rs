//! The interpreter's memory. It knows which bytes were written, and which allocations were freed.

use crate::device::AccessFault;
use crate::ops::Address;

/// An address is a region's index, above this many bits of byte offset.
const OFFSET_BITS: u32 = 40;

const MAX_REGIONS: usize = 1 << (u64::BITS - OFFSET_BITS);

struct Region {
    bytes: Vec<u8>,
    /// A bit for each byte that was written.
    written: Vec<u64>,
}

pub struct Memory {
    /// Freed regions are never reused, so that later accesses to them are found. The first is never
    /// used, so that no address is zero.
    regions: Vec<Option<Region>>,
    used: u64,
    total: u64,
}

/// A checked range of a region.
#[derive(Clone, Copy)]
pub struct Span {
    region: usize,
    start: usize,
    end: usize,
}

impl Memory {
    pub fn new(total: u64) -> Self {
        Self {
            regions: vec![None],
            used: 0,
            total,
        }
    }

    pub fn free_bytes(&self) -> u64 {
        self.total - self.used
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// `None` if there is not enough memory.
    pub fn allocate(&mut self, bytes: usize) -> Option<Address> {
        let fits = bytes as u64 <= self.free_bytes() && (bytes as u64) < 1 << OFFSET_BITS;
        if !fits || self.regions.len() == MAX_REGIONS {
            return None;
        }
        self.used += bytes as u64;
        let address = (self.regions.len() as u64) << OFFSET_BITS;
        self.regions.push(Some(Region {
            bytes: vec![0; bytes],
            written: vec![0; bytes.div_ceil(64)],
        }));
        Some(Address(address))
    }

    pub fn free(&mut self, address: Address) -> Result<(), AccessFault> {
        let (region, offset) = split(address);
        let found = self.region(address)?;
        let size = found.bytes.len() as u64;
        if offset != 0 {
            return Err(AccessFault::OutOfBounds {
                offset,
                end: size,
                size,
            });
        }
        self.used -= size;
        self.regions[region] = None;
        Ok(())
    }

    fn region(&self, address: Address) -> Result<&Region, AccessFault> {
        if address.is_none() {
            return Err(AccessFault::Missing);
        }
        match self.regions.get(split(address).0) {
            Some(Some(region)) => Ok(region),
            Some(None) if split(address).0 != 0 => Err(AccessFault::Freed),
            _ => Err(AccessFault::NotAllocated { address: address.0 }),
        }
    }

    /// Checks that the bytes are in one allocation.
    pub fn span(&self, at: Address, bytes: usize, alignment: usize) -> Result<Span, AccessFault> {
        let (region, offset) = split(at);
        let size = self.region(at)?.bytes.len() as u64;
        let end = offset.saturating_add(bytes as u64);
        if end > size {
            return Err(AccessFault::OutOfBounds { offset, end, size });
        }
        if !offset.is_multiple_of(alignment as u64) {
            return Err(AccessFault::Misaligned {
                offset,
                alignment: alignment as u64,
            });
        }
        Ok(Span {
            region,
            start: offset as usize,
            end: end as usize,
        })
    }

    pub fn bytes(&self, span: Span) -> Result<&[u8], AccessFault> {
        let Some(region) = &self.regions[span.region] else {
            return Err(AccessFault::Freed);
        };
        for (word, mask) in masks(span.start, span.end) {
            let missing = mask & !region.written[word];
            if missing != 0 {
                let offset = word as u64 * 64 + u64::from(missing.trailing_zeros());
                return Err(AccessFault::NeverWritten { offset });
            }
        }
        Ok(&region.bytes[span.start..span.end])
    }

    /// Also bytes that were never written.
    pub fn any_bytes(&self, span: Span) -> Result<&[u8], AccessFault> {
        match &self.regions[span.region] {
            Some(region) => Ok(&region.bytes[span.start..span.end]),
            None => Err(AccessFault::Freed),
        }
    }

    /// For writing: all bytes count as written.
    pub fn bytes_mut(&mut self, span: Span) -> Result<&mut [u8], AccessFault> {
        let Some(region) = &mut self.regions[span.region] else {
            return Err(AccessFault::Freed);
        };
        for (word, mask) in masks(span.start, span.end) {
            region.written[word] |= mask;
        }
        Ok(&mut region.bytes[span.start..span.end])
    }

    /// Copies bytes and whether they were written.
    pub fn copy(&mut self, from: Span, to: Span) -> Result<(), AccessFault> {
        let Some(source) = &self.regions[from.region] else {
            return Err(AccessFault::Freed);
        };
        let bytes = source.bytes[from.start..from.end].to_vec();
        let is_written = |at: usize| source.written[at / 64] >> (at % 64) & 1 == 1;
        let written: Vec<bool> = (from.start..from.end).map(is_written).collect();
        self.bytes_mut(to)?.copy_from_slice(&bytes);
        if let Some(target) = &mut self.regions[to.region] {
            for (at, written) in (to.start..to.end).zip(written) {
                if !written {
                    target.written[at / 64] &= !(1 << (at % 64));
                }
            }
        }
        Ok(())
    }
}

fn split(address: Address) -> (usize, u64) {
    let offset = address.0 & ((1 << OFFSET_BITS) - 1);
    ((address.0 >> OFFSET_BITS) as usize, offset)
}

/// The words that hold bits `start..end`, each with a mask of these bits.
fn masks(start: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (start / 64..end.div_ceil(64)).map(move |word| {
        let low = start.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, (!0 << low) & (!0 >> (64 - high)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(memory: &mut Memory, at: Address, bytes: &[u8]) {
        let span = memory.span(at, bytes.len(), 1).unwrap();
        memory.bytes_mut(span).unwrap().copy_from_slice(bytes);
    }

    fn read(memory: &Memory, at: Address, len: usize) -> Result<Vec<u8>, AccessFault> {
        Ok(memory.bytes(memory.span(at, len, 1)?)?.to_vec())
    }

    #[test]
    fn accesses_are_checked() {
        let mut memory = Memory::new(1000);
        let a = memory.allocate(300).unwrap();
        let b = memory.allocate(700).unwrap();
        assert_eq!(memory.free_bytes(), 0);
        assert_eq!(memory.allocate(1), None);
        for (start, len) in [(0, 1), (63, 2), (5, 200), (255, 45), (299, 1), (64, 64)] {
            let address = a.offset(start as u64);
            let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            write(&mut memory, address, &bytes);
            assert_eq!(read(&memory, address, len), Ok(bytes));
        }
        let never = |offset| Err(AccessFault::NeverWritten { offset });
        assert_eq!(read(&memory, a, 6), never(1));
        assert_eq!(read(&memory, a.offset(200), 60), never(205));
        assert_eq!(
            read(&memory, a.offset(5), 200).map(|bytes| bytes.len()),
            Ok(200)
        );
        let beyond = AccessFault::OutOfBounds {
            offset: 299,
            end: 301,
            size: 300,
        };
        assert_eq!(read(&memory, a.offset(299), 2), Err(beyond));
        assert_eq!(
            read(&memory, Address(7), 1),
            Err(AccessFault::NotAllocated { address: 7 })
        );
        assert_eq!(read(&memory, Address::NONE, 1), Err(AccessFault::Missing));
        let misaligned = memory.span(a.offset(6), 4, 4).err();
        let expected = AccessFault::Misaligned {
            offset: 6,
            alignment: 4,
        };
        assert_eq!(misaligned, Some(expected));
        assert!(memory.free(a.offset(4)).is_err());
        assert_eq!(memory.free(a), Ok(()));
        assert_eq!(memory.free(a), Err(AccessFault::Freed));
        assert_eq!(read(&memory, a, 1), Err(AccessFault::Freed));
        assert_eq!(read(&memory, b, 1), never(0));
        assert_eq!(memory.free_bytes(), 300);
    }

    #[test]
    fn copies_keep_what_was_never_written() {
        let mut memory = Memory::new(1000);
        let a = memory.allocate(200).unwrap();
        let b = memory.allocate(200).unwrap();
        write(&mut memory, a.offset(70), &[1; 30]);
        write(&mut memory, b, &[2; 200]);
        let [from, to] = [a.offset(60), b.offset(3)];
        let [from, to] = [from, to].map(|at| memory.span(at, 100, 1).unwrap());
        memory.copy(from, to).unwrap();
        assert_eq!(read(&memory, b.offset(13), 30), Ok(vec![1; 30]));
        assert_eq!(read(&memory, b, 3), Ok(vec![2; 3]));
        assert_eq!(read(&memory, b.offset(103), 97), Ok(vec![2; 97]));
        for (at, len) in [(3, 10), (43, 60)] {
            let found = read(&memory, b.offset(at), len);
            assert_eq!(found, Err(AccessFault::NeverWritten { offset: at }));
        }
    }
}
