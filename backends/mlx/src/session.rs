//! The session contract over passes through the model.
//!
//! While rows are greedy, the next step is computed before it is requested: see [`StepAhead`].

use std::sync::Arc;

use loquat_session::sequences::{RowGrant, RowStates};
use loquat_session::transfer::{Envelope, Unsealed, unseal};
use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, Emit, Media, MediaHandle, MediaId,
    MediaLayout, MediaSpan, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
    delegate_sequences,
};
use loquat_spec::ModelSpec;

use crate::adapter::LoadedAdapter;
use crate::ahead::StepAhead;
use crate::array::{Array, Ops};
use crate::error::MlxError;
use crate::kv::{KvRoom, Recurrent};
use crate::layout::Layout;
use crate::media::{self, MediaFeatures, RowMedia};
use crate::memory::MemoryShare;
use crate::model::Model;
use crate::pass::{self, NO_TOKEN, Outputs, PassKvBatch, PassRow, Tokens};
use crate::storage::{self, ComputedStates, MlxSequences};
use crate::transfer::Exports;

pub struct MlxSession {
    pub ops: Ops,
    pub model: Model,
    pub layout: Layout,
    pub sequences: MlxSequences,
    pub capabilities: Capabilities,
    /// As planned, with nothing in use.
    pub memory: Memory,
    pub fingerprint: u64,
    pub spec: Arc<ModelSpec>,
    pub ahead: Option<StepAhead>,
    /// Arrays of sequences that were split off their batches, to be computed with the next step.
    pub split_off: Vec<Array>,
    /// Returned when the session ends.
    pub share: MemoryShare,
}

/// Where a row's output comes from.
pub enum RowSource {
    Refused(SessionError),
    /// Computed ahead by the last step.
    Ahead,
    Fresh,
}

/// A started step: what each row waits for.
pub struct LaunchedStep {
    pub sources: Vec<RowSource>,
    /// The tokens of rows that were computed ahead, in the batch's order.
    pub ahead: Option<Array>,
    pub fresh: Outputs,
}

/// An accepted row.
pub struct AcceptedRow<'a> {
    pub grant: &'a RowGrant,
    pub emit: Emit,
    pub media: &'a [MediaSpan],
}

impl MlxSession {
    /// Starts all rows of the batch that were not computed ahead.
    fn launch(&mut self, batch: &StepBatch) -> Result<LaunchedStep, SessionError> {
        let (claims, ahead) = self.claim_ahead(batch)?;
        let continues = |id| batch.rows().iter().any(|row| row.sequence == id);
        let split_off = storage::split_off(&mut self.sequences, &self.ops, continues)?;
        self.split_off.extend(split_off);
        let mut planned = 0;
        let mut accepted = Vec::new();
        let mut sources = Vec::with_capacity(claims.len());
        for (index, claimed) in claims.into_iter().enumerate() {
            let row = &batch.rows()[index];
            let source = if claimed {
                RowSource::Ahead
            } else {
                let accept = self
                    .sequences
                    .accept(batch, index, planned, &self.capabilities);
                match accept {
                    Ok(grant) => {
                        accepted.push((index, grant));
                        RowSource::Fresh
                    }
                    Err(error) => RowSource::Refused(error),
                }
            };
            if !matches!(source, RowSource::Refused(_)) {
                planned += batch.tokens(row).len();
            }
            sources.push(source);
        }
        let fresh = if accepted.is_empty() {
            Outputs::default()
        } else {
            self.run_fresh(batch, accepted)?
        };
        Ok(LaunchedStep {
            sources,
            ahead,
            fresh,
        })
    }

    /// Runs the accepted rows, starts the computation and appends their tokens.
    fn run_fresh(
        &mut self,
        batch: &StepBatch,
        accepted: Vec<(usize, RowGrant)>,
    ) -> Result<Outputs, SessionError> {
        let mut rows = Vec::with_capacity(accepted.len());
        let mut tokens = Vec::new();
        for (index, grant) in &accepted {
            let row = &batch.rows()[*index];
            tokens.extend_from_slice(batch.tokens(row));
            rows.push(AcceptedRow {
                grant,
                emit: row.emit,
                media: batch.media(row),
            });
        }
        let computed = self.compute(&rows, Tokens::Host(&tokens));
        let grants = accepted.into_iter().map(|(_, grant)| grant);
        match computed {
            Ok((outputs, states)) => {
                for (grant, states) in grants.zip(states) {
                    storage::commit(&mut self.sequences, grant, states);
                }
                Ok(outputs)
            }
            Err(error) => {
                self.roll_back(grants);
                Err(error.into())
            }
        }
    }

