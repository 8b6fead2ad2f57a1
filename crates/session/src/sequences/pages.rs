//! The pages of a session: a pool for each group of layers, within one budget.

use super::Slot;
use super::slots::SlotPool;
use crate::{KvGroup, KvGroups, MAX_KV_GROUPS};

/// Pages of all groups. Those of different groups differ in size, so the budget is shared by weight.
pub(super) struct PagePools {
    groups: KvGroups,
    /// Tokens of a page.
    granularity: usize,
    pools: Vec<SlotPool>,
    /// Tokens' worth.
    capacity: usize,
}

/// A sequence's pages of one group: those of the tokens that are in reach.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldPages {
    /// Pages before the first of `slots`, which are freed.
    pub first: usize,
    /// Oldest first.
    pub slots: Vec<Slot>,
}

/// A sequence's pages of one group.
#[derive(Debug, Clone, Copy)]
pub struct PageSpan<'a> {
    /// Pages before the first of `slots`, which are freed.
    pub first: usize,
    /// Oldest first.
    pub slots: &'a [Slot],
}

/// How a row changes its sequence's pages of one group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PageChange {
    /// The oldest pages, which no new token reaches.
    pub dropped: usize,
    /// Of those, the ones that no other sequence refers to.
    freed: usize,
    /// Pages after the dropped ones that stay as they are.
    pub kept: usize,
    pub acquired: usize,
    /// Copied to the first acquired page.
    pub copied: Option<Slot>,
}

/// By group.
pub(super) type PageChanges = [PageChange; MAX_KV_GROUPS];

/// Tokens' worth of KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shortage {
    pub wanted: usize,
    pub available: usize,
}

impl HeldPages {
    pub fn end(&self) -> usize {
        self.first + self.slots.len()
    }

    /// Whether all that tokens from `len` on attend to is still there.
    pub fn reach_back(&self, group: &KvGroup, len: usize, granularity: usize) -> bool {
        len == 0 || group.first_page(len, granularity) >= self.first
    }

    /// The pages that a sequence needs that ends after `len` of these tokens.
    pub fn of_prefix(&self, group: &KvGroup, len: usize, granularity: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let first = group.first_page(len, granularity).max(self.first);
        let end = len.div_ceil(granularity).max(first);
        Self {
            first,
            slots: self.slots[first - self.first..end - self.first].to_vec(),
        }
    }

    /// The change for a row after `len` tokens that needs pages up to `end`.
    pub fn change(
        &self,
        (group, pool): (&KvGroup, &SlotPool),
        (len, end): (usize, usize),
        granularity: usize,
        whole_arrays: bool,
    ) -> PageChange {
        let is_shared = |page: &&Slot| pool.is_shared(**page);
        let first = group.first_page(len, granularity).max(self.first);
        let (dropped, rest) = self.slots.split_at(first - self.first);
        let partial = rest.last().filter(|_| !len.is_multiple_of(granularity));
        let (kept, copied) = match partial.filter(is_shared) {
            _ if whole_arrays && rest.iter().any(|page| pool.is_shared(*page)) => (0, None),
            Some(copied) if !whole_arrays => (rest.len() - 1, Some(*copied)),
            _ => (rest.len(), None),
        };
        PageChange {
            dropped: dropped.len(),
            freed: dropped.len() - dropped.iter().filter(is_shared).count(),
            kept,
            acquired: end.saturating_sub(first + kept),
            copied,
        }
    }
}

impl PagePools {
    pub fn new(groups: KvGroups, granularity: usize, kv_tokens: usize) -> Self {
        // Pages of a single group are of one size, of which only whole ones can be used.
        let capacity = match groups.count() {
            1 => kv_tokens / granularity * granularity,
            _ => kv_tokens,
        };
        let total = u128::from(groups.token_weight()) * capacity as u128;
        let pool = |group: &KvGroup| {
            let page = u128::from(groups.weight(group).max(1)) * granularity as u128;
            SlotPool::new(usize::try_from(total / page).unwrap_or(usize::MAX))
        };
        Self {
            pools: groups.iter().map(pool).collect(),
            groups,
            granularity,
            capacity,
        }
    }

    pub fn granularity(&self) -> usize {
        self.granularity
    }

    pub fn groups(&self) -> &KvGroups {
        &self.groups
    }

    pub fn pool(&self, group: usize) -> &SlotPool {
        &self.pools[group]
    }

    pub fn pool_mut(&mut self, group: usize) -> &mut SlotPool {
        &mut self.pools[group]
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn in_use(&self) -> usize {
        self.worth(|group| self.pools[group].in_use())
    }

    pub fn available(&self) -> usize {
        self.capacity.saturating_sub(self.in_use())
    }

    /// Tokens' worth of so many pages in each group, rounded up.
    pub fn worth(&self, pages: impl Fn(usize) -> usize) -> usize {
        let mut next = 0..;
        self.groups
            .tokens_in_pages(self.granularity, |_| next.next().map_or(0, &pages))
    }

    /// Checks that the budget has room for a change.
    pub fn check(&self, changes: &PageChanges) -> Result<(), Shortage> {
        let weight = |pages: &dyn Fn(usize) -> usize| {
            let groups = self.groups.iter().enumerate();
            let weights = groups.map(|(index, group)| {
                let tokens = pages(index) as u128 * self.granularity as u128;
                tokens.saturating_mul(u128::from(self.groups.weight(group)))
            });
            weights.fold(0, u128::saturating_add)
        };
        let total = u128::from(self.groups.token_weight()) * self.capacity as u128;
        let used = weight(&|group| self.pools[group].in_use() - changes[group].freed);
        let acquired = weight(&|group| changes[group].acquired);
        if used.saturating_add(acquired) <= total {
            return Ok(());
        }
        let left = total.saturating_sub(used) / u128::from(self.groups.token_weight().max(1));
        Err(Shortage {
            wanted: self.worth(|group| changes[group].acquired),
            available: usize::try_from(left).unwrap_or(usize::MAX),
        })
    }

    /// Pages of a group that exist after a change.
    pub fn len_after(&self, group: usize, change: &PageChange) -> usize {
        let fresh = change.acquired.saturating_sub(change.freed);
        self.pools[group].len_after(fresh)
    }
}
