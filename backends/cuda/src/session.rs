//! The session contract over a program and a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_session::sequences::{RowGrant, Sequences, Slot, TokenPlace, TransferScope};
use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, Emit, Media, MediaHandle, MediaId,
    MediaLayout, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
    delegate_sequences, delegate_transfers,
};
use loquat_spec::ModelSpec;

use crate::adapted::StepAdapters;
use crate::adapter::{AdapterTargets, LoadedAdapter, predict_bytes};
use crate::decode::Decoding;
use crate::device::{Device, DeviceError};
use crate::draw::DrawTable;
use crate::execute::Execution;
use crate::lower::{HEAD_BLOCK, Program};
use crate::ops::{Address, NOT_A_NUMBER, PAGE, PageRun, RowTable, StateCopy};
use crate::storage::{DeviceStorage, MediaFeatures};
use crate::tables::StepTables;
use crate::tower::Tower;

pub struct CudaSession {
    pub program: Program,
    /// If it runs.
    pub tower: Option<Tower>,
    pub sequences: Sequences<DeviceStorage>,
    pub capabilities: Capabilities,
    /// As planned, with nothing in use.
    pub memory: Memory,
    pub transfers: TransferScope,
    pub spec: Arc<ModelSpec>,
    pub tables: StepTables,
    pub rows: StepRows,
    pub adapters: BTreeMap<AdapterId, Arc<LoadedAdapter>>,
    pub adapter_targets: AdapterTargets,
    /// Empty between steps.
    pub step_adapters: StepAdapters,
    /// Steps can be recorded.
    pub records: bool,
    pub decoding: Decoding,
}

/// The rows of a step; empty between steps, kept for their allocations.
#[derive(Default)]
pub struct StepRows {
    accepted: Vec<Result<Accepted, SessionError>>,
    /// Accepted rows as they are planned.
    order: Vec<usize>,
    hidden: Vec<u32>,
    logits: Vec<u32>,
    chosen: Vec<u32>,
    /// The row of the batch that each chosen token is for.
    chosen_rows: Vec<usize>,
    /// How each token is chosen.
    draws: Vec<DrawTable>,
    /// Rows of one token.
    single: u32,
}

struct Accepted {
    /// Its first token in the step.
    first: usize,
    grant: RowGrant,
}

impl StepRows {
    fn clear(&mut self) {
        let Self {
            accepted,
            order,
            hidden,
            logits,
            chosen,
            chosen_rows,
            draws,
            single,
        } = self;
        *single = 0;
        accepted.clear();
        order.clear();
        for tokens in [hidden, logits, chosen] {
            tokens.clear();
        }
        chosen_rows.clear();
        draws.clear();
    }

    /// Records a row's positions and reserves room for their outputs.
    fn push(&mut self, emit: Emit, row: &Accepted, output: &mut StepOutput) {
        let end = (row.first + row.grant.tokens) as u32;
        let last = |positions: usize| end - positions as u32..end;
        match emit {
            Emit::Nothing => output.push_nothing(),
            Emit::Greedy { .. } | Emit::Drawn(_) => {
                let positions = emit.positions();
                output.push_tokens(positions);
                self.chosen.extend(last(positions));
                let row = output.rows().len() - 1;
                self.chosen_rows.resize(self.chosen.len(), row);
                self.draws
                    .resize(self.chosen.len(), DrawTable::for_row(emit));
            }
            Emit::Logits { positions } => {
                output.push_logits(positions);
                self.logits.extend(last(positions));
            }
            Emit::Hidden { positions } => {
                output.push_hidden(positions);
                self.hidden.extend(last(positions));
            }
        }
    }
}

impl CudaSession {
    /// Accepts the batch's rows and writes their tables, in the order of [`Self::sort`]; a refused
    /// row changes nothing.
    fn plan(&mut self, batch: &StepBatch, rows: &mut StepRows) {
        let groups = self.sequences.storage().layout().groups();
        self.tables.clear(groups);
        let mut planned = 0;
        for index in 0..batch.rows().len() {
            let capabilities = &self.capabilities;
            let grant = self.sequences.accept(batch, index, planned, capabilities);
            if let Ok(grant) = &grant {
                planned += grant.tokens;
                rows.order.push(index);
            }
            let accepted = grant.map(|grant| Accepted { first: 0, grant });
            rows.accepted.push(accepted);
        }
        self.sort(batch, &mut rows.order);
        for index in &rows.order {
            let slot = &mut rows.accepted[*index];
            let Ok(accepted) = slot else {
                continue;
            };
            let tokens = accepted.grant.tokens;
            match self.plan_row(batch, *index, &accepted.grant) {
                Ok(first) => {
                    accepted.first = first;
                    rows.single += u32::from(tokens == 1);
                }
                Err(error) => {
                    if let Ok(refused) = std::mem::replace(slot, Err(error)) {
                        self.sequences.roll_back(refused.grant);
                    }
                }
            }
        }
    }