    pub fn roll_back(&mut self, grants: impl IntoIterator<Item = RowGrant>) {
        for grant in grants {
            self.sequences.roll_back(grant);
        }
    }

    /// Starts arrays that no pass has computed, so that they stop referring to their batches.
    fn start_split_off(&mut self) -> Result<(), MlxError> {
        let arrays: Vec<Array> = self.split_off.drain(..).collect();
        if arrays.is_empty() {
            Ok(())
        } else {
            self.ops.start(&arrays.iter().collect::<Vec<_>>())
        }
    }

    /// Runs a pass and starts computing its outputs and states. Keys and values return to the
    /// sequences; states are returned.
    pub fn compute(
        &mut self,
        accepted: &[AcceptedRow],
        tokens: Tokens,
    ) -> Result<(Outputs, Vec<ComputedStates>), MlxError> {
        let mut kv_batches = self.form_kv_batches(accepted)?;
        let mut rows = self.pass_rows(accepted, &kv_batches)?;
        let outputs = pass::run(&self.ops, &self.model, &mut rows, &mut kv_batches, tokens)?;
        let Outputs {
            greedy,
            drawn,
            logits,
            hidden,
        } = &outputs;
        let emitted = [greedy, drawn, logits, hidden];
        let mut arrays: Vec<&Array> = emitted.into_iter().flatten().collect();
        for row in &rows {
            let states = row.snapshots.iter().flatten().chain(&row.recurrent);
            arrays.extend(states.flat_map(Recurrent::arrays));
            // A row without output starts no computation of its keys, so they are listed here.
            if row.emit == Emit::Nothing {
                arrays.extend(kv_batches[row.kv_batch.0].kv_batch.arrays());
            }
        }
        arrays.extend(&self.split_off);
        self.ops.start(&arrays)?;
        drop(arrays);
        self.split_off.clear();
        for PassKvBatch {
            rows: members,
            kv_batch,
            ..
        } in kv_batches
        {
            let ids = members.iter().map(|row| accepted[*row].grant.sequence);
            let ids: Vec<SequenceId> = ids.collect();
            storage::put_batch(&mut self.sequences, &ids, kv_batch);
        }
        let together = rows.len() > 1;
        let states = rows.into_iter().map(|row| ComputedStates {
            snapshots: row.snapshots,
            after: row.recurrent,
            are_slices: together,
        });
        Ok((outputs, states.collect()))
    }

    /// Rows of one token join those with the same room, if there is memory to copy them; other
    /// rows get separate batches.
    fn form_kv_batches(&mut self, accepted: &[AcceptedRow]) -> Result<Vec<PassKvBatch>, MlxError> {
        let mut together: Vec<(KvRoom, Vec<usize>)> = Vec::new();
        let mut formed = Vec::new();
        for index in self.by_adapters(accepted) {
            let grant = accepted[index].grant;
            let room = storage::room(&self.sequences, grant);
            if grant.tokens > 1 || grant.start == 0 {
                formed.push((room, vec![index]));
                continue;
            }
            match together.iter_mut().find(|(other, _)| *other == room) {
                Some((_, rows)) => rows.push(index),
                None => together.push((room, vec![index])),
            }
        }
        let ids_of = |rows: &[usize]| -> Vec<SequenceId> {
            rows.iter()
                .map(|row| accepted[*row].grant.sequence)
                .collect()
        };
        for (room, rows) in together {
            if storage::may_join(&self.sequences, &ids_of(&rows)) {
                formed.push((room, rows))
            } else {
                formed.extend(rows.into_iter().map(|row| (room.clone(), vec![row])))
            }
        }
        let kv_batches = formed.into_iter().map(|(room, rows)| {
            let ids = ids_of(&rows);
            let kv_batch = storage::take_batch(&mut self.sequences, &self.ops, &ids, &room)?;
            Ok(PassKvBatch {
                rows,
                room,
                kv_batch,
            })
        });
        kv_batches.collect()
    }

