//! Operations on each value by itself.

use super::{Launch, Result, at, sigmoid, vector};
use crate::ops::{Activate, ActivationFunction, Add, Affine, Clamp, CopyParts, Multiply};

impl Launch<'_> {
    pub(super) fn activate(&mut self, op: &Activate) -> Result<()> {
        let len = op.len as usize;
        let is_swiglu = op.function == ActivationFunction::ClampedSwiglu;
        self.access.require(
            !is_swiglu || !op.up.is_none(),
            "up",
            "a clamped SwiGLU needs it",
        )?;
        for token in self.covered() {
            self.access.set_unit(token);
            let gate = vector(op.gate, token, op.gate_stride);
            let mut values = self.access.f32s_in_place("gate", gate, len)?;
            let from = vector(op.up, token, op.up_stride);
            let up = match op.up_is_scalar {
                _ if op.up.is_none() => vec![1.0; len],
                0 => self.access.f32s_in_place("up", from, len)?,
                _ => vec![self.access.f32s("up", from, 1)?[0]; len],
            };
            for (value, up) in values.iter_mut().zip(up) {
                *value = activated(op, *value * op.scale, up);
            }
            let out = vector(op.out, token, op.out_stride);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, op: &Add) -> Result<()> {
        let len = op.len as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let a = vector(op.a, token, op.a_stride);
            let mut values = self.access.f32s_in_place("a", a, len)?;
            values.iter_mut().for_each(|value| *value *= op.left);
            if !op.b.is_none() {
                let b = vector(op.b, token, op.b_stride);
                let b = self.access.f32s_in_place("b", b, len)?;
                values
                    .iter_mut()
                    .zip(b)
                    .for_each(|(x, b)| *x += op.right * b);
            }
            let out = vector(op.out, token, op.out_stride);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn multiply(&mut self, op: &Multiply) -> Result<()> {
        let len = op.len as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let a = vector(op.a, token, op.a_stride);
            let mut values = self.access.f32s_in_place("a", a, len)?;
            let b = vector(op.b, token, op.b_stride);
            let b = self.access.f32s_in_place("b", b, len)?;
            values.iter_mut().zip(b).for_each(|(x, b)| *x *= b);
            let out = vector(op.out, token, op.out_stride);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn affine(&mut self, op: &Affine) -> Result<()> {
        let len = op.len as usize;
        self.access.set_shared();
        let scale = self.access.optional_f32s("scale", op.scale, len)?;
        let bias = self.access.optional_f32s("bias", op.bias, len)?;
        for token in self.covered() {
            self.access.set_unit(token);
            let from = vector(op.values, token, op.stride);
            let mut values = self.access.f32s_in_place("values", from, len)?;
            for (value, scale) in values.iter_mut().zip(scale.iter().flatten()) {
                *value *= scale;
            }
            for (value, bias) in values.iter_mut().zip(bias.iter().flatten()) {
                *value += bias;
            }
            self.access.write("values", from, &values)?;
        }
        Ok(())
    }

    pub(super) fn copy_parts(&mut self, op: &CopyParts) -> Result<()> {
        for token in self.covered() {
            self.access.set_unit(token);
            let input = vector(op.input, token, op.input_stride);
            let out = vector(op.out, token, op.out_stride);
            for part in 0..op.parts as usize {
                let from = at(input, part * op.input_step as usize);
                let values = self.access.f32s("input", from, op.len as usize)?;
                let to = at(out, part * op.out_step as usize);
                self.access.write("out", to, &values)?;
            }
        }
        Ok(())
    }

    pub(super) fn clamp(&mut self, op: &Clamp) -> Result<()> {
        for token in self.covered() {
            self.access.set_unit(token);
            let input = vector(op.input, token, op.input_stride);
            let input = self.access.f32s_in_place("input", input, op.len as usize);
            let values: Vec<f32> = input?.iter().map(|x| bounded(*x, op.min, op.max)).collect();
            let out = vector(op.out, token, op.out_stride);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }
}

/// Within the bounds; NaN stays NaN, which `f32::max` would not do. Bounds that cross do not panic,
/// as they would in `f32::clamp`.
fn bounded(x: f32, min: f32, max: f32) -> f32 {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}

fn activated(op: &Activate, x: f32, up: f32) -> f32 {
    let x = match op.function {
        ActivationFunction::Identity => x,
        ActivationFunction::Silu => x / (1.0 + (-x).exp()),
        ActivationFunction::Gelu => gelu(x),
        ActivationFunction::GeluTanh => gelu_tanh(x),
        ActivationFunction::QuickGelu => x * sigmoid(1.702 * x),
        // NaN is not below zero, and stays.
        ActivationFunction::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        ActivationFunction::Relu2 => {
            if x <= 0.0 {
                0.0
            } else {
                x * x
            }
        }
        ActivationFunction::ClampedSwiglu => {
            let gate = if x > op.limit { op.limit } else { x };
            let up = bounded(up, -op.limit, op.limit);
            return gate * sigmoid(op.alpha * gate) * (up + 1.0);
        }
        ActivationFunction::Sigmoid => sigmoid(x),
    };
    x * up
}

/// With the error function, by Abramowitz and Stegun 7.1.26: within 1.5e-7.
fn gelu(x: f32) -> f32 {
    let z = (x * std::f32::consts::FRAC_1_SQRT_2).abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut p = 1.061_405_4_f32;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p * t + c;
    }
    let tail = p * t * (-z * z).exp();
    0.5 * x * if x < 0.0 { tail } else { 2.0 - tail }
}

pub(super) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}
