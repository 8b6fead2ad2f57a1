//! Memory that threads write in disjoint parts.

use std::marker::PhantomData;

/// A mutable slice of which each parallel task writes its own part.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing is only a pointer and a length; every access goes through an unsafe method
// whose caller guarantees that no two threads access the same elements.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above; the slice itself could be sent.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            owner: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A part, to be shared in the same way.
    pub fn part(&self, at: usize, len: usize) -> SharedMut<'a, T> {
        assert!(at <= self.len && len <= self.len - at);
        SharedMut {
            // In bounds by the assertion.
            start: self.start.wrapping_add(at),
            len,
            owner: PhantomData,
        }
    }

    /// # Safety
    /// No other thread may touch `at..at + len` while the result lives.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// # Safety
    /// Accesses through the pointer must stay in bounds and disjoint from other threads'.
    pub unsafe fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.add(at) }
    }
}