    /// The rows' indices, those with the same adapters one after another.
    fn by_adapters(&self, accepted: &[AcceptedRow]) -> Vec<usize> {
        let adapters = |index: &usize| {
            let sequence = accepted[*index].grant.sequence;
            self.sequences.adapters(sequence).map_or(&[][..], |all| all)
        };
        let mut order: Vec<usize> = (0..accepted.len()).collect();
        let key = |applied: &AppliedAdapter| (applied.id, applied.scale.to_bits());
        order.sort_by(|a, b| {
            let [a, b] = [adapters(a), adapters(b)];
            a.iter().map(key).cmp(b.iter().map(key))
        });
        order
    }

    /// The rows of the pass.
    fn pass_rows(
        &self,
        accepted: &[AcceptedRow],
        kv_batches: &[PassKvBatch],
    ) -> Result<Vec<PassRow>, MlxError> {
        let mut kv_batch_of = vec![(0, 0); accepted.len()];
        for (number, kv_batch) in kv_batches.iter().enumerate() {
            for (place, row) in kv_batch.rows.iter().enumerate() {
                kv_batch_of[*row] = (number, place);
            }
        }
        let rows = accepted.iter().zip(kv_batch_of).map(|(row, kv_batch)| {
            let grant = row.grant;
            let gone = |error: SessionError| MlxError(error.to_string());
            let recurrent = storage::recurrent_state(&self.sequences, grant.sequence);
            let snapshots = grant.states.iter().flat_map(RowStates::snapshots);
            Ok(PassRow {
                emit: row.emit,
                tokens: grant.tokens,
                snapshot_at: snapshots.map(|(len, _)| len - grant.start).collect(),
                start: grant.start,
                recurrent: recurrent.map_err(gone)?,
                places: self.sequences.places(grant),
                media: self.row_media(row.media)?,
                adapters: Arc::clone(self.sequences.adapters(grant.sequence).map_err(gone)?),
                snapshots: Vec::new(),
                kv_batch,
            })
        });
        rows.collect()
    }

    /// The features of a row's media.
    fn row_media(&self, spans: &[MediaSpan]) -> Result<Vec<RowMedia>, MlxError> {
        let storage = self.sequences.storage();
        let media = spans.iter().map(|span| {
            let features = storage.media(span.id);
            let gone = || MlxError("the features of media are missing".to_owned());
            Ok(RowMedia {
                at: span.at,
                features: features.ok_or_else(gone)?.clone(),
                range: span.range.clone(),
            })
        });
        media.collect()
    }

    /// Waits for the step and writes its output. Rows whose logits are not numbers are refused and
    /// their tokens undone.
    fn read_outputs(
        &mut self,
        batch: &StepBatch,
        launched: &LaunchedStep,
        output: &mut StepOutput,
    ) -> Result<(), SessionError> {
        let mut ahead = self.read_tokens(launched.ahead.as_ref())?.into_iter();
        let mut fresh = self
            .read_tokens(launched.fresh.greedy.as_ref())?
            .into_iter();
        let mut drawn = self.read_tokens(launched.fresh.drawn.as_ref())?.into_iter();
        let mut broken = Vec::new();
        for (index, (row, source)) in batch.rows().iter().zip(&launched.sources).enumerate() {
            let tokens = match source {
                RowSource::Refused(error) => {
                    output.push_error(error.clone());
                    continue;
                }
                RowSource::Ahead => &mut ahead,
                RowSource::Fresh if matches!(row.emit, Emit::Drawn(_)) => &mut drawn,
                RowSource::Fresh => &mut fresh,
            };
            match row.emit {
                Emit::Nothing => output.push_nothing(),
                Emit::Greedy { .. } | Emit::Drawn(_) => {
                    let tokens_out = output.push_tokens(row.emit.positions());
                    for (slot, token) in tokens_out.iter_mut().zip(tokens) {
                        *slot = token;
                    }
                    if tokens_out.contains(&NO_TOKEN) {
                        broken.push(index);
                    }
                }
                Emit::Logits { positions } => {
                    output.push_logits(positions);
                }
                Emit::Hidden { positions } => {
                    output.push_hidden(positions);
                }
            }
        }
        if let Some(logits) = &launched.fresh.logits {
            self.ops.read_f32(logits, output.all_logits_mut())?;
        }
        if let Some(hidden) = &launched.fresh.hidden {
            self.ops.read_f32(hidden, output.all_hidden_mut())?;
        }
        for index in broken {
            let row = &batch.rows()[index];
            let len = self.sequences.len(row.sequence)?;
            let before = len - batch.tokens(row).len();
            self.sequences.truncate(row.sequence, before)?;
            output.fail(index, SessionError::NotANumber);
        }
        Ok(())
    }

