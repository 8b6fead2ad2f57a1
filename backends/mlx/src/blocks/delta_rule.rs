//! Linear attention by the gated delta rule.

use loquat_session::OpenError;
use loquat_spec::{Decay, DeltaOutputGate, DeltaRule as Spec, KeySharing, LayerRole as R};

use super::linear_state::{LinearState, Tokens};
use super::recurrent::{Conv, ConvRoles, Finish, put_states, rows_of, split_last, take_states};
use crate::array::{Array, Fused, Ops, Type, Unary};
use crate::error::MlxError;
use crate::linear::{JoinedLinear, Linear};
use crate::loader::LayerLoader;
use crate::norm::Norm;
use crate::step::Step;

/// Avoids division by zero for queries and keys.
const UNIT_EPS: f32 = 1e-6;

/// The only head size for which MLX has a kernel of the rule, and only on Apple's GPUs. On other
/// devices its function is a graph of about thirty operations per token.
const NATIVE_DIM: usize = 128;

pub struct DeltaRule {
    spec: Spec,
    /// Queries, keys and values, then gate, beta and decay, or the first matrices of their low-rank
    /// forms.
    inputs: JoinedLinear,
    /// How many outputs of `inputs` contain queries, keys and values.
    mixed_parts: usize,
    gate_up: Option<Linear>,
    decay_up: Option<Linear>,
    conv: Conv,
    /// [heads, decays of a head] and [heads, 1].
    decay_bias: Array,
    decay_rate: Array,
    /// Scales a head of queries or keys to unit length, [key dim].
    unit: Array,
    kernel: DeltaKernel,
    norm: Norm,
    output: Linear,
}

enum DeltaKernel {
    Native,
    Chunked(LinearState),
}

impl DeltaKernel {
    fn new(ops: &Ops, spec: &Spec) -> Result<Self, MlxError> {
        let has_native_size = [spec.key_dim, spec.value_dim] == [NATIVE_DIM; 2];
        Ok(match spec.decay {
            Decay::PerHead if cfg!(target_os = "macos") && has_native_size => Self::Native,
            Decay::PerHead => Self::Chunked(LinearState::new(ops, 1)?),
            Decay::PerChannel { .. } => Self::Chunked(LinearState::new(ops, spec.key_dim)?),
        })
    }
}

/// The roles that read the stream, and the second matrices of gate and decay.
fn input_roles(spec: &Spec) -> ([R; 6], Option<R>, Option<R>) {
    let (gate, gate_up) = match spec.gate {
        DeltaOutputGate::Silu => (R::DeltaGate, None),
        DeltaOutputGate::LowRankSigmoid { .. } => (R::DeltaGateDown, Some(R::DeltaGateUp)),
    };
    let (decay, decay_up) = match spec.decay {
        Decay::PerHead => (R::DeltaDecay, None),
        Decay::PerChannel { .. } => (R::DeltaDecayDown, Some(R::DeltaDecayUp)),
    };
    let roles = [
        R::DeltaQuery,
        R::DeltaKey,
        R::DeltaValue,
        gate,
        R::DeltaBeta,
        decay,
    ];
    (roles, gate_up, decay_up)
}

