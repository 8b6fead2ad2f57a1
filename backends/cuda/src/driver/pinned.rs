//! Memory of the machine that the device accesses directly.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::context::Inner;
use super::error::DriverError;
use super::ffi::HOST_PORTABLE;

/// A page-locked buffer. Zeroed at first; freed when it is dropped, after the work that the stream
/// has at that time.
pub struct Pinned {
    context: Arc<Inner>,
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is owned memory; the device accesses it only in copies that the caller starts.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads; `read_async` is unsafe because it does not.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(context: Arc<Inner>, len: usize) -> Result<Self, DriverError> {
        context.make_current()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the function writes the address of new memory of this size.
        let code =
            unsafe { (context.api().host_allocate)(&mut pointer, len.max(1), HOST_PORTABLE) };
        let wanted = len as u64;
        context.check_memory("cuMemHostAlloc", code, wanted)?;
        let pointer = NonNull::new(pointer.cast::<u8>());
        let pointer = pointer.ok_or(DriverError::OutOfMemory { wanted })?;
        // SAFETY: the memory has this many bytes.
        unsafe { pointer.write_bytes(0, len) };
        Ok(Self {
            context,
            pointer,
            len,
        })
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialized, and is freed only when `self` is dropped.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }

    /// Where kernels find the buffer: the two sides share one address space.
    pub fn device_address(&self) -> u64 {
        self.pointer.as_ptr() as u64
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// The length of a range of the buffer.
    pub(super) fn check_range(&self, range: &Range<usize>) -> Result<usize, DriverError> {
        if range.end > self.len {
            return Err(DriverError::PinnedRange {
                end: range.end,
                capacity: self.len,
            });
        }
        Ok(range.end.saturating_sub(range.start))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: the memory was allocated by the driver and is freed once, after all copies that
        // were started.
        unsafe {
            (self.context.api().stream_synchronize)(self.context.stream);
            (self.context.api().host_free)(self.pointer.as_ptr().cast());
        }
    }
}
