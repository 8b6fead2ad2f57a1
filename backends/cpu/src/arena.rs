//! Memory for packed weights: few large chunks, on huge pages if available, so that reading all
//! weights in a step has few TLB misses.

use std::sync::Arc;

use memmap2::MmapMut;

/// The largest chunk, except for a single larger region.
const CHUNK: usize = 1 << 30;
/// A multiple of the system's pages: 4 KiB on most machines, 16 KiB on Apple's, up to 64 KiB on
/// other ARM servers.
#[cfg(target_arch = "x86_64")]
const SYSTEM_PAGE: usize = 4 << 10;
#[cfg(not(target_arch = "x86_64"))]
const SYSTEM_PAGE: usize = 64 << 10;
/// Regions begin at cache lines: no two threads share one, and any element is aligned.
const ALIGN: usize = 64;

/// Allocates regions.
#[derive(Default)]
pub struct Arena {
    chunk: Option<Arc<Chunk>>,
    used: usize,
    /// Bytes expected beyond the current chunk.
    expected: usize,
}

struct Chunk {
    start: *mut u8,
    len: usize,
    /// Owns the memory.
    map: MmapMut,
}

// SAFETY: the pointer refers to memory that the chunk owns; regions are disjoint, and each belongs
// to its holder.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// An exclusive part of a chunk.
pub struct Region {
    chunk: Arc<Chunk>,
    at: usize,
    len: usize,
}

impl Arena {
    /// An arena for about this many bytes in total.
    pub fn new(expected: usize) -> Self {
        Self {
            expected,
            ..Self::default()
        }
    }

    /// A zeroed region.
    pub fn allocate(&mut self, len: usize) -> std::io::Result<Region> {
        let room = self.chunk.as_ref().map_or(0, |chunk| chunk.len);
        let at = self.used.next_multiple_of(ALIGN);
        let fits = at.checked_add(len).is_some_and(|end| end <= room);
        let (chunk, at) = match &self.chunk {
            Some(chunk) if fits => (Arc::clone(chunk), at),
            _ => {
                let size = len.max(self.expected.min(CHUNK));
                self.expected = self.expected.saturating_sub(size);
                (Arc::new(Chunk::new(size)?), 0)
            }
        };
        self.chunk = Some(Arc::clone(&chunk));
        self.used = at + len;
        Ok(Region { chunk, at, len })
    }
}

impl Chunk {
    fn new(len: usize) -> std::io::Result<Self> {
        let mut map = MmapMut::map_anon(len)?;
        // Best effort: small pages work too.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self {
            start: map.as_mut_ptr(),
            len,
            map,
        })
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
impl Chunk {
    /// # Safety
    /// The range must be whole system pages of this chunk, whose contents nothing reads any more.
    unsafe fn give_back(&self, start: usize, len: usize) -> bool {
        #[cfg(target_os = "linux")]
        let advice = memmap2::UncheckedAdvice::DontNeed;
        #[cfg(not(target_os = "linux"))]
        let advice = memmap2::UncheckedAdvice::Free;
        // SAFETY: as the caller promises.
        let advised = unsafe { self.map.unchecked_advise_range(advice, start, len) };
        advised.is_ok()
    }
}

impl Region {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives the region's memory back to the system, except what it shares with its neighbours'
    /// system pages; its contents are lost. Returns whether the system can do that.
    pub fn give_back(&mut self) -> bool {
        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        {
            let size = SYSTEM_PAGE;
            let start = self.at.next_multiple_of(size);
            let end = (self.at + self.len) / size * size;
            // SAFETY: the range is inside the region, whose contents `&mut self` may change. Chunks
            // begin at system pages.
            start >= end || unsafe { self.chunk.give_back(start, end - start) }
        }
        #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
        false
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the chunk, which the region keeps, and changed only through it.
        unsafe { std::slice::from_raw_parts(self.chunk.start.add(self.at), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the chunk, which the region keeps, and no other region's.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.start.add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_disjoint() {
        let mut arena = Arena::new(6000);
        let lens = [1, 64, 0, 1000, 4000, 1 << 20, 5, 6000, 7];
        let mut regions: Vec<Region> = lens
            .iter()
            .map(|len| arena.allocate(*len).unwrap())
            .collect();
        for (i, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.bytes().as_ptr() as usize % ALIGN, 0, "region {i}");
            let bytes = region.bytes_mut();
            for at in [0, bytes.len().saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    assert_eq!(*byte, 0, "region {i}");
                }
            }
            if let Some(last) = bytes.last_mut() {
                *last = i as u8;
            }
        }
        for (i, (region, len)) in regions.iter().zip(lens).enumerate() {
            assert_eq!(region.bytes().len(), len);
            let last = region.bytes().last();
            assert!(last.is_none_or(|last| *last == i as u8), "region {i}");
        }
    }
}
