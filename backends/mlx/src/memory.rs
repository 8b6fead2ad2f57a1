//! MLX's memory limits, which belong to the process: the sum of the budgets of its sessions.

use std::sync::Mutex;

use crate::array::last_error;
use crate::ffi::Api;

/// Bytes that all live sessions may use.
static TOTAL: Mutex<u64> = Mutex::new(0);

/// MLX caches freed buffers for the next step: enough for activations, less than the KV of ended
/// sequences.
const CACHE_SHARE: u64 = 8;
const MIN_CACHE: u64 = 64 << 20;
const MAX_CACHE: u64 = 2 << 30;

/// A session's share of the limits, returned on drop.
pub struct MemoryShare {
    api: &'static Api,
    bytes: u64,
}

impl MemoryShare {
    pub fn reserve(api: &'static Api, bytes: u64) -> Self {
        let share = Self { api, bytes };
        share.change(|total| total.saturating_add(bytes));
        share
    }

    fn change(&self, change: impl FnOnce(u64) -> u64) {
        let mut total = TOTAL
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        *total = change(*total);
        let cache = (*total / CACHE_SHARE).clamp(MIN_CACHE, MAX_CACHE);
        // SAFETY: only numbers are passed. MLX treats the first as a guideline: it waits for free
        // buffers before it exceeds it, and fails only when the device has no more.
        let mut accepted = unsafe { (self.api.set_limits)(total.saturating_add(cache), cache) };
        if cfg!(target_os = "macos") {
            // SAFETY: only a number is passed; Metal keeps this much from being paged out.
            accepted &= unsafe { (self.api.set_wired_limit)(*total) };
        }
        if !accepted {
            tracing::warn!(
                "MLX rejected the memory limits and keeps its own: {}",
                last_error(self.api)
            );
        }
    }

    /// Returns cached buffers to the system.
    pub fn clear_cache(&self) {
        // SAFETY: the library is never unloaded.
        unsafe { (self.api.clear_cache)() };
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.change(|total| total.saturating_sub(bytes));
        self.clear_cache();
    }
}
