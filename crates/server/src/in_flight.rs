//! Requests under way: who may list and cancel them, and what is counted when they end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use crate::caller::Caller;

/// Every request that generates.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    entries: Arc<Mutex<HashMap<u64, Arc<Entry>>>>,
    next: Arc<AtomicU64>,
}

/// One of them.
#[derive(Debug)]
pub struct Entry {
    pub request_id: Arc<str>,
    /// The route: `/v1/chat/completions`.
    pub route: &'static str,
    pub model: String,
    pub key: Option<String>,
    pub began: SystemTime,
    pub prompt_tokens: usize,
    /// Delivered so far, over all choices.
    pub completion_tokens: AtomicUsize,
    cancel: Notify,
}

impl Entry {
    /// Ends it; what was delivered stays counted.
    pub fn cancel(&self) {
        self.cancel.notify_one();
    }
}

/// Stands for the request among those in flight until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    all: InFlight,
    id: u64,
    entry: Arc<Entry>,
}

impl InFlight {
    pub fn begin(
        &self,
        caller: &Caller,
        route: &'static str,
        model: &str,
        prompt_tokens: usize,
    ) -> Ticket {
        let entry = Arc::new(Entry {
            request_id: Arc::clone(&caller.request_id),
            route,
            model: model.to_owned(),
            key: caller.client(),
            began: SystemTime::now(),
            prompt_tokens,
            completion_tokens: AtomicUsize::new(0),
            cancel: Notify::new(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, Arc::clone(&entry));
        Ticket {
            all: self.clone(),
            id,
            entry,
        }
    }

    /// Oldest first.
    pub fn list(&self) -> Vec<Arc<Entry>> {
        let mut entries: Vec<_> = self
            .lock()
            .iter()
            .map(|(id, entry)| (*id, Arc::clone(entry)))
            .collect();
        entries.sort_by_key(|(id, _)| *id);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    pub fn delivered(&self, tokens: usize) {
        self.entry
            .completion_tokens
            .fetch_add(tokens, Ordering::Relaxed);
    }

    /// Returns when somebody cancels the request.
    pub async fn cancelled(&self) {
        self.entry.cancel.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}
