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

/// glibc keeps freed memory in each thread's arena; opening a model leaves some ten megabytes there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim_memory() {
    // SAFETY: `malloc_trim` takes no pointer and is thread-safe.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim_memory() {}
