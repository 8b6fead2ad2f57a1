//! A pass of rows through the model, from tokens to lazy outputs. Nothing here waits.

use std::sync::Arc;

use loquat_session::sequences::TokenPlace;
use loquat_session::{AppliedAdapter, Draw, Emit, StepBatch};

use crate::adapted::StepAdapters;
use crate::array::{Array, Binary, Ops, Reduce, Type};
use crate::draw;
use crate::error::MlxError;
use crate::kv::{KvBatch, KvRoom, Recurrent};
use crate::media::{RowMedia, StepMedia};
use crate::model::Model;
use crate::places::{RopePlaces, RowPlaces};
use crate::step::{Group, GroupRope, KvBatchState, RowState, Step};

/// The token of a row whose logits are not numbers.
pub const NO_TOKEN: u32 = u32::MAX;

/// A row of a pass.
pub struct PassRow {
    pub emit: Emit,
    /// New tokens.
    pub tokens: usize,
    /// Numbers of new tokens after which a state is saved, ascending.
    pub snapshot_at: Vec<usize>,
    /// Tokens that the sequence holds now.
    pub start: usize,
    /// For each of the model's layers.
    pub recurrent: Vec<Recurrent>,
    /// Of its new tokens, if they are not those of text.
    pub places: Option<Vec<TokenPlace>>,
    pub media: Vec<RowMedia>,
    pub adapters: Arc<[AppliedAdapter]>,
    /// The states at these tokens.
    pub snapshots: Vec<Vec<Recurrent>>,
    /// Index of its batch in the pass, and its row there.
    pub kv_batch: (usize, usize),
}

/// Rows whose keys and values are in the same arrays, in the batch's order.
pub struct PassKvBatch {
    pub rows: Vec<usize>,
    pub room: KvRoom,
    pub kv_batch: KvBatch,
}

/// The tokens of a pass.
pub enum Tokens<'a> {
    /// Of all rows, one after another.
    Host(&'a [u32]),
    /// One for each row, on the device.
    Device(&'a Array),
}

/// The outputs of the rows, in their order; not computed yet.
#[derive(Default)]
pub struct Outputs {
    /// [positions]
    pub greedy: Option<Array>,
    /// [rows]
    pub drawn: Option<Array>,
    /// [positions, vocab]
    pub logits: Option<Array>,
    /// [positions, hidden]
    pub hidden: Option<Array>,
}

/// A row of a wave: its tokens from `first` on.
struct WaveRow {
    row: usize,
    first: usize,
    tokens: usize,
}

/// A row's tokens in one wave: `len` from `first` on, in the wave's order of tokens.
struct Segment {
    wave: usize,
    first: usize,
    len: usize,
}

/// Runs the rows. Those with snapshots take several waves, each up to the next snapshot.
pub fn run(
    ops: &Ops,
    model: &Model,
    rows: &mut [PassRow],
    kv_batches: &mut [PassKvBatch],
    tokens: Tokens,
) -> Result<Outputs, MlxError> {
    let mut segments: Vec<Vec<Segment>> = rows.iter().map(|_| Vec::new()).collect();
    let mut streams = Vec::new();
    loop {
        let wave = next_wave(rows, &segments);
        if wave.is_empty() {
            break;
        }
        let wave_ids = match &tokens {
            Tokens::Device(ids) => in_order(ops, ids, &wave)?,
            Tokens::Host(all) => upload_ids(ops, (all, model.media_token), rows, &wave)?,
        };
        let stream = run_wave(ops, model, (rows, kv_batches), &wave, &wave_ids)?;
        let mut first = 0;
        for own in &wave {
            segments[own.row].push(Segment {
                wave: streams.len(),
                first,
                len: own.tokens,
            });
            first += own.tokens;
        }
        streams.push((stream, first));
    }
    read_out(ops, model, rows, &segments, &streams)
}

fn done(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len).sum()
}

