//! Memory that many threads touch at disjoint places or in separate phases.

use std::marker::PhantomData;

use crate::kernels::PAGE;

/// A mutable slice that parallel tasks write to, each its own part.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing is only a pointer and a length; every access goes through an unsafe method
// whose caller vouches that no two threads touch the same elements.
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

    /// # Safety
    /// No other thread may touch `at..at + len` while the result lives.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// # Safety
    /// What the pointer is used for must stay in bounds and disjoint from other threads' work.
    pub unsafe fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.add(at) }
    }
}

/// A page of keys and values: written token by token, then read by everyone, in phases that
/// the thread pool keeps apart. Owned by the cache; this is only a pointer.
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
    /// A page in memory that outlives its use; see the methods' promises.
    pub fn new(start: *mut T, len: usize) -> Self {
        Self { start, len }
    }
}

impl<T: Copy + Default> PagePtr<T> {
    /// Allocates a page of zeros, to be given back through [`PagePtr::free`].
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
    /// The page must live, and nobody may write `at..at + len` while the result does.
    pub unsafe fn slice<'a>(self, at: usize, len: usize) -> &'a [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, alive and unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// # Safety
    /// The page must live, and nobody else may touch `at..at + len` while the result does.
    pub unsafe fn slice_mut<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion, alive and unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// # Safety
    /// The page must live, and nobody else may touch element `at` meanwhile.
    pub unsafe fn write(self, at: usize, value: T) {
        assert!(at < self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { self.start.add(at).write(value) }
    }

    /// The same memory as other elements, of which it holds at least `len`.
    #[cfg(test)]
    pub fn cast<U>(self, len: usize) -> PagePtr<U> {
        assert!(len * size_of::<U>() <= self.len * size_of::<T>());
        PagePtr::new(self.start.cast(), len)
    }

    /// The factors that lie from element `at` on, one for each token.
    ///
    /// # Safety
    /// The page must live, and nobody may write them while the result does.
    pub unsafe fn scales<'a>(self, at: usize) -> &'a [f32; PAGE] {
        let scales = self.scale(at, PAGE);
        // SAFETY: in bounds and aligned, as checked, alive and unwritten by the caller's promise;
        // any bits are an `f32`.
        unsafe { &*scales.cast() }
    }

    /// # Safety
    /// The page must live, and nobody else may touch this factor meanwhile.
    pub unsafe fn write_scale(self, at: usize, slot: usize, scale: f32) {
        let scales = self.scale(at, slot + 1);
        // SAFETY: in bounds and aligned, as checked, unaliased by the caller's promise.
        unsafe { scales.add(slot).write(scale) }
    }

    /// Where `count` factors lie.
    fn scale(self, at: usize, count: usize) -> *mut f32 {
        let elements = (count * size_of::<f32>()).div_ceil(size_of::<T>());
        assert!(at <= self.len && elements <= self.len - at);
        let scales = self.start.wrapping_add(at).cast::<f32>();
        assert!(scales.is_aligned());
        scales
    }

    /// # Safety
    /// Both pages must live, be equally long, and nobody else may touch them meanwhile.
    pub unsafe fn copy_from(self, other: Self) {
        assert_eq!(self.len, other.len);
        // SAFETY: both spans are whole pages by the assertion; `copy` allows overlap.
        unsafe { std::ptr::copy(other.start, self.start, self.len) }
    }
}
