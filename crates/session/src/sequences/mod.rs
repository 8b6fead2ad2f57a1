//! The sequences of a session, for backends: ids, lengths, forks, truncation, reference counts,
//! snapshots and limits. A backend adds a [`SequenceStorage`] and its arithmetic.
//!
//! A step passes each row through [`Sequences::accept`], computes, and ends it with
//! [`Sequences::commit`] or [`Sequences::roll_back`]. Until then the sequence keeps its length.
//!
//! # Windows
//!
//! Layers that reach equally far back form a [group](crate::KvGroup) with pages of its own. When a
//! row is accepted, the pages that its tokens do not reach are dropped, before it acquires new ones;
//! so a group never holds more than its reach and one row, and the last row can be undone until the
//! next one is accepted. A sequence can be cut where all groups still reach back far enough. A fork
//! refers only to the pages that its next token reaches, and keeps them while its source goes on.
//!
//! # Snapshots
//!
//! Attention over all tokens can be cut at any length. A recurrent state cannot: it exists only where it was
//! saved. A sequence of a recurrent model keeps
//! - the state before its last row, so that the last row can always be undone until the next one
//!   is accepted, and
//! - the states at the latest [`SnapshotPolicy::max`] multiples of [`SnapshotPolicy::interval`].
//!
//! Snapshots are optional memory. None is saved unless every sequence could still acquire a
//! state, and when a row needs a state and none is free, the oldest sequence gives up its oldest
//! snapshot.

mod adapters;
mod delegate;
mod grant;
mod imports;
mod layout;
mod media;
mod pages;
mod ranges;
mod slots;
mod snapshots;
mod storage;
mod tails;
#[cfg(test)]
mod tests;
mod transfers;

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_spec::MediaAttention;

use adapters::AdapterRegistry;
pub use adapters::ExportedAdapter;
pub use grant::{RowGrant, RowStates};
pub use layout::{MediaRules, PlacedView, SequenceLayout, TokenPlace};
use media::MediaRegistry;
pub use pages::PageSpan;
use pages::{HeldPages, PageChange, PageChanges, PagePools, Shortage};
pub use slots::Slot;
use slots::SlotPool;
use snapshots::Snapshot;
pub use snapshots::SnapshotPolicy;
pub use storage::{CopyOnWrite, SequenceStorage};
pub use transfers::{TransferScope, TransferStorage};

use crate::{
    AdapterId, AdapterLimits, AdapterWeights, AppliedAdapter, Capabilities, HeldMemory, KvGroups,
    MediaHandle, MediaId, MediaLayout, Memory, RowOutput, SequenceId, SessionError, StepBatch,
    limits::Limits,
};

/// All sequences of a session.
pub struct Sequences<S: SequenceStorage> {
    storage: S,
    pages: PagePools,
    states: SlotPool,
    snapshots: Option<SnapshotPolicy>,
    alive: BTreeMap<SequenceId, Sequence<S::Sequence>>,
    max_sequences: usize,
    next_id: u64,
    media: MediaRegistry,
    rules: MediaRules,
    adapters: AdapterRegistry,
}

/// What bounds the sequences of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLimits {
    /// Tokens' worth of KV of all sequences.
    pub kv_tokens: usize,
    /// What of it the layers take.
    pub kv_groups: KvGroups,
    /// Tokens of a page.
    pub granularity: usize,
    /// Recurrent states of all sequences, snapshots included.
    pub states: usize,
    /// Sequences that may be alive at once.
    pub max_sequences: usize,
    /// `None` for models without recurrent layers.
    pub snapshots: Option<SnapshotPolicy>,
    /// The default: no media.
    pub media: MediaRules,
    /// The default: none.
    pub adapters: AdapterLimits,
}

impl From<&Limits> for SequenceLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            kv_tokens: limits.kv_tokens,
            kv_groups: limits.sizes.kv_groups,
            granularity: limits.sizes.granularity,
            states: limits.states,
            max_sequences: limits.max_sequences,
            snapshots: (limits.sizes.state_bytes > 0).then_some(SnapshotPolicy::DEFAULT),
            media: MediaRules {
                capacity: limits.sizes.media.positions,
                attention: limits.sizes.media.attention,
            },
            adapters: limits.sizes.adapters,
        }
    }
}

