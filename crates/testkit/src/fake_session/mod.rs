//! A session without a model: its logits are a hash of the sequence's history, so that a token fed
//! twice, dropped, or fed to the wrong sequence changes the output.
//!
//! It is fast and deterministic. Options inject failures: memory runs out, rows and steps fail, a
//! recurrent model loses its states. Under a [`VirtualClock`] steps take time without waiting.

mod clock;
mod counters;
mod media;
mod model;
mod options;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use loquat_session::sequences::{
    CopyOnWrite, RowGrant, SequenceLimits, SequenceStorage, Sequences, Slot,
};
use loquat_session::transfer::{Envelope, Unsealed, unseal};
use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, Emit, HeldMemory, Media, MediaHandle,
    MediaId, MediaInputs, Memory, PrefixCopy, Row, SequenceId, Session, SessionError, StepBatch,
    StepOutput,
};
use loquat_spec::MediaAttention;

pub use clock::{Cost, VirtualClock};
pub use counters::{FakeCounters, StepShape};
use model::{History, Model};
pub use options::{FakeOptions, Fault};

const MEDIA_BYTES_PER_POSITION: u64 = 4;
/// Tokens whose ids are in an exported tail.
const TAIL_TOKENS: usize = 100;
/// As large as the KV of many tokens, like real recurrent states.
const STATE_BYTES: u64 = 256;

pub struct FakeSession {
    options: FakeOptions,
    capabilities: Capabilities,
    model: Model,
    sequences: Sequences<Histories>,
    counters: Arc<FakeCounters>,
}

/// Stores each sequence's tokens. Pages and states are counted as on a device, but hold nothing.
#[derive(Default)]
struct Histories {
    /// The history entries of encoded media, one for each position.
    media: BTreeMap<MediaId, Vec<u32>>,
}

impl SequenceStorage for Histories {
    const COPY_ON_WRITE: CopyOnWrite = CopyOnWrite::Page;

    type Sequence = History;

    fn share(&mut self, source: &History, len: usize) -> History {
        source.prefix(len)
    }

    fn release(&mut self, _sequence: History) {}

    fn copy_page(&mut self, _group: usize, _from: Slot, _to: Slot) {}

    fn free_media(&mut self, media: MediaId) {
        self.media.remove(&media);
    }
}

impl FakeSession {
    pub fn new(options: FakeOptions) -> Self {
        Self {
            capabilities: capabilities(&options),
            model: Model {
                vocab_size: options.vocab_size,
                script: options.script.clone(),
                opening: options.opening.clone(),
                replies: options.replies.clone(),
            },
            sequences: Sequences::new(
                Histories::default(),
                SequenceLimits {
                    kv_tokens: options.kv_capacity,
                    kv_groups: options.kv_groups,
                    granularity: options.kv_granularity,
                    states: options.max_states,
                    max_sequences: options.max_sequences,
                    snapshots: options.snapshots,
                    media: options.media,
                    adapters: options.adapters,
                },
            ),
            counters: Arc::default(),
            options,
        }
    }

    pub fn counters(&self) -> Arc<FakeCounters> {
        Arc::clone(&self.counters)
    }

    fn update_counters(&self) {
        let kv = self.memory().kv_in_use;
        self.counters.record_held(self.sequences.count(), kv);
    }

    fn record_created(&self, id: SequenceId) -> SequenceId {
        self.counters.record_created();
        self.update_counters();
        id
    }

    fn advance_clock(&self, time: Duration) {
        if let Some(clock) = &self.options.clock {
            clock.advance(time);
        }
    }

    /// Reserves what each row needs. As on a device, all rows of a step reserve before any is
    /// computed: a state that one row frees is not available to the next.
    fn accept(
        &mut self,
        batch: &StepBatch,
        fault: Option<Fault>,
    ) -> Vec<Result<RowGrant, SessionError>> {
        let mut planned = 0;
        let accept = |(index, row): (usize, &Row)| {
            self.refusal(fault, index, batch.tokens(row))?;
            let grant = self
                .sequences
                .accept(batch, index, planned, &self.capabilities)
                .inspect_err(|error| {
                    if error.is_retryable() {
                        self.counters.record_starved();
                    }
                })?;
            planned += grant.tokens;
            Ok(grant)
        };
        batch.rows().iter().enumerate().map(accept).collect()
    }

