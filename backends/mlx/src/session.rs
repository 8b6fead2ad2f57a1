//! The session contract over passes through the model: rows in, checked; outputs out.
//!
//! While rows are greedy the next step is computed before it is asked for: see [`Ahead`].

use loquat_session::transfer::{Envelope, unseal};
use loquat_session::{
    Capabilities, Emit, Held, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

use crate::ahead::Ahead;
use crate::array::{Array, Ops};
use crate::error::MlxError;
use crate::kv::Recurrent;
use crate::layout::Layout;
use crate::memory::Share;
use crate::model::Model;
use crate::pass::{self, NO_TOKEN, Outputs, PassHerd, PassRow, Tokens};
use crate::sequences::{Granted, Sequences, States};
use crate::step::RowState;
use crate::transfer;

pub struct MlxSession {
    pub ops: Ops,
    pub model: Model,
    pub layout: Layout,
    pub sequences: Sequences,
    pub capabilities: Capabilities,
    /// As planned, with nothing in use.
    pub memory: Memory,
    pub fingerprint: u64,
    pub ahead: Option<Ahead>,
    /// Arrays that sequences were given when they left their herds, to be computed with the next
    /// step.
    pub parted: Vec<Array>,
    /// Returned to MLX's limits when the session ends.
    pub share: Share,
}

/// Where a row's answer comes from.
pub enum Source {
    Refused(SessionError),
    /// Computed by the step before.
    Foreseen,
    Fresh,
}

/// A step under way: what each row waits for.
pub struct Launched {
    pub sources: Vec<Source>,
    /// The tokens of rows that were foreseen, in the batch's order.
    pub foreseen: Option<Array>,
    pub fresh: Outputs,
}

/// A row that was given room.
pub struct Asked<'a> {
    pub sequence: SequenceId,
    pub granted: &'a Granted,
    pub tokens: usize,
    pub emit: Emit,
}

impl MlxSession {
    /// Starts everything that the batch asks for and that is not under way already.
    fn launch(&mut self, batch: &StepBatch) -> Result<Launched, SessionError> {
        let (claims, foreseen) = self.claim_ahead(batch)?;
        let goes_on = |id| batch.rows().iter().any(|row| row.sequence == id);
        self.parted.extend(self.sequences.part(&self.ops, goes_on)?);
        let mut planned = 0;
        let mut accepted = Vec::new();
        let mut sources = Vec::with_capacity(claims.len());
        for (index, claimed) in claims.into_iter().enumerate() {
            let row = &batch.rows()[index];
            let source = if claimed {
                Source::Foreseen
            } else {
                match self.accept(batch, index, planned) {
                    Ok(granted) => {
                        accepted.push((index, granted));
                        Source::Fresh
                    }
                    Err(error) => Source::Refused(error),
                }
            };
            if !matches!(source, Source::Refused(_)) {
                planned += batch.tokens(row).len();
            }
            sources.push(source);
        }
        let fresh = if accepted.is_empty() {
            Outputs::default()
        } else {
            self.run_fresh(batch, accepted)?
        };
        Ok(Launched {
            sources,
            foreseen,
            fresh,
        })
    }

    /// Checks a row and makes room for it; on error nothing has changed.
    fn accept(
        &mut self,
        batch: &StepBatch,
        index: usize,
        planned: usize,
    ) -> Result<Granted, SessionError> {
        let row = &batch.rows()[index];
        let len = self.sequences.len(row.sequence)?;
        batch.check(index, len, planned, &self.capabilities)?;
        self.sequences.grant(row.sequence, batch.tokens(row).len())
    }

