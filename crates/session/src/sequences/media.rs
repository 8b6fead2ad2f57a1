//! The encoded media of a session: references, layouts, and how much memory they hold.

use std::collections::BTreeMap;

use crate::{MediaHandle, MediaId, MediaLayout, SessionError};

/// Layouts and reference counts. The features are in the backend's storage.
pub(super) struct MediaRegistry {
    /// In positions.
    capacity: usize,
    in_use: usize,
    entries: BTreeMap<MediaId, Entry>,
    next_id: u64,
}

struct Entry {
    layout: MediaLayout,
    references: usize,
}

impl MediaRegistry {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            in_use: 0,
            entries: BTreeMap::new(),
            next_id: 0,
        }
    }

    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// With one reference.
    pub fn add(&mut self, layout: MediaLayout) -> Result<MediaHandle, SessionError> {
        let (wanted, available) = (layout.positions(), self.capacity - self.in_use);
        if wanted > available {
            return Err(SessionError::MediaExhausted {
                wanted,
                available,
                capacity: self.capacity,
            });
        }
        let handle = MediaHandle {
            id: MediaId(self.next_id),
            positions: wanted,
            divisible: layout.divisible,
        };
        self.next_id += 1;
        self.in_use += wanted;
        let references = 1;
        self.entries.insert(handle.id, Entry { layout, references });
        Ok(handle)
    }

    pub fn layout(&self, id: MediaId) -> Result<&MediaLayout, SessionError> {
        let entry = self.entries.get(&id);
        entry
            .map(|entry| &entry.layout)
            .ok_or(SessionError::UnknownMedia(id))
    }

    pub fn retain(&mut self, id: MediaId) -> Result<(), SessionError> {
        let entry = self.entries.get_mut(&id);
        entry.ok_or(SessionError::UnknownMedia(id))?.references += 1;
        Ok(())
    }

    /// Whether it was the last reference.
    pub fn release(&mut self, id: MediaId) -> Result<bool, SessionError> {
        let entry = self.entries.get_mut(&id);
        let entry = entry.ok_or(SessionError::UnknownMedia(id))?;
        entry.references -= 1;
        let last = entry.references == 0;
        if last && let Some(entry) = self.entries.remove(&id) {
            self.in_use -= entry.layout.positions();
        }
        Ok(last)
    }
}
