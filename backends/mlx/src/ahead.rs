//! The next step, computed before it is requested.
//!
//! MLX is lazy: a step's graph can be built from tokens that are still being computed. While every
//! row is greedy with one token, the device never waits for the engine.

use loquat_session::sequences::RowGrant;
use loquat_session::{Emit, SequenceId, StepBatch, StepOutput};

use crate::array::Array;
use crate::error::MlxError;
use crate::pass::{NO_TOKEN, Outputs, Tokens};
use crate::session::{AcceptedRow, LaunchedStep, MlxSession, RowSource};
use crate::storage::{self, ComputedStates};

/// The step after the last one: each greedy row continued with its own token. A request for exactly
/// that row uses the result; otherwise the row is rolled back, which is free, since a sequence's
/// length and not its arrays determine what it holds.
pub struct StepAhead {
    rows: Vec<AheadRow>,
    /// Each row's token, on the device.
    greedy: Array,
}

struct AheadRow {
    /// Emitted by the last step.
    token: u32,
    grant: RowGrant,
    states: ComputedStates,
}

/// [`StepAhead`] before the tokens it continues are known.
pub struct PendingStep {
    pub grants: Vec<RowGrant>,
    states: Vec<ComputedStates>,
    greedy: Array,
}

const ONE_TOKEN: Emit = Emit::Greedy { positions: 1 };

impl MlxSession {
    /// Matches the batch with the step ahead: for each row whether it was computed ahead, and the
    /// tokens of those rows. Commits the matching rows and rolls back the rest.
    pub fn claim_ahead(
        &mut self,
        batch: &StepBatch,
    ) -> Result<(Vec<bool>, Option<Array>), MlxError> {
        let mut claimed = vec![false; batch.rows().len()];
        let Some(StepAhead { rows, greedy }) = self.ahead.take() else {
            return Ok((claimed, None));
        };
        let mut rows: Vec<Option<AheadRow>> = rows.into_iter().map(Some).collect();
        let mut indices = Vec::with_capacity(rows.len());
        let mut earlier = 0;
        for (index, requested) in batch.rows().iter().enumerate() {
            let planned = earlier;
            earlier += batch.tokens(requested).len();
            let matches = |row: &Option<AheadRow>| {
                row.as_ref().is_some_and(|row| {
                    let RowGrant {
                        sequence, start, ..
                    } = row.grant;
                    requested.sequence == sequence
                        && requested.emit == ONE_TOKEN
                        && batch.tokens(requested) == [row.token]
                        && self.sequences.len(sequence) == Ok(start)
                        && batch
                            .check(index, start, planned, &self.capabilities)
                            .is_ok()
                })
            };
            let Some(ahead) = rows.iter().position(matches) else {
                continue;
            };
            if let Some(row) = rows[ahead].take() {
                indices.push(ahead as i32);
                claimed[index] = true;
                storage::commit(&mut self.sequences, row.grant, row.states);
            }
        }
        for row in rows.into_iter().flatten() {
            self.sequences.roll_back(row.grant);
        }
        Ok((claimed, self.pick(&greedy, &indices)?))
    }

    /// Selects values of an array in this order; `None` if there are none.
    fn pick(&self, values: &Array, indices: &[i32]) -> Result<Option<Array>, MlxError> {
        if indices.is_empty() {
            return Ok(None);
        }
        if indices.iter().copied().eq(0..values.dim(0)) {
            return Ok(Some(values.clone()));
        }
        let indices = self.ops.upload_i32(indices, &[indices.len() as i32])?;
        self.ops.take_rows(values, &indices, 0).map(Some)
    }

