//! A page of the KV cache, as threads share it.

/// A page of keys and values: written token by token, then read by all threads, in phases that the
/// thread pool separates. Owned by the cache; this is only a pointer.
#[derive(Clone, Copy)]
pub struct PagePtr<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: only a pointer and a length; every access is an unsafe method whose caller vouches
// for the phase it is in.
unsafe impl<T: Send> Send for PagePtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PagePtr<T> {}

impl<T> PagePtr<T> {
    /// A page in memory that outlives its use.
    pub fn new(start: *mut T, len: usize) -> Self {
        Self { start, len }
    }
}

impl<T: Copy + Default> PagePtr<T> {
    /// Allocates a zeroed page, to be freed with [`PagePtr::free`].
    pub fn allocate(len: usize) -> Self {
        let page = Box::into_raw(vec![T::default(); len].into_boxed_slice());
        Self {
            start: page.cast(),
            len,
        }
    }

    /// # Safety
    /// Once only, and no copy of the pointer may be used afterwards.
    pub unsafe fn free(self) {
        let page = std::ptr::slice_from_raw_parts_mut(self.start, self.len);
        // SAFETY: this is the allocation `allocate` made, freed once by the caller's promise.
        drop(unsafe { Box::from_raw(page) });
    }

    /// # Safety
    /// The page must live, and no thread may write `at..at + len` meanwhile.
    pub unsafe fn slice<'a>(self, at: usize, len: usize) -> &'a [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, alive and unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// # Safety
    /// The page must live, and no other thread may access `at..at + len` meanwhile.
    pub unsafe fn slice_mut<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, alive and unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// # Safety
    /// The page must live, and no other thread may access element `at` meanwhile.
    pub unsafe fn write(self, at: usize, value: T) {
        assert!(at < self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { self.start.add(at).write(value) }
    }

    /// # Safety
    /// Both pages must live, be equally long, and no other thread may access them meanwhile.
    pub unsafe fn copy_from(self, other: Self) {
        assert_eq!(self.len, other.len);
        // SAFETY: both spans are whole pages by the assertion; `copy` allows overlap.
        unsafe { std::ptr::copy(other.start, self.start, self.len) }
    }
}
