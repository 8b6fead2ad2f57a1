//! The requests that wait, and whose turn it is.

use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::sequence::Sequence;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Vec<Sequence>,
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

    /// Takes out those that `leaves` says so of.
    pub fn remove_if(&mut self, leaves: impl FnMut(&mut Sequence) -> bool) -> Vec<Sequence> {
        self.waiting.extract_if(.., leaves).collect()
    }

    /// Whose turn it is among those that are `ready`: the most urgent; then whose client was
    /// served least; then who came first.
    pub fn next(
        &self,
        now: Instant,
        aging: Duration,
        clients: &Clients,
        mut ready: impl FnMut(&Sequence) -> bool,
    ) -> Option<usize> {
        let mut best = None;
        for (index, sequence) in self.waiting.iter().enumerate() {
            let rank = (
                sequence.urgency(now, aging),
                clients.served(&sequence.client),
                sequence.ordinal,
            );
            if best.is_none_or(|(first, _)| rank < first) && ready(sequence) {
                best = Some((rank, index));
            }
        }
        best.map(|(_, index)| index)
    }
}
