//! The recurrent state of linear attention and state space models.
//!
//! A head's state `S`, values by keys, is updated with a token's decay `g`, key `k` and value `v`
//! by `S = S g + u kᵀ`; the output for the query `q` is `S q`. The written value `u` is `v`, or by
//! the delta rule `beta (v - S g k)`: the difference from what the state already returns for `k`.
//!
//! A single token uses this form. Several tokens are processed in chunks: within a chunk, tokens
//! interact through a matrix of decayed key products, so that the number of operations depends on
//! the number of chunks instead of tokens; the state is passed from chunk to chunk.

use crate::array::{Array, Binary, Fused, Ops};
use crate::error::MlxError;

type Result<T> = std::result::Result<T, MlxError>;

/// Tokens of a chunk if each head has one decay.
const CHUNK: usize = 64;

/// Tokens of a chunk if each key channel has its own decay: each pair of tokens then needs an array
/// of the keys' width.
const CHANNEL_CHUNK: usize = 16;

/// Tokens whose chunks are prepared at once, which bounds the arrays of pairs.
const SPAN: usize = 512;

/// The inputs of some rows' tokens, float32 except for `beta`. Heads have two dimensions; if keys
/// and queries have size 1 in one of them, heads along it share theirs.
pub struct Tokens {
    /// [rows, tokens, outer, inner, key dim]
    pub queries: Array,
    pub keys: Array,
    /// [rows, tokens, outer, inner, value dim]
    pub values: Array,
    /// Natural logarithms, not above zero, [rows, tokens, outer, inner, 1 or key dim].
    pub decay: Array,
    /// For the delta rule, before the sigmoid, [rows, tokens, outer, inner, 1].
    pub beta: Option<Array>,
}

/// Updates the states of a layer's heads; holds the constants of the chunked form.
pub struct LinearState {
    chunk: usize,
    /// 0 if a token attends to the other, otherwise -infinity; [chunk, chunk].
    causal: Array,
    /// [chunk, chunk]
    identity: Array,
    /// For each level of [`LinearState::solve`], -1 at its elements and 0 elsewhere;
    /// [levels, 1, 1, 1, 1, chunk, chunk].
    levels: Array,
}

impl LinearState {
    /// `channels`: decays of a head.
    pub fn new(ops: &Ops, channels: usize) -> Result<Self> {
        let chunk = match channels {
            1 => CHUNK,
            _ => CHANNEL_CHUNK,
        };
        let square = |value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            let elements = (0..chunk * chunk).map(|at| (at / chunk, at % chunk));
            elements.map(|(to, from)| value(to, from)).collect()
        };
        let causal = square(&|to, from| if from <= to { 0.0 } else { f32::NEG_INFINITY });
        let identity = square(&|to, from| if from == to { 1.0 } else { 0.0 });
        let levels: Vec<f32> = (0..levels(chunk))
            .flat_map(|level| {
                square(&|to, from| {
                    if is_in_level(level, to, from) {
                        -1.0
                    } else {
                        0.0
                    }
                })
            })
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

    /// Outputs of [rows, tokens, outer, inner, value dim] and the states after the last token,
    /// [rows, outer, inner, value dim, key dim], given those before the first.
    pub fn run(&self, ops: &Ops, tokens: &Tokens, before: Option<Array>) -> Result<(Array, Array)> {
        let mut state = match before {
            Some(state) => state,
            None => tokens.zero_state(ops)?,
        };
        let count = tokens.values.dim(1) as usize;
        let mut outputs = Vec::new();
        let mut at = 0;
        while at < count {
            let left = count - at;
            let chunk = self.chunk.min(left);
            let chunks = (left / chunk).min(SPAN / self.chunk);
            let span = tokens.slice(ops, at, chunks * chunk)?;
            state = match chunk {
                1 => {
                    let (output, state) = single_token(ops, &span, state)?;
                    outputs.push(output);
                    state
                }
                _ => self
                    .prepare(ops, &span, chunk as i32)?
                    .run(ops, state, &mut outputs)?,
            };
            at += chunks * chunk;
        }
        let outputs: Vec<&Array> = outputs.iter().collect();
        let outputs = match outputs.as_slice() {
            [only] => (*only).clone(),
            several => ops.concatenate(several, 1)?,
        };
        Ok((outputs, state))
    }

