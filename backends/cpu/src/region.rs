//! Memory in large runs that the system may back with huge pages.
//!
//! A run is zero and costs nothing until it is touched. Where huge pages are to be had, a table
//! of a few entries finds all of it, so that reading far and wide does not wait for addresses.

use std::io;
use std::ptr::NonNull;

/// What x86 and arm call huge, with pages of 4 KiB.
const HUGE: usize = 2 << 20;

pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region owns its memory and gives out only a pointer, whose user vouches for its use.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

#[cfg(unix)]
impl Region {
    /// `len` bytes of zeros; a long region starts where a huge page can.
    pub fn map(len: usize) -> io::Result<Self> {
        // An empty mapping is refused by the system.
        let len = len.max(1);
        let slack = if len < HUGE { 0 } else { HUGE };
        let mapped = len.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh private mapping touches nobody's memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let before = if slack == 0 { 0 } else { start.align_offset(HUGE) };
        // Mappings end where a page of the system does; what lies between is the region's.
        // SAFETY: sysconf only answers.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let end = (before + len).next_multiple_of(page);
        // SAFETY: all three lie inside the mapping above. Of the cut-off ends, which nobody has
        // seen, none can fail to be unmapped in a way that harms; and advice is only advice.
        unsafe {
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if end < mapped {
                libc::munmap(start.add(end).cast(), mapped - end);
            }
            #[cfg(target_os = "linux")]
            if slack > 0 {
                libc::madvise(start.add(before).cast(), len, libc::MADV_HUGEPAGE);
            }
            let start = NonNull::new(start.add(before)).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { start, len })
        }
    }
}

#[cfg(unix)]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is this mapping, and its pointers are used no more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(not(unix))]
impl Region {
    fn layout(len: usize) -> io::Result<std::alloc::Layout> {
        let layout = std::alloc::Layout::from_size_align(len.max(1), 64);
        layout.map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// `len` bytes of zeros.
    pub fn map(len: usize) -> io::Result<Self> {
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(Self::layout(len)?) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

#[cfg(not(unix))]
impl Drop for Region {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.len) {
            // SAFETY: allocated with this layout, and its pointers are used no more.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zero_writable_and_start_where_huge_pages_do() {
        for len in [1, 4096, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let region = Region::map(len).unwrap();
            let start = region.start().as_ptr();
            assert!(!cfg!(unix) || len < HUGE || start.align_offset(HUGE) == 0);
            // SAFETY: the test alone holds the region.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{len}");
            bytes.fill(0xa5);
            assert_eq!((bytes[0], bytes[len - 1]), (0xa5, 0xa5));
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for len in [usize::MAX, usize::MAX / 2] {
            assert!(Region::map(len).is_err(), "{len}");
        }
    }
}
