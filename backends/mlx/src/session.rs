//! The session contract over passes through the model: rows in, checked; outputs out.
//!
//! While rows are greedy the next step is computed before it is asked for: see [`Ahead`].

use loquat_session::transfer::{Envelope, unseal};
use loquat_session::{
    Capabilities, Emit, Held, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

use crate::array::{Array, Ops};
use crate::error::MlxError;
use crate::kv::{Herd, Recurrent};
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

/// The step after the last one, started before anybody asked for it: each greedy row with the
/// token it gave. A row that comes as foreseen finds its answer under way; of the others nothing
/// is kept, since a sequence's length, not its arrays, says what it holds.
pub struct Ahead {
    rows: Vec<AheadRow>,
    /// What each row gives, on the device.
    greedy: Array,
}

struct AheadRow {
    sequence: SequenceId,
    /// What the last step gave.
    token: u32,
    granted: Granted,
    states: States,
}

/// [`Ahead`] before the tokens it was computed from are known.
struct Pending {
    granted: Vec<Granted>,
    states: Vec<States>,
    greedy: Array,
}

/// Where a row's answer comes from.
enum Source {
    Refused(SessionError),
    /// Computed by the step before.
    Foreseen,
    Fresh,
}

/// A step under way: what each row waits for.
struct Launched {
    sources: Vec<Source>,
    /// The tokens of rows that were foreseen, in the batch's order.
    foreseen: Option<Array>,
    fresh: Outputs,
}

/// A row that was given room.
struct Asked<'a> {
    sequence: SequenceId,
    granted: &'a Granted,
    tokens: usize,
    emit: Emit,
}

const ONE_TOKEN: Emit = Emit::Greedy { positions: 1 };

