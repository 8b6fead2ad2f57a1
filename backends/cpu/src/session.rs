//! The session contract over the forward pass.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{Kernels, KvElement, PAGE, PIECE, PagePtr};
use loquat_session::sequences::{RowGrant, RowStates, Sequences, TokenPlace, TransferScope};
use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, Emit, Media, MediaHandle, MediaId,
    MediaLayout, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
    delegate_sequences, delegate_transfers,
};
use loquat_spec::ModelSpec;

use crate::adapted::Run;
use crate::adapter::{Applied, LoadedAdapter};
use crate::buffers::{Buffer, fit};
use crate::forward::{
    Forward, PageRun, Plan, PlannedFeature, PlannedRow, PlannedState, PlannedToken, Scratch,
};
use crate::kv::{KvStorage, MediaFeatures};
use crate::model::Model;
use crate::pool::Pool;
use crate::tower::Compute;

/// Greedy positions whose logits are computed together; bounds the buffer, not the result.
pub const HEAD_BLOCK: usize = 16;

pub struct CpuSession<T: KvElement> {
    pub model: Model,
    pub kernels: &'static Kernels,
    pub pool: Pool,
    pub sequences: Sequences<KvStorage<T>>,
    pub capabilities: Capabilities,
    /// As planned, with nothing in use.
    pub memory: Memory,
    pub transfers: TransferScope,
    pub spec: Arc<ModelSpec>,
    /// Empty between steps.
    pub plan: Plan<T>,
    pub scratch: Scratch,
    pub logits: Buffer<f32>,
    /// The most likely token of each row of logits.
    pub largest: Buffer<Option<u32>>,
    /// Empty between steps; kept for its allocations.
    pub rows: StepRows,
    pub adapters: BTreeMap<AdapterId, Arc<LoadedAdapter>>,
}

/// The rows of a step.
#[derive(Default)]
pub struct StepRows {
    accepted: Vec<Result<Accepted, SessionError>>,
    /// Accepted rows, those with the same adapters together.
    order: Vec<usize>,
    emitted: Emitted,
}

/// An accepted row of the batch.
struct Accepted {
    /// Index of its first token in the plan.
    first: usize,
    grant: RowGrant,
}

/// The planned tokens after which something is emitted, in the rows' order.
#[derive(Default)]
struct Emitted {
    greedy: Vec<usize>,
    /// The row of the batch that each greedy token is for.
    greedy_rows: Vec<usize>,
    logits: Vec<usize>,
    hidden: Vec<usize>,
}

impl Emitted {
    fn clear(&mut self) {
        let Self {
            greedy,
            greedy_rows,
            logits,
            hidden,
        } = self;
        for places in [greedy, greedy_rows, logits, hidden] {
            places.clear();
        }
    }

    /// Records a row's positions and reserves room for their outputs.
    fn push(&mut self, emit: Emit, row: &Accepted, output: &mut StepOutput) {
        let end = row.first + row.grant.tokens;
        match emit {
            // Rows that draw are refused, since the capabilities exclude them.
            Emit::Nothing | Emit::Drawn(_) => output.push_nothing(),
            Emit::Greedy { positions } => {
                output.push_tokens(positions);
                self.greedy.extend(end - positions..end);
                let row = output.rows().len() - 1;
                self.greedy_rows.resize(self.greedy.len(), row);
            }
            Emit::Logits { positions } => {
                output.push_logits(positions);
                self.logits.extend(end - positions..end);
            }
            Emit::Hidden { positions } => {
                output.push_hidden(positions);
                self.hidden.extend(end - positions..end);
            }
        }
    }
}

impl<T: KvElement> CpuSession<T> {
    /// Checks all rows; a refused row changes nothing.
    fn accept(&mut self, batch: &StepBatch, rows: &mut StepRows) {
        let mut planned = 0;
        for index in 0..batch.rows().len() {
            let grant = self
                .sequences
                .accept(batch, index, planned, &self.capabilities);
            if let Ok(grant) = &grant {
                planned += grant.tokens;
                rows.order.push(index);
            }
            let accepted = grant.map(|grant| Accepted { first: 0, grant });
            rows.accepted.push(accepted);
        }
    }

    /// Plans the accepted rows. Rows with the same adapters are adjacent, so that those are read
    /// once.
    fn plan_rows(&mut self, batch: &StepBatch, rows: &mut StepRows) {
        let adapters = |index: &usize| {
            let sequence = batch.rows()[*index].sequence;
            self.sequences.adapters(sequence).map_or(&[][..], |all| all)
        };
        if rows.order.iter().any(|index| !adapters(index).is_empty()) {
            let key = |applied: &AppliedAdapter| (applied.id, applied.scale.to_bits());
            rows.order.sort_unstable_by(|a, b| {
                let keys = adapters(a).iter().map(key);
                keys.cmp(adapters(b).iter().map(key)).then(a.cmp(b))
            });
        }
        for index in &rows.order {
            let slot = &mut rows.accepted[*index];
            let Ok(accepted) = slot else {
                continue;
            };
            match self.plan_row(batch, *index, &accepted.grant) {
                Ok(first) => accepted.first = first,
                Err(error) => {
                    if let Ok(refused) = std::mem::replace(slot, Err(error)) {
                        self.sequences.roll_back(refused.grant);
                    }
                }
            }
        }
    }

