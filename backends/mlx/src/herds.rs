//! All herds of a session and how many sequences stand in each.

use std::collections::HashMap;

use crate::kv::Herd;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HerdId(u64);

/// A herd lives as long as a sequence is a row of it.
#[derive(Default)]
pub struct Herds {
    alive: HashMap<HerdId, (Herd, usize)>,
    next: u64,
}

impl Herds {
    /// A herd for so many sequences.
    pub fn insert(&mut self, herd: Herd, holders: usize) -> HerdId {
        let id = HerdId(self.next);
        self.next += 1;
        self.alive.insert(id, (herd, holders));
        id
    }

    pub fn get(&self, id: HerdId) -> Option<&Herd> {
        self.alive.get(&id).map(|(herd, _)| herd)
    }

    /// One sequence more, as a fork of one that is in it.
    pub fn hold(&mut self, id: HerdId) {
        if let Some((_, holders)) = self.alive.get_mut(&id) {
            *holders += 1;
        }
    }

    /// So many sequences leave it. The herd itself where they were the last, and otherwise its
    /// arrays, shared with those that stay.
    pub fn leave(&mut self, id: HerdId, leaving: usize) -> Option<Herd> {
        let (herd, holders) = self.alive.get_mut(&id)?;
        if *holders > leaving {
            *holders -= leaving;
            return Some(herd.clone());
        }
        self.alive.remove(&id).map(|(herd, _)| herd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_goes_with_its_last_sequence() {
        let mut herds = Herds::default();
        let id = herds.insert(Herd::empty(2, 1), 2);
        herds.hold(id);
        assert_eq!(herds.leave(id, 2).map(|herd| herd.rows), Some(2));
        assert!(herds.get(id).is_some(), "the fork is in it yet");
        assert!(herds.leave(id, 1).is_some() && herds.get(id).is_none());
        assert!(herds.leave(id, 1).is_none());
        assert_ne!(herds.insert(Herd::empty(1, 1), 1), id);
    }
}