struct Sequence<T> {
    len: usize,
    /// By group.
    pages: Vec<HeldPages>,
    /// After the last token; `None` before the first, and without recurrent layers.
    state: Option<Slot>,
    /// Ascending.
    snapshots: Vec<Snapshot>,
    layout: SequenceLayout,
    /// As [`Session::create_adapted`](crate::Session::create_adapted) normalizes them.
    adapters: Arc<[AppliedAdapter]>,
    /// Bytes of its tail that are imported, if it consists of ranges and lacks the rest.
    partial_tail: Option<usize>,
    stored: T,
}

/// What an exported sequence is, besides the backend's bytes.
#[derive(Debug, Clone, Default)]
pub struct SequenceHeader {
    /// Tokens.
    pub len: usize,
    /// Its media.
    pub layout: SequenceLayout,
    /// Its adapters.
    pub adapters: Vec<ExportedAdapter>,
}

impl<T> Sequence<T> {
    /// The recurrent state at a length that can be cut; `None` at 0 and without recurrent layers.
    fn state_at(&self, len: usize) -> Option<Slot> {
        if len == 0 || len == self.len {
            return self.state.filter(|_| len > 0);
        }
        let at = self
            .snapshots
            .partition_point(|snapshot| snapshot.len < len);
        self.snapshots.get(at).map(|snapshot| snapshot.state)
    }

    fn states(&self) -> impl Iterator<Item = Slot> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.state);
        self.state.into_iter().chain(snapshots)
    }
}

impl<S: SequenceStorage> Sequences<S> {
    /// No sequences yet, over the backend's storage.
    pub fn new(storage: S, limits: SequenceLimits) -> Self {
        Self {
            storage,
            pages: PagePools::new(limits.kv_groups, limits.granularity, limits.kv_tokens),
            states: SlotPool::new(limits.states),
            snapshots: limits.snapshots,
            alive: BTreeMap::new(),
            max_sequences: limits.max_sequences,
            next_id: 0,
            media: MediaRegistry::new(limits.media.capacity),
            rules: limits.media,
            adapters: AdapterRegistry::new(limits.adapters),
        }
    }

    /// The backend's storage.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The backend's storage, to write to.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// How many sequences are alive.
    pub fn count(&self) -> usize {
        self.alive.len()
    }

    /// The planned memory with what is in use now.
    pub fn memory(&self, planned: Memory) -> Memory {
        Memory {
            kv_capacity: self.pages.capacity(),
            kv_in_use: self.pages.in_use(),
            states_in_use: self.states.in_use(),
            media_in_use: self.media.in_use(),
            adapter_bytes: self.adapters.bytes(),
            adapters_loaded: self.adapters.count(),
            ..planned
        }
    }

    /// Tokens' worth of pages that no sequence refers to.
    pub fn available_tokens(&self) -> usize {
        self.pages.available()
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence<S::Sequence>, SessionError> {
        let sequence = self.alive.get(&id);
        sequence.ok_or(SessionError::UnknownSequence(id))
    }

    /// A sequence that does not lack its tail.
    fn get_complete(&self, id: SequenceId) -> Result<&Sequence<S::Sequence>, SessionError> {
        let sequence = self.get(id)?;
        if sequence.partial_tail.is_some() {
            return Err(SessionError::MissingTail(id));
        }
        Ok(sequence)
    }

    /// [`Session::len`](crate::Session::len).
    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        Ok(self.get(id)?.len)
    }

    /// Tokens of a page.
    pub fn granularity(&self) -> usize {
        self.pages.granularity()
    }

