//! Steps that decode one greedy token for each row: the same launches each time, recorded once for
//! each number of rows, and started before they are requested.
//!
//! A recorded step leaves its tokens where the next one reads them and moves the positions on, so
//! that the next step can follow at once, before the host knows the tokens. If the next request is
//! another, its result is dropped: what it wrote lies beyond the sequences' lengths.

use loquat_session::sequences::RowGrant;
use loquat_session::{Emit, SequenceId, SessionError, StepBatch, StepOutput};

use crate::device::{Device, DeviceError, RecordId, Ticket};
use crate::execute::Execution;
use crate::fused::{Advance, Epilogue, FusedOp};
use crate::fused_launch::MAX_TILED_CHOICES;
use crate::lower::{Instruction, Program};
use crate::ops::{NOT_A_NUMBER, Op, Step};
use crate::session::CudaSession;

const ONE_TOKEN: Emit = Emit::Greedy { positions: 1 };

/// Recorded steps by their number of rows, and the step ahead.
#[derive(Default)]
pub struct Decoding {
    recorded: Vec<Option<Recorded>>,
    ahead: Option<StepAhead>,
}

struct Recorded {
    step: Step,
    id: RecordId,
}

/// A step that is running and was not requested yet.
struct StepAhead {
    rows: Vec<AheadRow>,
    ticket: Ticket,
}

struct AheadRow {
    /// What the step before emitted, and this one continues.
    token: u32,
    grant: RowGrant,
}

/// Whether a program's steps can be recorded.
pub fn can_record(program: &Program) -> bool {
    let [instruction] = &program.greedy[..] else {
        return false;
    };
    matches!(
        instruction.op,
        Op::Fused(FusedOp::Linear(Epilogue::Largest, _))
    )
}

impl CudaSession {
    /// Whether the batch only decodes.
    pub(crate) fn only_decodes(&self, batch: &StepBatch) -> bool {
        self.records
            && (1..=MAX_TILED_CHOICES as usize).contains(&batch.rows().len())
            && batch
                .rows()
                .iter()
                .all(|row| row.emit == ONE_TOKEN && batch.tokens(row).len() == 1)
            && batch.rows().iter().all(|row| batch.media(row).is_empty())
    }

    /// Rolls the step ahead back.
    pub(crate) fn drop_ahead(&mut self) {
        if let Some(ahead) = self.decoding.ahead.take() {
            for row in ahead.rows {
                self.sequences.roll_back(row.grant);
            }
        }
    }

    /// The step ahead, if it is the batch.
    fn claim_ahead(&mut self, batch: &StepBatch) -> Option<StepAhead> {
        let ahead = self.decoding.ahead.take()?;
        let requested = batch.rows();
        let is_same = |(row, ahead): (&loquat_session::Row, &AheadRow)| {
            row.sequence == ahead.grant.sequence
                && batch.tokens(row) == [ahead.token]
                && self.sequences.len(row.sequence) == Ok(ahead.grant.start)
        };
        let same = requested.len() == ahead.rows.len()
            && requested.iter().zip(&ahead.rows).all(is_same)
            && (0..requested.len()).all(|index| {
                let len = ahead.rows[index].grant.start;
                batch.check(index, len, index, &self.capabilities).is_ok()
            });
        if same {
            return Some(ahead);
        }
        self.decoding.ahead = Some(ahead);
        self.drop_ahead();
        None
    }

    /// Computes a batch for which [`Self::only_decodes`], if all of its rows are accepted. `false`:
    /// nothing was done.
    pub(crate) fn decode(
        &mut self,
        batch: &StepBatch,
        output: &mut StepOutput,
    ) -> Result<bool, SessionError> {
        let mut sequences = Vec::with_capacity(batch.rows().len());
        let ticket = match self.claim_ahead(batch) {
            Some(ahead) => {
                for row in ahead.rows {
                    sequences.push((row.grant.sequence, row.grant.start));
                    self.sequences.commit(row.grant);
                }
                ahead.ticket
            }
            None => {
                let Some(grants) = self.accept_all(batch)? else {
                    return Ok(false);
                };
                let started = self.start_step();
                for grant in grants {
                    sequences.push((grant.sequence, grant.start));
                    match started {
                        Ok(_) => self.sequences.commit(grant),
                        Err(_) => self.sequences.roll_back(grant),
                    }
                }
                started?
            }
        };
        let next = self.grant_next(&sequences);
        let next = match next {
            Some(grants) => {
                let count = grants.len();
                let mut device = self.sequences.storage().device();
                let started = self.decoding.replay(&mut **device, count);
                drop(device);
                Some((grants, started?))
            }
            None => None,
        };
        let mut tokens = vec![0_u32; sequences.len()];
        let storage = self.sequences.storage();
        let bytes = bytemuck::cast_slice_mut(&mut tokens);
        storage.device().collect(ticket, bytes)?;
        let mut failed = false;
        for (row, (token, (sequence, start))) in tokens.iter().zip(&sequences).enumerate() {
            output.push_tokens(1)[0] = *token;
            if *token == NOT_A_NUMBER {
                failed = true;
                output.fail(row, SessionError::NotANumber);
                self.sequences.truncate(*sequence, *start)?;
            }
        }
        if let Some((grants, ticket)) = next {
            let rows = tokens.into_iter().zip(grants);
            let rows = rows.map(|(token, grant)| AheadRow { token, grant });
            self.decoding.ahead = Some(StepAhead {
                rows: rows.collect(),
                ticket,
            });
            if failed {
                self.drop_ahead();
            }
        }
        Ok(true)
    }

