//! The adapters of a session: which are loaded, and how much memory they hold.

use std::collections::BTreeMap;

use crate::{AdapterId, AdapterLimits, AppliedAdapter, SessionError};

/// Sizes and fingerprints. The weights are in the backend's storage.
pub(super) struct AdapterRegistry {
    limits: AdapterLimits,
    bytes: u64,
    entries: BTreeMap<AdapterId, Entry>,
    next_id: u64,
}

struct Entry {
    bytes: u64,
    fingerprint: u64,
    /// Whole weights that it replaces.
    replaced: Vec<loquat_spec::Role>,
}

/// An adapter of an exported sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExportedAdapter {
    /// Of the adapter's content.
    pub fingerprint: u64,
    /// As applied.
    pub scale: f32,
}

impl AdapterRegistry {
    pub fn new(limits: AdapterLimits) -> Self {
        Self {
            limits,
            bytes: 0,
            entries: BTreeMap::new(),
            next_id: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is room for another.
    pub fn check(&self, rank: usize, bytes: u64) -> Result<(), SessionError> {
        let AdapterLimits {
            count,
            bytes: capacity,
            rank: max_rank,
        } = self.limits;
        if count == 0 {
            return Err(SessionError::Unsupported("adapters"));
        }
        if rank > max_rank {
            return Err(SessionError::AdapterRank {
                rank,
                max: max_rank,
            });
        }
        if self.entries.len() >= count {
            return Err(SessionError::TooManyAdapters { max: count });
        }
        let available = capacity.saturating_sub(self.bytes);
        if bytes > available {
            return Err(SessionError::AdapterMemory {
                wanted: bytes,
                available,
                capacity,
            });
        }
        Ok(())
    }

    pub fn add(
        &mut self,
        weights: &loquat_weights::AdapterWeights,
        bytes: u64,
    ) -> Result<AdapterId, SessionError> {
        self.check(weights.rank(), bytes)?;
        let id = AdapterId(self.next_id);
        self.next_id += 1;
        self.bytes += bytes;
        let entry = Entry {
            bytes,
            fingerprint: weights.fingerprint(),
            replaced: weights.replaced().roles().collect(),
        };
        self.entries.insert(id, entry);
        Ok(id)
    }

    pub fn remove(&mut self, id: AdapterId) -> Result<(), SessionError> {
        let entry = self.entries.remove(&id);
        self.bytes -= entry.ok_or(SessionError::UnknownAdapter(id))?.bytes;
        Ok(())
    }

    pub fn contains(&self, id: AdapterId) -> bool {
        self.entries.contains_key(&id)
    }

    /// The adapters that have an effect, in the order of their ids, so that equal sets compute
    /// equal bits.
    pub fn normalized(
        &self,
        applied: &[AppliedAdapter],
    ) -> Result<Vec<AppliedAdapter>, SessionError> {
        let mut normalized: Vec<AppliedAdapter> = Vec::with_capacity(applied.len());
        for adapter in applied {
            if !self.contains(adapter.id) {
                return Err(SessionError::UnknownAdapter(adapter.id));
            }
            if !adapter.scale.is_finite() {
                return Err(SessionError::AdapterScale {
                    id: adapter.id,
                    why: "it must be a finite number",
                });
            }
            if normalized.iter().any(|other| other.id == adapter.id) {
                return Err(SessionError::AdapterScale {
                    id: adapter.id,
                    why: "the adapter is listed twice; list it once with the sum of the scales",
                });
            }
            normalized.push(*adapter);
        }
        normalized.retain(|adapter| adapter.scale != 0.0);
        normalized.sort_by_key(|adapter| adapter.id);
        if normalized.len() > AdapterLimits::PER_SEQUENCE {
            return Err(SessionError::TooManyApplied {
                found: normalized.len(),
                max: AdapterLimits::PER_SEQUENCE,
            });
        }
        self.check_conflicts(&normalized)?;
        Ok(normalized)
    }

    /// Two adapters cannot both replace a weight.
    fn check_conflicts(&self, applied: &[AppliedAdapter]) -> Result<(), SessionError> {
        for (index, adapter) in applied.iter().enumerate() {
            for other in &applied[..index] {
                let (own, others) = (&self.entries[&adapter.id], &self.entries[&other.id]);
                let shared = own
                    .replaced
                    .iter()
                    .find(|role| others.replaced.contains(role));
                if let Some(role) = shared {
                    return Err(SessionError::AdapterConflict {
                        first: other.id,
                        second: adapter.id,
                        role: *role,
                    });
                }
            }
        }
        Ok(())
    }

    pub fn exported(&self, applied: &[AppliedAdapter]) -> Vec<ExportedAdapter> {
        let applied = applied.iter().filter_map(|adapter| {
            Some(ExportedAdapter {
                fingerprint: self.entries.get(&adapter.id)?.fingerprint,
                scale: adapter.scale,
            })
        });
        applied.collect()
    }

    /// The loaded adapters that an exported sequence has.
    pub fn imported(
        &self,
        exported: &[ExportedAdapter],
    ) -> Result<Vec<AppliedAdapter>, SessionError> {
        let find = |adapter: &ExportedAdapter| {
            let mut loaded = self.entries.iter();
            let found = loaded.find(|(_, entry)| entry.fingerprint == adapter.fingerprint);
            let (id, _) = found.ok_or_else(|| {
                SessionError::BadImport("its adapter is not loaded in this session".to_owned())
            })?;
            Ok(AppliedAdapter {
                id: *id,
                scale: adapter.scale,
            })
        };
        let applied = exported.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        self.normalized(&applied)
    }
}
