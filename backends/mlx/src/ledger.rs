//! Who holds what: amounts that sequences share, each counted once.

use std::collections::HashMap;

/// Names an amount in its ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry(u64);

/// Amounts within a limit, each with its holders.
pub struct Ledger {
    entries: HashMap<Entry, Holding>,
    limit: usize,
    in_use: usize,
    next: u64,
}

struct Holding {
    amount: usize,
    holders: usize,
}

impl Ledger {
    pub fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            limit,
            in_use: 0,
            next: 0,
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn in_use(&self) -> usize {
        self.in_use
    }

    pub fn available(&self) -> usize {
        self.limit.saturating_sub(self.in_use)
    }

    /// An amount for one holder; `None` where it is more than is left.
    pub fn take(&mut self, amount: usize) -> Option<Entry> {
        if amount > self.available() {
            return None;
        }
        self.in_use += amount;
        let entry = Entry(self.next);
        self.next += 1;
        let holding = Holding { amount, holders: 1 };
        self.entries.insert(entry, holding);
        Some(entry)
    }

    pub fn hold(&mut self, entry: Entry) {
        if let Some(holding) = self.entries.get_mut(&entry) {
            holding.holders += 1;
        }
    }

    pub fn drop_hold(&mut self, entry: Entry) {
        let Some(holding) = self.entries.get_mut(&entry) else {
            return;
        };
        holding.holders -= 1;
        if holding.holders == 0 {
            self.in_use -= holding.amount;
            self.entries.remove(&entry);
        }
    }

    pub fn amount(&self, entry: Entry) -> usize {
        self.entries.get(&entry).map_or(0, |held| held.amount)
    }

    pub fn is_shared(&self, entry: Entry) -> bool {
        self.entries
            .get(&entry)
            .is_some_and(|held| held.holders > 1)
    }

    /// What the entries come to, each once.
    pub fn sum(&self, entries: impl Iterator<Item = Entry>) -> usize {
        let mut distinct: Vec<Entry> = entries.collect();
        distinct.sort_unstable_by_key(|entry| entry.0);
        distinct.dedup();
        distinct.iter().map(|entry| self.amount(*entry)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_counts_once_and_goes_with_its_last_holder() {
        let mut ledger = Ledger::new(10);
        let (a, b) = (ledger.take(4).unwrap(), ledger.take(5).unwrap());
        assert!(ledger.take(2).is_none(), "only one is left");
        ledger.hold(a);
        assert!(ledger.is_shared(a) && !ledger.is_shared(b));
        assert_eq!(ledger.sum([a, b, a].into_iter()), 9);
        ledger.drop_hold(a);
        assert_eq!((ledger.in_use(), ledger.available()), (9, 1));
        ledger.drop_hold(a);
        assert_eq!((ledger.in_use(), ledger.amount(a)), (5, 0));
        assert!(ledger.take(5).is_some());
    }
}