    /// The group of a row's adapters, which starts unless the last row has the same.
    fn plan_adapters(&mut self, sequence: SequenceId) -> Result<Option<usize>, SessionError> {
        let own = self.sequences.adapters(sequence)?;
        if own.is_empty() {
            return Ok(None);
        }
        let plan = &mut self.plan.adapters;
        let loaded = |adapter: &AppliedAdapter| {
            let weights = self.adapters.get(&adapter.id);
            let weights = weights.ok_or(SessionError::UnknownAdapter(adapter.id))?;
            Ok(Applied {
                adapter: Arc::clone(weights),
                scale: adapter.scale,
            })
        };
        let is_same = |range: &Range<usize>| {
            let last = &plan.applied[range.clone()];
            let same = |(applied, own): (&Applied, &AppliedAdapter)| {
                let weights = self.adapters.get(&own.id);
                applied.scale == own.scale
                    && weights.is_some_and(|weights| Arc::ptr_eq(weights, &applied.adapter))
            };
            last.len() == own.len() && last.iter().zip(own.iter()).all(same)
        };
        if !plan.groups.last().is_some_and(is_same) {
            let first = plan.applied.len();
            for adapter in own.iter() {
                plan.applied.push(loaded(adapter)?);
            }
            plan.groups.push(first..plan.applied.len());
        }
        Ok(Some(plan.groups.len() - 1))
    }

    /// Plans one row and returns the index of its first token.
    fn plan_row(
        &mut self,
        batch: &StepBatch,
        index: usize,
        grant: &RowGrant,
    ) -> Result<usize, SessionError> {
        let row = &batch.rows()[index];
        let first = self.plan.tokens.len();
        let group = self.plan_adapters(row.sequence)?;
        if let Some(group) = group {
            let runs = &mut self.plan.adapters.runs;
            let end = first + grant.tokens;
            match runs.last_mut() {
                Some(last) if last.group == group => last.rows.end = end,
                _ => runs.push(Run {
                    rows: first..end,
                    group,
                }),
            }
        }
        let places = self.sequences.places(grant);
        self.plan_pages(row.sequence)?;
        let storage = self.sequences.storage();
        let planned_row = self.plan.rows.len();
        for (position, id) in (grant.start..).zip(batch.tokens(row)) {
            let place = places.as_ref().map(|places| places[position - grant.start]);
            let place = place.unwrap_or(TokenPlace {
                rope: [position; 3],
                seen_end: position + 1,
            });
            self.plan.tokens.push(PlannedToken {
                id: *id,
                feature: None,
                position,
                rope: place.rope,
                seen_end: place.seen_end,
                row: planned_row,
                group,
            });
        }
        for span in batch.media(row) {
            // Accepting the row has checked that the media exists.
            let Some(features) = storage.media(span.id) else {
                continue;
            };
            let media = self.plan.media.len();
            self.plan.media.push(Arc::clone(features));
            let tokens = &mut self.plan.tokens[first + span.at..];
            for (position, token) in span.range.clone().zip(tokens) {
                token.feature = Some(PlannedFeature { media, position });
            }
        }
        let states = grant.states.as_ref();
        self.plan.rows.push(PlannedRow {
            first,
            tokens: grant.tokens,
            state: states.map(|states| planned_state(storage, states, grant.start)),
        });
        Ok(first)
    }

    /// Plans the pages of a sequence, for each group of layers.
    fn plan_pages(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        let storage = self.sequences.storage();
        self.plan.groups = storage.layout().groups();
        for group in 0..self.plan.groups {
            let span = self.sequences.pages(sequence, group)?;
            let start = self.plan.pages.len();
            let left_out = span.first * PAGE / PIECE * PIECE;
            let out_of_reach = span.first - left_out / PAGE;
            let freed = PagePtr::new(std::ptr::null_mut(), 0);
            let pages = span.slots.iter().map(|page| storage.page(group, *page));
            let plan = &mut self.plan;
            plan.pages.resize(start + out_of_reach, freed);
            plan.pages.extend(pages);
            plan.page_runs.push(PageRun {
                pages: start..plan.pages.len(),
                first: left_out,
            });
        }
        Ok(())
    }