    /// Rows of one token come first, which some programs compute apart. With adapters, for which
    /// no program does, rows with the same ones become adjacent, so that one launch adds those.
    fn sort(&self, batch: &StepBatch, order: &mut [usize]) {
        let adapters = |index: &usize| {
            let sequence = batch.rows()[*index].sequence;
            self.sequences.adapters(sequence).map_or(&[][..], |all| all)
        };
        if order.iter().all(|index| adapters(index).is_empty()) {
            order.sort_by_key(|index| batch.tokens(&batch.rows()[*index]).len() != 1);
            return;
        }
        let key = |applied: &AppliedAdapter| (applied.id, applied.scale.to_bits());
        order.sort_unstable_by(|a, b| {
            let keys = adapters(a).iter().map(key);
            keys.cmp(adapters(b).iter().map(key)).then(a.cmp(b))
        });
    }

    /// Writes one row's tables and returns the index of its first token.
    pub(crate) fn plan_row(
        &mut self,
        batch: &StepBatch,
        index: usize,
        grant: &RowGrant,
    ) -> Result<usize, SessionError> {
        let row = &batch.rows()[index];
        let own = self.sequences.adapters(row.sequence)?;
        let tables = &mut self.tables;
        let first = tables.tokens();
        self.step_adapters
            .push_row(first..first + grant.tokens, own, |id| {
                self.adapters.get(&id).cloned()
            });
        let places = self.sequences.places(grant);
        for (position, id) in (grant.start..).zip(batch.tokens(row)) {
            let place = places.as_ref().map(|places| places[position - grant.start]);
            let place = place.unwrap_or(TokenPlace {
                rope: [position; 3],
                seen_end: position + 1,
            });
            tables.push_token(*id, position, place);
        }
        let storage = self.sequences.storage();
        let hidden = self.spec.hidden_size;
        for span in batch.media(row) {
            // Accepting the row has checked that the media exists.
            let Some(features) = storage.media(span.id) else {
                continue;
            };
            for (offset, position) in span.range.clone().enumerate() {
                for level in 0..features.levels {
                    let vector = level * features.positions + position;
                    let at = features.values.values(vector * hidden);
                    tables.set_features(first + span.at + offset, level, at);
                }
            }
        }
        for group in 0..storage.layout().groups() {
            let span = self.sequences.pages(row.sequence, group)?;
            tables.page_runs[group].push(PageRun {
                start: tables.pages.len() as u32,
                first: (span.first * PAGE) as u32,
            });
            let pages = span.slots.iter().map(|page| page.index() as u32);
            tables.pages.extend(pages);
        }
        let first_snapshot = tables.snapshots.len();
        let states = grant.states.as_ref();
        for (at, state) in states.iter().flat_map(|states| states.snapshots()) {
            tables.snapshots.push(StateCopy {
                tokens: (at - grant.start) as u32,
                reserved: 0,
                to: storage.state(state),
            });
        }
        let state = |slot: Option<Slot>| slot.map_or(Address::NONE, |slot| storage.state(slot));
        tables.rows.push(RowTable {
            first: first as u32,
            tokens: grant.tokens as u32,
            first_snapshot: first_snapshot as u32,
            snapshots: (tables.snapshots.len() - first_snapshot) as u32,
            before: state(states.and_then(|states| states.before)),
            after: state(states.map(|states| states.after)),
        });
        Ok(first)
    }

    /// The features of media whose layout has been checked.
    fn encode_features(
        &mut self,
        media: &Media,
        handle: MediaHandle,
    ) -> Result<MediaFeatures, SessionError> {
        let mut device = self.sequences.storage().device();
        let device = &mut **device;
        let (picture, is_video) = match media {
            Media::Embeddings(values) => {
                let bytes: &[u8] = bytemuck::cast_slice(values);
                let features = MediaFeatures {
                    values: device.allocate(bytes.len())?,
                    levels: 1,
                    positions: handle.positions,
                };
                if let Err(error) = device.write(features.values, bytes) {
                    device.free(features.values);
                    return Err(error.into());
                }
                return Ok(features);
            }
            Media::Image(picture) => (picture, false),
            Media::Video(picture) => (picture, true),
        };
        let tower = self.tower.as_mut();
        let tower = tower.ok_or(SessionError::Unsupported("images and videos"))?;
        let features = tower.encode(device, picture, is_video, handle.positions)?;
        let values = features.read(device, self.spec.hidden_size);
        let error = match values {
            Ok(values) if values.iter().all(|value| value.is_finite()) => return Ok(features),
            Ok(_) => SessionError::NotANumber,
            Err(error) => error.into(),
        };
        device.free(features.values);
        Err(error)
    }

