//! The engine's clock. Simulations replace it with a virtual one.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

#[derive(Clone, Default)]
pub(crate) struct TimeSource(Option<Arc<dyn Fn() -> Instant + Send + Sync>>);

impl TimeSource {
    #[cfg(test)]
    pub fn new(now: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(now) => now(),
        }
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeSource")
    }
}
