//! A gated convolution over the last tokens.

use loquat_session::OpenError;
use loquat_spec::{LayerRole, ShortConv as Spec};

use super::recurrent::{Conv, ConvRoles, Finish, put_states, rows_of, take_states};
use crate::array::Array;
use crate::error::MlxError;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::step::Step;

/// `output(c * conv(b * x))`
pub struct ShortConv {
    channels: i32,
    /// b, c and x.
    input: Linear,
    conv: Conv,
    output: Linear,
}

impl ShortConv {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let roles = ConvRoles {
            weights: &[LayerRole::Conv],
            bias: spec.bias.then_some(LayerRole::ConvBias),
            kernel: spec.kernel,
        };
        Ok(Self {
            channels: spec.channels as i32,
            input: loader.linear(LayerRole::ConvIn)?,
            conv: Conv::load(loader, &roles, |_| 1.0)?,
            output: loader.linear(LayerRole::ConvOut)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let projected = self.input.adapted(ops, x, &step.adapters)?;
        let part = |index: i32| {
            let start = [0, index * self.channels];
            let stop = [x.dim(0), start[1] + self.channels];
            ops.slice(&projected, &start, &stop)
        };
        let (b, c, x) = (part(0)?, part(1)?, part(2)?);
        let inner = ops.multiply(&b, &x)?;
        let mut mixed = Vec::with_capacity(step.groups.len());
        for group in step.groups {
            let mut states = take_states(step, group, layer)?;
            let (inner, c) = (rows_of(step, group, &inner)?, rows_of(step, group, &c)?);
            let out = self
                .conv
                .run(ops, &inner, &mut states.conv, Finish::Times(&c))?;
            mixed.push(ops.reshape(&out, &[-1, self.channels])?);
            put_states(step, group, layer, states)?;
        }
        self.output
            .adapted(ops, &step.gather(mixed)?, &step.adapters)
    }
}

#[cfg(test)]
mod tests;
