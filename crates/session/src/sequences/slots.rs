/// A numbered unit of memory: a page of KV or a recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// Freed slots are reused, so indices stay dense from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Reference counts of slots. A slot is reused once nothing refers to it.
pub(super) struct SlotPool {
    capacity: usize,
    references: Vec<u32>,
    free: Vec<Slot>,
}

impl SlotPool {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            references: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn in_use(&self) -> usize {
        self.references.len() - self.free.len()
    }

    pub fn available(&self) -> usize {
        self.capacity - self.in_use()
    }

    /// Slots that exist once `count` more are acquired.
    pub fn len_after(&self, count: usize) -> usize {
        self.references.len() + count.saturating_sub(self.free.len())
    }

    /// A slot with one reference.
    pub fn acquire(&mut self) -> Option<Slot> {
        if self.available() == 0 {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.references.push(0);
            Slot(self.references.len() as u32 - 1)
        });
        self.references[slot.index()] = 1;
        Some(slot)
    }

    pub fn retain(&mut self, slot: Slot) {
        self.references[slot.index()] += 1;
    }

    /// Drops one reference and returns whether it was the last.
    pub fn release(&mut self, slot: Slot) -> bool {
        let references = &mut self.references[slot.index()];
        *references -= 1;
        let last = *references == 0;
        if last {
            self.free.push(slot);
        }
        last
    }

    pub fn is_shared(&self, slot: Slot) -> bool {
        self.references[slot.index()] > 1
    }

    /// Counts each slot once. A bit set, since admission counts the slots of many sequences.
    pub fn distinct(&self, slots: impl Iterator<Item = Slot>) -> usize {
        let mut seen = vec![0u64; self.references.len().div_ceil(64)];
        for slot in slots {
            seen[slot.index() / 64] |= 1 << (slot.index() % 64);
        }
        seen.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_reused_after_last_release() {
        let mut pool = SlotPool::new(2);
        let [a, b] = std::array::from_fn(|_| pool.acquire().unwrap());
        assert_eq!(pool.acquire(), None);
        pool.retain(a);
        assert!(pool.is_shared(a) && !pool.is_shared(b));
        assert!(!pool.release(a));
        assert_eq!((pool.in_use(), pool.available()), (2, 0));
        assert!(pool.release(a));
        assert_eq!((pool.in_use(), pool.available()), (1, 1));
        assert_eq!((pool.len_after(1), pool.len_after(2)), (2, 3));
        assert_eq!(pool.acquire(), Some(a));
    }

    #[test]
    fn distinct_counts_each_slot_once() {
        let mut pool = SlotPool::new(200);
        let slots: Vec<Slot> = (0..130).map_while(|_| pool.acquire()).collect();
        let picked = [0, 63, 64, 129, 64, 0].map(|index| slots[index]);
        assert_eq!(pool.distinct(picked.into_iter()), 4);
        assert_eq!(pool.distinct(std::iter::empty()), 0);
    }
}