    /// Computes everything about chunks that does not depend on the state before them.
    fn prepare(&self, ops: &Ops, tokens: &Tokens, chunk: i32) -> Result<Chunks> {
        let split = |from: &Array| split(ops, from, chunk);
        let (queries, keys) = (split(&tokens.queries)?, split(&tokens.keys)?);
        let values = split(&tokens.values)?;
        let since = ops.cumsum(&split(&tokens.decay)?, 4)?;
        let mut last = since.shape();
        let mut start = vec![0; last.len()];
        start[4] = chunk - 1;
        last[4] = chunk;
        let total_decay = ops.slice(&since, &start, &last)?;
        let [key_products, query_products] = self.pairs(ops, [&keys, &queries], &since)?;
        let (values, correction_keys) = match &tokens.beta {
            None => (values, None),
            Some(beta) => {
                let beta = split(&ops.astype(beta, values.dtype())?)?;
                let share = |of: &Array| ops.fused(Fused::TimesSigmoid, &[of, &beta]);
                let solved = self.solve(ops, &share(&key_products)?)?;
                let decayed = ops.fused(Fused::TimesExp, &[&keys, &since])?;
                let correction_keys = ops.matmul(&solved, &share(&decayed)?)?;
                let correction_keys = ops.scale(&correction_keys, -1.0)?;
                (
                    ops.matmul(&solved, &share(&values)?)?,
                    Some(correction_keys),
                )
            }
        };
        let left = ops.binary(Binary::Subtract, &total_decay, &since)?;
        Ok(Chunks {
            queries: ops.fused(Fused::TimesExp, &[&queries, &since])?,
            keys: ops.fused(Fused::TimesExp, &[&keys, &left])?,
            values,
            correction_keys,
            query_products,
            decay: total_decay,
        })
    }

    /// The decayed products of every token's key and query with the keys up to its own: [rows,
    /// chunks, outer, inner, to, from] each.
    fn pairs(&self, ops: &Ops, [keys, queries]: [&Array; 2], since: &Array) -> Result<[Array; 2]> {
        let (chunk, channels) = (since.dim(4), since.dim(5));
        let causal = ops.slice(&self.causal, &[0, 0], &[chunk, chunk])?;
        if channels == 1 {
            let decay = ops.fused(
                Fused::PairDecay,
                &[since, &transpose_last(ops, since)?, &causal],
            )?;
            let from = transpose_last(ops, keys)?;
            let product = |to: &Array| ops.multiply(&ops.matmul(to, &from)?, &decay);
            return Ok([product(keys)?, product(queries)?]);
        }
        // Channels decay separately, and the factors of each side alone could overflow, so the
        // decay of each pair is computed before the sum over channels.
        let causal = ops.reshape(&causal, &[chunk, chunk, 1])?;
        let to = insert(ops, since, 5)?;
        let (from, keys_from) = (insert(ops, since, 4)?, insert(ops, keys, 4)?);
        let decayed = ops.fused(Fused::PairDecay, &[&to, &from, &causal, &keys_from])?;
        let both = ops.concatenate(&[&insert(ops, keys, 6)?, &insert(ops, queries, 6)?], 6)?;
        let products = ops.matmul(&decayed, &both)?;
        Ok([pick(ops, &products, 6, 0)?, pick(ops, &products, 6, 1)?])
    }