    /// The error that a fault or the poison token causes for a row.
    fn refusal(
        &self,
        fault: Option<Fault>,
        index: usize,
        tokens: &[u32],
    ) -> Result<(), SessionError> {
        match fault {
            Some(Fault::KvExhausted) => Err(SessionError::KvExhausted {
                wanted: tokens.len(),
                available: 0,
            }),
            Some(Fault::RowFails) if index == 0 => {
                Err(SessionError::Device("the first row".into()))
            }
            _ => match self.options.poison {
                Some(poison) if tokens.contains(&poison) => {
                    Err(SessionError::Device(format!("token {poison} is poison")))
                }
                _ => Ok(()),
            },
        }
    }

    /// Appends the tokens and media of an accepted row.
    fn run(&mut self, batch: &StepBatch, row: &Row, grant: RowGrant) {
        let mut tokens = batch.tokens(row).to_vec();
        for span in batch.media(row) {
            let features = &self.sequences.storage().media[&span.id][span.range.clone()];
            tokens[span.at..span.at + features.len()].copy_from_slice(features);
        }
        self.advance_clock(self.options.cost.row_time(grant.start, tokens.len()));
        self.counters.record_computed(tokens.len());
        if let Some((_, history)) = self.sequences.stored_mut(grant.sequence) {
            history.append(&tokens);
        }
        self.sequences.commit(grant);
    }

    /// Lets the sequence's outputs depend on its adapters.
    fn seed_history(&mut self, id: SequenceId) {
        let header = self.sequences.header(id).unwrap_or_default();
        if let Some((_, history)) = self.sequences.stored_mut(id) {
            *history = History::adapted(&header.adapters);
        }
    }

    /// Histories depend only on the vocabulary.
    fn fingerprint(&self) -> u64 {
        self.options.vocab_size as u64
    }

    fn emit(&self, emit: Emit, history: &History, output: &mut StepOutput) {
        let lengths = history.len() + 1 - emit.positions()..=history.len();
        match emit {
            Emit::Nothing => output.push_nothing(),
            Emit::Greedy { positions } => {
                let chosen = output.push_tokens(positions);
                for (slot, len) in chosen.iter_mut().zip(lengths) {
                    *slot = self.model.greedy(history, len);
                }
            }
            Emit::Drawn(draw) => {
                let mut logits = vec![0.0; self.options.vocab_size];
                self.model.logits(history, history.len(), &mut logits);
                let drawn = draw.choose(&logits);
                output.push_tokens(1)[0] = drawn.unwrap_or_default();
            }
            Emit::Logits { positions } => {
                let rows = output.push_logits(positions);
                let rows = rows.chunks_exact_mut(self.options.vocab_size);
                for (logits, len) in rows.zip(lengths) {
                    self.model.logits(history, len, logits);
                }
            }
            Emit::Hidden { positions } => {
                let width = self.options.hidden_size.unwrap_or(1);
                let states = output.push_hidden(positions).chunks_exact_mut(width);
                for (state, len) in states.zip(lengths) {
                    self.model.hidden(history, len, state);
                }
            }
        }
    }
}