    /// Runs the step's tokens through the model and computes what its rows emit.
    fn run(&mut self, rows: &StepRows, output: &mut StepOutput) -> Result<(), DeviceError> {
        let storage = self.sequences.storage();
        let mut device = storage.device();
        let device: &mut dyn Device = &mut **device;
        let execution = Execution {
            step: self.tables.upload(device)?,
            single_rows: rows.single,
            tokens: self.tables.tokens() as u32,
            tile_groups: self.program.tile_groups,
            adapters: Some(&self.step_adapters),
            runs: self.step_adapters.runs(),
            emitted: &self.tables.emitted,
        };
        let program = &self.program;
        execution.run(device, &program.forward)?;
        if !rows.hidden.is_empty() {
            let emitted = (0, rows.hidden.len());
            execution.run_emitted(device, &program.readout, emitted)?;
            let out = output.all_hidden_mut();
            device.read(program.hidden, bytemuck::cast_slice_mut(out))?;
        }
        let vocab = self.capabilities.vocab_size;
        let draws = execution.step.tables.draws;
        let kinds = [(rows.logits.len(), false), (rows.chosen.len(), true)];
        let mut first = rows.hidden.len();
        for (positions, chosen) in kinds {
            for start in (0..positions).step_by(HEAD_BLOCK) {
                let count = HEAD_BLOCK.min(positions - start);
                let emitted = (first + start, count);
                if !program.reads_emitted {
                    execution.run_emitted(device, &program.readout, emitted)?;
                }
                if chosen {
                    if draws.is_none() {
                        execution.run_emitted(device, &program.greedy, emitted)?;
                    } else {
                        let mut drawn = execution;
                        let bytes = (start * size_of::<DrawTable>()) as u64;
                        drawn.step.tables.draws = draws.offset(bytes);
                        drawn.run_emitted(device, &program.drawn, emitted)?;
                    }
                    let out = &mut output.all_tokens_mut()[start..start + count];
                    device.read(program.chosen, bytemuck::cast_slice_mut(out))?;
                } else {
                    execution.run_emitted(device, &program.head, emitted)?;
                    let out = &mut output.all_logits_mut()[start * vocab..(start + count) * vocab];
                    device.read(program.logits, bytemuck::cast_slice_mut(out))?;
                }
            }
            first += positions;
        }
        Ok(())
    }
}

impl Session for CudaSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.sequences.memory(self.memory)
    }

    delegate_sequences!(sequences);
    delegate_transfers!(sequences, transfers);

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.sequences.release(sequence)
    }

    fn load_adapter(&mut self, adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        let bytes = predict_bytes(adapter, self.adapter_targets.format());
        self.sequences.check_adapter(adapter.rank(), bytes)?;
        let loaded = {
            let mut device = self.sequences.storage().device();
            LoadedAdapter::load(&mut **device, &self.adapter_targets, adapter)?
        };
        let id = self.sequences.add_adapter(adapter, bytes)?;
        self.adapters.insert(id, Arc::new(loaded));
        Ok(id)
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.sequences.remove_adapter(adapter)?;
        if let Some(loaded) = self.adapters.remove(&adapter) {
            self.sequences.storage().device().free(loaded.memory);
        }
        Ok(())
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        let inputs = &self.capabilities.media;
        if !inputs.embeddings {
            return Err(SessionError::Unsupported("media"));
        }
        let layout = MediaLayout::new(&self.spec, media, inputs.max_patches)?;
        let handle = self.sequences.add_media(layout)?;
        match self.encode_features(media, handle) {
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
        let storage = self.sequences.storage();
        let features = storage.media(media);
        let features = features.ok_or(SessionError::UnknownMedia(media))?;
        let mut device = storage.device();
        Ok(features.read(&mut **device, self.spec.hidden_size)?)
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        output.reset(&self.capabilities);
        if self.only_decodes(batch) && self.decode(batch, output)? {
            return Ok(());
        }
        self.drop_ahead();
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.plan(batch, &mut rows);
        let accepted = std::mem::take(&mut rows.accepted);
        for (row, accepted) in batch.rows().iter().zip(&accepted) {
            match accepted {
                Ok(accepted) => rows.push(row.emit, accepted, output),
                Err(error) => output.push_error(error.clone()),
            }
        }
        for tokens in [&rows.hidden, &rows.logits, &rows.chosen] {
            self.tables.emitted.extend_from_slice(tokens);
        }
        if rows.draws.iter().any(|draw| *draw != DrawTable::GREEDY) {
            self.tables.draws.extend_from_slice(&rows.draws);
        }
        let ready = self.sequences.storage_mut().check();
        let ran = ready.and_then(|()| match self.tables.tokens() {
            0 => Ok(()),
            _ => self.run(&rows, output).map_err(SessionError::from),
        });
        let tokens: Vec<u32> = output.all_tokens_mut().to_vec();
        for (token, row) in tokens.iter().zip(&rows.chosen_rows) {
            if *token == NOT_A_NUMBER {
                output.fail(*row, SessionError::NotANumber);
            }
        }
        for (accepted, output) in accepted.into_iter().zip(output.rows()) {
            let Ok(Accepted { grant, .. }) = accepted else {
                continue;
            };
            if ran.is_ok() {
                self.sequences.settle(grant, output);
            } else {
                self.sequences.roll_back(grant);
            }
        }
        self.rows = rows;
        self.step_adapters.clear();
        ran
    }
}

impl From<DeviceError> for SessionError {
    fn from(error: DeviceError) -> Self {
        SessionError::Device(error.to_string())
    }
}