impl DeltaRule {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let ops = loader.loader().ops;
        let (roles, gate_up, decay_up) = input_roles(spec);
        let mut inputs = loader.joined(&roles)?;
        let mixed_parts = 3 - (0..2).take_while(|_| inputs.pair_first()).count();
        let up = |role: Option<R>| role.map(|role| loader.linear(role)).transpose();
        let per_head = |role: R| -> Result<Array, OpenError> {
            let dims = [spec.value_heads as i32, -1];
            Ok(ops.reshape(&loader.vector_f32(role)?, &dims)?)
        };
        let convs = ConvRoles {
            weights: &[R::DeltaQueryConv, R::DeltaKeyConv, R::DeltaValueConv],
            bias: None,
            kernel: spec.kernel,
        };
        let kernel = DeltaKernel::new(ops, spec)?;
        let unit = match kernel {
            DeltaKernel::Native => loader.loader().dtype,
            DeltaKernel::Chunked(_) => Type::F32,
        };
        let mut norm = loader.norm(R::DeltaNorm, &spec.norm)?;
        // Queries are divided by the square root of their length, which scales the outputs. The
        // norm cancels that scale except in its epsilon.
        norm.eps *= spec.key_dim as f32;
        Ok(Self {
            spec: *spec,
            inputs,
            mixed_parts,
            gate_up: up(gate_up)?,
            decay_up: up(decay_up)?,
            conv: Conv::load(loader, &convs, |_| 1.0)?,
            decay_bias: per_head(R::DeltaDecayBias)?,
            decay_rate: per_head(R::DeltaRate)?,
            unit: ops.full(
                &[spec.key_dim as i32],
                (spec.key_dim as f32).sqrt().recip(),
                unit,
            )?,
            kernel,
            norm,
            output: loader.linear(R::DeltaOutput)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let (ops, spec) = (step.ops, &self.spec);
        let [mixed, gate, beta, decay] = self.project(step, x)?;
        let mut outputs = Vec::with_capacity(step.groups.len());
        for group in step.groups {
            let mut states = take_states(step, group, layer)?;
            let mixed = rows_of(step, group, &mixed)?;
            let mixed = self.conv.run(ops, &mixed, &mut states.conv, Finish::Silu)?;
            let (beta, decay) = (rows_of(step, group, &beta)?, rows_of(step, group, &decay)?);
            let inputs = [&mixed, &beta, &decay];
            let output = match &self.kernel {
                DeltaKernel::Native => self.native(ops, inputs, &mut states.memory)?,
                DeltaKernel::Chunked(linear_state) => {
                    self.chunked(ops, linear_state, inputs, &mut states.memory)?
                }
            };
            let heads = [-1, spec.value_heads as i32, spec.value_dim as i32];
            outputs.push(ops.reshape(&output, &heads)?);
            put_states(step, group, layer, states)?;
        }
        let output = ops.astype(&step.gather(outputs)?, step.dtype)?;
        let output = self.norm.apply(ops, &output)?;
        let output = ops.reshape(&output, &gate.shape())?;
        let gated = match spec.gate {
            DeltaOutputGate::Silu => Fused::TimesSilu,
            DeltaOutputGate::LowRankSigmoid { .. } => Fused::TimesSigmoid,
        };
        let output = ops.fused(gated, &[&output, &gate])?;
        self.output.adapted(ops, &output, &step.adapters)
    }

    /// Queries, keys and values in one array, the gate, beta before its sigmoid, and the
    /// logarithms of the decays; each [tokens, ...].
    fn project(&self, step: &Step, x: &Array) -> Result<[Array; 4], MlxError> {
        let (ops, adapters) = (step.ops, &step.adapters);
        let outputs = self.inputs.apply(ops, x, adapters)?;
        let (mixed, rest) = outputs.split_at(self.mixed_parts.min(outputs.len()));
        let [gate, beta, decay] = rest else {
            return Err(MlxError("the delta rule needs six inputs".to_owned()));
        };
        let mixed = match mixed {
            [joined] => joined.clone(),
            parts => ops.concatenate(&parts.iter().collect::<Vec<_>>(), 1)?,
        };
        let raise = |narrow: &Array, up: &Option<Linear>| match up {
            Some(up) => up.adapted(ops, narrow, adapters),
            None => Ok(narrow.clone()),
        };
        let gate = raise(gate, &self.gate_up)?;
        let decay = raise(decay, &self.decay_up)?;
        let heads = self.spec.value_heads as i32;
        let decay = ops.reshape(&decay, &[x.dim(0), heads, -1])?;
        let inputs = [&decay, &self.decay_bias, &self.decay_rate];
        let decay = ops.fused(Fused::LogDecay, &inputs)?;
        let decay = ops.reshape(&decay, &[x.dim(0), -1])?;
        Ok([mixed, gate, beta.clone(), decay])
    }

    /// Unit-length queries and keys, and values, each [rows, tokens, heads, dim].
    fn heads(&self, ops: &Ops, mixed: &Array) -> Result<[Array; 3], MlxError> {
        let spec = &self.spec;
        let [both, values] = split_last(ops, mixed, [2 * spec.key_len(), spec.value_len()])?;
        let heads = |of: &Array, dim: usize| {
            let dims = [of.dim(0), of.dim(1), -1, dim as i32];
            ops.reshape(of, &dims)
        };
        let eps = UNIT_EPS / spec.key_dim as f32;
        let both = ops.rms_norm(&heads(&both, spec.key_dim)?, Some(&self.unit), eps)?;
        let (start, mut stop) = ([0, 0, spec.key_heads as i32, 0], both.shape());
        let keys = ops.slice(&both, &start, &stop)?;
        stop[2] = start[2];
        let queries = ops.slice(&both, &[0; 4], &stop)?;
        Ok([queries, keys, heads(&values, spec.value_dim)?])
    }

    /// The two dimensions of value heads, and the corresponding ones of key heads.
    fn sharing(&self) -> ([i32; 2], [i32; 2]) {
        let keys = self.spec.key_heads as i32;
        let times = self.spec.value_heads as i32 / keys;
        match self.spec.sharing {
            KeySharing::Adjacent => ([keys, times], [keys, 1]),
            KeySharing::Strided => ([times, keys], [1, keys]),
        }
    }

    /// The heads' outputs. `mixed`, `beta` and `decay`: [rows, tokens, ...].
    fn chunked(
        &self,
        ops: &Ops,
        linear_state: &LinearState,
        [mixed, beta, decay]: [&Array; 3],
        state: &mut Option<Array>,
    ) -> Result<Array, MlxError> {
        let [queries, keys, values] = self.heads(ops, mixed)?;
        let ([outer, inner], [key_outer, key_inner]) = self.sharing();
        let (rows, count) = (mixed.dim(0), mixed.dim(1));
        let of_keys = |of: &Array| ops.reshape(of, &[rows, count, key_outer, key_inner, of.dim(3)]);
        let of_values = |of: &Array| ops.reshape(of, &[rows, count, outer, inner, -1]);
        let tokens = Tokens {
            queries: of_keys(&queries)?,
            keys: of_keys(&keys)?,
            values: of_values(&values)?,
            decay: of_values(decay)?,
            beta: Some(of_values(beta)?),
        };
        let [value_dim, key_dim] = [self.spec.value_dim, self.spec.key_dim].map(|n| n as i32);
        let before = match state.take() {
            Some(state) => Some(ops.reshape(&state, &[rows, outer, inner, value_dim, key_dim])?),
            None => None,
        };
        let (outputs, after) = linear_state.run(ops, &tokens, before)?;
        *state = Some(ops.reshape(&after, &[rows, outer * inner, value_dim, key_dim])?);
        Ok(outputs)
    }

    /// Like [`Self::chunked`], with MLX's kernel, in the activations' type except for the states.
    fn native(
        &self,
        ops: &Ops,
        [mixed, beta, decay]: [&Array; 3],
        state: &mut Option<Array>,
    ) -> Result<Array, MlxError> {
        let mixed = ops.astype(mixed, self.unit.dtype())?;
        let [queries, keys, values] = self.heads(ops, &mixed)?;
        let each = |of: Array| match self.spec.sharing {
            // MLX's own order.
            KeySharing::Adjacent => Ok(of),
            KeySharing::Strided => {
                let times = self.spec.value_heads / self.spec.key_heads;
                ops.concatenate(&vec![&of; times], 2)
            }
        };
        let inputs = [&each(queries)?, &each(keys)?, &values];
        let decay = ops.unary(Unary::Exp, decay)?;
        let beta = ops.unary(Unary::Sigmoid, beta)?;
        let (outputs, after) = ops.gated_delta(inputs, &decay, &beta, state.take().as_ref())?;
        *state = Some(after);
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests;
