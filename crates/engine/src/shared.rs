//! What the engine's thread and its callers both see.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use loquat_session::Memory;

use crate::EngineError;

/// What the engine was doing when its last step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Sequences that hold KV.
    pub running: usize,
    /// Requests that wait for room.
    pub waiting: usize,
    /// KV tokens set aside for the running sequences, whether computed yet or not.
    pub kv_reserved: usize,
}

#[derive(Debug)]
pub(crate) struct Shared {
    waiting: AtomicUsize,
    snapshot: Mutex<Snapshot>,
    /// Why no request will be served any more; set before any event channel is closed for it.
    end: OnceLock<EngineError>,
}

#[derive(Debug, Clone, Copy)]
struct Snapshot {
    memory: Memory,
    running: usize,
    kv_reserved: usize,
}

impl Shared {
    pub fn new(memory: Memory) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            snapshot: Mutex::new(Snapshot {
                memory,
                running: 0,
                kv_reserved: 0,
            }),
            end: OnceLock::new(),
        }
    }

    fn snapshot(&self) -> std::sync::MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn publish(&self, memory: Memory, running: usize, kv_reserved: usize) {
        *self.snapshot() = Snapshot {
            memory,
            running,
            kv_reserved,
        };
    }

    pub fn memory(&self) -> Memory {
        self.snapshot().memory
    }

    pub fn load(&self) -> Load {
        let snapshot = *self.snapshot();
        Load {
            running: snapshot.running,
            waiting: self.waiting.load(Ordering::SeqCst),
            kv_reserved: snapshot.kv_reserved,
        }
    }

    /// The first reason stays.
    pub fn end(&self, why: EngineError) {
        if self.end.set(why).is_ok() {
            tracing::debug!(why = %self.end_reason(), "the engine ended");
        }
    }

    pub fn check_alive(&self) -> Result<(), EngineError> {
        self.end.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// For a caller that found the engine gone.
    pub fn end_reason(&self) -> EngineError {
        self.end
            .get()
            .cloned()
            .unwrap_or_else(|| EngineError::Dead {
                reason: "its thread is gone".into(),
            })
    }
}

/// A place in the queue, given back when dropped: by admission, cancellation or the engine's end.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Shared>);

impl Ticket {
    pub fn take(shared: &Arc<Shared>, max_queue: usize) -> Result<Self, EngineError> {
        let place = |waiting| (waiting < max_queue).then_some(waiting + 1);
        shared
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, place)
            .map(|_| Self(Arc::clone(shared)))
            .map_err(|_| EngineError::QueueFull { max_queue })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
