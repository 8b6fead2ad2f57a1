//! MLX's limits, which are the process's, from the budgets of the sessions that live in it.

use std::sync::Mutex;

use crate::array::last_error;
use crate::ffi::Api;

/// Bytes that live sessions may take together.
static TOTAL: Mutex<u64> = Mutex::new(0);

/// MLX keeps freed buffers for the next step: as much as activations need, not as much as
/// sequences come and go.
const CACHE_SHARE: u64 = 8;
const LEAST_CACHE: u64 = 64 << 20;
const MOST_CACHE: u64 = 2 << 30;

/// A session's part of the limits, returned when dropped.
pub struct Share {
    api: &'static Api,
    bytes: u64,
}

impl Share {
    pub fn take(api: &'static Api, bytes: u64) -> Self {
        let share = Self { api, bytes };
        share.change(|total| total.saturating_add(bytes));
        share
    }

    fn change(&self, change: impl FnOnce(u64) -> u64) {
        let mut total = TOTAL
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        *total = change(*total);
        let cache = (*total / CACHE_SHARE).clamp(LEAST_CACHE, MOST_CACHE);
        // SAFETY: numbers alone. MLX takes the first as a guideline: it waits for buffers to come
        // free before it goes beyond, and fails only where the device has no more.
        let mut taken = unsafe { (self.api.set_limits)(total.saturating_add(cache), cache) };
        if cfg!(target_os = "macos") {
            // SAFETY: a number alone; Metal keeps so much from being paged out.
            taken &= unsafe { (self.api.set_wired_limit)(*total) };
        }
        if !taken {
            tracing::warn!("MLX keeps its own limits: {}", last_error(self.api));
        }
    }

    /// Gives freed buffers back to the system.
    pub fn clear_cache(&self) {
        // SAFETY: the library is loaded for good.
        unsafe { (self.api.clear_cache)() };
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.change(|total| total.saturating_sub(bytes));
        self.clear_cache();
    }
}
