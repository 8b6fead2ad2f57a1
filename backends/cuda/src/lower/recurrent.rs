//! Mixers with a recurrent state.

use loquat_session::OpenError;
use loquat_spec::{
    Decay, DeltaOutputGate, DeltaRule, KeySharing, LayerRole as R, Mamba2, MambaNorm, Norm, Role,
    ShortConv,
};

use super::buffers::Buffer;
use super::{Domain, Lowering, Vectors, norm_op};
use crate::ops::{
    self, ActivationFunction, Convolve, DeltaGates, DeltaUpdate, MambaUpdate, Multiply,
    NormFunction,
};

/// Avoids division by zero for queries and keys of a delta rule.
const UNIT_EPS: f32 = 1e-6;

/// A convolution and where its past is in the state.
struct Convolution {
    role: R,
    channels: usize,
    kernel: usize,
    state: usize,
    silu: bool,
}

impl Lowering<'_, '_> {
    /// `c * conv(b * x)`
    pub(super) fn short_conv(
        &mut self,
        layer: usize,
        spec: &ShortConv,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let channels = spec.channels;
        let projected = self.buffer(Buffer::Query, 3 * channels);
        self.layer_linear(layer, R::ConvIn, input, projected)?;
        let inner = self.buffer(Buffer::Inner, channels);
        self.multiply(projected, projected.values(2 * channels), inner, channels);
        let convolution = Convolution {
            role: R::Conv,
            channels,
            kernel: spec.kernel,
            state: self.kv.state(layer).conv.start,
            silu: false,
        };
        self.convolve(layer, &convolution, inner)?;
        self.multiply(inner, projected.values(channels), inner, channels);
        self.output(layer, R::ConvOut, inner)
    }

    fn multiply(&mut self, a: Vectors, b: Vectors, out: Vectors, len: usize) {
        let op = Multiply {
            a: a.at,
            b: b.at,
            out: out.at,
            a_stride: a.stride,
            b_stride: b.stride,
            out_stride: out.stride,
            len: len as u32,
        };
        self.push(op, None);
    }

    fn convolve(
        &mut self,
        layer: usize,
        convolution: &Convolution,
        values: Vectors,
    ) -> Result<(), OpenError> {
        let role = Role::Layer(layer, convolution.role);
        let bias = match convolution.role.bias() {
            Some(bias) => self.weights.optional(Role::Layer(layer, bias))?,
            None => crate::ops::Address::NONE,
        };
        let op = Convolve {
            values: values.at,
            weights: self.weights.vector(role)?,
            bias,
            stride: values.stride,
            channels: convolution.channels as u32,
            kernel: convolution.kernel as u32,
            state: convolution.state as u32,
            silu: convolution.silu.into(),
            reserved: 0,
        };
        self.push_over(Domain::Rows, op, Some(role));
        Ok(())
    }

    pub(super) fn delta_rule(
        &mut self,
        layer: usize,
        spec: &DeltaRule,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let (key_len, value_len) = (spec.key_len(), spec.value_len());
        let query = self.buffer(Buffer::Query, key_len);
        let key = self.buffer(Buffer::Key, key_len);
        let value = self.buffer(Buffer::Value, value_len);
        let beta = self.buffer(Buffer::Beta, spec.value_heads);
        let parts = [
            (R::DeltaQuery, R::DeltaQueryConv, query, key_len),
            (R::DeltaKey, R::DeltaKeyConv, key, key_len),
            (R::DeltaValue, R::DeltaValueConv, value, value_len),
        ];
        for (role, _, out, _) in parts {
            self.layer_linear(layer, role, input, out)?;
        }
        self.layer_linear(layer, R::DeltaBeta, input, beta)?;
        let (decays, low_rank, direct) = match spec.decay {
            Decay::PerHead => (spec.value_heads, None, R::DeltaDecay),
            Decay::PerChannel { rank } => (
                spec.value_heads * spec.key_dim,
                Some((R::DeltaDecayDown, rank)),
                R::DeltaDecayUp,
            ),
        };
        let decay = self.buffer(Buffer::Decay, decays);
        self.low_rank(layer, low_rank, direct, input, decay)?;
        let gate = self.buffer(Buffer::Gate, value_len);
        let (low_rank, direct, function) = match spec.gate {
            DeltaOutputGate::Silu => (None, R::DeltaGate, ActivationFunction::Silu),
            DeltaOutputGate::LowRankSigmoid { rank } => (
                Some((R::DeltaGateDown, rank)),
                R::DeltaGateUp,
                ActivationFunction::Sigmoid,
            ),
        };
        self.low_rank(layer, low_rank, direct, input, gate)?;
        let mut state = self.kv.state(layer).conv.start;
        for (_, role, values, channels) in parts {
            let convolution = Convolution {
                role,
                channels,
                kernel: spec.kernel,
                state,
                silu: true,
            };
            self.convolve(layer, &convolution, values)?;
            state += (spec.kernel - 1) * channels;
        }
        let query_scale = 1.0 / (spec.key_dim as f32).sqrt();
        for (values, scale) in [(query, query_scale), (key, 1.0)] {
            let op = ops::Norm {
                parts: spec.key_heads as u32,
                len: spec.key_dim as u32,
                function: NormFunction::UnitLength,
                eps: UNIT_EPS,
                after: scale,
                ..norm_op(None, values, values)
            };
            self.push(op, None);
        }
        let gates = DeltaGates {
            decay: decay.at,
            beta: beta.at,
            bias: self.weights.vector(Role::Layer(layer, R::DeltaDecayBias))?,
            rate: self.weights.vector(Role::Layer(layer, R::DeltaRate))?,
            heads: spec.value_heads as u32,
            per_head: (decays / spec.value_heads) as u32,
        };
        self.push(gates, None);
        let inner = self.buffer(Buffer::Inner, value_len);
        let update = DeltaUpdate {
            query: query.at,
            key: key.at,
            value: value.at,
            out: inner.at,
            decay: decay.at,
            beta: beta.at,
            key_heads: spec.key_heads as u32,
            value_heads: spec.value_heads as u32,
            key_dim: spec.key_dim as u32,
            value_dim: spec.value_dim as u32,
            per_head: (decays / spec.value_heads) as u32,
            state: self.kv.state(layer).memory.start as u32,
            strided: u32::from(spec.sharing == KeySharing::Strided),
            reserved: 0,
        };
        self.push_over(
            Domain::Rows,
            update,
            Some(Role::Layer(layer, R::DeltaQuery)),
        );
        let norm = ops::Norm {
            parts: spec.value_heads as u32,
            len: spec.value_dim as u32,
            ..norm_op(Some(&spec.norm), inner, inner)
        };
        self.weighted_norm(norm, Some(&spec.norm), Role::Layer(layer, R::DeltaNorm))?;
        self.gate(gate, inner, value_len, function);
        self.output(layer, R::DeltaOutput, inner)
    }

