//! Heads that remember in a matrix: what linear attention and state spaces have in common.
//!
//! A head's memory `S`, values by keys, takes a token's decay `g`, key `k`, value `v` and query
//! `q` as `S = S g + u kᵀ` and answers `S q`. What is written, `u`, is the value, or by the delta
//! rule `beta (v - S g k)`: only what the memory does not answer yet.
//!
//! One token takes that form. More go in chunks: within one, tokens see each other through a
//! matrix of decayed key products, so that a step's work for the device is counted in chunks and
//! not in tokens; the memory passes from chunk to chunk.

use crate::array::{Array, Binary, Fused, Ops};
use crate::error::MlxError;

type Result<T> = std::result::Result<T, MlxError>;

/// Tokens of a chunk whose heads decay as a whole.
const CHUNK: usize = 64;

/// Tokens of a chunk whose key channels decay each by itself: pairs of tokens then take an array
/// of the keys' width each.
const CHANNEL_CHUNK: usize = 16;

/// Tokens whose chunks are made ready at once, which bounds the arrays of pairs.
const SPAN: usize = 512;

/// What some rows' tokens bring, float32 but for `beta`. Heads have two dimensions; where keys
/// and queries have 1 in one of them, heads along it share theirs.
pub struct Tokens {
    /// [rows, tokens, outer, inner, key dim]
    pub queries: Array,
    pub keys: Array,
    /// [rows, tokens, outer, inner, value dim]
    pub values: Array,
    /// Natural logarithms, not above zero, [rows, tokens, outer, inner, 1 or key dim].
    pub decay: Array,
    /// The delta rule's, before the sigmoid, [rows, tokens, outer, inner, 1].
    pub beta: Option<Array>,
}

/// The memories of a layer's heads: constants of the chunked form.
pub struct Memory {
    chunk: usize,
    /// 0 where a token sees the other, else -infinity; [chunk, chunk].
    causal: Array,
    /// [chunk, chunk]
    identity: Array,
    /// -1 where a level of [`Memory::solve`] works, else 0; [levels, 1, 1, 1, 1, chunk, chunk].
    levels: Array,
}