    /// The inverse of the identity plus the strictly lower triangle of `key_products`.
    ///
    /// It is computed from the diagonal in levels: two inverted blocks and the square between them
    /// form one of twice the side, `T - T key_products T`. Unlike a sum of powers, intermediate
    /// values are never larger than the parts of the result.
    fn solve(&self, ops: &Ops, key_products: &Array) -> Result<Array> {
        let shape = key_products.shape();
        let chunk = key_products.dim(4);
        let depth = levels(chunk as usize) as i32;
        let stop = [depth, 1, 1, 1, 1, chunk, chunk];
        let levels = ops.slice(&self.levels, &[0; 7], &stop)?;
        let identity = ops.slice(&self.identity, &[0, 0], &[chunk, chunk])?;
        let between = ops.multiply(
            &ops.reshape(key_products, &[&[1], shape.as_slice()].concat())?,
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

/// Prepared chunks, each [rows, chunks, outer, inner, chunk, ...].
struct Chunks {
    /// Decayed from the start of the chunk.
    queries: Array,
    /// Decayed until the end of the chunk.
    keys: Array,
    /// The written values for an empty state.
    values: Array,
    /// The keys whose state outputs are subtracted from the written values.
    correction_keys: Option<Array>,
    /// The weight of each written value in each token's output.
    query_products: Array,
    /// The decay over the whole chunk.
    decay: Array,
}

impl Chunks {
    /// Updates the states through all chunks, and appends the outputs of each.
    fn run(&self, ops: &Ops, mut state: Array, outputs: &mut Vec<Array>) -> Result<Array> {
        for index in 0..self.queries.dim(1) {
            let pick = |from: &Array| pick(ops, from, 1, index);
            let transposed = transpose_last(ops, &state)?;
            let values = pick(&self.values)?;
            let written = match &self.correction_keys {
                Some(correction_keys) => {
                    ops.addmm(&values, &pick(correction_keys)?, &transposed)?
                }
                None => values,
            };
            let output = ops.matmul(&pick(&self.queries)?, &transposed)?;
            let output = ops.addmm(&output, &pick(&self.query_products)?, &written)?;
            outputs.push(ops.transpose(&output, &[0, 3, 1, 2, 4])?);
            let kept = ops.fused(Fused::TimesExp, &[&state, &pick(&self.decay)?])?;
            state = ops.addmm(&kept, &transpose_last(ops, &written)?, &pick(&self.keys)?)?;
        }
        Ok(state)
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

    /// The states before the first token.
    fn zero_state(&self, ops: &Ops) -> Result<Array> {
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

/// The outputs of one token, and the states after it.
fn single_token(ops: &Ops, tokens: &Tokens, state: Array) -> Result<(Array, Array)> {
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
        let decayed = ops.fused(Fused::TimesExp, &[&key, &decay])?;
        let current = ops.matmul(&state, &transpose_last(ops, &decayed)?)?;
        written = ops.fused(Fused::Change, &[&written, &current, &column(beta)?])?;
    }
    let state = ops.fused(Fused::Remember, &[&state, &decay, &written, &key])?;
    let output = ops.matmul(&state, &column(&tokens.queries)?)?;
    Ok((ops.reshape(&output, &tokens.values.shape())?, state))
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

/// One entry along `axis`, without that dimension.
fn pick(ops: &Ops, from: &Array, axis: usize, index: i32) -> Result<Array> {
    let mut stop = from.shape();
    let mut start = vec![0; stop.len()];
    (start[axis], stop[axis]) = (index, index + 1);
    let entry = ops.slice(from, &start, &stop)?;
    stop = entry.shape();
    stop.remove(axis);
    ops.reshape(&entry, &stop)
}

/// Adds a dimension of size 1.
fn insert(ops: &Ops, from: &Array, axis: usize) -> Result<Array> {
    let mut dims = from.shape();
    dims.insert(axis, 1);
    ops.reshape(from, &dims)
}

/// Swaps the last two dimensions.
fn transpose_last(ops: &Ops, from: &Array) -> Result<Array> {
    let dims = from.shape().len() as i32;
    let mut order: Vec<i32> = (0..dims).collect();
    order.swap(dims as usize - 2, dims as usize - 1);
    ops.transpose(from, &order)
}

/// How often blocks of size 1 are doubled to reach `chunk`.
fn levels(chunk: usize) -> usize {
    chunk.next_power_of_two().ilog2() as usize
}

/// Whether the level joins two blocks at this element: `to` in the later, `from` in the earlier.
fn is_in_level(level: usize, to: usize, from: usize) -> bool {
    to >> (level + 1) == from >> (level + 1) && to >> level > from >> level
}

#[cfg(test)]
mod tests;
