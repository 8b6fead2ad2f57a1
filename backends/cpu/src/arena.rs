//! Room for packed weights: few large regions, on huge pages where the system gives them, so
//! that a step's walk through all weights does not miss the address cache at every page.

use std::sync::Arc;

use memmap2::MmapMut;

/// The most that is asked of the system at once, but for what is larger by itself.
const CHUNK: usize = 1 << 30;
/// Regions begin at cache lines: no two threads write to one, and any element may lie first.
const ALIGN: usize = 64;

/// Hands out regions.
#[derive(Default)]
pub struct Arena {
    chunk: Option<Arc<Chunk>>,
    used: usize,
    /// What is expected to be taken beyond the chunk.
    expected: usize,
}

struct Chunk {
    start: *mut u8,
    len: usize,
    /// Keeps the memory.
    _map: MmapMut,
}

// SAFETY: a pointer into memory that the chunk itself keeps; regions of it are disjoint, and
// each is its holder's to share or to change.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// A part of a chunk that nobody else has.
pub struct Region {
    chunk: Arc<Chunk>,
    at: usize,
    len: usize,
}

impl Arena {
    /// For about so many bytes in all.
    pub fn new(expected: usize) -> Self {
        Self {
            expected,
            ..Self::default()
        }
    }

    /// Zeros.
    pub fn take(&mut self, len: usize) -> std::io::Result<Region> {
        let room = self.chunk.as_ref().map_or(0, |chunk| chunk.len);
        let at = self.used.next_multiple_of(ALIGN);
        let fits = at.checked_add(len).is_some_and(|end| end <= room);
        let (chunk, at) = match &self.chunk {
            Some(chunk) if fits => (Arc::clone(chunk), at),
            _ => {
                let wanted = len.max(self.expected.min(CHUNK));
                self.expected = self.expected.saturating_sub(wanted);
                (Arc::new(Chunk::new(wanted)?), 0)
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
        // A wish: where it is not granted, everything works on small pages.
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
    fn regions_are_aligned_zero_and_apart() {
        let mut arena = Arena::new(6000);
        let lens = [1, 64, 0, 1000, 4000, 1 << 20, 5, 6000, 7];
        let mut regions: Vec<Region> = lens.iter().map(|len| arena.take(*len).unwrap()).collect();
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
