//! Feed-forwards without experts.

use loquat_session::OpenError;
use loquat_spec::{Activation, Dense, LayerRole as R};

use super::buffers::Buffer;
use super::{Lowering, Vectors};
use crate::ops::{Activate, ActivationFunction, Address};

impl Lowering<'_, '_> {
    pub(super) fn dense(
        &mut self,
        layer: usize,
        spec: &Dense,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let inner = self.dense_inside(layer, spec, [R::Gate, R::Up], input)?;
        self.output(layer, R::Down, inner)
    }

    /// The activated inner values.
    pub(super) fn dense_inside(
        &mut self,
        layer: usize,
        spec: &Dense,
        [gate_role, up_role]: [R; 2],
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let inner = self.buffer(Buffer::Inner, spec.size);
        if !spec.gated {
            self.layer_linear(layer, up_role, input, inner)?;
            self.activate(
                spec.activation,
                1.0,
                [inner, Vectors::NONE, inner],
                spec.size,
            );
            return Ok(inner);
        }
        let up = self.buffer(Buffer::Gate, spec.size);
        self.layer_linear(layer, gate_role, input, inner)?;
        self.layer_linear(layer, up_role, input, up)?;
        self.activate(
            spec.activation,
            spec.gate_scale,
            [inner, up, inner],
            spec.size,
        );
        Ok(inner)
    }

    /// `activation(gate(x)) * input` with the layer's own input.
    pub(super) fn per_layer_input(
        &mut self,
        layer: usize,
        dim: usize,
        activation: Activation,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let inner = self.buffer(Buffer::Inner, dim);
        self.layer_linear(layer, R::PerLayerGate, input, inner)?;
        let all = self.buffer(Buffer::PerLayer, dim * self.spec.layers.len());
        self.activate(
            activation,
            1.0,
            [inner, all.values(layer * dim), inner],
            dim,
        );
        self.output(layer, R::PerLayerOutput, inner)
    }

    /// `out = activation(gate * scale) * up`
    pub(super) fn activate(
        &mut self,
        activation: Activation,
        scale: f32,
        [gate, up, out]: [Vectors; 3],
        len: usize,
    ) {
        let (function, alpha, limit) = activation_function(activation);
        let op = Activate {
            gate: gate.at,
            up: up.at,
            out: out.at,
            gate_stride: gate.stride,
            up_stride: up.stride,
            out_stride: out.stride,
            len: len as u32,
            function,
            scale,
            alpha,
            limit,
            up_is_scalar: 0,
            reserved: 0,
        };
        self.push(op, None);
    }
}

impl Vectors {
    pub(super) const NONE: Self = Self {
        at: Address::NONE,
        stride: 0,
    };
}

/// The function with its parameters `alpha` and `limit`.
pub fn activation_function(activation: Activation) -> (ActivationFunction, f32, f32) {
    let plain = |function| (function, 0.0, 0.0);
    match activation {
        Activation::Silu => plain(ActivationFunction::Silu),
        Activation::Gelu => plain(ActivationFunction::Gelu),
        Activation::GeluTanh => plain(ActivationFunction::GeluTanh),
        Activation::QuickGelu => plain(ActivationFunction::QuickGelu),
        Activation::Relu => plain(ActivationFunction::Relu),
        Activation::Relu2 => plain(ActivationFunction::Relu2),
        Activation::ClampedSwiglu { alpha, limit } => {
            (ActivationFunction::ClampedSwiglu, alpha, limit)
        }
    }
}
