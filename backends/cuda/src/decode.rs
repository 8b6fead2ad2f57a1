//! Steps that decode one token for each row: the same launches each time, recorded once for each
//! number of rows, and started before they are requested.
//!
//! A recorded step leaves its tokens where the next one reads them and moves the positions on, so
//! that the next step can follow at once, before the host knows the tokens. If the next request is
//! another, its result is dropped: what it wrote lies beyond the sequences' lengths.
//!
//! If tokens are drawn, a step is recorded in two parts. The first ends with the logits and is
//! started ahead; the second draws, when the request says how, and the next first part follows it.

use loquat_session::sequences::RowGrant;
use loquat_session::{Emit, SequenceId, SessionError, StepBatch, StepOutput};

use crate::device::{Device, DeviceError, RecordId, Ticket};
use crate::draw::DrawTable;
use crate::execute::Execution;
use crate::fused::{Advance, Epilogue, FusedOp};
use crate::fused_launch::MAX_TILED_CHOICES;
use crate::lower::{HEAD_BLOCK, Instruction, Program};
use crate::ops::{DrawTokens, NOT_A_NUMBER, Op, Step};
use crate::session::CudaSession;

const ONE_TOKEN: Emit = Emit::Greedy { positions: 1 };

/// Recorded steps by their number of rows, and the step ahead.
#[derive(Default)]
pub struct Decoding {
    greedy: Vec<Option<Recorded>>,
    drawn: Vec<Option<Recorded>>,
    ahead: Option<StepAhead>,
}

struct Recorded {
    step: Step,
    /// Up to the tokens, or the logits if they are drawn.
    first: RecordId,
    /// Draws the tokens.
    draw: Option<RecordId>,
}

