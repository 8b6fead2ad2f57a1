//! The KV batches of a session and how many sequences are rows of each.

use std::collections::HashMap;

use crate::kv::KvBatch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvBatchId(u64);

/// A batch lives as long as a sequence is a row of it.
#[derive(Default)]
pub struct KvBatches {
    alive: HashMap<KvBatchId, (KvBatch, usize)>,
    next: u64,
}

impl KvBatches {
    /// Adds a batch that `references` sequences refer to.
    pub fn insert(&mut self, batch: KvBatch, references: usize) -> KvBatchId {
        let id = KvBatchId(self.next);
        self.next += 1;
        self.alive.insert(id, (batch, references));
        id
    }

    pub fn get(&self, id: KvBatchId) -> Option<&KvBatch> {
        self.alive.get(&id).map(|(batch, _)| batch)
    }

    /// One more reference, for a fork.
    pub fn retain(&mut self, id: KvBatchId) {
        if let Some((_, references)) = self.alive.get_mut(&id) {
            *references += 1;
        }
    }

    /// Drops `count` references. Returns the batch: moved out with the last reference, otherwise
    /// cloned, sharing its arrays.
    pub fn release(&mut self, id: KvBatchId, count: usize) -> Option<KvBatch> {
        let (batch, references) = self.alive.get_mut(&id)?;
        if *references > count {
            *references -= count;
            return Some(batch.clone());
        }
        self.alive.remove(&id).map(|(batch, _)| batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_freed_with_its_last_reference() {
        let mut batches = KvBatches::default();
        let id = batches.insert(KvBatch::empty(2, &[0]), 2);
        batches.retain(id);
        assert_eq!(batches.release(id, 2).map(|batch| batch.rows), Some(2));
        assert!(batches.get(id).is_some(), "the fork still refers to it");
        assert!(batches.release(id, 1).is_some() && batches.get(id).is_none());
        assert!(batches.release(id, 1).is_none());
        assert_ne!(batches.insert(KvBatch::empty(1, &[0]), 1), id);
    }
}
