//! When media are encoded.
//!
//! A tower runs on the thread of the session, so that streams wait for it. Media are therefore
//! encoded one at a time, between steps, and as far apart as the bound on slowing streams down wants.
//! A request starts before its media are encoded: the text before them is computed meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_session::{MediaHandle, SessionError};

use crate::media_cache::MediaCache;
use crate::prefix_cache::Hit;
use crate::queue::QueueCandidate;
use crate::running::{HeldMedia, Running};
use crate::sequence::{Sequence, SequenceEnd};
use crate::worker::Worker;
use crate::{EngineError, MediaContent};

/// The longest time between two encodings for the sake of streams.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Worker {
    /// Replaces the tokens at positions of media by keys of their content.
    pub(super) fn key_media(&mut self, sequence: &mut Sequence) {
        let Sequence { tokens, media, .. } = sequence;
        let mut all = true;
        for span in media.iter() {
            let Some(first) = self.media.first_key(&span.content) else {
                all = false;
                continue;
            };
            let keys = (first + span.range.start as u32)..;
            for (token, key) in tokens[span.at..span.end()].iter_mut().zip(keys) {
                *token = key;
            }
        }
        if !all {
            let error = SessionError::Unsupported("more media");
            sequence.end(SequenceEnd::Failed(error.into()));
        }
    }

    /// Reserves room for the media of a waiting request that the prefix does not cover; an error if
    /// there is none now.
    pub(super) fn hold_media(
        &mut self,
        turn: QueueCandidate,
        hit: Option<Hit>,
    ) -> Result<Vec<HeldMedia>, SessionError> {
        let cached = hit.map_or(0, |hit| hit.len);
        let spans = &self.queue.get(turn.index).media;
        let mut held: Vec<HeldMedia> = Vec::new();
        for span in spans.iter().filter(|span| span.end() > cached) {
            match self.media.hold(&span.content, self.limits.media_capacity) {
                Ok(handle) => held.push(HeldMedia {
                    handle,
                    span: span.clone(),
                }),
                Err(error) => {
                    for held in &held {
                        self.media.release(held.span.content.hash());
                    }
                    return Err(error);
                }
            }
        }
        Ok(held)
    }

    /// Gives up the media that a sequence has computed, or all of them.
    pub(super) fn release_media(media: &mut MediaCache, running: &mut Running, all: bool) {
        let computed = running.computed;
        let read = |held: &mut HeldMedia| all || held.span.end() <= computed;
        for held in running.media.extract_if(.., read) {
            media.release(held.span.content.hash());
        }
    }

    /// Encodes one of the media that running sequences wait for, unless streams are due first.
    /// Returns whether it did.
    pub(super) fn encode_next(&mut self, now: Instant) -> Result<bool, EngineError> {
        let waits = |(at, running): (usize, &Running)| match running.unencoded() {
            Some(span) if running.paused.is_none() => Some((at, Arc::clone(&span.content))),
            _ => None,
        };
        let Some((at, content)) = self.running.iter().enumerate().find_map(waits) else {
            return Ok(false);
        };
        if self.encode_after.is_some_and(|after| now < after) && self.has_streams() {
            return Ok(false);
        }
        let watched = self.shared.thread.step();
        let encoded = self.media.encode(&mut *self.session, &content);
        drop(watched);
        if self.shared.thread.is_abandoned() {
            return Err(self.shared.end_reason());
        }
        let ended = self.time.now();
        self.encode_after = ended.checked_add(self.pause_after(ended - now));
        let delivered = match encoded {
            Ok(handle) => self.deliver(&content, handle),
            Err(error) => {
                let sequence = &mut self.running[at].sequence;
                sequence.end(SequenceEnd::Failed(error.into()));
                false
            }
        };
        if !delivered {
            let failed = self.retire();
            self.conclude(failed, ended);
        }
        Ok(true)
    }

    fn has_streams(&self) -> bool {
        let is_stream = |running: &Running| running.paused.is_none() && running.is_generating();
        self.running.iter().any(is_stream)
    }

    /// How long streams run alone after an encoding that took them this long.
    fn pause_after(&self, encoding: Duration) -> Duration {
        let share = f64::from(self.options.max_slowdown) - 1.0;
        let pause = Duration::try_from_secs_f64(encoding.as_secs_f64() / share);
        pause.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }

    /// Gives new media to all sequences that wait for them. Those with spans that no step has room
    /// for fail; returns whether there were none.
    fn deliver(&mut self, content: &MediaContent, handle: MediaHandle) -> bool {
        let most = self.limits.step_tokens;
        let mut all = true;
        for running in &mut self.running {
            let waiting = running.media.iter_mut();
            for held in waiting.filter(|held| held.span.content.hash() == content.hash()) {
                held.handle = Some(handle);
                let len = held.span.range.len();
                if !handle.divisible && len > most {
                    all = false;
                    let error = SessionError::StepTooLarge {
                        tokens: len,
                        max: most,
                    };
                    running.sequence.end(SequenceEnd::Failed(error.into()));
                }
            }
        }
        all
    }
}
