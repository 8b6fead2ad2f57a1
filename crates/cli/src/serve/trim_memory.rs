//! Returns memory freed while opening a model to the system.

/// glibc keeps freed memory in each thread's arena; opening leaves some ten megabytes there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim_memory() {
    // SAFETY: `malloc_trim` takes no pointer and is thread-safe.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim_memory() {}
