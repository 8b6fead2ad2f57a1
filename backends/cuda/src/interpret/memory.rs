//! The interpreter's memory. It knows which bytes were written, and which allocations were freed.

use std::ops::Range;

use crate::device::AccessFault;
use crate::ops::Address;

/// An address is a region's index, above this many bits of byte offset.
const OFFSET_BITS: u32 = 40;

const MAX_REGIONS: usize = 1 << (u64::BITS - OFFSET_BITS);

/// Reservations are committed in multiples of this, as on GPUs.
pub const GRAIN: usize = 2 << 20;

struct Region {
    /// A reservation's bytes end where the last committed ones did.
    bytes: Vec<u8>,
    /// A bit for each byte that was written.
    written: Vec<u64>,
    /// In bytes, of which a reservation may have fewer.
    size: u64,
    /// Of a reservation: which grains have memory.
    committed: Option<Vec<bool>>,
}

impl Region {
    fn slice(&self, span: Span) -> &[u8] {
        // An empty range may lie in a reservation's part without memory.
        self.bytes.get(span.start..span.end).unwrap_or_default()
    }

    /// Bytes that count as used.
    fn used(&self) -> u64 {
        match &self.committed {
            Some(grains) => (grains.iter().filter(|grain| **grain).count() * GRAIN) as u64,
            None => self.size,
        }
    }
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
        Some(self.push(Region {
            bytes: vec![0; bytes],
            written: vec![0; bytes.div_ceil(64)],
            size: bytes as u64,
            committed: None,
        }))
    }

    /// Addresses without memory; `None` if there are not enough.
    pub fn reserve(&mut self, bytes: usize) -> Option<Address> {
        if bytes as u64 >= 1 << OFFSET_BITS || self.regions.len() == MAX_REGIONS {
            return None;
        }
        Some(self.push(Region {
            bytes: Vec::new(),
            written: Vec::new(),
            size: bytes as u64,
            committed: Some(vec![false; bytes.div_ceil(GRAIN)]),
        }))
    }

    fn push(&mut self, region: Region) -> Address {
        let address = (self.regions.len() as u64) << OFFSET_BITS;
        self.regions.push(Some(region));
        Address(address)
    }

    /// Backs grains of a reservation with memory; false if there is not enough.
    pub fn commit(&mut self, at: Address, bytes: usize) -> Result<bool, AccessFault> {
        let grains = self.grains(at, bytes, false)?;
        if bytes as u64 > self.free_bytes() {
            return Ok(false);
        }
        self.used += bytes as u64;
        if let Some(region) = &mut self.regions[split(at).0] {
            let end = grains.end * GRAIN;
            if region.bytes.len() < end {
                region.bytes.resize(end, 0);
                region.written.resize(end / 64, 0);
            }
            set_committed(region, grains, true);
        }
        Ok(true)
    }

    /// Takes the memory of committed grains back.
    pub fn decommit(&mut self, at: Address, bytes: usize) -> Result<(), AccessFault> {
        let grains = self.grains(at, bytes, true)?;
        self.used -= bytes as u64;
        if let Some(region) = &mut self.regions[split(at).0] {
            region.written[grains.start * GRAIN / 64..grains.end * GRAIN / 64].fill(0);
            set_committed(region, grains, false);
        }
        Ok(())
    }

    /// A reservation's grains, which must all be committed, or all not.
    fn grains(
        &self,
        at: Address,
        bytes: usize,
        committed: bool,
    ) -> Result<Range<usize>, AccessFault> {
        let region = self.region(at)?;
        let (_, offset) = split(at);
        let Some(grains) = &region.committed else {
            let why = "not in a reservation".to_owned();
            return Err(AccessFault::Invalid { why });
        };
        let end = offset.saturating_add(bytes as u64);
        if let Some(odd) = [offset, end].into_iter().find(|at| at % GRAIN as u64 != 0) {
            return Err(AccessFault::Misaligned {
                offset: odd,
                alignment: GRAIN as u64,
            });
        }
        let range = offset as usize / GRAIN..end as usize / GRAIN;
        if range.end > grains.len() {
            return Err(AccessFault::OutOfBounds {
                offset,
                end,
                size: region.size,
            });
        }
        if grains[range.clone()]
            .iter()
            .any(|grain| *grain != committed)
        {
            let why = if committed {
                "not committed"
            } else {
                "already committed"
            };
            return Err(AccessFault::Invalid { why: why.into() });
        }
        Ok(range)
    }

    pub fn free(&mut self, address: Address) -> Result<(), AccessFault> {
        let (region, offset) = split(address);
        let found = self.region(address)?;
        if offset != 0 {
            return Err(AccessFault::OutOfBounds {
                offset,
                end: found.size,
                size: found.size,
            });
        }
        let used = found.used();
        self.used -= used;
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
        let found = self.region(at)?;
        let size = found.size;
        let end = offset.saturating_add(bytes as u64);
        if end > size {
            return Err(AccessFault::OutOfBounds { offset, end, size });
        }
        if let Some(grains) = &found.committed {
            let touched = offset as usize / GRAIN..(end as usize).div_ceil(GRAIN);
            let mut missing = touched.filter(|grain| bytes > 0 && !grains[*grain]);
            if let Some(grain) = missing.next() {
                let offset = offset.max((grain * GRAIN) as u64);
                return Err(AccessFault::NotCommitted { offset });
            }
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
        Ok(region.slice(span))
    }

    /// Also bytes that were never written.
    pub fn any_bytes(&self, span: Span) -> Result<&[u8], AccessFault> {
        match &self.regions[span.region] {
            Some(region) => Ok(region.slice(span)),
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
        let range = span.start..span.end;
        Ok(region.bytes.get_mut(range).unwrap_or_default())
    }

    /// Copies bytes and whether they were written.
    pub fn copy(&mut self, from: Span, to: Span) -> Result<(), AccessFault> {
        let Some(source) = &self.regions[from.region] else {
            return Err(AccessFault::Freed);
        };
        let bytes = source.slice(from).to_vec();
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

fn set_committed(region: &mut Region, grains: Range<usize>, committed: bool) {
    if let Some(all) = &mut region.committed {
        all[grains].fill(committed);
    }
}

fn split(address: Address) -> (usize, u64) {
    let offset = address.0 & ((1 << OFFSET_BITS) - 1);
    ((address.0 >> OFFSET_BITS) as usize, offset)
}

/// The words that hold bits `start..end`, each with a mask of these bits.
fn masks(start: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    let words = if start < end {
        start / 64..end.div_ceil(64)
    } else {
        0..0
    };
    words.map(move |word| {
        let low = start.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, (!0 << low) & (!0 >> (64 - high)))
    })
}