    /// Accepts all rows and writes their tables, or none.
    fn accept_all(&mut self, batch: &StepBatch) -> Result<Option<Vec<RowGrant>>, SessionError> {
        let groups = self.sequences.storage().layout().groups();
        self.tables.clear(groups);
        let mut grants = Vec::with_capacity(batch.rows().len());
        for index in 0..batch.rows().len() {
            let capabilities = &self.capabilities;
            let planned = self.tables.tokens();
            let grant = self.sequences.accept(batch, index, planned, capabilities);
            let planned = match grant {
                Ok(grant) => {
                    let planned = self.plan_row(batch, index, &grant);
                    grants.push(grant);
                    planned.is_ok()
                }
                Err(_) => false,
            };
            if !planned {
                for grant in grants {
                    self.sequences.roll_back(grant);
                }
                return Ok(None);
            }
        }
        if let Err(error) = self.sequences.storage_mut().check() {
            for grant in grants {
                self.sequences.roll_back(grant);
            }
            return Err(error);
        }
        Ok(Some(grants))
    }

    /// Uploads the tables and starts the recorded step for them.
    fn start_step(&mut self) -> Result<Ticket, SessionError> {
        let rows = self.tables.tokens();
        let mut device = self.sequences.storage().device();
        let step = self.tables.upload(&mut **device)?;
        self.decoding
            .record(&mut **device, &self.program, &step, rows)?;
        Ok(self.decoding.replay(&mut **device, rows)?)
    }

    /// Room for one more token of each sequence in its own pages, or `None`.
    fn grant_next(&mut self, sequences: &[(SequenceId, usize)]) -> Option<Vec<RowGrant>> {
        let mut grants = Vec::with_capacity(sequences.len());
        for (sequence, _) in sequences {
            match self.sequences.grant_spare(*sequence) {
                Some(grant) if grant.start < self.capabilities.max_context => grants.push(grant),
                other => {
                    for grant in grants.into_iter().chain(other) {
                        self.sequences.roll_back(grant);
                    }
                    return None;
                }
            }
        }
        Some(grants)
    }
}

impl Decoding {
    /// Records the launches of a step, unless they are those that were recorded for so many rows.
    fn record(
        &mut self,
        device: &mut dyn Device,
        program: &Program,
        step: &Step,
        rows: usize,
    ) -> Result<(), DeviceError> {
        if self.recorded.len() <= rows {
            self.recorded.resize_with(rows + 1, || None);
        }
        let known = &mut self.recorded[rows];
        if known.as_ref().is_some_and(|known| known.step == *step) {
            return Ok(());
        }
        if let Some(stale) = known.take() {
            device.forget(stale.id);
        }
        let launches = launches(program, step)?;
        let id = device.record(launches)?;
        *known = Some(Recorded { step: *step, id });
        Ok(())
    }

    /// Starts a recorded step and the transfer of its tokens.
    fn replay(&mut self, device: &mut dyn Device, rows: usize) -> Result<Ticket, DeviceError> {
        let Some(Some(recorded)) = self.recorded.get(rows) else {
            return Err(DeviceError::Failed {
                what: "a step".to_owned(),
                why: "it was not recorded".to_owned(),
            });
        };
        device.replay(recorded.id)?;
        device.fetch(recorded.step.tables.ids, 4 * rows)
    }
}

/// All launches of a step whose tokens replace its ids.
fn launches(program: &Program, step: &Step) -> Result<Vec<(Op, Step)>, DeviceError> {
    let execution = Execution {
        step: *step,
        single_rows: step.count,
        tokens: step.count,
        tile_groups: program.tile_groups,
        adapters: None,
        runs: &[],
        emitted: &[],
    };
    let mut launches = Vec::new();
    let mut push = |op: &Op, step: &Step| {
        launches.push((*op, *step));
        Ok(())
    };
    execution.for_each(&program.forward, &mut push)?;
    let greedy: Vec<Instruction> = program
        .greedy
        .iter()
        .map(|head| chooses(head, step))
        .collect();
    execution.for_each(&greedy, &mut push)?;
    let advance = Advance {
        positions: step.tables.positions,
        rope: step.tables.rope,
        seen_end: step.tables.seen_end,
    };
    push(&FusedOp::Advance(advance).into(), step)?;
    Ok(launches)
}

/// The head's launch for every token, whose results are the next ids.
fn chooses(head: &Instruction, step: &Step) -> Instruction {
    let mut head = *head;
    if let Op::Fused(FusedOp::Linear(_, linear)) = &mut head.op {
        linear.tokens = step.tables.ids;
    }
    head
}