fn capabilities(options: &FakeOptions) -> Capabilities {
    Capabilities {
        device: "fake".into(),
        vocab_size: options.vocab_size,
        max_context: options.max_context,
        max_sequences: options.max_sequences,
        max_step_tokens: options.max_step_tokens,
        logits: true,
        hidden_size: options.hidden_size,
        draws: options.draws,
        prefix_copy: match options.snapshots {
            Some(_) => PrefixCopy::AtSnapshots,
            None if options.kv_groups.free_within(options.max_context) => PrefixCopy::AtSnapshots,
            None if options.media.attention == MediaAttention::FirstRow => PrefixCopy::None,
            None => PrefixCopy::AnyLength,
        },
        export: true,
        kv_format: "tokens".to_owned(),
        media: MediaInputs {
            images: options.media.capacity > 0,
            videos: options.media.capacity > 0,
            embeddings: options.media.capacity > 0,
            max_patches: options.media.capacity,
            whole_prompt: options.media.attention == MediaAttention::FirstRow,
        },
        media_positions: options.media.capacity,
        adapters: options.adapters,
        batch_invariant: true,
        chunk_invariant: true,
    }
}

impl Session for FakeSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.sequences.memory(Memory {
            weight_bytes: 0,
            kv_bytes_per_token: self.options.kv_groups.bytes_per_token(),
            kv_groups: self.options.kv_groups,
            kv_capacity: self.options.kv_capacity,
            kv_in_use: 0,
            kv_granularity: self.options.kv_granularity,
            kv_row_tokens: self.options.max_step_tokens,
            state_bytes: self.options.snapshots.map_or(0, |_| STATE_BYTES),
            states_in_use: 0,
            media_bytes_per_position: MEDIA_BYTES_PER_POSITION,
            media_capacity: self.options.media.capacity,
            media_in_use: 0,
            adapter_capacity: self.options.adapters.bytes,
            adapter_bytes: 0,
            adapters_loaded: 0,
        })
    }

    fn load_adapter(&mut self, adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        self.sequences.add_adapter(adapter, adapter.bytes())
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.sequences.remove_adapter(adapter)
    }

    fn create_adapted(&mut self, adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError> {
        let id = self.sequences.create(adapters)?;
        self.seed_history(id);
        Ok(self.record_created(id))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.sequences.len(sequence)
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.sequences.reusable(sequence, at_most)
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        self.sequences.held(sequences)
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let id = self.sequences.fork(source, len)?;
        Ok(self.record_created(id))
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.sequences.truncate(sequence, len)?;
        self.update_counters();
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.sequences.release(sequence)?;
        self.update_counters();
        Ok(())
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        let (layout, features) = media::encode(media, &self.options)?;
        self.advance_clock(self.options.cost.encode);
        let handle = self.sequences.add_media(layout)?;
        let stored = &mut self.sequences.storage_mut().media;
        stored.insert(handle.id, features);
        self.counters.record_encoded();
        Ok(handle)
    }

    fn retain_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.sequences.retain_media(media)
    }

    fn release_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.sequences.release_media(media)
    }

    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        let features = self.sequences.storage().media.get(&media);
        let features = features.ok_or(SessionError::UnknownMedia(media))?;
        Ok(features.iter().map(|value| *value as f32).collect())
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        let step = self.counters.record_step(StepShape {
            rows: batch.rows().len(),
            tokens: batch.token_count(),
        });
        drop(self.options.hold.lock());
        std::thread::sleep(self.options.delay);
        self.advance_clock(self.options.cost.step);
        let fault = self.options.fault_at(step);
        match fault {
            Some(Fault::Fail) => return Err(SessionError::Device(format!("step {step}"))),
            Some(Fault::WeightsChanged) => {
                return Err(SessionError::WeightsChanged(format!("step {step}")));
            }
            Some(Fault::Panic) => panic!("the fake session panics at step {step}"),
            _ => {}
        }

        output.reset(&self.capabilities);
        let accepted = self.accept(batch, fault);
        for (row, accepted) in batch.rows().iter().zip(accepted) {
            match accepted {
                Err(error) => output.push_error(error),
                Ok(grant) => {
                    self.run(batch, row, grant);
                    match fault {
                        Some(Fault::Withhold) => output.push_nothing(),
                        _ => self.emit(row.emit, self.sequences.stored(row.sequence)?, output),
                    }
                }
            }
        }
        self.update_counters();
        Ok(())
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        let tokens = self.sequences.stored(sequence)?.tokens();
        let header = self.sequences.header(sequence)?;
        let size = 4 * tokens.len();
        let mut envelope = Envelope::new(self.fingerprint(), &header, size);
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
        envelope.contents().extend(bytes);
        Ok(envelope.seal())
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let size = |len: usize| len.checked_mul(4);
        let max_context = self.options.max_context;
        let Unsealed { header, contents } = unseal(bytes, self.fingerprint(), max_context, size)?;
        let words = contents.as_chunks::<4>().0.iter();
        let tokens: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
        let seed = History::adapted(&header.adapters);
        let id = self
            .sequences
            .import(header, |_, _| Ok::<_, SessionError>(()))?;
        if let Some((_, history)) = self.sequences.stored_mut(id) {
            *history = seed;
            history.append(&tokens);
        }
        Ok(self.record_created(id))
    }

    fn range_fingerprint(&self) -> Result<u64, SessionError> {
        if !self.options.ranges {
            return Err(SessionError::Unsupported("exporting ranges of sequences"));
        }
        Ok(self.fingerprint())
    }

    fn export_range(
        &self,
        sequence: SequenceId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.sequences.check_exported_range(sequence, &range)?;
        let tokens = &self.sequences.stored(sequence)?.tokens()[range];
        out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        Ok(())
    }

    fn export_range_media(
        &self,
        sequence: SequenceId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.sequences.export_range_media(sequence, &range, out)
    }

    fn import_range(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        let parts = tokens.checked_mul(4);
        let parts = parts.and_then(|wanted| bytes.split_at_checked(wanted));
        let Some((words, media)) = parts else {
            let why = format!("{} bytes for {tokens} tokens", bytes.len());
            return Err(SessionError::BadImport(why));
        };
        let words = words.as_chunks::<4>().0;
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let max_context = self.options.max_context;
        let append = |sequences: &mut Sequences<Histories>, grant: &RowGrant| {
            if let Some((_, history)) = sequences.stored_mut(grant.sequence) {
                history.append(&words);
            }
            Ok(())
        };
        self.sequences
            .import_range(sequence, (tokens, max_context), media, append)?;
        self.update_counters();
        Ok(())
    }

    fn export_tail(
        &self,
        sequence: SequenceId,
        len: usize,
        part: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<bool, SessionError> {
        self.sequences.check_tails(self.options.max_context)?;
        self.sequences.exported_tail(sequence, len)?;
        let tail = tail(&self.sequences.stored(sequence)?.tokens()[..len]);
        let Some(rest) = tail.get(part.start..) else {
            return Err(SessionError::LengthOutOfRange {
                len: part.start,
                available: tail.len(),
            });
        };
        let part = &rest[..rest.len().min(part.len().max(4))];
        out.extend_from_slice(part);
        Ok(part.len() == rest.len())
    }

    fn import_tail(&mut self, sequence: SequenceId, bytes: &[u8]) -> Result<bool, SessionError> {
        self.sequences.check_tails(self.options.max_context)?;
        let tail = tail(self.sequences.stored(sequence)?.tokens());
        let check = |_: &mut Sequences<Histories>, offset: usize| {
            if tail[offset..].starts_with(bytes) {
                return Ok(());
            }
            Err(SessionError::BadImport("the tail of other ranges".into()))
        };
        let is_complete = self
            .sequences
            .import_tail(sequence, (bytes.len(), tail.len()), check)?;
        self.update_counters();
        Ok(is_complete)
    }
}

/// A tail depends on the tokens that ranges bring, so that a wrong one is noticed.
fn tail(tokens: &[u32]) -> Vec<u8> {
    let last = tokens.iter().rev().take(TAIL_TOKENS);
    let words = [tokens.len() as u32].into_iter().chain(last.copied());
    words.flat_map(u32::to_le_bytes).collect()
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.counters.record_dropped();
    }
}
