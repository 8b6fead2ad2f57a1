//! Mamba-2.

use loquat_session::OpenError;
use loquat_spec::{LayerRole as R, Mamba2 as Spec, MambaNorm};

use super::linear_state::{LinearState, Tokens};
use super::recurrent::{Conv, ConvRoles, Finish, put_states, rows_of, split_last, take_states};
use crate::array::{Array, Fused, Ops};
use crate::error::MlxError;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::norm::Norm;
use crate::step::Step;

pub struct Mamba2 {
    spec: Spec,
    /// Gate, x, B, C and step sizes.
    input: Linear,
    /// Over x, B and C; includes their scales.
    conv: Conv,
    steps: StepSizes,
    linear_state: LinearState,
    /// For each head: [groups, heads of a group, 1].
    skip: Array,
    norm: Option<PartNorm>,
    output: Linear,
}

/// Parameters of a head's step size and decay, each [heads] or [1].
struct StepSizes {
    scale: Array,
    bias: Array,
    low: Array,
    high: Array,
    rate: Array,
}

/// A norm over each of `parts` equal parts.
struct PartNorm {
    parts: i32,
    norm: Norm,
    before_gate: bool,
}

impl Mamba2 {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let ops = loader.loader().ops;
        let (inner, shared) = (spec.inner_len(), spec.groups * spec.state);
        let [_, x_scale, b_scale, c_scale, _] = spec.scales;
        let scale = |channel: usize| match channel {
            channel if channel < inner => x_scale,
            channel if channel < inner + shared => b_scale,
            _ => c_scale,
        };
        let of_group = (spec.heads / spec.groups) as i32;
        let skip = loader.vector_f32(R::MambaSkip)?;
        let roles = ConvRoles {
            weights: &[R::MambaConv],
            bias: spec.conv_bias.then_some(R::MambaConvBias),
            kernel: spec.kernel,
        };
        Ok(Self {
            spec: *spec,
            input: loader.linear(R::MambaIn)?,
            conv: Conv::load(loader, &roles, scale)?,
            steps: StepSizes::load(loader, spec)?,
            linear_state: LinearState::new(ops, 1)?,
            skip: ops.reshape(&skip, &[spec.groups as i32, of_group, 1])?,
            norm: PartNorm::load(loader, &spec.norm)?,
            output: loader.linear(R::MambaOut)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let (ops, spec) = (step.ops, &self.spec);
        let projected = self.input.adapted(ops, x, &step.adapters)?;
        let lens = [spec.inner_len(), spec.conv_len(), spec.heads];
        let [gate, mixed, sizes] = split_last(ops, &projected, lens)?;
        let [sizes, decays] = self.steps.compute(ops, &sizes)?;
        let mut outputs = Vec::with_capacity(step.groups.len());
        for group in step.groups {
            let mut states = take_states(step, group, layer)?;
            let mixed = rows_of(step, group, &mixed)?;
            let mixed = self.conv.run(ops, &mixed, &mut states.conv, Finish::Silu)?;
            let sizes = rows_of(step, group, &sizes)?;
            let decays = rows_of(step, group, &decays)?;
            let output = self.update_state(ops, [&mixed, &sizes, &decays], &mut states.memory)?;
            outputs.push(ops.reshape(&output, &[-1, lens[0] as i32])?);
            put_states(step, group, layer, states)?;
        }
        let output = ops.astype(&step.gather(outputs)?, step.dtype)?;
        let output = self.finish(ops, output, gate)?;
        self.output.adapted(ops, &output, &step.adapters)
    }

    /// The heads' outputs of [rows, tokens, groups, heads of a group, head dim]. `mixed`, `sizes`
    /// and `decays`: [rows, tokens, ...].
    fn update_state(
        &self,
        ops: &Ops,
        [mixed, sizes, decays]: [&Array; 3],
        memory: &mut Option<Array>,
    ) -> Result<Array, MlxError> {
        let spec = &self.spec;
        let [groups, head_dim, state] = [spec.groups, spec.head_dim, spec.state].map(|n| n as i32);
        let (rows, tokens) = (mixed.dim(0), mixed.dim(1));
        let of_group = spec.heads as i32 / groups;
        let shared = spec.groups * spec.state;
        let [x, b, c] = split_last(ops, mixed, [spec.inner_len(), shared, shared])?;
        let heads = |of: &Array, dim: i32| ops.reshape(of, &[rows, tokens, groups, -1, dim]);
        let x = heads(&x, head_dim)?;
        let tokens = Tokens {
            queries: heads(&c, state)?,
            keys: heads(&b, state)?,
            values: ops.multiply(&x, &heads(sizes, 1)?)?,
            decay: heads(decays, 1)?,
            beta: None,
        };
        let before = match memory.take() {
            Some(memory) => Some(ops.reshape(&memory, &[rows, groups, of_group, head_dim, state])?),
            None => None,
        };
        let (outputs, after) = self.linear_state.run(ops, &tokens, before)?;
        *memory = Some(ops.reshape(&after, &[rows, spec.heads as i32, head_dim, state])?);
        ops.fused(Fused::SumOfProducts, &[&x, &self.skip, &outputs])
    }

    /// Applies norm and gate in the spec's order.
    fn finish(&self, ops: &Ops, output: Array, gate: Array) -> Result<Array, MlxError> {
        let gate = if self.spec.scales[0] == 1.0 {
            gate
        } else {
            ops.scale(&gate, self.spec.scales[0])?
        };
        let gated = |output: &Array| ops.fused(Fused::TimesSilu, &[output, &gate]);
        match &self.norm {
            None => gated(&output),
            Some(norm) if norm.before_gate => gated(&norm.apply(ops, &output)?),
            Some(norm) => norm.apply(ops, &gated(&output)?),
        }
    }
}

impl StepSizes {
    fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let number = |value: f32| loader.loader().ops.upload_f32(&[value], &[1]);
        Ok(Self {
            scale: number(spec.scales[4])?,
            bias: loader.vector_f32(R::MambaStepBias)?,
            low: number(spec.step_limits.0)?,
            high: number(spec.step_limits.1)?,
            rate: loader.vector_f32(R::MambaRate)?,
        })
    }

