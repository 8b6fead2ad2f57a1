//! Returns freed memory to the system.

use std::time::Duration;

use tokio::time::timeout;

use crate::http::Traffic;

/// How long the server is idle before memory is trimmed: soon, and again when the threads of the
/// blocking pool have ended, which keep some freed memory for themselves. tokio ends them after ten
/// idle seconds.
const IDLE_TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(12)];

/// Trims each time the server has become idle: allocators keep what a burst of requests has freed.
/// Never returns.
pub async fn trim_when_idle(traffic: &Traffic) {
    bound_kept_memory();
    loop {
        traffic.requests_are(|requests| requests > 0).await;
        traffic.requests_are(|requests| requests == 0).await;
        for time in IDLE_TIMES {
            let busy = traffic.requests_are(|requests| requests > 0);
            if timeout(time, busy).await.is_ok() {
                break;
            }
            // Fails only if it panics, which it does not.
            let _ = tokio::task::spawn_blocking(trim_memory).await;
        }
    }
}

/// Allocations from this size on are mappings of their own, which freeing returns to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES: libc::c_int = 4 << 20;
/// Freed memory that an arena keeps at its end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: libc::c_int = 1 << 20;

/// glibc raises both limits to what was freed: after a body of 30 MB, each thread's arena keeps up to
/// 60 MB at its end, where `malloc_trim` does not look. Limits that are set stay as they are.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn bound_kept_memory() {
    let limits = [
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
        (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
    ];
    for (limit, bytes) in limits {
        // SAFETY: `mallopt` takes no pointer and is thread-safe.
        unsafe { libc::mallopt(limit, bytes) };
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn bound_kept_memory() {}

/// glibc keeps freed memory in each thread's arena; opening a model leaves some ten megabytes there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim_memory() {
    // SAFETY: `malloc_trim` takes no pointer and is thread-safe.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim_memory() {}
