//! Helpers of the unit tests.

use std::ops::Range;

use loquat_spec::{Config, Kind, Role, families};
use loquat_weights::{Blob, Dtype, RawTensor, Weights, bind};

use crate::array::{Array, DeviceKind, Ops, Type};
use crate::kv::{KvBatch, KvRoom, Recurrent};
use crate::library;
use crate::places::RowPlaces;
use crate::step::{Group, GroupRope, KvBatchState, RowState, Step};

/// Operations on MLX's CPU; `None`, with a message, if the build has no MLX.
pub fn ops() -> Option<Ops> {
    match library::api() {
        Ok(api) => {
            // SAFETY: a flag of the library's. Its CPU would call a C++ compiler.
            unsafe { (api.set_compile)(false) };
            Some(Ops::new(api, DeviceKind::Cpu).expect("every MLX has a CPU"))
        }
        Err(why) if cfg!(feature = "mlx") => panic!("{why}"),
        Err(why) => {
            eprintln!("not tested: {why}");
            None
        }
    }
}

pub fn read(ops: &Ops, array: &Array) -> Vec<f32> {
    let mut values = vec![0.0; array.shape().iter().product::<i32>() as usize];
    ops.read_f32(array, &mut values).unwrap();
    values
}

/// Pseudo-random numbers between -1 and 1; equal seeds give equal numbers.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A one-layer model of `rows` tokens and rows of `cols` values, its matrices of the types that
/// `of` returns, filled with noise.
pub fn weights(rows: usize, cols: usize, of: impl Fn(Role) -> Dtype) -> Weights {
    let config = format!(
        r#"{{"model_type": "llama", "vocab_size": {rows}, "hidden_size": {cols},
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": {cols}, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true}}"#
    );
    let config = Config::parse(&config, "test").unwrap();
    let described = families::from_config(&config).unwrap();
    let (spec, naming) = (described.spec, described.namings[0]);
    let mut state = 9u64;
    let mut noise = |bytes: usize| {
        let next = (0..bytes).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exponents stay small, so that every scale is finite.
            (state >> 32) as u8 & 0xbf
        });
        Blob::from_vec(next.collect())
    };
    let tensors = naming.slots(&spec).into_iter().map(|slot| {
        let (dtype, shape) = match slot.kind {
            Kind::Matrix { rows, cols } => (of(slot.role), vec![rows, cols]),
            kind => (Dtype::F32, vec![1, kind.rows()]),
        };
        let bytes = shape[0] * dtype.row_bytes(shape[1]).unwrap();
        RawTensor::new(slot.names[0].clone(), dtype, shape, noise(bytes)).unwrap()
    });
    let tensors: Vec<RawTensor> = tensors.collect();
    bind(&spec, &naming, &tensors, None).unwrap()
}

/// A sequence processed by a block.
pub struct Passed {
    /// [tokens, width]
    pub inputs: Vec<f32>,
    pub outputs: Vec<f32>,
}

/// Processes two sequences of ten and seven tokens with a block, in pieces that form every kind of
/// group: prompts alone and together, single tokens, sequences of unequal length, and finally those
/// in one batch.
pub fn two_sequences(
    ops: &Ops,
    layers: usize,
    width: usize,
    mut run: impl FnMut(&mut Step, &Array) -> Array,
) -> [Passed; 2] {
    const PIECES: [[usize; 2]; 4] = [[5, 2], [1, 1], [3, 3], [1, 1]];
    const JOINED_PIECE: usize = 3;
    let mut rows = [(); 2].map(|()| RowState {
        start: 0,
        places: RowPlaces::text(0),
        recurrent: vec![Recurrent::default(); layers],
    });
    let mut kv_batches = vec![KvBatch::empty(1, &vec![0; layers]); 2];
    let mut passed = [10, 7].map(|tokens| Passed {
        inputs: noise(tokens * width, tokens as u32),
        outputs: Vec::new(),
    });
    for (number, piece) in PIECES.into_iter().enumerate() {
        let mut x = Vec::new();
        for ((row, passed), tokens) in rows.iter().zip(&passed).zip(piece) {
            x.extend(&passed.inputs[row.start * width..(row.start + tokens) * width]);
        }
        let dims = [(x.len() / width) as i32, width as i32];
        let x = ops.upload_f32(&x, &dims).unwrap();
        if number == JOINED_PIECE {
            let lens = rows.iter().map(|row| row.start);
            let members: Vec<(KvBatch, usize)> = kv_batches.drain(..).zip(lens).collect();
            kv_batches.push(KvBatch::join(ops, &members, &room(12)).unwrap());
        }
        let mut states = kv_batch_states(ops, std::mem::take(&mut kv_batches), &rows, piece);
        let groups = groups(ops, &rows, piece, &states);
        let mut step = Step::new(ops, Type::F32, &groups, &mut rows, &mut states);
        let answer = read(ops, &run(&mut step, &x));
        kv_batches.extend(states.into_iter().map(|state| state.kv_batch));
        let (first, second) = answer.split_at(answer.len() / (piece[0] + piece[1]) * piece[0]);
        passed[0].outputs.extend(first);
        passed[1].outputs.extend(second);
        for (row, tokens) in rows.iter_mut().zip(piece) {
            row.start += tokens;
            row.places = RowPlaces::text(row.start);
        }
    }
    passed
}

/// For the first positions, in one group of layers.
fn room(end: usize) -> KvRoom {
    KvRoom {
        firsts: vec![0],
        end,
    }
}

/// The batches with their rows; capacity grows occasionally.
fn kv_batch_states(
    ops: &Ops,
    kv_batches: Vec<KvBatch>,
    rows: &[RowState],
    piece: [usize; 2],
) -> Vec<KvBatchState> {
    let mut first = 0;
    let states = kv_batches.into_iter().map(|kv_batch| {
        let members = first..first + kv_batch.rows;
        first = members.end;
        let starts: Vec<usize> = rows[members.clone()].iter().map(|row| row.start).collect();
        let capacity = (starts[0] + piece[members.start]).next_multiple_of(4);
        KvBatchState::new(ops, kv_batch, members, &starts, room(capacity)).unwrap()
    });
    states.collect()
}

/// Groups rows with equally many tokens.
fn groups(
    ops: &Ops,
    rows: &[RowState],
    [a, b]: [usize; 2],
    kv_batches: &[KvBatchState],
) -> Vec<Group> {
    let group = |members: Range<usize>, first, tokens| {
        let starts = rows[members.clone()].iter().map(|row| row.start as i32);
        let starts: Vec<i32> = starts.collect();
        let kv_batch_at =
            |row: usize| kv_batches.partition_point(|kv_batch| kv_batch.rows.end <= row);
        let offsets = ops.upload_i32(&starts, &[starts.len() as i32]).unwrap();
        Group {
            rope: GroupRope::From(offsets.clone()),
            offsets,
            kv_batches: kv_batch_at(members.start)..kv_batch_at(members.end),
            rows: members,
            first,
            tokens,
        }
    };
    if a == b {
        vec![group(0..2, 0, a)]
    } else {
        vec![group(0..1, 0, a), group(1..2, a, b)]
    }
}
