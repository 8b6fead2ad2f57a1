//! Requests in flight, which operators list and cancel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::caller::Caller;

/// All requests that generate.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<u64, Arc<Entry>>,
    next: u64,
    /// The server is stopping: new requests are cancelled at once.
    stopped: bool,
}

/// A request in flight.
#[derive(Debug)]
pub struct Entry {
    pub request_id: Arc<str>,
    /// The route: `/v1/chat/completions`.
    pub route: &'static str,
    pub model: String,
    pub key: Option<String>,
    pub began: SystemTime,
    pub prompt_tokens: usize,
    /// Sent so far, over all choices.
    pub completion_tokens: AtomicUsize,
    /// Time to the first token.
    pub first_token: OnceLock<Duration>,
    cancelled: OnceLock<CancelledBy>,
    cancel: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelledBy {
    Operator,
    /// The server stopped.
    Stop,
}

impl Entry {
    /// Cancels the request. Tokens sent so far stay counted.
    pub fn cancel(&self) {
        self.cancel_as(CancelledBy::Operator);
    }

    fn cancel_as(&self, by: CancelledBy) {
        // The first cause wins.
        let _ = self.cancelled.set(by);
        self.cancel.notify_one();
    }
}

/// Lists the request as in flight until it is dropped.
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
            first_token: OnceLock::new(),
            cancelled: OnceLock::new(),
            cancel: Notify::new(),
        });
        let mut entries = self.lock();
        let id = entries.next;
        entries.next += 1;
        if entries.stopped {
            entry.cancel_as(CancelledBy::Stop);
        }
        entries.by_id.insert(id, Arc::clone(&entry));
        drop(entries);
        Ticket {
            all: self.clone(),
            id,
            entry,
        }
    }

    /// Oldest first.
    pub fn list(&self) -> Vec<Arc<Entry>> {
        let entries = self.lock();
        let mut list: Vec<_> = entries
            .by_id
            .iter()
            .map(|(id, entry)| (*id, Arc::clone(entry)))
            .collect();
        drop(entries);
        list.sort_by_key(|(id, _)| *id);
        list.into_iter().map(|(_, entry)| entry).collect()
    }

    pub fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Cancels all requests, and those that come later.
    pub fn stop_all(&self) {
        let mut entries = self.lock();
        entries.stopped = true;
        let all = entries.by_id.values();
        all.for_each(|entry| entry.cancel_as(CancelledBy::Stop));
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    pub fn delivered(&self, tokens: usize) {
        let delivered = &self.entry.completion_tokens;
        delivered.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Only the first call has an effect.
    pub fn first_token_took(&self, time: Duration) {
        self.entry.first_token.get_or_init(|| time);
    }

    /// Returns when the request is cancelled.
    pub async fn cancelled(&self) -> CancelledBy {
        loop {
            if let Some(by) = self.entry.cancelled.get() {
                return *by;
            }
            self.entry.cancel.notified().await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.all.lock().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;

    #[tokio::test]
    async fn requests_after_stop_are_cancelled() {
        let all = InFlight::default();
        let early = all.begin(&Caller::new("id"), "/early", "m", 1);
        let asked = all.begin(&Caller::new("id"), "/asked", "m", 1);
        all.list()[1].cancel();
        all.stop_all();
        let late = all.begin(&Caller::new("id"), "/late", "m", 1);
        assert_eq!(early.cancelled().await, CancelledBy::Stop);
        assert_eq!(asked.cancelled().await, CancelledBy::Operator);
        assert_eq!(late.cancelled().await, CancelledBy::Stop);
    }

    #[test]
    fn dropped_tickets_leave_the_list() {
        let all = InFlight::default();
        let routes =
            |all: &InFlight| -> Vec<&str> { all.list().iter().map(|entry| entry.route).collect() };
        let first = all.begin(&Caller::new("id"), "/first", "m", 1);
        let second = all.begin(&Caller::new("id"), "/second", "m", 1);
        assert_eq!(routes(&all), ["/first", "/second"]);
        drop(first);
        assert_eq!(routes(&all), ["/second"]);
        drop(second);
        assert_eq!(all.count(), 0);
    }
}