/// The rows that have tokens left, and how many each takes next: those of equal length together.
fn next_wave(rows: &[PassRow], segments: &[Vec<Segment>]) -> Vec<WaveRow> {
    let mut wave: Vec<WaveRow> = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        let first = done(&segments[index]);
        let snapshot = row.snapshot_at.iter().copied().find(|at| *at > first);
        let end = snapshot.unwrap_or(row.tokens);
        if end > first {
            wave.push(WaveRow {
                row: index,
                first,
                tokens: end - first,
            });
        }
    }
    // Rows of a batch are in its order, which is also that of their adapters.
    wave.sort_by_key(|own| (own.tokens, rows[own.row].kv_batch));
    wave
}

fn run_wave(
    ops: &Ops,
    model: &Model,
    (rows, kv_batches): (&mut [PassRow], &mut [PassKvBatch]),
    wave: &[WaveRow],
    ids: &Array,
) -> Result<Array, MlxError> {
    let mut kv_batch_states = batch_states(ops, rows, kv_batches, wave)?;
    let mut states: Vec<RowState> = Vec::with_capacity(wave.len());
    let mut media = StepMedia::default();
    let mut at = 0;
    for WaveRow { row, first, tokens } in wave {
        let row = &mut rows[*row];
        let taken = *first..first + tokens;
        for own in &row.media {
            media.push(own, &taken, at);
        }
        at += tokens;
        states.push(RowState {
            start: row.start,
            places: match &row.places {
                None => RowPlaces::text(row.start),
                Some(places) => RowPlaces::new(row.start, &places[taken]),
            },
            recurrent: std::mem::take(&mut row.recurrent),
        });
    }
    let groups = group(ops, wave, &states, &kv_batch_states)?;
    let mut step = Step::new(ops, model.dtype, &groups, &mut states, &mut kv_batch_states);
    step.media = media;
    step.media_attention = model.media_attention;
    let adapters = wave
        .iter()
        .map(|own| (own.tokens, &*rows[own.row].adapters));
    step.adapters = StepAdapters::new(&model.adapters, adapters)?;
    let stream = model.run(&mut step, ids)?;
    for (own, state) in wave.iter().zip(states) {
        let row = &mut rows[own.row];
        row.start += own.tokens;
        row.recurrent = state.recurrent;
        if row.snapshots.len() < row.snapshot_at.len() {
            row.snapshots.push(row.recurrent.clone());
        }
    }
    for state in kv_batch_states {
        let first = wave[state.rows.start].row;
        kv_batches[rows[first].kv_batch.0].kv_batch = state.kv_batch;
    }
    Ok(stream)
}

/// The batches of the wave's rows, in its order.
fn batch_states(
    ops: &Ops,
    rows: &[PassRow],
    kv_batches: &mut [PassKvBatch],
    wave: &[WaveRow],
) -> Result<Vec<KvBatchState>, MlxError> {
    let mut states = Vec::new();
    let mut first = 0;
    for run in wave.chunk_by(|a, b| rows[a.row].kv_batch.0 == rows[b.row].kv_batch.0) {
        let kv_batch = &mut kv_batches[rows[run[0].row].kv_batch.0];
        let starts: Vec<usize> = run.iter().map(|own| rows[own.row].start).collect();
        let members = first..first + run.len();
        let kv = std::mem::take(&mut kv_batch.kv_batch);
        states.push(KvBatchState::new(
            ops,
            kv,
            members,
            &starts,
            kv_batch.room.clone(),
        )?);
        first += run.len();
    }
    Ok(states)
}

/// One value for each row, in the wave's order.
fn in_order(ops: &Ops, values: &Array, wave: &[WaveRow]) -> Result<Array, MlxError> {
    let order: Vec<i32> = wave.iter().map(|own| own.row as i32).collect();
    if order.iter().copied().eq(0..values.dim(0)) {
        return Ok(values.clone());
    }
    let order = ops.upload_i32(&order, &[order.len() as i32])?;
    ops.take_rows(values, &order, 0)
}

