//! The encoded media of the engine's session.
//!
//! Every position of a content has a key of its own, which takes the token's place in prefixes: two
//! pictures behind equal placeholders differ, and equal ones are the same. Handles are kept after
//! their last use as long as there is room, so that a picture that is sent again is not encoded
//! again. Room for a content is reserved before it is encoded, so that requests that hold some of
//! their media do not wait for each other.

use std::collections::BTreeMap;

use loquat_kvdisk::{MediaRun, PrefixContent};
use loquat_session::{MediaHandle, Session, SessionError};

use crate::media::{MediaContent, MediaHash};

/// Keys start above every vocabulary.
pub(crate) const FIRST_KEY: u32 = 1 << 31;
/// Contents whose keys are remembered; forgetting one only costs cache hits.
const MAX_ENTRIES: usize = 1 << 16;

/// What is known of contents by their hash.
pub(crate) struct MediaCache {
    entries: BTreeMap<MediaHash, Entry>,
    /// By the key of their first position.
    contents: BTreeMap<u32, MediaHash>,
    next_key: u32,
    /// For least-recently-used order.
    uses: u64,
    /// Contents encoded so far.
    pub encoded: u64,
    /// Positions of all contents with readers.
    reserved: usize,
}

struct Entry {
    first_key: u32,
    positions: usize,
    handle: Option<MediaHandle>,
    /// Spans of running sequences that will read it.
    readers: usize,
    last_used: u64,
}

impl MediaCache {
    pub fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            contents: BTreeMap::new(),
            next_key: FIRST_KEY,
            uses: 0,
            encoded: 0,
            reserved: 0,
        }
    }

    /// The key of the content's first position; the others follow. `None` if all keys have been
    /// given out, after some millions of pictures.
    pub fn first_key(&mut self, content: &MediaContent) -> Option<u32> {
        self.uses += 1;
        let uses = self.uses;
        if let Some(known) = self.entries.get_mut(content.hash()) {
            known.last_used = uses;
            return Some(known.first_key);
        }
        let positions = u32::try_from(content.positions()).ok()?;
        let first_key = self.next_key;
        self.next_key = first_key.checked_add(positions)?;
        if self.entries.len() >= MAX_ENTRIES {
            self.forget_oldest();
        }
        let entry = Entry {
            first_key,
            positions: content.positions(),
            handle: None,
            readers: 0,
            last_used: uses,
        };
        self.entries.insert(*content.hash(), entry);
        self.contents.insert(first_key, *content.hash());
        Some(first_key)
    }

    /// What a prefix shows, up to the first content that is not remembered.
    pub fn content_of(&self, prefix: &[u32]) -> PrefixContent {
        let mut media: Vec<MediaRun> = Vec::new();
        let mut len = 0;
        while let Some(token) = prefix.get(len) {
            if *token < FIRST_KEY {
                len += 1;
                continue;
            }
            let Some((first_key, content)) = self.contents.range(..=token).next_back() else {
                break;
            };
            let positions = self.entries.get(content).map_or(0, |entry| entry.positions);
            let offset = (token - first_key) as usize;
            let rest = prefix[len..].iter().zip(*token..);
            let run = rest.take_while(|(own, key)| own == &key).count();
            let run = run.min(positions.saturating_sub(offset));
            if run == 0 {
                break;
            }
            media.push(MediaRun {
                at: len,
                len: run,
                content: *content,
                offset,
            });
            len += run;
        }
        PrefixContent::new(prefix[..len].to_vec(), media)
    }

    /// Adds a reader, for which `capacity` positions of all media with readers must have room.
    /// Returns the content's handle if it is encoded.
    pub fn hold(
        &mut self,
        content: &MediaContent,
        capacity: usize,
    ) -> Result<Option<MediaHandle>, SessionError> {
        self.first_key(content)
            .ok_or(SessionError::Unsupported("more media"))?;
        let Some(entry) = self.entries.get_mut(content.hash()) else {
            return Ok(None);
        };
        if entry.readers == 0 {
            let (wanted, available) = (entry.positions, capacity.saturating_sub(self.reserved));
            if wanted > available {
                return Err(SessionError::MediaExhausted {
                    wanted,
                    available,
                    capacity,
                });
            }
            self.reserved += wanted;
        }
        entry.readers += 1;
        Ok(entry.handle)
    }

    /// One reader less.
    pub fn release(&mut self, hash: &MediaHash) {
        if let Some(entry) = self.entries.get_mut(hash) {
            entry.readers -= 1;
            if entry.readers == 0 {
                self.reserved -= entry.positions;
            }
        }
    }

    /// Encodes a content that has readers. Media without readers make room for it.
    pub fn encode(
        &mut self,
        session: &mut dyn Session,
        content: &MediaContent,
    ) -> Result<MediaHandle, SessionError> {
        let handle = loop {
            match session.encode(content.media()) {
                Err(SessionError::MediaExhausted { .. }) if self.evict(session) => {}
                encoded => break encoded?,
            }
        };
        self.encoded += 1;
        if handle.positions == content.positions() {
            if let Some(entry) = self.entries.get_mut(content.hash()) {
                entry.handle = Some(handle);
            }
            return Ok(handle);
        }
        session.release_media(handle.id)?;
        Err(SessionError::InvalidMedia {
            field: "positions",
            why: format!(
                "the prompt has {} for it, the model {}",
                content.positions(),
                handle.positions
            ),
        })
    }

    /// Frees the least recently used media without readers; `false` if there is none.
    fn evict(&mut self, session: &mut dyn Session) -> bool {
        let unused = self.entries.values_mut();
        let unused = unused.filter(|entry| entry.readers == 0 && entry.handle.is_some());
        let oldest = unused.min_by_key(|entry| entry.last_used);
        let Some(handle) = oldest.and_then(|entry| entry.handle.take()) else {
            return false;
        };
        free(session, handle);
        true
    }

    /// Frees all media without readers.
    pub fn clear(&mut self, session: &mut dyn Session) {
        while self.evict(session) {}
    }

    fn forget_oldest(&mut self) {
        let unused = self.entries.iter();
        let unused = unused.filter(|(_, entry)| entry.readers == 0 && entry.handle.is_none());
        let oldest = unused.min_by_key(|(_, entry)| entry.last_used);
        if let Some(hash) = oldest.map(|(hash, _)| *hash)
            && let Some(forgotten) = self.entries.remove(&hash)
        {
            self.contents.remove(&forgotten.first_key);
        }
    }
}

fn free(session: &mut dyn Session, handle: MediaHandle) {
    if let Err(error) = session.release_media(handle.id) {
        tracing::error!(%error, "encoded media could not be released");
    }
}
