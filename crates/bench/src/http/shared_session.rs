//! One session shared by the server's engine and the bare loop, which take turns.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, HeldMemory, Media, MediaHandle,
    MediaId, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

/// A handle to the session; its users lock it for each call.
#[derive(Clone)]
pub struct SharedSession {
    session: Arc<Mutex<Box<dyn Session>>>,
    capabilities: Arc<Capabilities>,
}

impl SharedSession {
    pub fn new(session: Box<dyn Session>) -> Self {
        Self {
            capabilities: Arc::new(session.capabilities().clone()),
            session: Arc::new(Mutex::new(session)),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Box<dyn Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session for SharedSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.lock().memory()
    }

    fn load_adapter(&mut self, adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        self.lock().load_adapter(adapter)
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.lock().unload_adapter(adapter)
    }

    fn create_adapted(&mut self, adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError> {
        self.lock().create_adapted(adapters)
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.lock().len(sequence)
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.lock().reusable(sequence, at_most)
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        self.lock().held(sequences)
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        self.lock().fork(source, len)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.lock().truncate(sequence, len)
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.lock().release(sequence)
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        self.lock().encode(media)
    }

    fn retain_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.lock().retain_media(media)
    }

    fn release_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.lock().release_media(media)
    }

    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        self.lock().media_features(media)
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        self.lock().step(batch, output)
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        self.lock().export(sequence)
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        self.lock().import(bytes)
    }

    fn range_fingerprint(&self) -> Result<u64, SessionError> {
        self.lock().range_fingerprint()
    }

    fn export_range(
        &self,
        sequence: SequenceId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.lock().export_range(sequence, range, out)
    }

    fn export_range_media(
        &self,
        sequence: SequenceId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.lock().export_range_media(sequence, range, out)
    }

    fn import_range(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        self.lock().import_range(sequence, tokens, bytes)
    }

    fn export_tail(
        &self,
        sequence: SequenceId,
        len: usize,
        part: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<bool, SessionError> {
        self.lock().export_tail(sequence, len, part, out)
    }

    fn import_tail(&mut self, sequence: SequenceId, bytes: &[u8]) -> Result<bool, SessionError> {
        self.lock().import_tail(sequence, bytes)
    }
}
