//! Takes the place of a dropped session.

use loquat_session::{
    AppliedAdapter, Capabilities, HeldMemory, Memory, SequenceId, Session, SessionError, StepBatch,
    StepOutput,
};

/// Placeholder after the session was dropped. It holds no sequences.
pub(crate) struct NoSession {
    capabilities: Capabilities,
    memory: Memory,
}

impl NoSession {
    /// Keeps the capabilities and the size of the memory, none of which is in use.
    pub fn new(capabilities: Capabilities, memory: Memory) -> Self {
        Self {
            capabilities,
            memory: Memory {
                kv_in_use: 0,
                states_in_use: 0,
                media_in_use: 0,
                adapter_bytes: 0,
                adapters_loaded: 0,
                ..memory
            },
        }
    }

    fn refusal<T>() -> Result<T, SessionError> {
        Err(SessionError::Device("there is no session".into()))
    }
}

impl Session for NoSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn create_adapted(&mut self, _adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn reusable(&self, sequence: SequenceId, _at_most: usize) -> Result<usize, SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        match sequences.first() {
            Some(sequence) => Err(SessionError::UnknownSequence(*sequence)),
            None => Ok(HeldMemory::default()),
        }
    }

    fn fork(&mut self, _source: SequenceId, _len: usize) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }

    fn truncate(&mut self, _sequence: SequenceId, _len: usize) -> Result<(), SessionError> {
        Self::refusal()
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn step(&mut self, _batch: &StepBatch, _output: &mut StepOutput) -> Result<(), SessionError> {
        Self::refusal()
    }

    fn export(&self, _sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        Self::refusal()
    }

    fn import(&mut self, _bytes: &[u8]) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }
}
