//! A pass of rows through the model, from tokens to lazy outputs. Nothing here waits.

use loquat_session::{Draw, Emit};

use crate::array::{Array, Binary, Ops, Reduce, Type};
use crate::draw;
use crate::error::MlxError;
use crate::kv::{KvBatch, Recurrent};
use crate::model::Model;
use crate::step::{Group, KvBatchState, RowState, Step};

/// The token of a row whose logits are not numbers.
pub const NO_TOKEN: u32 = u32::MAX;

/// A row of a pass.
pub struct PassRow {
    pub emit: Emit,
    /// New tokens.
    pub tokens: usize,
    /// Numbers of new tokens after which a state is saved, ascending.
    pub snapshot_at: Vec<usize>,
    pub state: RowState,
    /// The states at these tokens.
    pub snapshots: Vec<Vec<Recurrent>>,
    /// Index of its batch in the pass.
    pub kv_batch: usize,
}

/// Rows whose keys and values are in the same arrays, in the batch's order.
pub struct PassKvBatch {
    pub rows: Vec<usize>,
    pub capacity: usize,
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
            Tokens::Host(all) => upload_ids(ops, all, rows, &segments, &wave)?,
        };
        let stream = run_wave(ops, model, (rows, kv_batches), &wave, &wave_ids)?;
        let mut first = 0;
        for (row, len) in &wave {
            segments[*row].push(Segment {
                wave: streams.len(),
                first,
                len: *len,
            });
            first += len;
        }
        streams.push((stream, first));
    }
    read_out(ops, model, rows, &segments, &streams)
}

fn done(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len).sum()
}

/// The rows that have tokens left, and how many each takes next: those of equal length together.
fn next_wave(rows: &[PassRow], segments: &[Vec<Segment>]) -> Vec<(usize, usize)> {
    let mut wave: Vec<(usize, usize)> = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        let done = done(&segments[index]);
        let snapshot = row.snapshot_at.iter().copied().find(|at| *at > done);
        let end = snapshot.unwrap_or(row.tokens);
        if end > done {
            wave.push((index, end - done));
        }
    }
    wave.sort_by_key(|(index, len)| (*len, rows[*index].kv_batch));
    wave
}

fn run_wave(
    ops: &Ops,
    model: &Model,
    (rows, kv_batches): (&mut [PassRow], &mut [PassKvBatch]),
    wave: &[(usize, usize)],
    ids: &Array,
) -> Result<Array, MlxError> {
    let mut kv_batch_states = batch_states(ops, rows, kv_batches, wave)?;
    let groups = group(ops, rows, wave, &kv_batch_states)?;
    let mut states: Vec<RowState> = Vec::with_capacity(wave.len());
    for (row, _) in wave {
        let state = &mut rows[*row].state;
        states.push(RowState {
            start: state.start,
            recurrent: std::mem::take(&mut state.recurrent),
        });
    }
    let mut step = Step::new(ops, model.dtype, &groups, &mut states, &mut kv_batch_states);
    let stream = model.run(&mut step, ids)?;
    for ((row, len), mut state) in wave.iter().zip(states) {
        let row = &mut rows[*row];
        state.start += len;
        if row.snapshots.len() < row.snapshot_at.len() {
            row.snapshots.push(state.recurrent.clone());
        }
        row.state = state;
    }
    for state in kv_batch_states {
        let (first, _) = wave[state.rows.start];
        kv_batches[rows[first].kv_batch].kv_batch = state.kv_batch;
    }
    Ok(stream)
}

/// The batches of the wave's rows, in its order.
fn batch_states(
    ops: &Ops,
    rows: &[PassRow],
    kv_batches: &mut [PassKvBatch],
    wave: &[(usize, usize)],
) -> Result<Vec<KvBatchState>, MlxError> {
    let mut states = Vec::new();
    let mut first = 0;
    for run in wave.chunk_by(|a, b| rows[a.0].kv_batch == rows[b.0].kv_batch) {
        let kv_batch = &mut kv_batches[rows[run[0].0].kv_batch];
        let starts: Vec<usize> = run.iter().map(|(row, _)| rows[*row].state.start).collect();
        let members = first..first + run.len();
        let kv = std::mem::take(&mut kv_batch.kv_batch);
        states.push(KvBatchState::new(
            ops,
            kv,
            members,
            &starts,
            kv_batch.capacity,
        )?);
        first += run.len();
    }
    Ok(states)
}

/// One value for each row, in the wave's order.
fn in_order(ops: &Ops, values: &Array, wave: &[(usize, usize)]) -> Result<Array, MlxError> {
    let order: Vec<i32> = wave.iter().map(|(row, _)| *row as i32).collect();
    if order.iter().copied().eq(0..values.dim(0)) {
        return Ok(values.clone());
    }
    let order = ops.upload_i32(&order, &[order.len() as i32])?;
    ops.take_rows(values, &order, 0)
}

/// The wave's tokens in its order.
fn upload_ids(
    ops: &Ops,
    all: &[u32],
    rows: &[PassRow],
    segments: &[Vec<Segment>],
    wave: &[(usize, usize)],
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
        .flat_map(|(row, len)| {
            let first = starts[*row] + done(&segments[*row]);
            all[first..first + len].iter().copied()
        })
        .collect();
    ops.upload_u32(&ids, &[ids.len() as i32])
}

/// Groups adjacent rows of equal length.
fn group(
    ops: &Ops,
    rows: &[PassRow],
    wave: &[(usize, usize)],
    kv_batches: &[KvBatchState],
) -> Result<Vec<Group>, MlxError> {
    let mut groups = Vec::new();
    let (mut row, mut first) = (0, 0);
    for run in wave.chunk_by(|a, b| a.1 == b.1) {
        let members = row..row + run.len();
        let offsets: Vec<i32> = run
            .iter()
            .map(|(index, _)| rows[*index].state.start as i32)
            .collect();
        let kv_batch_at =
            |row: usize| kv_batches.partition_point(|kv_batch| kv_batch.rows.end <= row);
        groups.push(Group {
            first,
            tokens: run[0].1,
            offsets: ops.upload_i32(&offsets, &[offsets.len() as i32])?,
            kv_batches: kv_batch_at(members.start)..kv_batch_at(members.end),
            rows: members,
        });
        row += run.len();
        first += run.len() * run[0].1;
    }
    Ok(groups)
}

/// Indices of the emitted positions in the concatenated streams: greedy ones, drawn ones, then
/// logits, then hidden states.
struct EmittedPositions {
    all: Vec<i32>,
    greedy: i32,
    draws: Vec<Draw>,
    logits: i32,
    hidden: i32,
}

impl EmittedPositions {
    fn new(rows: &[PassRow], segments: &[Vec<Segment>], starts: &[usize]) -> Self {
        let mut kinds: [Vec<i32>; 4] = Default::default();
        let mut draws = Vec::new();
        for (row, segments) in rows.iter().zip(segments) {
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
            }
        }
        let counts = kinds.each_ref().map(|kind| kind.len() as i32);
        Self {
            all: kinds.concat(),
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
    let hidden = model.read_out(ops, &chosen)?;
    let tokens_end = emitted.greedy + emitted.draws.len() as i32;
    let with_logits = tokens_end + emitted.logits;
    let mut outputs = Outputs::default();
    if with_logits > 0 {
        let logits = model.logits(ops, &rows_of(ops, &hidden, 0, with_logits)?)?;
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