    /// Through one matrix, or two with `rank` values between them.
    fn low_rank(
        &mut self,
        layer: usize,
        down: Option<(R, usize)>,
        up: R,
        input: Vectors,
        out: Vectors,
    ) -> Result<(), OpenError> {
        let mut input = input;
        if let Some((role, rank)) = down {
            let narrow = self.buffer(Buffer::Narrow, rank);
            self.layer_linear(layer, role, input, narrow)?;
            input = narrow;
        }
        self.layer_linear(layer, up, input, out)
    }

    pub(super) fn mamba2(
        &mut self,
        layer: usize,
        spec: &Mamba2,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let (inner_len, width) = (spec.inner_len(), spec.projected_len());
        let projected = self.buffer(Buffer::Query, width);
        self.layer_linear(layer, R::MambaIn, input, projected)?;
        let shared = spec.groups * spec.state;
        let lens = [inner_len, inner_len, shared, shared, spec.heads];
        let mut at = 0;
        for (len, factor) in lens.into_iter().zip(spec.scales) {
            if factor != 1.0 {
                self.scale(projected.values(at), len, factor);
            }
            at += len;
        }
        let convolution = Convolution {
            role: R::MambaConv,
            channels: spec.conv_len(),
            kernel: spec.kernel,
            state: self.kv.state(layer).conv.start,
            silu: true,
        };
        self.convolve(layer, &convolution, projected.values(inner_len))?;
        let inner = self.buffer(Buffer::Inner, inner_len);
        let update = MambaUpdate {
            projected: projected.at,
            out: inner.at,
            step_bias: self.weights.vector(Role::Layer(layer, R::MambaStepBias))?,
            rate: self.weights.vector(Role::Layer(layer, R::MambaRate))?,
            skip: self.weights.vector(Role::Layer(layer, R::MambaSkip))?,
            width: width as u32,
            heads: spec.heads as u32,
            head_dim: spec.head_dim as u32,
            groups: spec.groups as u32,
            state_len: spec.state as u32,
            state: self.kv.state(layer).memory.start as u32,
            min_step: spec.step_limits.0,
            max_step: spec.step_limits.1,
        };
        self.push_over(Domain::Rows, update, Some(Role::Layer(layer, R::MambaIn)));
        if let MambaNorm::BeforeGate { norm, groups } = &spec.norm {
            self.mamba_norm(layer, norm, *groups, inner, inner_len)?;
        }
        self.gate(projected, inner, inner_len, ActivationFunction::Silu);
        if let MambaNorm::AfterGate { norm, groups } = &spec.norm {
            self.mamba_norm(layer, norm, *groups, inner, inner_len)?;
        }
        self.output(layer, R::MambaOut, inner)
    }

    /// Over each of `groups` equal parts, with their own weights.
    fn mamba_norm(
        &mut self,
        layer: usize,
        norm: &Norm,
        groups: usize,
        values: Vectors,
        inner_len: usize,
    ) -> Result<(), OpenError> {
        let len = inner_len / groups;
        let op = ops::Norm {
            parts: groups as u32,
            len: len as u32,
            weight_stride: len as u32,
            ..norm_op(Some(norm), values, values)
        };
        self.weighted_norm(op, Some(norm), Role::Layer(layer, R::MambaOutNorm))
    }
}