/// The wave's tokens in its order, with `media_token` at positions of media.
fn upload_ids(
    ops: &Ops,
    (all, media_token): (&[u32], u32),
    rows: &[PassRow],
    wave: &[WaveRow],
) -> Result<Array, MlxError> {
    let starts: Vec<usize> = rows
        .iter()
        .scan(0, |next, row| {
            let start = *next;
            *next += row.tokens;
            Some(start)
        })
        .collect();
    let ids: Vec<u32> = wave
        .iter()
        .flat_map(|own| {
            let first = starts[own.row] + own.first;
            all[first..first + own.tokens].iter()
        })
        .map(|id| match *id {
            StepBatch::MEDIA_TOKEN => media_token,
            id => id,
        })
        .collect();
    ops.upload_u32(&ids, &[ids.len() as i32])
}

/// Groups adjacent rows of equal length.
fn group(
    ops: &Ops,
    wave: &[WaveRow],
    rows: &[RowState],
    kv_batches: &[KvBatchState],
) -> Result<Vec<Group>, MlxError> {
    let mut groups = Vec::new();
    let (mut row, mut first) = (0, 0);
    for run in wave.chunk_by(|a, b| a.tokens == b.tokens) {
        let members = row..row + run.len();
        let tokens = run[0].tokens;
        let kv_batch_at =
            |row: usize| kv_batches.partition_point(|kv_batch| kv_batch.rows.end <= row);
        let of_group = &rows[members.clone()];
        let offsets = upload_positions(ops, of_group.iter().map(|row| row.start))?;
        groups.push(Group {
            first,
            tokens,
            rope: group_rope(ops, of_group, tokens, &offsets)?,
            offsets,
            kv_batches: kv_batch_at(members.start)..kv_batch_at(members.end),
            rows: members,
        });
        row += run.len();
        first += run.len() * tokens;
    }
    Ok(groups)
}

/// The positions of ropes with several axes; `offsets` are those of other ropes.
fn group_rope(
    ops: &Ops,
    rows: &[RowState],
    tokens: usize,
    offsets: &Array,
) -> Result<GroupRope, MlxError> {
    if rows
        .iter()
        .all(|row| row.places.rope == RopePlaces::From(row.start))
    {
        return Ok(GroupRope::From(offsets.clone()));
    }
    let firsts = rows.iter().map(|row| match row.places.rope {
        RopePlaces::From(first) => Some(first),
        RopePlaces::Each(_) => None,
    });
    match firsts.collect::<Option<Vec<usize>>>() {
        Some(firsts) => Ok(GroupRope::From(upload_positions(ops, firsts)?)),
        None => {
            let each = rows.iter().flat_map(|row| row.places.rope.each(tokens));
            Ok(GroupRope::Each(each.collect()))
        }
    }
}

fn upload_positions(
    ops: &Ops,
    positions: impl IntoIterator<Item = usize>,
) -> Result<Array, MlxError> {
    let positions: Vec<i32> = positions.into_iter().map(|at| at as i32).collect();
    ops.upload_i32(&positions, &[positions.len() as i32])
}

/// Indices of the emitted positions in the concatenated streams: greedy ones, drawn ones, then
/// logits, then hidden states.
struct EmittedPositions {
    all: Vec<i32>,
    /// The row of each.
    rows: Vec<usize>,
    greedy: i32,
    draws: Vec<Draw>,
    logits: i32,
    hidden: i32,
}

impl EmittedPositions {
    fn new(rows: &[PassRow], segments: &[Vec<Segment>], starts: &[usize]) -> Self {
        let mut kinds: [Vec<i32>; 4] = Default::default();
        let mut rows_of: [Vec<usize>; 4] = Default::default();
        let mut draws = Vec::new();
        for (number, (row, segments)) in rows.iter().zip(segments).enumerate() {
            let (kind, positions) = match row.emit {
                Emit::Nothing => continue,
                Emit::Greedy { positions } => (0, positions),
                Emit::Drawn(draw) => {
                    draws.push(draw);
                    (1, 1)
                }
                Emit::Logits { positions } => (2, positions),
                Emit::Hidden { positions } => (3, positions),
            };
            for position in row.tokens - positions..row.tokens {
                kinds[kind].push(index_of(segments, starts, position) as i32);
                rows_of[kind].push(number);
            }
        }
        let counts = kinds.each_ref().map(|kind| kind.len() as i32);
        Self {
            all: kinds.concat(),
            rows: rows_of.concat(),
            greedy: counts[0],
            draws,
            logits: counts[2],
            hidden: counts[3],
        }
    }
}