    /// The pages of a group of [`SequenceLimits::kv_groups`].
    pub fn pages(&self, id: SequenceId, group: usize) -> Result<PageSpan<'_>, SessionError> {
        let held = &self.get(id)?.pages[group];
        Ok(PageSpan {
            first: held.first,
            slots: &held.slots,
        })
    }

    /// The recurrent state after the last token.
    pub fn state(&self, id: SequenceId) -> Result<Option<Slot>, SessionError> {
        Ok(self.get(id)?.state)
    }

    /// The media of the sequence.
    pub fn layout(&self, id: SequenceId) -> Result<&SequenceLayout, SessionError> {
        Ok(&self.get(id)?.layout)
    }

    /// The places of an accepted row's positions. `None` if they are those of text: each rotates
    /// by its number and sees up to itself.
    pub fn places(&self, grant: &RowGrant) -> Option<Vec<TokenPlace>> {
        let sequence = self.alive.get(&grant.sequence)?;
        let positions = (grant.start, grant.start + grant.tokens);
        let attention = self.rules.attention;
        sequence.layout.places(positions, &grant.views, attention)
    }

    /// Registers encoded media with one reference. The backend stores the features under the
    /// handle's id, and drops them in [`SequenceStorage::free_media`].
    pub fn add_media(&mut self, layout: MediaLayout) -> Result<MediaHandle, SessionError> {
        self.media.add(layout)
    }

    /// The layout of encoded media.
    pub fn media_layout(&self, id: MediaId) -> Result<&MediaLayout, SessionError> {
        self.media.layout(id)
    }

    /// [`Session::retain_media`](crate::Session::retain_media).
    pub fn retain_media(&mut self, id: MediaId) -> Result<(), SessionError> {
        self.media.retain(id)
    }

    /// [`Session::release_media`](crate::Session::release_media).
    pub fn release_media(&mut self, id: MediaId) -> Result<(), SessionError> {
        if self.media.release(id)? {
            self.storage.free_media(id);
        }
        Ok(())
    }

    /// Whether an adapter of this size could be loaded; for backends, before they copy it.
    pub fn check_adapter(&self, rank: usize, bytes: u64) -> Result<(), SessionError> {
        self.adapters.check(rank, bytes)
    }

    /// Registers an adapter of `bytes` on the device. The backend stores its weights under the id.
    pub fn add_adapter(
        &mut self,
        weights: &AdapterWeights,
        bytes: u64,
    ) -> Result<AdapterId, SessionError> {
        self.adapters.add(weights, bytes)
    }

    /// [`Session::unload_adapter`](crate::Session::unload_adapter). The backend then frees the
    /// weights.
    pub fn remove_adapter(&mut self, id: AdapterId) -> Result<(), SessionError> {
        let has = |sequence: &&Sequence<_>| sequence.adapters.iter().any(|own| own.id == id);
        let sequences = self.alive.values().filter(has).count();
        if sequences > 0 {
            return Err(SessionError::AdapterInUse { id, sequences });
        }
        self.adapters.remove(id)
    }

    /// The sequence's adapters: each once, none of scale 0, in the order of their ids.
    pub fn adapters(&self, id: SequenceId) -> Result<&Arc<[AppliedAdapter]>, SessionError> {
        Ok(&self.get(id)?.adapters)
    }

    /// What an export records besides the backend's bytes.
    pub fn header(&self, id: SequenceId) -> Result<SequenceHeader, SessionError> {
        let sequence = self.get_complete(id)?;
        Ok(SequenceHeader {
            len: sequence.len,
            layout: sequence.layout.clone(),
            adapters: self.adapters.exported(&sequence.adapters),
        })
    }

    /// What the backend stores for the sequence.
    pub fn stored(&self, id: SequenceId) -> Result<&S::Sequence, SessionError> {
        Ok(&self.get(id)?.stored)
    }

    /// The storage and what it keeps for each sequence, with the sequence's states.
    pub fn storage_and_sequences(
        &mut self,
    ) -> (
        &mut S,
        impl Iterator<Item = (SequenceId, &mut S::Sequence, impl Iterator<Item = Slot>)>,
    ) {
        let sequences = self.alive.iter_mut().map(|(id, sequence)| {
            let snapshots = sequence.snapshots.iter().map(|snapshot| snapshot.state);
            let states = sequence.state.into_iter().chain(snapshots);
            (*id, &mut sequence.stored, states)
        });
        (&mut self.storage, sequences)
    }

    /// The storage and what it keeps for one sequence.
    pub fn stored_mut(&mut self, id: SequenceId) -> Option<(&mut S, &mut S::Sequence)> {
        let sequence = self.alive.get_mut(&id)?;
        Some((&mut self.storage, &mut sequence.stored))
    }

    /// [`Session::held`](crate::Session::held).
    pub fn held(&self, ids: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        let sequences = ids.iter().map(|id| self.get(*id));
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        let pages = |group: usize| {
            let pages = sequences.iter().flat_map(|held| &held.pages[group].slots);
            self.pages.pool(group).distinct(pages.copied())
        };
        let states = sequences.iter().flat_map(|held| held.states());
        Ok(HeldMemory {
            kv_tokens: self.pages.worth(pages),
            states: self.states.distinct(states),
        })
    }

    /// The longest length up to `at_most` at which the sequence can be forked or truncated.
    pub fn reusable(&self, id: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        let sequence = self.get(id)?;
        if sequence.partial_tail.is_some() {
            return Ok(0);
        }
        let mut len = at_most.min(sequence.len);
        loop {
            let snapshot = if len == sequence.len || self.snapshots.is_none() {
                len
            } else {
                let lengths = sequence.snapshots.iter().map(|snapshot| snapshot.len);
                lengths.filter(|at| *at <= len).max().unwrap_or(0)
            };
            let cut = sequence.layout.cut(snapshot, self.rules.attention);
            // Windows move with the tokens: what one length lacks, shorter ones lack too.
            let cut = if self.reach_back(sequence, cut) {
                cut
            } else {
                0
            };
            if cut == len {
                return Ok(len);
            }
            len = cut;
        }
    }

    /// Whether the sequence still has all that tokens from `len` on attend to.
    fn reach_back(&self, sequence: &Sequence<S::Sequence>, len: usize) -> bool {
        let granularity = self.pages.granularity();
        let mut groups = sequence.pages.iter().zip(self.pages.groups().iter());
        groups.all(|(held, group)| held.reach_back(group, len, granularity))
    }

    /// [`Session::create_adapted`](crate::Session::create_adapted).
    pub fn create(&mut self, adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError> {
        let adapters = self.adapters.normalized(adapters)?;
        self.check_count()?;
        Ok(self.insert(Sequence {
            adapters: adapters.into(),
            len: 0,
            pages: vec![HeldPages::default(); self.pages.groups().count()],
            state: None,
            snapshots: Vec::new(),
            layout: SequenceLayout::default(),
            partial_tail: None,
            stored: S::Sequence::default(),
        }))
    }

    /// [`Session::fork`](crate::Session::fork).
    pub fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        self.check_reusable(source, len)?;
        self.check_count()?;
        let fork = self.share(source, len)?;
        Ok(self.insert(fork))
    }

    /// [`Session::truncate`](crate::Session::truncate).
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        self.check_reusable(id, len)?;
        let shortened = self.share(id, len)?;
        if let Some(before) = self.alive.insert(id, shortened) {
            self.drop_sequence(before);
        }
        Ok(())
    }

    /// [`Session::release`](crate::Session::release).
    pub fn release(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.alive.remove(&id);
        self.drop_sequence(sequence.ok_or(SessionError::UnknownSequence(id))?);
        Ok(())
    }

    /// Checks a row of a batch and reserves what it needs. Rows accepted before it bring
    /// `planned` tokens. A refused row changes nothing.
    pub fn accept(
        &mut self,
        batch: &StepBatch,
        index: usize,
        planned: usize,
        capabilities: &Capabilities,
    ) -> Result<RowGrant, SessionError> {
        let row = &batch.rows()[index];
        let len = self.len(row.sequence)?;
        batch.check(index, len, planned, capabilities)?;
        let views = self.place_media(batch, index, len)?;
        let grant = self.grant(row.sequence, batch.tokens(row).len(), self.snapshots)?;
        Ok(RowGrant { views, ..grant })
    }

    /// Checks the row's media spans, and returns the views they add to the sequence's layout.
    fn place_media(
        &self,
        batch: &StepBatch,
        index: usize,
        len: usize,
    ) -> Result<Vec<PlacedView>, SessionError> {
        let row = &batch.rows()[index];
        let mut views = Vec::new();
        for span in batch.media(row) {
            let layout = self.media.layout(span.id)?;
            let sequence = &self.get(row.sequence)?.layout;
            sequence.place(&mut views, len + span.at, layout, span.range.clone())?;
        }
        Ok(views)
    }

    /// A row of one more token that fits into the sequence's own pages, frees none, and costs no
    /// snapshot: for rows that no caller has requested yet. `None` if there is no such row.
    pub fn grant_spare(&mut self, id: SequenceId) -> Option<RowGrant> {
        let changes = self.page_changes(self.alive.get(&id)?, 1);
        let states_run_out = self.snapshots.is_some() && self.states.available() == 0;
        let changes_pages = |change: &PageChange| change.acquired > 0 || change.dropped > 0;
        if changes.iter().any(changes_pages) || states_run_out {
            return None;
        }
        self.grant(id, 1, None).ok()
    }

    /// Ends a row: [commits](Self::commit) it unless its output is an error.
    pub fn settle(&mut self, grant: RowGrant, output: &RowOutput) {
        if output.error.is_none() {
            self.commit(grant);
        } else {
            self.roll_back(grant);
        }
    }

    /// Appends a row's tokens and keeps its states.
    pub fn commit(&mut self, grant: RowGrant) {
        let Some(sequence) = self.alive.get_mut(&grant.sequence) else {
            return self.roll_back(grant);
        };
        let start = std::mem::replace(&mut sequence.len, grant.start + grant.tokens);
        sequence.layout.views.extend(grant.views);
        if start == 0 && self.rules.attention == MediaAttention::FirstRow {
            sequence.layout.prefix = grant.tokens;
        }
        let (Some(row), Some(policy)) = (grant.states, self.snapshots) else {
            return;
        };
        let kept = &mut sequence.snapshots;
        let passed = |snapshot: &mut Snapshot| !policy.is_regular(*snapshot);
        let mut dropped: Vec<Snapshot> = kept.extract_if(.., passed).collect();
        kept.extend(row.snapshots);
        let surplus = kept.len().saturating_sub(policy.max);
        dropped.extend(kept.drain(..surplus));
        if let Some(state) = sequence.state.replace(row.after) {
            let at = kept.partition_point(|snapshot| snapshot.len < start);
            kept.insert(at, Snapshot { len: start, state });
        }
        for snapshot in dropped {
            self.drop_state(snapshot.state);
        }
    }

    /// Frees what a row reserved. Its sequence keeps its tokens.
    pub fn roll_back(&mut self, grant: RowGrant) {
        for state in grant.states.iter().flat_map(RowStates::written) {
            self.drop_state(state);
        }
        if S::COPY_ON_WRITE == CopyOnWrite::Page
            && let Some(sequence) = self.alive.get_mut(&grant.sequence)
        {
            let used = sequence.len.div_ceil(self.pages.granularity());
            for (group, held) in sequence.pages.iter_mut().enumerate() {
                let kept = used.saturating_sub(held.first).min(held.slots.len());
                let pool = self.pages.pool_mut(group);
                for page in held.slots.drain(kept..) {
                    drop_page(&mut self.storage, pool, group, page);
                }
            }
        }
    }

    fn check_count(&self) -> Result<(), SessionError> {
        let max = self.max_sequences;
        if self.alive.len() >= max {
            return Err(SessionError::TooManySequences { max });
        }
        Ok(())
    }

    fn check_reusable(&self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        let available = self.get(id)?.len;
        if len > available {
            return Err(SessionError::LengthOutOfRange { len, available });
        }
        let reusable = self.reusable(id, len)?;
        if reusable != len {
            return Err(SessionError::NoSnapshot { len, reusable });
        }
        Ok(())
    }

    /// The sequence as it was after `len` tokens, with references of its own.
    fn share(&mut self, id: SequenceId, len: usize) -> Result<Sequence<S::Sequence>, SessionError> {
        let source = self.alive.get(&id);
        let source = source.ok_or(SessionError::UnknownSequence(id))?;
        let groups = self.pages.groups().iter();
        let pages = source.pages.iter().zip(groups).map(|(held, group)| {
            if S::COPY_ON_WRITE == CopyOnWrite::Sequence && len > 0 {
                held.clone()
            } else {
                held.of_prefix(group, len, self.pages.granularity())
            }
        });
        let earlier = source.snapshots.partition_point(|s| s.len < len);
        let earlier = &source.snapshots[..earlier];
        let shared = Sequence {
            len,
            pages: pages.collect(),
            state: source.state_at(len),
            snapshots: earlier.to_vec(),
            layout: source.layout.prefix_of(len),
            adapters: Arc::clone(&source.adapters),
            // Such a sequence is shared only at length 0.
            partial_tail: None,
            stored: self.storage.share(&source.stored, len),
        };
        for (group, held) in shared.pages.iter().enumerate() {
            let pool = self.pages.pool_mut(group);
            held.slots.iter().for_each(|page| pool.retain(*page));
        }
        for state in shared.states() {
            self.states.retain(state);
        }
        Ok(shared)
    }

    fn insert(&mut self, sequence: Sequence<S::Sequence>) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.alive.insert(id, sequence);
        id
    }

    fn drop_sequence(&mut self, sequence: Sequence<S::Sequence>) {
        for state in sequence.states() {
            self.drop_state(state);
        }
        for (group, held) in sequence.pages.into_iter().enumerate() {
            let pool = self.pages.pool_mut(group);
            for page in held.slots {
                drop_page(&mut self.storage, pool, group, page);
            }
        }
        self.storage.release(sequence.stored);
    }

    fn drop_state(&mut self, state: Slot) {
        if self.states.release(state) {
            self.storage.free_state(state);
        }
    }

    /// Reserves pages and states for `tokens` more. All checks come first, so that a refused row
    /// changes nothing.
    fn grant(
        &mut self,
        id: SequenceId,
        tokens: usize,
        policy: Option<SnapshotPolicy>,
    ) -> Result<RowGrant, SessionError> {
        let sequence = self.get_complete(id)?;
        let (start, before) = (sequence.len, sequence.state);
        let changes = self.page_changes(sequence, tokens);
        self.check_pages(&changes)?;
        let states = match self.snapshots {
            Some(_) => Some(RowStates {
                before,
                after: self.acquire_state()?,
                snapshots: self.acquire_snapshots(policy, start, tokens),
            }),
            None => None,
        };
        Ok(RowGrant {
            states,
            ..self.grant_checked((id, start), tokens, &changes)
        })
    }

    /// Reserves the pages for `tokens` more, and no states.
    fn grant_pages(&mut self, id: SequenceId, tokens: usize) -> Result<RowGrant, SessionError> {
        let sequence = self.get(id)?;
        let start = sequence.len;
        let changes = self.page_changes(sequence, tokens);
        self.check_pages(&changes)?;
        Ok(self.grant_checked((id, start), tokens, &changes))
    }

    /// Makes a change for which there are pages.
    fn grant_checked(
        &mut self,
        (id, start): (SequenceId, usize),
        tokens: usize,
        changes: &PageChanges,
    ) -> RowGrant {
        RowGrant {
            sequence: id,
            start,
            tokens,
            capacity: self.change_pages(id, changes) * self.pages.granularity(),
            states: None,
            views: Vec::new(),
        }
    }

    fn page_changes(&self, sequence: &Sequence<S::Sequence>, tokens: usize) -> PageChanges {
        let granularity = self.pages.granularity();
        let end = (sequence.len + tokens).div_ceil(granularity);
        let whole_arrays = S::COPY_ON_WRITE == CopyOnWrite::Sequence;
        let mut changes = PageChanges::default();
        for (index, group) in self.pages.groups().iter().enumerate() {
            let of_group = (group, self.pages.pool(index));
            let lengths = (sequence.len, end);
            let held = &sequence.pages[index];
            changes[index] = held.change(of_group, lengths, granularity, whole_arrays);
        }
        changes
    }

    fn check_pages(&mut self, changes: &PageChanges) -> Result<(), SessionError> {
        let exhausted =
            |Shortage { wanted, available }| SessionError::KvExhausted { wanted, available };
        self.pages.check(changes).map_err(exhausted)?;
        for group in 0..self.pages.groups().count() {
            let change = &changes[group];
            if change.acquired == 0 {
                continue;
            }
            let needed = self.pages.len_after(group, change);
            let missing = needed - self.storage.allocate_pages(group, needed).min(needed);
            if missing > 0 {
                let acquired = |of: usize| changes[of].acquired;
                let lacking = |of: usize| if of == group { missing } else { 0 };
                let without = |of: usize| acquired(of).saturating_sub(lacking(of));
                return Err(exhausted(Shortage {
                    wanted: self.pages.worth(acquired),
                    available: self.pages.worth(without),
                }));
            }
        }
        Ok(())
    }

    /// Makes a change for which there are pages, and returns how many the first group then has,
    /// freed ones included.
    fn change_pages(&mut self, id: SequenceId, changes: &PageChanges) -> usize {
        let Some(sequence) = self.alive.get_mut(&id) else {
            return 0;
        };
        for (group, held) in sequence.pages.iter_mut().enumerate() {
            let change = &changes[group];
            let pool = self.pages.pool_mut(group);
            let kept = change.dropped + change.kept;
            for page in held.slots.drain(kept..) {
                drop_page(&mut self.storage, pool, group, page);
            }
            for page in held.slots.drain(..change.dropped) {
                drop_page(&mut self.storage, pool, group, page);
            }
            held.first += change.dropped;
            for _ in 0..change.acquired {
                let Some(page) = pool.acquire() else { break };
                self.storage.acquire_page(group, page);
                held.slots.push(page);
            }
            if let Some(from) = change.copied {
                self.storage.copy_page(group, from, held.slots[change.kept]);
            }
        }
        sequence.pages.first().map_or(0, HeldPages::end)
    }

    /// A state for a row, for which snapshots are given up.
    fn acquire_state(&mut self) -> Result<Slot, SessionError> {
        while self.states.available() == 0 && self.drop_oldest_snapshot() {}
        let max = self.states.capacity();
        let state = self.states.acquire();
        let state = state.ok_or(SessionError::StatesExhausted { max })?;
        self.storage.allocate_state(state);
        Ok(state)
    }

    fn acquire_snapshots(
        &mut self,
        policy: Option<SnapshotPolicy>,
        start: usize,
        tokens: usize,
    ) -> Vec<Snapshot> {
        let mut snapshots = Vec::new();
        let lengths = policy.map(|policy| policy.lengths(start, start + tokens));
        for len in lengths.into_iter().flatten() {
            if self.states.available() <= self.alive.len() {
                break;
            }
            if let Some(state) = self.states.acquire() {
                self.storage.allocate_state(state);
                snapshots.push(Snapshot { len, state });
            }
        }
        snapshots
    }

    /// Frees the snapshot's state unless another sequence refers to it.
    fn drop_oldest_snapshot(&mut self) -> bool {
        let mut sequences = self.alive.values_mut();
        let Some(holder) = sequences.find(|sequence| !sequence.snapshots.is_empty()) else {
            return false;
        };
        let oldest = holder.snapshots.remove(0);
        self.drop_state(oldest.state);
        true
    }
}

/// Drops a sequence's reference to a page.
fn drop_page<S: SequenceStorage>(storage: &mut S, pool: &mut SlotPool, group: usize, page: Slot) {
    if pool.release(page) {
        storage.free_page(group, page);
    }
}
