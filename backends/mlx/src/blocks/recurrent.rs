//! Shared by recurrent mixers: the convolution over the last tokens, and the states of a group's
//! rows as one array.

#[cfg(test)]
pub mod plain;

use loquat_session::OpenError;
use loquat_spec::LayerRole;

use crate::array::{Array, Fused, Ops};
use crate::error::MlxError;
use crate::kv::Recurrent;
use crate::loader::LayerLoader;
use crate::step::{Group, Step};

/// A causal depthwise convolution. Weights and sums are float32.
pub struct Conv {
    /// The weights of each channel, from the oldest token to the newest.
    taps: Vec<Array>,
    bias: Option<Array>,
}

/// The roles of its weights, whose channels are concatenated.
pub struct ConvRoles<'a> {
    pub weights: &'a [LayerRole],
    pub bias: Option<LayerRole>,
    pub kernel: usize,
}

/// How the sum becomes the output.
pub enum Finish<'a> {
    Silu,
    /// Multiplied by this, [rows, tokens, channels], and converted to its type.
    Times(&'a Array),
}

impl Conv {
    /// `scale`: a factor for each channel's input.
    pub fn load(
        loader: LayerLoader,
        roles: &ConvRoles,
        scale: impl Fn(usize) -> f32,
    ) -> Result<Self, OpenError> {
        let mut stored = Vec::new();
        for role in roles.weights {
            stored.extend_from_slice(loader.values(*role)?);
        }
        Ok(Self {
            taps: taps(loader.loader().ops, &stored, roles.kernel, scale)?,
            bias: roles.bias.map(|role| loader.vector_f32(role)).transpose()?,
        })
    }

    /// `x`: [rows, tokens, channels]; `past`: the inputs before them, zeros if there are none;
    /// replaced by the last ones.
    pub fn run(
        &self,
        ops: &Ops,
        x: &Array,
        past: &mut Option<Array>,
        finish: Finish,
    ) -> Result<Array, MlxError> {
        let (rows, tokens, channels) = (x.dim(0), x.dim(1), x.dim(2));
        let memory = self.taps.len() as i32 - 1;
        let mut input = x.clone();
        if memory > 0 {
            let before = match past.take() {
                Some(past) => past,
                None => ops.full(&[rows, memory, channels], 0.0, x.dtype())?,
            };
            input = ops.concatenate(&[&before, x], 1)?;
            let stop = [rows, tokens + memory, channels];
            // A copy, if a slice would keep a long prompt's inputs alive.
            *past = Some(ops.contiguous(&ops.slice(&input, &[0, tokens, 0], &stop)?)?);
        }
        let mut shifted = Vec::with_capacity(self.taps.len());
        for tap in 0..=memory {
            let stop = [rows, tap + tokens, channels];
            shifted.push(ops.slice(&input, &[0, tap, 0], &stop)?);
        }
        let products = shifted.iter().zip(&self.taps).flat_map(|(x, tap)| [x, tap]);
        let products = products.chain(&self.bias);
        match finish {
            Finish::Silu => ops.fused(Fused::SiluOfProducts, &products.collect::<Vec<_>>()),
            Finish::Times(factor) => {
                let inputs: Vec<&Array> = std::iter::once(factor).chain(products).collect();
                ops.fused(Fused::TimesProducts, &inputs)
            }
        }
    }
}

/// A kernel's weights for each token, from [channel][kernel].
fn taps(
    ops: &Ops,
    stored: &[f32],
    kernel: usize,
    scale: impl Fn(usize) -> f32,
) -> Result<Vec<Array>, MlxError> {
    let tap = |tap: usize| {
        let channels = stored.chunks_exact(kernel).enumerate();
        let weights = channels.map(|(channel, taps)| taps[tap] * scale(channel));
        let weights: Vec<f32> = weights.collect();
        ops.upload_f32(&weights, &[weights.len() as i32])
    };
    (0..kernel).map(tap).collect()
}

/// Takes the states of the group's rows and concatenates them along the first dimension.
pub fn take_states(step: &mut Step, group: &Group, layer: usize) -> Result<Recurrent, MlxError> {
    let rows = &mut step.rows[group.rows.clone()];
    let mut states: Vec<Recurrent> = rows
        .iter_mut()
        .map(|row| std::mem::take(&mut row.recurrent[layer]))
        .collect();
    if states.len() == 1 {
        return Ok(states.remove(0));
    }
    let conv: Vec<_> = states.iter().map(|state| state.conv.as_ref()).collect();
    let memory: Vec<_> = states.iter().map(|state| state.memory.as_ref()).collect();
    Ok(Recurrent {
        conv: join(step.ops, &conv)?,
        memory: join(step.ops, &memory)?,
    })
}

/// Stores the states of the group's rows.
pub fn put_states(
    step: &mut Step,
    group: &Group,
    layer: usize,
    states: Recurrent,
) -> Result<(), MlxError> {
    if group.rows.len() == 1 {
        step.rows[group.rows.start].recurrent[layer] = states;
        return Ok(());
    }
    let ops = step.ops;
    for (index, row) in step.rows[group.rows.clone()].iter_mut().enumerate() {
        let own = |of: &Option<Array>| of.as_ref().map(|of| own(ops, of, index)).transpose();
        row.recurrent[layer] = Recurrent {
            conv: own(&states.conv)?,
            memory: own(&states.memory)?,
        };
    }
    Ok(())
}

fn join(ops: &Ops, parts: &[Option<&Array>]) -> Result<Option<Array>, MlxError> {
    let Some(like) = parts.iter().copied().flatten().next() else {
        return Ok(None);
    };
    let zeros = ops.full(&like.shape(), 0.0, like.dtype())?;
    let parts: Vec<&Array> = parts.iter().map(|part| part.unwrap_or(&zeros)).collect();
    ops.concatenate(&parts, 0).map(Some)
}

fn own(ops: &Ops, of: &Array, index: usize) -> Result<Array, MlxError> {
    let mut stop = of.shape();
    let mut start = vec![0; stop.len()];
    (start[0], stop[0]) = (index as i32, index as i32 + 1);
    ops.slice(of, &start, &stop)
}

/// The group's part of [tokens, width] as [rows, tokens, width].
pub fn rows_of(step: &Step, group: &Group, x: &Array) -> Result<Array, MlxError> {
    let part = step.group_part(group, x)?;
    let dims = [group.rows.len() as i32, group.tokens as i32, part.dim(1)];
    step.ops.reshape(&part, &dims)
}

/// Splits the last dimension into parts of these lengths.
pub fn split_last<const N: usize>(
    ops: &Ops,
    from: &Array,
    lens: [usize; N],
) -> Result<[Array; N], MlxError> {
    let shape = from.shape();
    let last = shape.len() - 1;
    let mut at = 0;
    let parts = lens.map(|len| {
        let (mut start, mut stop) = (vec![0; shape.len()], shape.clone());
        (start[last], stop[last]) = (at, at + len as i32);
        at = stop[last];
        ops.slice(from, &start, &stop)
    });
    let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
    parts
        .try_into()
        .map_err(|_| MlxError("wrong number of parts".to_owned()))
}
