//! The queue of waiting requests.

use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::sequence::Sequence;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Vec<Sequence>,
}

/// The next request to admit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueCandidate {
    pub index: usize,
    /// Its own urgency, or that of a longer waiting request of the same priority.
    pub urgency: i64,
}

impl Queue {
    pub fn push(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    pub fn get(&self, index: usize) -> &Sequence {
        &self.waiting[index]
    }

    pub fn take(&mut self, index: usize) -> Sequence {
        self.waiting.swap_remove(index)
    }

    /// Removes and returns the requests for which `leaves` is true.
    pub fn remove_if(&mut self, leaves: impl FnMut(&mut Sequence) -> bool) -> Vec<Sequence> {
        self.waiting.extract_if(.., leaves).collect()
    }

    /// The next request among those that are `ready`: from the priority whose longest waiting
    /// request is most urgent, the client served least, its first request.
    pub fn next(
        &self,
        now: Instant,
        aging: Duration,
        clients: &Clients,
        ready: impl Fn(&Sequence) -> bool,
    ) -> Option<QueueCandidate> {
        let ready: Vec<usize> = (0..self.waiting.len())
            .filter(|&index| ready(&self.waiting[index]))
            .collect();
        let urgencies = ready.iter().map(|&index| {
            let sequence = &self.waiting[index];
            (sequence.urgency(now, aging), sequence.priority)
        });
        let (urgency, priority) = urgencies.min()?;
        let fair = |index: &usize| {
            let sequence = &self.waiting[*index];
            (clients.served(&sequence.client), sequence.ordinal)
        };
        let mut class = ready;
        class.retain(|&index| self.waiting[index].priority == priority);
        let index = class.into_iter().min_by_key(fair)?;
        Some(QueueCandidate { index, urgency })
    }
}
