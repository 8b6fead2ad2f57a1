//! The next step, computed before it is asked for.
//!
//! MLX is lazy: a step's graph can be built from tokens that are still being computed. While every
//! row is greedy with one token the device never waits for the engine.

use loquat_session::sequences::RowGrant;
use loquat_session::{Emit, SequenceId, StepBatch, StepOutput};

use crate::array::Array;
use crate::error::MlxError;
use crate::pass::{NO_TOKEN, Outputs, Tokens};
use crate::session::{AcceptedRow, Launched, MlxSession, Source};
use crate::storage::{self, ComputedStates};

/// The step after the last one, started before anybody asked for it: each greedy row with the
/// token it gave. A row that comes as foreseen finds its answer under way; of the others nothing
/// is kept, since a sequence's length, not its arrays, says what it holds.
pub struct Ahead {
    rows: Vec<AheadRow>,
    /// What each row gives, on the device.
    greedy: Array,
}

struct AheadRow {
    /// What the last step gave.
    token: u32,
    grant: RowGrant,
    states: ComputedStates,
}

/// [`Ahead`] before the tokens it was computed from are known.
pub struct Pending {
    pub grants: Vec<RowGrant>,
    states: Vec<ComputedStates>,
    greedy: Array,
}

const ONE_TOKEN: Emit = Emit::Greedy { positions: 1 };

impl MlxSession {
    /// Matches the batch with what was computed ahead: for each row whether it was foreseen, and
    /// these rows' tokens. Counts the tokens that came as foreseen, and gives back the rest.
    pub fn claim_ahead(
        &mut self,
        batch: &StepBatch,
    ) -> Result<(Vec<bool>, Option<Array>), MlxError> {
        let mut foreseen = vec![false; batch.rows().len()];
        let Some(Ahead { rows, greedy }) = self.ahead.take() else {
            return Ok((foreseen, None));
        };
        let mut rows: Vec<Option<AheadRow>> = rows.into_iter().map(Some).collect();
        let mut places = Vec::with_capacity(rows.len());
        let mut earlier = 0;
        for (index, asked) in batch.rows().iter().enumerate() {
            let planned = earlier;
            earlier += batch.tokens(asked).len();
            let is_asked = |row: &Option<AheadRow>| {
                row.as_ref().is_some_and(|row| {
                    let RowGrant {
                        sequence, start, ..
                    } = row.grant;
                    asked.sequence == sequence
                        && asked.emit == ONE_TOKEN
                        && batch.tokens(asked) == [row.token]
                        && self.sequences.len(sequence) == Ok(start)
                        && batch
                            .check(index, start, planned, &self.capabilities)
                            .is_ok()
                })
            };
            let Some(place) = rows.iter().position(is_asked) else {
                continue;
            };
            if let Some(row) = rows[place].take() {
                places.push(place as i32);
                foreseen[index] = true;
                storage::commit(&mut self.sequences, row.grant, row.states);
            }
        }
        for row in rows.into_iter().flatten() {
            self.sequences.roll_back(row.grant);
        }
        Ok((foreseen, self.pick(&greedy, &places)?))
    }

    /// Some of an array's values, in this order; `None` for none.
    fn pick(&self, values: &Array, places: &[i32]) -> Result<Option<Array>, MlxError> {
        if places.is_empty() {
            return Ok(None);
        }
        if places.iter().copied().eq(0..values.dim(0)) {
            return Ok(Some(values.clone()));
        }
        let places = self.ops.upload_i32(places, &[places.len() as i32])?;
        self.ops.take_rows(values, &places, 0).map(Some)
    }

    /// Starts the step that follows if every row goes on with the token it gives. `None` where the
    /// rows are not all of that kind, or one has no room to spare.
    pub fn look_ahead(
        &mut self,
        batch: &StepBatch,
        launched: &Launched,
    ) -> Result<Option<Pending>, MlxError> {
        let all_go_on = batch
            .rows()
            .iter()
            .zip(&launched.sources)
            .all(|(row, source)| row.emit == ONE_TOKEN && !matches!(source, Source::Refused(_)));
        let Some(tokens) = self.join_greedy(launched)?.filter(|_| all_go_on) else {
            return Ok(None);
        };
        let sequences: Vec<SequenceId> = batch.rows().iter().map(|row| row.sequence).collect();
        let Some(grants) = self.grant_spare(&sequences) else {
            return Ok(None);
        };
        let rows = grants.iter().map(|grant| AcceptedRow {
            grant,
            emit: ONE_TOKEN,
        });
        let rows: Vec<AcceptedRow> = rows.collect();
        match self.compute(&rows, Tokens::Device(&tokens)) {
            Ok((
                Outputs {
                    greedy: Some(greedy),
                    ..
                },
                states,
            )) => Ok(Some(Pending {
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

    /// Room for one more token of each, or of none. While a step runs MLX holds the keys it reads,
    /// so that the step ahead writes into copies: they must fit into room that nobody uses, and
    /// copying must be little beside a step.
    fn grant_spare(&mut self, sequences: &[SequenceId]) -> Option<Vec<RowGrant>> {
        const MOST_COPIED: u64 = 512 << 20;
        let copied = self.sequences.held(sequences).ok()?.kv_tokens;
        let bytes = copied as u64 * self.memory.kv_bytes_per_token;
        if copied > self.sequences.available_tokens() || bytes > MOST_COPIED {
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

    /// The tokens of all rows on the device, in the batch's order, where each gives one.
    fn join_greedy(&self, launched: &Launched) -> Result<Option<Array>, MlxError> {
        let (foreseen, fresh) = match (&launched.foreseen, &launched.fresh.greedy) {
            (Some(foreseen), Some(fresh)) => (foreseen, fresh),
            (one, other) => return Ok(one.as_ref().or(other.as_ref()).cloned()),
        };
        let joined = self.ops.concatenate(&[foreseen, fresh], 0)?;
        let (mut of_foreseen, mut of_fresh) = (0, foreseen.dim(0));
        let mut places = Vec::with_capacity(launched.sources.len());
        for source in &launched.sources {
            let next = match source {
                Source::Foreseen => &mut of_foreseen,
                Source::Fresh | Source::Refused(_) => &mut of_fresh,
            };
            places.push(*next);
            *next += 1;
        }
        self.pick(&joined, &places)
    }

    /// Keeps what was started ahead, now that the tokens it goes on from are known.
    pub fn foresee(&mut self, pending: Pending, output: &StepOutput) {
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
        self.ahead = Some(Ahead {
            rows: rows.collect(),
            greedy: pending.greedy,
        });
    }

    /// States that only the step ahead holds; they are nobody's yet.
    pub fn states_ahead(&self) -> usize {
        match self.memory.state_bytes {
            0 => 0,
            _ => self.ahead.as_ref().map_or(0, |ahead| ahead.rows.len()),
        }
    }

    pub fn forget_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.roll_back(ahead.rows.into_iter().map(|row| row.grant));
        }
    }
}