/// Index of a row's new token `position`.
fn index_of(segments: &[Segment], starts: &[usize], position: usize) -> usize {
    let mut before = 0;
    for segment in segments {
        if position < before + segment.len {
            return starts[segment.wave] + segment.first + position - before;
        }
        before += segment.len;
    }
    0
}

fn read_out(
    ops: &Ops,
    model: &Model,
    rows: &[PassRow],
    segments: &[Vec<Segment>],
    streams: &[(Array, usize)],
) -> Result<Outputs, MlxError> {
    let mut starts = Vec::with_capacity(streams.len());
    let mut total = 0;
    for (_, tokens) in streams {
        starts.push(total);
        total += tokens;
    }
    let emitted = EmittedPositions::new(rows, segments, &starts);
    if emitted.all.is_empty() {
        return Ok(Outputs::default());
    }
    let stream = match streams {
        [(stream, _)] => stream.clone(),
        streams => {
            let all: Vec<&Array> = streams.iter().map(|(stream, _)| stream).collect();
            ops.concatenate(&all, 0)?
        }
    };
    let is_all = emitted.all.iter().copied().eq(0..total as i32);
    let chosen = if is_all {
        stream
    } else {
        let indices = ops.upload_i32(&emitted.all, &[emitted.all.len() as i32])?;
        ops.take_rows(&stream, &indices, 0)?
    };
    let adapters = emitted.rows.iter().map(|row| (1, &*rows[*row].adapters));
    let adapters = StepAdapters::new(&model.adapters, adapters)?;
    let hidden = model.read_out(ops, &chosen, &adapters)?;
    let tokens_end = emitted.greedy + emitted.draws.len() as i32;
    let with_logits = tokens_end + emitted.logits;
    let mut outputs = Outputs::default();
    if with_logits > 0 {
        let adapters = adapters.within(0..with_logits as usize);
        let own = rows_of(ops, &hidden, 0, with_logits)?;
        let logits = model.logits(ops, &own, &adapters)?;
        if emitted.greedy > 0 {
            outputs.greedy = Some(greedy(ops, &rows_of(ops, &logits, 0, emitted.greedy)?)?);
        }
        if !emitted.draws.is_empty() {
            let own = rows_of(ops, &logits, emitted.greedy, tokens_end)?;
            outputs.drawn = Some(draw::draw(ops, &own, &emitted.draws)?);
        }
        if emitted.logits > 0 {
            outputs.logits = Some(rows_of(ops, &logits, tokens_end, with_logits)?);
        }
    }
    if emitted.hidden > 0 {
        let own = rows_of(ops, &hidden, with_logits, with_logits + emitted.hidden)?;
        outputs.hidden = Some(ops.astype(&own, Type::F32)?);
    }
    Ok(outputs)
}

/// Rows `start` up to `stop` of a matrix.
fn rows_of(ops: &Ops, matrix: &Array, start: i32, stop: i32) -> Result<Array, MlxError> {
    if start == 0 && stop == matrix.dim(0) {
        return Ok(matrix.clone());
    }
    ops.slice(matrix, &[start, 0], &[stop, matrix.dim(1)])
}

/// The most likely token of each row, or [`NO_TOKEN`].
fn greedy(ops: &Ops, logits: &Array) -> Result<Array, MlxError> {
    let best = ops.reduce(Reduce::ArgMax, logits, 1, true)?;
    let largest = ops.take_along(logits, &best, 1)?;
    // Comparison with the smallest finite number is false for NaN and minus infinity.
    let smallest = ops.upload_f32(&[f32::MIN], &[1])?;
    let is_number = ops.binary(Binary::GreaterEqual, &largest, &smallest)?;
    let tokens = ops.select(&is_number, &best, &ops.upload_u32(&[NO_TOKEN], &[1])?)?;
    ops.reshape(&tokens, &[-1])
}