impl Memory {
    /// `channels`: decays of a head.
    pub fn new(ops: &Ops, channels: usize) -> Result<Self> {
        let chunk = match channels {
            1 => CHUNK,
            _ => CHANNEL_CHUNK,
        };
        let square = |value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            let places = (0..chunk * chunk).map(|at| (at / chunk, at % chunk));
            places.map(|(to, from)| value(to, from)).collect()
        };
        let causal = square(&|to, from| if from <= to { 0.0 } else { f32::NEG_INFINITY });
        let identity = square(&|to, from| if from == to { 1.0 } else { 0.0 });
        let levels: Vec<f32> = (0..levels(chunk))
            .flat_map(|level| square(&|to, from| if works(level, to, from) { -1.0 } else { 0.0 }))
            .collect();
        let side = chunk as i32;
        let depth = levels.len() as i32 / (side * side);
        Ok(Self {
            chunk,
            causal: ops.upload_f32(&causal, &[side, side])?,
            identity: ops.upload_f32(&identity, &[side, side])?,
            levels: ops.upload_f32(&levels, &[depth, 1, 1, 1, 1, side, side])?,
        })
    }

    /// Answers of [rows, tokens, outer, inner, value dim] and the memories after the last token,
    /// [rows, outer, inner, value dim, key dim], from those before the first.
    pub fn run(&self, ops: &Ops, tokens: &Tokens, before: Option<Array>) -> Result<(Array, Array)> {
        let mut memory = match before {
            Some(memory) => memory,
            None => tokens.forgetful(ops)?,
        };
        let count = tokens.values.dim(1) as usize;
        let mut answers = Vec::new();
        let mut at = 0;
        while at < count {
            let left = count - at;
            let chunk = self.chunk.min(left);
            let chunks = (left / chunk).min(SPAN / self.chunk);
            let span = tokens.slice(ops, at, chunks * chunk)?;
            memory = match chunk {
                1 => {
                    let (answer, memory) = one(ops, &span, memory)?;
                    answers.push(answer);
                    memory
                }
                _ => self
                    .ready(ops, &span, chunk as i32)?
                    .run(ops, memory, &mut answers)?,
            };
            at += chunks * chunk;
        }
        let answers: Vec<&Array> = answers.iter().collect();
        let answers = match answers.as_slice() {
            [only] => (*only).clone(),
            several => ops.concatenate(several, 1)?,
        };
        Ok((answers, memory))
    }

    /// All that can be said of chunks without the memory before them.
    fn ready(&self, ops: &Ops, tokens: &Tokens, chunk: i32) -> Result<Chunks> {
        let split = |from: &Array| split(ops, from, chunk);
        let (queries, keys) = (split(&tokens.queries)?, split(&tokens.keys)?);
        let values = split(&tokens.values)?;
        let since = ops.cumsum(&split(&tokens.decay)?, 4)?;
        let mut last = since.shape();
        let mut start = vec![0; last.len()];
        start[4] = chunk - 1;
        last[4] = chunk;
        let whole = ops.slice(&since, &start, &last)?;
        let [met, seen] = self.pairs(ops, [&keys, &queries], &since)?;
        let (values, against) = match &tokens.beta {
            None => (values, None),
            Some(beta) => {
                let beta = split(&ops.astype(beta, values.dtype())?)?;
                let share = |of: &Array| ops.fused(Fused::TimesSigmoid, &[of, &beta]);
                let solved = self.solve(ops, &share(&met)?)?;
                let faded = ops.fused(Fused::TimesExp, &[&keys, &since])?;
                let against = ops.matmul(&solved, &share(&faded)?)?;
                let against = ops.scale(&against, -1.0)?;
                (ops.matmul(&solved, &share(&values)?)?, Some(against))
            }
        };
        let left = ops.binary(Binary::Subtract, &whole, &since)?;
        Ok(Chunks {
            queries: ops.fused(Fused::TimesExp, &[&queries, &since])?,
            keys: ops.fused(Fused::TimesExp, &[&keys, &left])?,
            values,
            against,
            seen,
            decay: whole,
        })
    }

    /// The products of every token's key and query with the keys up to its own, decayed since
    /// then: [rows, chunks, outer, inner, to, from] each.
    fn pairs(&self, ops: &Ops, [keys, queries]: [&Array; 2], since: &Array) -> Result<[Array; 2]> {
        let (chunk, channels) = (since.dim(4), since.dim(5));
        let causal = ops.slice(&self.causal, &[0, 0], &[chunk, chunk])?;
        if channels == 1 {
            let decay = ops.fused(Fused::PairDecay, &[since, &flip(ops, since)?, &causal])?;
            let from = flip(ops, keys)?;
            let product = |to: &Array| ops.multiply(&ops.matmul(to, &from)?, &decay);
            return Ok([product(keys)?, product(queries)?]);
        }
        // Channels decay apart, and factors of the two sides alone could overflow: each pair's
        // decay is made before the sum over channels.
        let causal = ops.reshape(&causal, &[chunk, chunk, 1])?;
        let to = insert(ops, since, 5)?;
        let (from, keys_from) = (insert(ops, since, 4)?, insert(ops, keys, 4)?);
        let faded = ops.fused(Fused::PairDecay, &[&to, &from, &causal, &keys_from])?;
        let both = ops.concatenate(&[&insert(ops, keys, 6)?, &insert(ops, queries, 6)?], 6)?;
        let products = ops.matmul(&faded, &both)?;
        Ok([pick(ops, &products, 6, 0)?, pick(ops, &products, 6, 1)?])
    }

    /// The inverse of one plus the part of `met` below the diagonal.
    ///
    /// It grows from the diagonal in levels: two inverted blocks and the square between them make
    /// one of twice the side, `T - T met T`. Nothing in between is larger than what the answer is
    /// made of, which cannot be said of summing the powers of `met`.
    fn solve(&self, ops: &Ops, met: &Array) -> Result<Array> {
        let shape = met.shape();
        let chunk = met.dim(4);
        let depth = levels(chunk as usize) as i32;
        let stop = [depth, 1, 1, 1, 1, chunk, chunk];
        let levels = ops.slice(&self.levels, &[0; 7], &stop)?;
        let identity = ops.slice(&self.identity, &[0, 0], &[chunk, chunk])?;
        let between = ops.multiply(
            &ops.reshape(met, &[&[1], shape.as_slice()].concat())?,
            &levels,
        )?;
        let mut solved = ops.add(&pick(ops, &between, 0, 0)?, &identity)?;
        for level in 1..depth {
            let between = pick(ops, &between, 0, level)?;
            solved = ops.addmm(&solved, &ops.matmul(&solved, &between)?, &solved)?;
        }
        Ok(solved)
    }
}

/// Chunks as the memory meets them, each [rows, chunks, outer, inner, chunk, ...].
struct Chunks {
    /// Decayed since the chunk's start.
    queries: Array,
    /// Decayed until its end.
    keys: Array,
    /// What is written, as if the memory were empty.
    values: Array,
    /// What is written less, for what the memory answers to these keys.
    against: Option<Array>,
    /// What each token sees of what the others write.
    seen: Array,
    /// Over the whole chunk.
    decay: Array,
}