impl MlxSession {
    /// Matches the batch with what was computed ahead: for each row whether it was foreseen, and
    /// these rows' tokens. Counts the tokens that came as foreseen, and gives back the rest.
    fn claim_ahead(&mut self, batch: &StepBatch) -> Result<(Vec<bool>, Option<Array>), MlxError> {
        let mut foreseen = vec![false; batch.rows().len()];
        let Some(Ahead { rows, greedy }) = self.ahead.take() else {
            return Ok((foreseen, None));
        };
        let mut rows: Vec<Option<AheadRow>> = rows.into_iter().map(Some).collect();
        let mut places = Vec::with_capacity(rows.len());
        for (index, asked) in batch.rows().iter().enumerate() {
            let is_asked = |row: &Option<AheadRow>| {
                row.as_ref().is_some_and(|row| {
                    asked.sequence == row.sequence
                        && asked.emit == ONE_TOKEN
                        && batch.tokens(asked) == [row.token]
                        && self.sequences.len(row.sequence) == Ok(row.granted.start)
                })
            };
            let Some(place) = rows.iter().position(is_asked) else {
                continue;
            };
            if let Some(row) = rows[place].take() {
                places.push(place as i32);
                foreseen[index] = true;
                self.sequences
                    .commit(row.sequence, row.granted, 1, row.states);
            }
        }
        for row in rows.into_iter().flatten() {
            self.sequences.give_back(row.granted);
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
            let source = match claimed {
                true => Source::Foreseen,
                false => match self.accept(batch, index, planned) {
                    Ok(granted) => {
                        accepted.push((index, granted));
                        Source::Fresh
                    }
                    Err(error) => Source::Refused(error),
                },
            };
            if !matches!(source, Source::Refused(_)) {
                planned += batch.tokens(row).len();
            }
            sources.push(source);
        }
        let fresh = match accepted.is_empty() {
            true => Outputs::default(),
            false => self.run_fresh(batch, accepted)?,
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

    fn give_back(&mut self, granted: impl IntoIterator<Item = Granted>) {
        for room in granted {
            self.sequences.give_back(room);
        }
    }

    /// Runs a pass and starts computing what it gave and what the rows will remember. Their keys
    /// and values go back to the sequences; their states are given.
    fn compute(
        &mut self,
        asked: &[Asked],
        tokens: Tokens,
    ) -> Result<(Outputs, Vec<States>), MlxError> {
        let mut herds = self.form_herds(asked)?;
        let mut rows = self.enter(asked, &herds)?;
        let outputs = pass::run(&self.ops, &self.model, &mut rows, &mut herds, tokens)?;
        let given = [&outputs.greedy, &outputs.logits, &outputs.hidden];
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
        for PassHerd { rows: members, herd, .. } in herds {
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

    /// Rows of one token stand with those that have as much room; others alone.
    fn form_herds(&mut self, asked: &[Asked]) -> Result<Vec<PassHerd>, MlxError> {
        let mut herds: Vec<PassHerd> = Vec::new();
        let mut open: Vec<(usize, usize)> = Vec::new();
        for (index, row) in asked.iter().enumerate() {
            let capacity = row.granted.capacity;
            let known = open.iter().find(|(room, _)| *room == capacity && row.tokens == 1);
            match known {
                Some((_, herd)) => herds[*herd].rows.push(index),
                None => {
                    if row.tokens == 1 && row.granted.start > 0 {
                        open.push((capacity, herds.len()));
                    }
                    herds.push(PassHerd {
                        rows: vec![index],
                        capacity,
                        herd: Herd::default(),
                    });
                }
            }
        }
        for herd in &mut herds {
            let ids: Vec<SequenceId> = herd.rows.iter().map(|row| asked[*row].sequence).collect();
            herd.herd = self.sequences.take_herd(&self.ops, &ids, herd.capacity)?;
        }
        Ok(herds)
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
                stops: row.granted.stops().map(|len| len - row.granted.start).collect(),
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

    /// Starts the step that follows if every row goes on with the token it gives. `None` where the
    /// rows are not all of that kind, or one has no room to spare.
    fn look_ahead(
        &mut self,
        batch: &StepBatch,
        launched: &Launched,
    ) -> Result<Option<Pending>, MlxError> {
        let all_go_on = batch.rows().iter().zip(&launched.sources).all(|(row, source)| {
            row.emit == ONE_TOKEN && !matches!(source, Source::Refused(_))
        });
        let Some(tokens) = self.join_greedy(launched)?.filter(|_| all_go_on) else {
            return Ok(None);
        };
        let sequences: Vec<SequenceId> = batch.rows().iter().map(|row| row.sequence).collect();
        let Some(granted) = self.grant_spare(&sequences) else {
            return Ok(None);
        };
        let asked: Vec<Asked> = sequences
            .iter()
            .zip(&granted)
            .map(|(sequence, granted)| Asked {
                sequence: *sequence,
                granted,
                tokens: 1,
                emit: ONE_TOKEN,
            })
            .collect();
        match self.compute(&asked, Tokens::Device(&tokens)) {
            Ok((
                Outputs {
                    greedy: Some(greedy),
                    ..
                },
                states,
            )) => Ok(Some(Pending {
                granted,
                states,
                greedy,
            })),
            other => {
                self.give_back(granted);
                other.map(|_| None)
            }
        }
    }

    /// Room for one more token of each, or of none.
    fn grant_spare(&mut self, sequences: &[SequenceId]) -> Option<Vec<Granted>> {
        let mut granted = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let room = self.sequences.grant_spare(*sequence);
            match room {
                Some(room) if room.start < self.capabilities.max_context => granted.push(room),
                other => {
                    self.give_back(granted.into_iter().chain(other));
                    return None;
                }
            }
        }
        Some(granted)
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

    /// Waits for the step and writes what it gave. The rows whose logits were no numbers are
    /// refused, and their sequences as they were.
    fn deliver(
        &mut self,
        batch: &StepBatch,
        launched: &Launched,
        output: &mut StepOutput,
    ) -> Result<(), SessionError> {
        let mut foreseen = self.read_tokens(launched.foreseen.as_ref())?.into_iter();
        let mut fresh = self.read_tokens(launched.fresh.greedy.as_ref())?.into_iter();
        let mut broken = Vec::new();
        for (index, (row, source)) in batch.rows().iter().zip(&launched.sources).enumerate() {
            let tokens = match source {
                Source::Refused(error) => {
                    output.push_error(error.clone());
                    continue;
                }
                Source::Foreseen => &mut foreseen,
                Source::Fresh => &mut fresh,
            };
            match row.emit {
                Emit::Nothing => output.push_nothing(),
                Emit::Greedy { positions } => {
                    let given = output.push_greedy(positions);
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

    /// Keeps what was started ahead, now that the tokens it goes on from are known.
    fn foresee(&mut self, batch: &StepBatch, pending: Pending, output: &StepOutput) {
        let failed = output.rows().iter().any(|row| row.error.is_some());
        if failed {
            return self.give_back(pending.granted);
        }
        let rows = batch.rows().iter().enumerate();
        let rooms = pending.granted.into_iter().zip(pending.states);
        let rows = rows.zip(rooms).map(|((index, row), (granted, states))| AheadRow {
            sequence: row.sequence,
            token: output.greedy(index).first().copied().unwrap_or(NO_TOKEN),
            granted,
            states,
        });
        self.ahead = Some(Ahead {
            rows: rows.collect(),
            greedy: pending.greedy,
        });
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
        self.deliver(batch, &launched, output)?;
        if let Some(pending) = pending {
            self.foresee(batch, pending, output);
        }
        Ok(())
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

    /// States that only the step ahead holds; they are nobody's yet.
    fn states_ahead(&self) -> usize {
        match self.memory.state_bytes {
            0 => 0,
            _ => self.ahead.as_ref().map_or(0, |ahead| ahead.rows.len()),
        }
    }

    fn forget_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.give_back(ahead.rows.into_iter().map(|row| row.granted));
        }
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        // What was started ahead must not outlive the arrays' limits.
        let _ = self.ops.synchronize();
    }
}
