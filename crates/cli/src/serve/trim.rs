//! Memory that opening a model took and gave back goes to the machine, not to the next allocation.

/// glibc keeps what was freed in each thread's arena; opening leaves some ten megabytes there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // SAFETY: it takes no pointer, and may be called from any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}
