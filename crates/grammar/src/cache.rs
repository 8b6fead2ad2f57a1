//! A cache of compiled grammars, keyed by source.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A least-recently-used cache. The first caller for a key makes its value; others for the same
/// key wait.
pub(crate) struct Cache<V> {
    capacity: usize,
    slots: Mutex<Slots<V>>,
}

struct Slots<V> {
    by_key: HashMap<String, Slot<V>>,
    /// Counts uses, to find the oldest slot.
    clock: u64,
}

struct Slot<V> {
    value: Arc<OnceLock<V>>,
    used: u64,
}

impl<V: Clone> Cache<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = Slots {
            by_key: HashMap::new(),
            clock: 0,
        };
        Self {
            capacity,
            slots: Mutex::new(slots),
        }
    }

    pub(crate) fn get_or_make(&self, key: String, make: impl FnOnce() -> V) -> V {
        let value = self.slot(key);
        value.get_or_init(make).clone()
    }

    fn slot(&self, key: String) -> Arc<OnceLock<V>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.clock += 1;
        let used = slots.clock;
        if !slots.by_key.contains_key(&key) && slots.by_key.len() >= self.capacity {
            slots.drop_oldest();
        }
        let slot = slots.by_key.entry(key).or_insert_with(|| Slot {
            value: Arc::default(),
            used,
        });
        slot.used = used;
        slot.value.clone()
    }
}

impl<V> Slots<V> {
    fn drop_oldest(&mut self) {
        let oldest = self.by_key.iter().min_by_key(|(_, slot)| slot.used);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.by_key.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let cache = Cache::new(2);
        let made = AtomicUsize::new(0);
        let mut get = |key: &str| {
            cache.get_or_make(key.to_string(), || made.fetch_add(1, Ordering::Relaxed));
            made.load(Ordering::Relaxed)
        };
        let counts: Vec<usize> = ["a", "b", "a", "c", "a", "b"].map(&mut get).to_vec();
        assert_eq!(counts, [1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn concurrent_requests_compile_once() {
        let cache = Cache::new(4);
        let made = AtomicUsize::new(0);
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    cache.get_or_make("same".to_string(), || made.fetch_add(1, Ordering::Relaxed))
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