/// A step that is running and was not requested yet.
struct StepAhead {
    rows: Vec<AheadRow>,
    /// None: its tokens are drawn when it is requested.
    ticket: Option<Ticket>,
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
        let most = if draws(batch) {
            HEAD_BLOCK
        } else {
            MAX_TILED_CHOICES as usize
        };
        self.records
            && (1..=most).contains(&batch.rows().len())
            && batch.rows().iter().all(|row| {
                let emits = row.emit == ONE_TOKEN || matches!(row.emit, Emit::Drawn(_));
                emits && batch.tokens(row).len() == 1 && batch.media(row).is_empty()
            })
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
            && (ahead.ticket.is_none() || !draws(batch))
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
        let mut drawn = draws(batch);
        let ticket = match self.claim_ahead(batch) {
            Some(ahead) => {
                for row in ahead.rows {
                    sequences.push((row.grant.sequence, row.grant.start));
                    self.sequences.commit(row.grant);
                }
                drawn |= ahead.ticket.is_none();
                match ahead.ticket {
                    Some(ticket) => ticket,
                    None => self.draw(batch)?,
                }
            }
            None => {
                let Some(grants) = self.accept_all(batch)? else {
                    return Ok(false);
                };
                let started = self.start_step(batch);
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
                let started = if drawn {
                    let started = self.decoding.start_drawn(&mut **device, count);
                    started.map(|()| None)
                } else {
                    self.decoding.replay(&mut **device, count).map(Some)
                };
                drop(device);
                match started {
                    Ok(ticket) => Some((grants, ticket)),
                    Err(error) => {
                        for grant in grants {
                            self.sequences.roll_back(grant);
                        }
                        return Err(error.into());
                    }
                }
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
    fn start_step(&mut self, batch: &StepBatch) -> Result<Ticket, SessionError> {
        let rows = self.tables.tokens();
        let drawn = draws(batch);
        if drawn {
            self.tables.draws.extend(tables(batch));
        }
        let mut device = self.sequences.storage().device();
        let device = &mut **device;
        let step = self.tables.upload(device)?;
        let decoding = &mut self.decoding;
        decoding.record(device, &self.program, &step, (rows, drawn))?;
        if !drawn {
            return Ok(decoding.replay(device, rows)?);
        }
        decoding.start_drawn(device, rows)?;
        Ok(decoding.draw(device, rows)?)
    }

    /// Draws the tokens of a step whose first part was started, as the batch says.
    fn draw(&mut self, batch: &StepBatch) -> Result<Ticket, SessionError> {
        let rows = batch.rows().len();
        let draws: Vec<DrawTable> = tables(batch).collect();
        let mut device = self.sequences.storage().device();
        let device = &mut **device;
        let recorded = recorded(&self.decoding.drawn, rows)?;
        device.write(recorded.step.tables.draws, bytemuck::cast_slice(&draws))?;
        Ok(self.decoding.draw(device, rows)?)
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
        (rows, drawn): (usize, bool),
    ) -> Result<(), DeviceError> {
        let all = if drawn {
            &mut self.drawn
        } else {
            &mut self.greedy
        };
        if all.len() <= rows {
            all.resize_with(rows + 1, || None);
        }
        let known = &mut all[rows];
        if known.as_ref().is_some_and(|known| known.step == *step) {
            return Ok(());
        }
        if let Some(stale) = known.take() {
            device.forget(stale.first);
            stale.draw.into_iter().for_each(|draw| device.forget(draw));
        }
        let (first, draw) = if drawn {
            let draw = draw_launches(program, step)?;
            let first = device.record(launches(program, step, &program.head)?)?;
            (first, Some(device.record(draw)?))
        } else {
            let chosen: Vec<_> = program.greedy.iter().map(|op| chooses(op, step)).collect();
            let mut launches = launches(program, step, &chosen)?;
            launches.push(advance(step));
            (device.record(launches)?, None)
        };
        *known = Some(Recorded {
            step: *step,
            first,
            draw,
        });
        Ok(())
    }

    /// Starts a recorded greedy step and the transfer of its tokens.
    fn replay(&mut self, device: &mut dyn Device, rows: usize) -> Result<Ticket, DeviceError> {
        let recorded = recorded(&self.greedy, rows)?;
        device.replay(recorded.first)?;
        device.fetch(recorded.step.tables.ids, 4 * rows)
    }

    /// Starts a recorded step up to its logits.
    fn start_drawn(&self, device: &mut dyn Device, rows: usize) -> Result<(), DeviceError> {
        device.replay(recorded(&self.drawn, rows)?.first)
    }

    /// Draws the tokens of the step that was started, and starts their transfer.
    fn draw(&self, device: &mut dyn Device, rows: usize) -> Result<Ticket, DeviceError> {
        let recorded = recorded(&self.drawn, rows)?;
        if let Some(draw) = recorded.draw {
            device.replay(draw)?;
        }
        device.fetch(recorded.step.tables.ids, 4 * rows)
    }
}

fn recorded(all: &[Option<Recorded>], rows: usize) -> Result<&Recorded, DeviceError> {
    let recorded = all.get(rows).and_then(Option::as_ref);
    recorded.ok_or_else(|| DeviceError::Failed {
        what: "a step".to_owned(),
        why: "it was not recorded".to_owned(),
    })
}

/// Whether any row draws its token.
fn draws(batch: &StepBatch) -> bool {
    let mut rows = batch.rows().iter();
    rows.any(|row| matches!(row.emit, Emit::Drawn(_)))
}

/// How each row's token is chosen.
fn tables(batch: &StepBatch) -> impl Iterator<Item = DrawTable> {
    batch.rows().iter().map(|row| DrawTable::for_row(row.emit))
}

/// The launches of a step up to a head over every token.
fn launches(
    program: &Program,
    step: &Step,
    head: &[Instruction],
) -> Result<Vec<(Op, Step)>, DeviceError> {
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
    execution.for_each(head, &mut push)?;
    Ok(launches)
}

/// The launches that draw every token and move on.
fn draw_launches(program: &Program, step: &Step) -> Result<Vec<(Op, Step)>, DeviceError> {
    let Some(Op::DrawTokens(draw)) = program.drawn.last().map(|last| last.op) else {
        return Err(DeviceError::Failed {
            what: "a step".to_owned(),
            why: "the program does not draw".to_owned(),
        });
    };
    let draw = DrawTokens {
        out: step.tables.ids,
        ..draw
    };
    Ok(vec![(draw.into(), *step), advance(step)])
}

/// Moves the positions on.
fn advance(step: &Step) -> (Op, Step) {
    let advance = Advance {
        positions: step.tables.positions,
        rope: step.tables.rope,
        seen_end: step.tables.seen_end,
    };
    (FusedOp::Advance(advance).into(), *step)
}

/// The head's launch for every token, whose results are the next ids.
fn chooses(head: &Instruction, step: &Step) -> Instruction {
    let mut head = *head;
    if let Op::Fused(FusedOp::Linear(_, linear)) = &mut head.op {
        linear.tokens = step.tables.ids;
    }
    head
}
