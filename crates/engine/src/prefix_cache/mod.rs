//! Ended sequences that are kept, so that a prompt which begins like one of them is not computed
//! again from the start.
//!
//! The cache owns its sequences in the session; whoever runs gets a fork. It takes what memory
//! running sequences leave, within its budget, and gives back what was used least recently.

mod radix;

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_session::{HeldMemory, PrefixCopy, SequenceId, Session};

use radix::{Found, Radix};

/// What the prefix cache holds and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Sequences kept.
    pub entries: usize,
    /// What they hold on the device; what they share counts once, with running sequences too.
    pub bytes: u64,
    /// Requests that found some of their tokens here or in a running sequence…
    pub hits: u64,
    /// …and those that found none.
    pub misses: u64,
    /// Tokens that were not computed again.
    pub hit_tokens: u64,
    /// Sequences given back to make room.
    pub evictions: u64,
}

type Scope = Option<Arc<str>>;

pub(crate) struct PrefixCache {
    policy: Policy,
    scopes: BTreeMap<Scope, Radix<SequenceId>>,
    entries: BTreeMap<SequenceId, Entry>,
    /// Counts uses; an entry's last one is its age.
    uses: u64,
    stats: CacheStats,
    /// Entries came or went since the bytes were counted.
    stale: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    reuse: PrefixCopy,
    /// `None`: whatever running sequences leave.
    max_bytes: Option<u64>,
}

struct Entry {
    tokens: Vec<u32>,
    scope: Scope,
    last_used: u64,
}

/// A kept or running sequence that begins as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    pub source: SequenceId,
    pub len: usize,
}

impl PrefixCache {
    pub fn new(reuse: PrefixCopy, max_bytes: Option<u64>) -> Self {
        Self {
            policy: Policy { reuse, max_bytes },
            scopes: BTreeMap::new(),
            entries: BTreeMap::new(),
            uses: 0,
            stats: CacheStats::default(),
            stale: false,
        }
    }

    /// Goes on over another session, which shares prefixes so. The cache is empty then.
    pub fn reuse(&mut self, reuse: PrefixCopy) {
        self.policy.reuse = reuse;
    }

    pub fn is_on(&self) -> bool {
        self.policy.reuse != PrefixCopy::None && self.policy.max_bytes != Some(0)
    }

    /// Whether a prefix can be had only at the lengths that somebody kept.
    pub fn needs_snapshots(&self) -> bool {
        self.policy.reuse == PrefixCopy::AtSnapshots
    }

    /// The kept sequence that has most of `tokens` ready.
    pub fn find(&self, scope: &Scope, tokens: &[u32], session: &dyn Session) -> Option<Hit> {
        let found = self.scopes.get(scope)?.find(tokens);
        let hit = if self.needs_snapshots() {
            at_snapshots(&found, session)
        } else {
            found.through().next().map(|source| Hit {
                source: *source,
                len: found.len,
            })
        };
        hit.filter(|hit| hit.len > 0)
    }

    /// A request found `hit`, or nothing, when it was admitted.
    pub fn count(&mut self, hit: Option<Hit>) {
        let Some(hit) = hit else {
            self.stats.misses += 1;
            return;
        };
        self.stats.hits += 1;
        self.stats.hit_tokens += hit.len as u64;
        self.touch(hit.source);
    }

    fn touch(&mut self, id: SequenceId) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.last_used = self.uses;
        }
    }

    /// Takes a sequence over that holds just `tokens`; it is the cache's from here on.
    pub fn keep(
        &mut self,
        session: &mut dyn Session,
        scope: &Scope,
        tokens: &[u32],
        id: SequenceId,
    ) {
        if !self.is_on() || tokens.is_empty() {
            release(session, id);
            return;
        }
        for known in self.redundant_with(scope, tokens) {
            if self.entries[&known].tokens.len() >= tokens.len() {
                self.touch(known);
                release(session, id);
                return;
            }
            self.forget(session, known);
        }
        let tree = self.scopes.entry(scope.clone()).or_insert_with(Radix::new);
        tree.insert(tokens, id);
        self.uses += 1;
        let entry = Entry {
            tokens: tokens.to_vec(),
            scope: scope.clone(),
            last_used: self.uses,
        };
        self.entries.insert(id, entry);
        self.stale = true;
        self.shrink(session);
    }

    /// Entries that say nothing which `tokens` does not say, or the one that says all of it.
    fn redundant_with(&self, scope: &Scope, tokens: &[u32]) -> Vec<SequenceId> {
        let Some(tree) = self.scopes.get(scope) else {
            return Vec::new();
        };
        let found = tree.find(tokens);
        let known = found.len == tokens.len();
        match self.needs_snapshots() {
            // Where only kept lengths can be shared, none stands for another.
            true => found
                .on_path()
                .iter()
                .filter(|(len, _)| *len == tokens.len())
                .map(|(_, id)| **id)
                .collect(),
            false if known => found.through().take(1).copied().collect(),
            false => found.on_path().iter().map(|(_, id)| **id).collect(),
        }
    }

    /// Gives back what was used least recently until the rest fits the budget.
    fn shrink(&mut self, session: &mut dyn Session) {
        let Some(most) = self.policy.max_bytes else {
            return;
        };
        while self.held(session).bytes(&session.memory()) > most {
            if !self.evict(session, None) {
                return;
            }
        }
    }

    /// Gives back the sequence that was used least recently, but not `spared`; whether there was
    /// one.
    pub fn evict(&mut self, session: &mut dyn Session, spared: Option<SequenceId>) -> bool {
        let entries = self.entries.iter().filter(|(id, _)| Some(**id) != spared);
        let Some((&id, _)) = entries.min_by_key(|(_, entry)| entry.last_used) else {
            return false;
        };
        self.stats.evictions += 1;
        self.forget(session, id);
        true
    }

    /// Gives everything back.
    pub fn clear(&mut self, session: &mut dyn Session) {
        while let Some((&id, _)) = self.entries.first_key_value() {
            self.forget(session, id);
        }
    }

    fn forget(&mut self, session: &mut dyn Session, id: SequenceId) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        if let Some(tree) = self.scopes.get_mut(&entry.scope) {
            tree.remove(&entry.tokens);
            if tree.is_empty() {
                self.scopes.remove(&entry.scope);
            }
        }
        self.stale = true;
        release(session, id);
    }

    fn held(&self, session: &dyn Session) -> HeldMemory {
        let ids: Vec<SequenceId> = self.entries.keys().copied().collect();
        session.held(&ids).unwrap_or_default()
    }

    pub fn stats(&mut self, session: &dyn Session) -> CacheStats {
        if std::mem::take(&mut self.stale) {
            self.stats.entries = self.entries.len();
            self.stats.bytes = self.held(session).bytes(&session.memory());
        }
        self.stats
    }
}

/// The best length at which a found sequence can be forked.
fn at_snapshots(found: &Found<'_, SequenceId>, session: &dyn Session) -> Option<Hit> {
    let longer = found.through().filter_map(|&source| {
        let len = session.reusable(source, found.len).ok()?;
        Some(Hit { source, len })
    });
    let whole = found
        .on_path()
        .iter()
        .map(|&(len, &source)| Hit { source, len });
    longer.chain(whole).max_by_key(|hit| hit.len)
}

/// Gives a sequence back. There is nothing to do about one that cannot be.
pub(crate) fn release(session: &mut dyn Session, id: SequenceId) {
    if let Err(error) = session.release(id) {
        tracing::error!(%error, "a sequence could not be released");
    }
}