    /// Starts the next step if every row continues with the token it emits. `None` if the rows are
    /// not all of that kind, or one has no room.
    pub fn start_ahead(
        &mut self,
        batch: &StepBatch,
        launched: &LaunchedStep,
    ) -> Result<Option<PendingStep>, MlxError> {
        let all_continue = batch
            .rows()
            .iter()
            .zip(&launched.sources)
            .all(|(row, source)| row.emit == ONE_TOKEN && !matches!(source, RowSource::Refused(_)));
        let Some(tokens) = self.join_greedy(launched)?.filter(|_| all_continue) else {
            return Ok(None);
        };
        let sequences: Vec<SequenceId> = batch.rows().iter().map(|row| row.sequence).collect();
        let Some(grants) = self.grant_spare(&sequences) else {
            return Ok(None);
        };
        let rows = grants.iter().map(|grant| AcceptedRow {
            grant,
            emit: ONE_TOKEN,
            media: &[],
        });
        let rows: Vec<AcceptedRow> = rows.collect();
        match self.compute(&rows, Tokens::Device(&tokens)) {
            Ok((
                Outputs {
                    greedy: Some(greedy),
                    ..
                },
                states,
            )) => Ok(Some(PendingStep {
                grants,
                states,
                greedy,
            })),
            other => {
                self.roll_back(grants);
                other.map(|_| None)
            }
        }
    }

    /// Grants one more token to each sequence, or to none. While a step runs, MLX refers to the
    /// keys it reads, so the step ahead writes to copies: they must fit into free pages, and be
    /// small enough that copying is cheap compared to a step.
    fn grant_spare(&mut self, sequences: &[SequenceId]) -> Option<Vec<RowGrant>> {
        const MAX_COPIED: u64 = 512 << 20;
        let copied = self.sequences.held(sequences).ok()?.kv_tokens;
        let bytes = copied as u64 * self.memory.kv_bytes_per_token;
        if copied > self.sequences.available_tokens() || bytes > MAX_COPIED {
            return None;
        }
        let mut grants = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            match self.sequences.grant_spare(*sequence) {
                Some(grant) if grant.start < self.capabilities.max_context => grants.push(grant),
                other => {
                    self.roll_back(grants.into_iter().chain(other));
                    return None;
                }
            }
        }
        Some(grants)
    }

    /// The tokens of all rows on the device, in the batch's order, if each emits one.
    fn join_greedy(&self, launched: &LaunchedStep) -> Result<Option<Array>, MlxError> {
        let (ahead, fresh) = match (&launched.ahead, &launched.fresh.greedy) {
            (Some(ahead), Some(fresh)) => (ahead, fresh),
            (one, other) => return Ok(one.as_ref().or(other.as_ref()).cloned()),
        };
        let joined = self.ops.concatenate(&[ahead, fresh], 0)?;
        let (mut next_ahead, mut next_fresh) = (0, ahead.dim(0));
        let mut indices = Vec::with_capacity(launched.sources.len());
        for source in &launched.sources {
            let next = match source {
                RowSource::Ahead => &mut next_ahead,
                RowSource::Fresh | RowSource::Refused(_) => &mut next_fresh,
            };
            indices.push(*next);
            *next += 1;
        }
        self.pick(&joined, &indices)
    }

    /// Keeps the started step, now that the tokens it continues are known.
    pub fn keep_ahead(&mut self, pending: PendingStep, output: &StepOutput) {
        let failed = output.rows().iter().any(|row| row.error.is_some());
        if failed {
            return self.roll_back(pending.grants);
        }
        let rows = pending.grants.into_iter().zip(pending.states).enumerate();
        let rows = rows.map(|(index, (grant, states))| AheadRow {
            token: output.tokens(index).first().copied().unwrap_or(NO_TOKEN),
            grant,
            states,
        });
        self.ahead = Some(StepAhead {
            rows: rows.collect(),
            greedy: pending.greedy,
        });
    }

    /// States of the step ahead, which belong to no sequence yet.
    pub fn states_ahead(&self) -> usize {
        match self.memory.state_bytes {
            0 => 0,
            _ => self.ahead.as_ref().map_or(0, |ahead| ahead.rows.len()),
        }
    }

    pub fn drop_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.roll_back(ahead.rows.into_iter().map(|row| row.grant));
        }
    }
}