impl Chunks {
    /// Takes the memories through the chunks, and adds each one's answers.
    fn run(&self, ops: &Ops, mut memory: Array, answers: &mut Vec<Array>) -> Result<Array> {
        for index in 0..self.queries.dim(1) {
            let pick = |from: &Array| pick(ops, from, 1, index);
            let transposed = flip(ops, &memory)?;
            let values = pick(&self.values)?;
            let written = match &self.against {
                Some(against) => ops.addmm(&values, &pick(against)?, &transposed)?,
                None => values,
            };
            let answer = ops.matmul(&pick(&self.queries)?, &transposed)?;
            let answer = ops.addmm(&answer, &pick(&self.seen)?, &written)?;
            answers.push(ops.transpose(&answer, &[0, 3, 1, 2, 4])?);
            let kept = ops.fused(Fused::TimesExp, &[&memory, &pick(&self.decay)?])?;
            memory = ops.addmm(&kept, &flip(ops, &written)?, &pick(&self.keys)?)?;
        }
        Ok(memory)
    }
}

impl Tokens {
    fn slice(&self, ops: &Ops, start: usize, len: usize) -> Result<Self> {
        let cut = |from: &Array| -> Result<Array> {
            let mut stop = from.shape();
            if stop[1] as usize == len {
                return Ok(from.clone());
            }
            let mut begin = vec![0; stop.len()];
            (begin[1], stop[1]) = (start as i32, (start + len) as i32);
            ops.slice(from, &begin, &stop)
        };
        Ok(Self {
            queries: cut(&self.queries)?,
            keys: cut(&self.keys)?,
            values: cut(&self.values)?,
            decay: cut(&self.decay)?,
            beta: self.beta.as_ref().map(cut).transpose()?,
        })
    }

    /// Memories before the first token.
    fn forgetful(&self, ops: &Ops) -> Result<Array> {
        let values = &self.values;
        let dims = [
            values.dim(0),
            values.dim(2),
            values.dim(3),
            values.dim(4),
            self.keys.dim(4),
        ];
        ops.full(&dims, 0.0, values.dtype())
    }
}

/// The answers to one token, and the memories after it.
fn one(ops: &Ops, tokens: &Tokens, memory: Array) -> Result<(Array, Array)> {
    let row = |from: &Array| {
        let dims = [from.dim(0), from.dim(2), from.dim(3), 1, from.dim(4)];
        ops.reshape(from, &dims)
    };
    let column = |from: &Array| {
        let dims = [from.dim(0), from.dim(2), from.dim(3), from.dim(4), 1];
        ops.reshape(from, &dims)
    };
    let (key, decay) = (row(&tokens.keys)?, row(&tokens.decay)?);
    let mut written = column(&tokens.values)?;
    if let Some(beta) = &tokens.beta {
        let faded = ops.fused(Fused::TimesExp, &[&key, &decay])?;
        let there = ops.matmul(&memory, &flip(ops, &faded)?)?;
        written = ops.fused(Fused::Change, &[&written, &there, &column(beta)?])?;
    }
    let memory = ops.fused(Fused::Remember, &[&memory, &decay, &written, &key])?;
    let answer = ops.matmul(&memory, &column(&tokens.queries)?)?;
    Ok((ops.reshape(&answer, &tokens.values.shape())?, memory))
}

/// From [rows, tokens, outer, inner, dim] to [rows, chunks, outer, inner, chunk, dim].
fn split(ops: &Ops, from: &Array, chunk: i32) -> Result<Array> {
    let dims = [
        from.dim(0),
        -1,
        chunk,
        from.dim(2),
        from.dim(3),
        from.dim(4),
    ];
    let chunks = ops.reshape(from, &dims)?;
    ops.contiguous(&ops.transpose(&chunks, &[0, 1, 3, 4, 2, 5])?)
}

/// One entry along `axis`, which goes.
fn pick(ops: &Ops, from: &Array, axis: usize, index: i32) -> Result<Array> {
    let mut stop = from.shape();
    let mut start = vec![0; stop.len()];
    (start[axis], stop[axis]) = (index, index + 1);
    let entry = ops.slice(from, &start, &stop)?;
    stop = entry.shape();
    stop.remove(axis);
    ops.reshape(&entry, &stop)
}

/// With a dimension of one more.
fn insert(ops: &Ops, from: &Array, axis: usize) -> Result<Array> {
    let mut dims = from.shape();
    dims.insert(axis, 1);
    ops.reshape(from, &dims)
}

/// The last two dimensions exchanged.
fn flip(ops: &Ops, from: &Array) -> Result<Array> {
    let dims = from.shape().len() as i32;
    let mut order: Vec<i32> = (0..dims).collect();
    order.swap(dims as usize - 2, dims as usize - 1);
    ops.transpose(from, &order)
}

/// How often blocks of one are doubled to make one of `chunk`.
fn levels(chunk: usize) -> usize {
    chunk.next_power_of_two().ilog2() as usize
}

/// Whether the level joins two blocks by this place: `to` in the later, `from` in the earlier.
fn works(level: usize, to: usize, from: usize) -> bool {
    to >> (level + 1) == from >> (level + 1) && to >> level > from >> level
}

#[cfg(test)]
mod tests;
