//! The prefix cache: ended sequences whose KV later prompts reuse.
//!
//! The cache owns its sequences in the session; running sequences get forks. It uses the memory
//! that running sequences leave, within its budget, and evicts the least recently used.

mod radix;

use std::collections::BTreeMap;

use loquat_session::{AdapterId, HeldMemory, PrefixCopy, SequenceId, Session};

use crate::adapters::Scope;
use radix::{Found, Radix};

/// Statistics of the prefix cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Cached sequences.
    pub entries: usize,
    /// Device memory they use; shared memory counts once.
    pub bytes: u64,
    /// Requests that reused a prefix of a cached or running sequence.
    pub hits: u64,
    /// Requests that reused none.
    pub misses: u64,
    /// Tokens reused.
    pub hit_tokens: u64,
    /// Sequences evicted.
    pub evictions: u64,
}

pub(crate) struct PrefixCache {
    policy: Policy,
    scopes: BTreeMap<Scope, Radix<SequenceId>>,
    entries: BTreeMap<SequenceId, Entry>,
    /// Counter for least-recently-used order.
    uses: u64,
    stats: CacheStats,
    /// Entries changed since the bytes were counted.
    stale: bool,
    /// Recorded for the cache on disk, if there is one.
    changes: Option<CacheChanges>,
}

/// Sequences that came and went.
#[derive(Debug, Default)]
pub(crate) struct CacheChanges {
    /// With the length at which prompts may continue them: their own, or that of a shorter one
    /// which they replace.
    pub kept: Vec<(SequenceId, usize)>,
    /// Not those that a longer sequence replaced.
    pub evicted: Vec<SequenceId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    reuse: PrefixCopy,
    /// `None`: no limit.
    max_bytes: Option<u64>,
}

struct Entry {
    tokens: Vec<u32>,
    scope: Scope,
    last_used: u64,
}

/// A cached or running sequence with a common prefix.
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
            changes: None,
        }
    }

    /// Records which sequences come and go from now on.
    pub fn record_changes(&mut self) {
        self.changes = Some(CacheChanges::default());
    }

    pub fn take_changes(&mut self) -> CacheChanges {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// A cached sequence's scope and tokens.
    pub fn entry(&self, id: SequenceId) -> Option<(&Scope, &[u32])> {
        let entry = self.entries.get(&id)?;
        Some((&entry.scope, &entry.tokens))
    }

    pub fn is_on(&self) -> bool {
        self.policy.reuse != PrefixCopy::None && self.policy.max_bytes != Some(0)
    }

    /// Whether the session forks only at snapshots.
    pub fn needs_snapshots(&self) -> bool {
        self.policy.reuse == PrefixCopy::AtSnapshots
    }

    /// The cached sequence with the longest prefix of `tokens`.
    pub fn find(&self, scope: &Scope, tokens: &[u32], session: &dyn Session) -> Option<Hit> {
        let found = self.scopes.get(scope)?.find(tokens);
        let hit = if self.needs_snapshots() {
            at_snapshots(&found, session)
        } else {
            // A prefix may end inside of media that cannot be cut.
            found.through().next().and_then(|source| {
                let len = session.reusable(*source, found.len).ok()?;
                Some(Hit {
                    source: *source,
                    len,
                })
            })
        };
        hit.filter(|hit| hit.len > 0)
    }

    /// Counts a hit or a miss at admission.
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

    /// Takes ownership of a sequence that holds exactly `tokens`.
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
        for known in self.redundant_with(session, (scope, tokens), id) {
            if self.entries[&known].tokens.len() >= tokens.len() {
                self.touch(known);
                self.record_kept(known, tokens.len());
                release(session, id);
                return;
            }
            self.record_kept(id, self.entries[&known].tokens.len());
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
        self.record_kept(id, tokens.len());
        self.stale = true;
        self.shrink(session);
    }

    fn record_kept(&mut self, id: SequenceId, len: usize) {
        if let Some(changes) = &mut self.changes {
            changes.kept.push((id, len));
        }
    }

    /// Entries that are prefixes of `tokens`, which `new` holds, or the one that contains all of it.
    fn redundant_with(
        &self,
        session: &dyn Session,
        (scope, tokens): (&Scope, &[u32]),
        new: SequenceId,
    ) -> Vec<SequenceId> {
        let Some(tree) = self.scopes.get(scope) else {
            return Vec::new();
        };
        let found = tree.find(tokens);
        let is_known = found.len == tokens.len();
        let on_path = found.on_path();
        if self.needs_snapshots() {
            // States may be given up later, so every length counts. Windows stay as they are.
            let keeps_windows = session.memory().state_bytes == 0;
            let can_fork =
                |id: SequenceId, len: usize| keeps_windows && session.reusable(id, len) == Ok(len);
            let mut longer = found.through().copied();
            if is_known && let Some(id) = longer.find(|id| can_fork(*id, tokens.len())) {
                return vec![id];
            }
            let equal = on_path
                .iter()
                .filter(|(len, _)| *len == tokens.len() || can_fork(new, *len));
            equal.map(|(_, id)| **id).collect()
        } else if is_known {
            found.through().take(1).copied().collect()
        } else {
            on_path.iter().map(|(_, id)| **id).collect()
        }
    }

    /// Evicts until the budget fits.
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

    /// Evicts the least recently used sequence except `spared`; returns whether there was one.
    pub fn evict(&mut self, session: &mut dyn Session, spared: Option<SequenceId>) -> bool {
        let entries = self.entries.iter().filter(|(id, _)| Some(**id) != spared);
        let Some((&id, _)) = entries.min_by_key(|(_, entry)| entry.last_used) else {
            return false;
        };
        self.stats.evictions += 1;
        if let Some(changes) = &mut self.changes {
            changes.evicted.push(id);
        }
        self.forget(session, id);
        true
    }

    /// Releases the sequences that have an adapter.
    pub fn forget_adapter(&mut self, session: &mut dyn Session, adapter: AdapterId) {
        let entries = self.entries.iter();
        let adapted = entries.filter(|(_, entry)| entry.scope.has(adapter));
        let ids: Vec<SequenceId> = adapted.map(|(id, _)| *id).collect();
        for id in ids {
            self.forget(session, id);
        }
    }

    /// Releases all sequences.
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

/// The longest snapshot at which a found sequence can be forked.
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

/// Releases a sequence; a failure is only logged.
pub(crate) fn release(session: &mut dyn Session, id: SequenceId) {
    if let Err(error) = session.release(id) {
        tracing::error!(%error, "a sequence could not be released");
    }
}