    /// Step sizes and the logarithms of decays, each [tokens, heads] as `raw`, float32.
    fn compute(&self, ops: &Ops, raw: &Array) -> Result<[Array; 2], MlxError> {
        let inputs = [raw, &self.scale, &self.bias, &self.low, &self.high];
        let sizes = ops.fused(Fused::StepSize, &inputs)?;
        let decays = ops.multiply(&sizes, &self.rate)?;
        Ok([sizes, decays])
    }
}

impl PartNorm {
    fn load(loader: LayerLoader, norm: &MambaNorm) -> Result<Option<Self>, OpenError> {
        let (norm, parts, before_gate) = match norm {
            MambaNorm::None => return Ok(None),
            MambaNorm::AfterGate { norm, groups } => (norm, *groups as i32, false),
            MambaNorm::BeforeGate { norm, groups } => (norm, *groups as i32, true),
        };
        let mut norm = loader.norm(R::MambaOutNorm, norm)?;
        let per_part = |all: Array| loader.loader().ops.reshape(&all, &[parts, -1]);
        if parts > 1 {
            norm.weight = norm.weight.map(per_part).transpose()?;
            norm.bias = norm.bias.map(per_part).transpose()?;
        }
        Ok(Some(Self {
            parts,
            norm,
            before_gate,
        }))
    }

    /// `x`: [tokens, width].
    fn apply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        if self.parts == 1 {
            return self.norm.apply(ops, x);
        }
        // MLX's norms use the same weights for all parts.
        let bare = Norm {
            kind: self.norm.kind,
            eps: self.norm.eps,
            weight: None,
            bias: None,
        };
        let mut out = bare.apply(ops, &ops.reshape(x, &[x.dim(0), self.parts, -1])?)?;
        if let Some(weight) = &self.norm.weight {
            out = ops.multiply(&out, weight)?;
        }
        if let Some(bias) = &self.norm.bias {
            out = ops.add(&out, bias)?;
        }
        ops.reshape(&out, &x.shape())
    }
}

#[cfg(test)]
mod tests;