    /// Runs the accepted rows, starts the computation and counts their tokens.
    fn run_fresh(
        &mut self,
        batch: &StepBatch,
        accepted: Vec<(usize, Granted)>,
    ) -> Result<Outputs, SessionError> {
        let mut asked = Vec::with_capacity(accepted.len());
        let mut tokens = Vec::new();
        for (index, granted) in &accepted {
            let row = &batch.rows()[*index];
            let new = batch.tokens(row);
            tokens.extend_from_slice(new);
            asked.push(Asked {
                sequence: row.sequence,
                granted,
                tokens: new.len(),
                emit: row.emit,
            });
        }
        let ran = self.compute(&asked, Tokens::Host(&tokens));
        let (outputs, states) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.give_back(accepted.into_iter().map(|(_, granted)| granted));
                return Err(error.into());
            }
        };
        for ((index, granted), states) in accepted.into_iter().zip(states) {
            let row = &batch.rows()[index];
            let tokens = batch.tokens(row).len();
            self.sequences.commit(row.sequence, granted, tokens, states);
        }
        Ok(outputs)
    }

    pub fn give_back(&mut self, granted: impl IntoIterator<Item = Granted>) {
        for room in granted {
            self.sequences.give_back(room);
        }
    }

    /// Starts what no pass has taken along, so that it stops holding the herds it comes from.
    fn start_parted(&mut self) -> Result<(), MlxError> {
        let parted: Vec<Array> = self.parted.drain(..).collect();
        if parted.is_empty() {
            Ok(())
        } else {
            self.ops.start(&parted.iter().collect::<Vec<_>>())
        }
    }

    /// Runs a pass and starts computing what it gave and what the rows will remember. Their keys
    /// and values go back to the sequences; their states are given.
    pub fn compute(
        &mut self,
        asked: &[Asked],
        tokens: Tokens,
    ) -> Result<(Outputs, Vec<States>), MlxError> {
        let mut herds = self.form_herds(asked)?;
        let mut rows = self.enter(asked, &herds)?;
        let outputs = pass::run(&self.ops, &self.model, &mut rows, &mut herds, tokens)?;
        let Outputs {
            greedy,
            drawn,
            logits,
            hidden,
        } = &outputs;
        let given = [greedy, drawn, logits, hidden];
        let mut wanted: Vec<&Array> = given.into_iter().flatten().collect();
        for row in &rows {
            let states = row.on_the_way.iter().flatten().chain(&row.state.recurrent);
            wanted.extend(states.flat_map(Recurrent::arrays));
            // The keys of a row that emits nothing are needed by nothing else yet.
            if row.emit == Emit::Nothing {
                wanted.extend(herds[row.herd].herd.arrays());
            }
        }
        wanted.extend(&self.parted);
        self.ops.start(&wanted)?;
        drop(wanted);
        self.parted.clear();
        for PassHerd {
            rows: members,
            herd,
            ..
        } in herds
        {
            let ids: Vec<SequenceId> = members.iter().map(|row| asked[*row].sequence).collect();
            self.sequences.put_herd(&ids, herd);
        }
        let together = rows.len() > 1;
        let states = rows.into_iter().map(|row| States {
            on_the_way: row.on_the_way,
            after: row.state.recurrent,
            in_herd: together,
        });
        Ok((outputs, states.collect()))
    }

    /// Rows that go on with one token stand with those that have as much room; others alone, and
    /// so do those for whose joining there is no memory.
    fn form_herds(&mut self, asked: &[Asked]) -> Result<Vec<PassHerd>, MlxError> {
        let mut together: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut formed = Vec::new();
        for (index, row) in asked.iter().enumerate() {
            let capacity = row.granted.capacity;
            if row.tokens > 1 || row.granted.start == 0 {
                formed.push((capacity, vec![index]));
                continue;
            }
            match together.iter_mut().find(|(room, _)| *room == capacity) {
                Some((_, rows)) => rows.push(index),
                None => together.push((capacity, vec![index])),
            }
        }
        let ids_of = |rows: &[usize]| -> Vec<SequenceId> {
            rows.iter().map(|row| asked[*row].sequence).collect()
        };
        for (capacity, rows) in together {
            if self.sequences.may_join(&ids_of(&rows), capacity) {
                formed.push((capacity, rows))
            } else {
                formed.extend(rows.into_iter().map(|row| (capacity, vec![row])))
            }
        }
        let herds = formed.into_iter().map(|(capacity, rows)| {
            let herd = self
                .sequences
                .take_herd(&self.ops, &ids_of(&rows), capacity)?;
            Ok(PassHerd {
                rows,
                capacity,
                herd,
            })
        });
        herds.collect()
    }

    /// The rows with their states, each knowing its herd.
    fn enter(&self, asked: &[Asked], herds: &[PassHerd]) -> Result<Vec<PassRow>, MlxError> {
        let mut herd_of = vec![0; asked.len()];
        for (number, herd) in herds.iter().enumerate() {
            herd.rows.iter().for_each(|row| herd_of[*row] = number);
        }
        let rows = asked.iter().zip(herd_of).map(|(row, herd)| {
            let gone = |error: SessionError| MlxError(error.to_string());
            Ok(PassRow {
                emit: row.emit,
                tokens: row.tokens,
                stops: row
                    .granted
                    .stops()
                    .map(|len| len - row.granted.start)
                    .collect(),
                state: RowState {
                    start: row.granted.start,
                    recurrent: self.sequences.recurrent(row.sequence).map_err(gone)?,
                },
                on_the_way: Vec::new(),
                herd,
            })
        });
        rows.collect()
    }

    /// Waits for the step and writes what it gave. The rows whose logits were no numbers are
    /// refused, and their sequences as they were.
    fn deliver(
        &mut self,
        batch: &StepBatch,
        launched: &Launched,
        output: &mut StepOutput,
    ) -> Result<(), SessionError> {
        let mut foreseen = self.read_tokens(launched.foreseen.as_ref())?.into_iter();
        let mut fresh = self
            .read_tokens(launched.fresh.greedy.as_ref())?
            .into_iter();
        let mut drawn = self.read_tokens(launched.fresh.drawn.as_ref())?.into_iter();
        let mut broken = Vec::new();
        for (index, (row, source)) in batch.rows().iter().zip(&launched.sources).enumerate() {
            let tokens = match source {
                Source::Refused(error) => {
                    output.push_error(error.clone());
                    continue;
                }
                Source::Foreseen => &mut foreseen,
                Source::Fresh if matches!(row.emit, Emit::Drawn(_)) => &mut drawn,
                Source::Fresh => &mut fresh,
            };
            match row.emit {
                Emit::Nothing => output.push_nothing(),
                Emit::Greedy { .. } | Emit::Drawn(_) => {
                    let given = output.push_tokens(row.emit.positions());
                    for (place, token) in given.iter_mut().zip(tokens) {
                        *place = token;
                    }
                    if given.contains(&NO_TOKEN) {
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
        Memory {
            kv_in_use: self.sequences.room().in_use(),
            states_in_use: self.sequences.states().in_use() - self.states_ahead(),
            ..self.memory
        }
    }

    fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.sequences.create()
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.sequences.len(sequence)
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.sequences.reusable(sequence, at_most)
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<Held, SessionError> {
        self.sequences.held(sequences)
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        self.sequences.fork(source, len)
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.sequences.truncate(sequence, len)
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.sequences.release(sequence)?;
        if self.sequences.is_empty() {
            self.forget_ahead();
            self.share.clear_cache();
        }
        Ok(())
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        output.reset(&self.capabilities);
        let launched = self.launch(batch)?;
        let pending = self.look_ahead(batch, &launched)?;
        self.start_parted()?;
        let delivered = self.deliver(batch, &launched, output);
        match (pending, &delivered) {
            (Some(pending), Ok(())) => self.foresee(batch, pending, output),
            (Some(pending), Err(_)) => self.give_back(pending.granted),
            (None, _) => {}
        }
        delivered
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        let contents = self.sequences.contents(sequence)?;
        let len = contents.len;
        let size = self.layout.export_len(len, self.model.dtype).unwrap_or(0);
        let mut envelope = Envelope::new(self.fingerprint, len, size);
        transfer::export(&self.ops, &self.layout, &contents, envelope.contents())?;
        Ok(envelope.seal())
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let dtype = self.model.dtype;
        let (len, contents) = unseal(
            bytes,
            self.fingerprint,
            self.capabilities.max_context,
            |len| self.layout.export_len(len, dtype),
        )?;
        // What only the step ahead holds is nobody's.
        self.forget_ahead();
        let sequence = self.sequences.create()?;
        let imported = self.import_into(sequence, len, contents);
        if imported.is_err() {
            self.sequences.release(sequence)?;
        }
        imported.map(|()| sequence)
    }
}

impl MlxSession {
    fn import_into(
        &mut self,
        sequence: SequenceId,
        len: usize,
        contents: &[u8],
    ) -> Result<(), SessionError> {
        if len == 0 {
            return Ok(());
        }
        let granted = self.sequences.grant_whole(sequence, len)?;
        let (ops, dtype) = (&self.ops, self.model.dtype);
        let read = transfer::import(ops, &self.layout, dtype, (len, granted.capacity), contents);
        match read {
            Ok((herd, after)) => {
                self.sequences.put_herd(&[sequence], herd);
                let states = States {
                    after,
                    ..States::default()
                };
                self.sequences.commit(sequence, granted, len, states);
                Ok(())
            }
            Err(error) => {
                self.sequences.give_back(granted);
                Err(error.into())
            }
        }
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        // What was started ahead must not outlive the arrays' limits.
        let _ = self.ops.synchronize();
    }
}
