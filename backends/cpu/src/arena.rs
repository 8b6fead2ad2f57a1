//! Memory for packed weights: few large chunks, on huge pages if available, so that reading all
//! weights in a step has few TLB misses.

use std::sync::Arc;

use memmap2::MmapMut;

/// The largest chunk, except for a single larger region.
const CHUNK: usize = 1 << 30;
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
    _map: MmapMut,
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
            _map: map,
        })
    }
}

impl Region {
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