    fn read_tokens(&self, tokens: Option<&Array>) -> Result<Vec<u32>, MlxError> {
        let Some(tokens) = tokens else {
            return Ok(Vec::new());
        };
        let mut out = vec![0; tokens.dim(0) as usize];
        self.ops.read_u32(tokens, &mut out)?;
        Ok(out)
    }
}

impl Session for MlxSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        let memory = self.sequences.memory(self.memory);
        Memory {
            states_in_use: memory.states_in_use - self.states_ahead(),
            ..memory
        }
    }

    delegate_sequences!(sequences);

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.sequences.release(sequence)?;
        if self.sequences.count() == 0 {
            self.drop_ahead();
            self.share.clear_cache();
        }
        Ok(())
    }

    fn load_adapter(&mut self, adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        let bytes = LoadedAdapter::predict_bytes(adapter, self.model.dtype);
        self.sequences.check_adapter(adapter.rank(), bytes)?;
        let loaded = LoadedAdapter::load(&self.ops, &self.model, adapter)?;
        let id = self.sequences.add_adapter(adapter, bytes)?;
        self.model.adapters.insert(id, loaded);
        // Buffers of the upload.
        self.share.clear_cache();
        Ok(id)
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.sequences.remove_adapter(adapter)?;
        self.model.adapters.remove(&adapter);
        self.share.clear_cache();
        Ok(())
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        let inputs = &self.capabilities.media;
        if !inputs.embeddings {
            return Err(SessionError::Unsupported("media"));
        }
        let layout = MediaLayout::new(&self.spec, media, inputs.max_patches)?;
        let handle = self.sequences.add_media(layout)?;
        match media::encode(&self.ops, &self.model, &self.spec, media) {
            Ok(features) => {
                let storage = self.sequences.storage_mut();
                storage.insert_media(handle.id, features);
                Ok(handle)
            }
            Err(error) => {
                self.sequences.release_media(handle.id)?;
                Err(error)
            }
        }
    }

    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        let features = self.sequences.storage().media(media);
        let features: &MediaFeatures = features.ok_or(SessionError::UnknownMedia(media))?;
        Ok(features.read(&self.ops)?)
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        output.reset(&self.capabilities);
        let launched = self.launch(batch)?;
        let pending = self.start_ahead(batch, &launched)?;
        self.start_split_off()?;
        let written = self.read_outputs(batch, &launched, output);
        match (pending, &written) {
            (Some(pending), Ok(())) => self.keep_ahead(pending, output),
            (Some(pending), Err(_)) => self.roll_back(pending.grants),
            (None, _) => {}
        }
        written
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        let contents = storage::contents(&self.sequences, sequence)?;
        let len = contents.len;
        let exports = Exports::new(&self.layout, self.model.dtype, &self.memory);
        let size = exports.len(len).unwrap_or(0);
        let header = self.sequences.header(sequence)?;
        let mut envelope = Envelope::new(self.fingerprint, &header, size);
        exports.write(&self.ops, &contents, envelope.contents())?;
        Ok(envelope.seal())
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let exports = Exports::new(&self.layout, self.model.dtype, &self.memory);
        let Unsealed { header, contents } = unseal(
            bytes,
            self.fingerprint,
            self.capabilities.max_context,
            |len| exports.len(len),
        )?;
        self.drop_ahead();
        let exports = Exports::new(&self.layout, self.model.dtype, &self.memory);
        let ops = &self.ops;
        let len = header.len;
        self.sequences.import(header, |sequences, grant| {
            let room = storage::room(sequences, grant);
            let (kv_batch, after) = exports.read(ops, (len, &room), contents)?;
            storage::put_batch(sequences, &[grant.sequence], kv_batch);
            storage::store_states(
                sequences,
                grant,
                ComputedStates {
                    after,
                    ..ComputedStates::default()
                },
            );
            Ok(())
        })
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        // A step started ahead must not outlive the session's memory share.
        let _ = self.ops.synchronize();
    }
}