    fn forward(&mut self) -> (Forward<'_, T>, &mut Buffer<f32>, &mut Buffer<Option<u32>>) {
        let forward = Forward {
            model: &self.model,
            kernels: self.kernels,
            pool: &mut self.pool,
            layout: self.sequences.storage().layout(),
            states: self.sequences.storage().state_layout(),
            plan: &self.plan,
            scratch: &mut self.scratch,
        };
        (forward, &mut self.logits, &mut self.largest)
    }

    /// Computes the outputs of all rows together, so that the head's matrix is read once.
    fn emit(&mut self, emitted: &Emitted, output: &mut StepOutput) {
        let vocab = self.model.vocab_size;
        let (mut forward, scratch, largest) = self.forward();
        forward.hidden(&emitted.hidden, output.all_hidden_mut());
        if !emitted.logits.is_empty() {
            forward.logits(&emitted.logits, output.all_logits_mut());
        }
        let blocks = emitted.greedy.chunks(HEAD_BLOCK);
        let rows = emitted.greedy_rows.chunks(HEAD_BLOCK);
        for (block, (tokens, rows)) in blocks.zip(rows).enumerate() {
            fit(scratch, tokens.len() * vocab);
            forward.logits(tokens, scratch);
            forward.largest(scratch, largest);
            for (i, token) in largest.iter().enumerate() {
                match token {
                    Some(token) => output.all_tokens_mut()[block * HEAD_BLOCK + i] = *token,
                    None => output.fail(rows[i], SessionError::NotANumber),
                }
            }
        }
    }
}

/// The buffers for a row that starts after `len` tokens.
fn planned_state<T: KvElement>(
    storage: &KvStorage<T>,
    row: &RowStates,
    len: usize,
) -> PlannedState {
    PlannedState {
        before: row.before.map(|state| storage.state(state)),
        after: storage.state(row.after),
        snapshots: row
            .snapshots()
            .map(|(at, state)| (at - len, storage.state(state)))
            .collect(),
    }
}

impl<T: KvElement> Session for CpuSession<T> {
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
        let bytes = LoadedAdapter::predict_bytes(adapter);
        self.sequences.check_adapter(adapter.rank(), bytes)?;
        let loaded = LoadedAdapter::load(&self.model, &mut self.pool, adapter)?;
        let id = self.sequences.add_adapter(adapter, bytes)?;
        self.adapters.insert(id, Arc::new(loaded));
        Ok(id)
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.sequences.remove_adapter(adapter)?;
        self.adapters.remove(&adapter);
        Ok(())
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        let inputs = &self.capabilities.media;
        if !inputs.embeddings {
            return Err(SessionError::Unsupported("media"));
        }
        let layout = MediaLayout::new(&self.spec, media, inputs.max_patches)?;
        let handle = self.sequences.add_media(layout)?;
        let mut compute = Compute::new(self.kernels, &mut self.pool);
        let values = match (media, &self.model.tower) {
            (Media::Embeddings(values), _) => values.clone(),
            (media, Some(tower)) => tower.encode(&mut compute, media),
            (_, None) => Vec::new(),
        };
        let intact = self.model.files.check();
        let features = MediaFeatures {
            values,
            positions: handle.positions,
            hidden: self.model.hidden_size,
        };
        let computed = match intact {
            Err(changed) => Err(SessionError::WeightsChanged(changed.to_string())),
            Ok(()) if !features.values.iter().all(|value| value.is_finite()) => {
                Err(SessionError::NotANumber)
            }
            Ok(()) => Ok(()),
        };
        if let Err(error) = computed {
            self.sequences.release_media(handle.id)?;
            return Err(error);
        }
        let storage = self.sequences.storage_mut();
        storage.insert_media(handle.id, features);
        Ok(handle)
    }

    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        let features = self.sequences.storage().media(media);
        let features = features.ok_or(SessionError::UnknownMedia(media))?;
        Ok(features.values.clone())
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        output.reset(&self.capabilities);
        self.plan.clear();
        let mut rows = std::mem::take(&mut self.rows);
        self.accept(batch, &mut rows);
        self.plan_rows(batch, &mut rows);
        if !self.plan.tokens.is_empty() {
            self.forward().0.run();
        }
        for (row, accepted) in batch.rows().iter().zip(&rows.accepted) {
            match accepted {
                Ok(accepted) => rows.emitted.push(row.emit, accepted, output),
                Err(error) => output.push_error(error.clone()),
            }
        }
        self.emit(&rows.emitted, output);
        for (accepted, output) in rows.accepted.drain(..).zip(output.rows()) {
            if let Ok(Accepted { grant, .. }) = accepted {
                self.sequences.settle(grant, output);
            }
        }
        self.plan.clear();
        rows.emitted.clear();
        rows.order.clear();
        self.rows = rows;
        let intact = self.model.files.check();
        intact.map_err(|changed| SessionError::WeightsChanged(changed.to_string()))
    }
}
