//! Operations on values, norms, and logits.

use super::builder::Builder;
use super::case::{Case, Operand, Vectors};
use crate::ops::{
    Activate, ActivationFunction, Add, Affine, Clamp, CopyParts, FinishLogits, Largest, Multiply,
    Norm, NormFunction,
};

pub fn norm(mut b: Builder) -> Case {
    use NormFunction as F;
    let parts = b.pick(&[1, 1, 2, 3, 8, 33]);
    let len = b.size(parts * b.tokens);
    let function = b.pick(&[F::None, F::Rms, F::Rms, F::Layer, F::UnitLength]);
    let own = b.flag();
    let (weight, bias) = if function == F::None {
        (Operand::NONE, Operand::NONE)
    } else {
        let vectors = if own { parts * len } else { len };
        (b.optional(vectors, 1.0), b.optional(vectors, 1.0))
    };
    let out = b.output_vectors(parts * len, 1.0);
    let input = in_place_or(&mut b, out, parts * len);
    let (before, after) = (b.pick(&[1.0, 0.25]), b.pick(&[1.0, 3.0]));
    let eps = b.pick(&[1e-6, 1e-5, 0.1]);
    b.finish(move |placed| {
        let op = Norm {
            input: placed.at(input.at),
            out: placed.at(out.at),
            input_stride: input.stride,
            out_stride: out.stride,
            parts: parts as u32,
            len: len as u32,
            weight: placed.at(weight),
            bias: placed.at(bias),
            weight_stride: if own { len as u32 } else { 0 },
            function,
            eps,
            before,
            after,
            reserved: 0,
        };
        op.into()
    })
}

/// The outputs themselves in one case of three, or inputs of their own.
fn in_place_or(b: &mut Builder, out: Vectors, len: usize) -> Vectors {
    if b.below(3) == 0 {
        return out;
    }
    b.vectors(len, 3.0)
}

pub fn activate(mut b: Builder) -> Case {
    use ActivationFunction as F;
    let functions = [
        F::Identity,
        F::Silu,
        F::Gelu,
        F::GeluTanh,
        F::QuickGelu,
        F::Relu,
        F::Relu2,
        F::ClampedSwiglu,
        F::Sigmoid,
    ];
    let function = b.pick(&functions);
    let len = b.size(b.tokens);
    let out = b.output_vectors(len, 6.0);
    let gate = in_place_or(&mut b, out, len);
    let is_scalar = b.below(4) == 0;
    let none = Vectors {
        at: Operand::NONE,
        stride: 0,
    };
    let up = if function != F::ClampedSwiglu && b.below(3) == 0 {
        none
    } else if is_scalar {
        b.vectors(1, 2.0)
    } else {
        in_place_or(&mut b, out, len)
    };
    let scale = b.pick(&[1.0, 0.125]);
    b.finish(move |placed| {
        let op = Activate {
            gate: placed.at(gate.at),
            up: placed.at(up.at),
            out: placed.at(out.at),
            gate_stride: gate.stride,
            up_stride: up.stride,
            out_stride: out.stride,
            len: len as u32,
            function,
            scale,
            alpha: 1.702,
            limit: 2.5,
            up_is_scalar: is_scalar.into(),
            reserved: 0,
        };
        op.into()
    })
}

pub fn add(mut b: Builder) -> Case {
    let len = b.size(b.tokens);
    let out = b.output_vectors(len, 1.0);
    let left = in_place_or(&mut b, out, len);
    let right = in_place_or(&mut b, out, len);
    let has_right = b.below(4) > 0;
    let (factor, other) = (b.pick(&[1.0, 0.0, -0.3]), b.pick(&[1.0, 2.5]));
    b.finish(move |placed| {
        let op = Add {
            a: placed.at(left.at),
            b: placed.at(if has_right { right.at } else { Operand::NONE }),
            out: placed.at(out.at),
            a_stride: left.stride,
            b_stride: right.stride,
            out_stride: out.stride,
            len: len as u32,
            left: factor,
            right: other,
        };
        op.into()
    })
}

pub fn multiply(mut b: Builder) -> Case {
    let len = b.size(b.tokens);
    let out = b.output_vectors(len, 1.0);
    let left = in_place_or(&mut b, out, len);
    let right = in_place_or(&mut b, out, len);
    b.finish(move |placed| {
        let op = Multiply {
            a: placed.at(left.at),
            b: placed.at(right.at),
            out: placed.at(out.at),
            a_stride: left.stride,
            b_stride: right.stride,
            out_stride: out.stride,
            len: len as u32,
        };
        op.into()
    })
}

pub fn affine(mut b: Builder) -> Case {
    let len = b.size(b.tokens);
    let values = b.output_vectors(len, 1.0);
    let (scale, bias) = (b.optional(len, 2.0), b.optional(len, 1.0));
    b.finish(move |placed| {
        let op = Affine {
            values: placed.at(values.at),
            scale: placed.at(scale),
            bias: placed.at(bias),
            stride: values.stride,
            len: len as u32,
        };
        op.into()
    })
}

pub fn copy_parts(mut b: Builder) -> Case {
    let parts = b.pick(&[1, 2, 3, 16, 33]);
    let len = b.size(parts * b.tokens);
    let input_step = len + b.pick(&[0, 1, 64]);
    let out_step = len + b.pick(&[0, 1, 64]);
    let input = b.vectors(parts * input_step, 1.0);
    let out = b.output_vectors(parts * out_step, 1.0);
    b.finish(move |placed| {
        let op = CopyParts {
            input: placed.at(input.at),
            out: placed.at(out.at),
            input_stride: input.stride,
            out_stride: out.stride,
            parts: parts as u32,
            input_step: input_step as u32,
            out_step: out_step as u32,
            len: len as u32,
        };
        op.into()
    })
}

pub fn clamp(mut b: Builder) -> Case {
    let len = b.size(b.tokens);
    let out = b.output_vectors(len, 1.0);
    let input = in_place_or(&mut b, out, len);
    b.finish(move |placed| {
        let op = Clamp {
            input: placed.at(input.at),
            out: placed.at(out.at),
            input_stride: input.stride,
            out_stride: out.stride,
            len: len as u32,
            min: -0.5,
            max: 0.75,
            reserved: 0,
        };
        op.into()
    })
}

pub fn finish_logits(mut b: Builder) -> Case {
    let vocab = b.size(b.tokens);
    let mut values = b.random_values(b.tokens * vocab, 20.0);
    b.spoil(&mut values);
    let logits = b.output(&values);
    let (scale, softcap) = (b.pick(&[1.0, 0.1]), b.pick(&[0.0, 15.0, 30.0]));
    b.finish(move |placed| {
        let op = FinishLogits {
            logits: placed.at(logits),
            vocab: vocab as u32,
            scale,
            softcap,
            reserved: 0,
        };
        op.into()
    })
}

pub fn largest(mut b: Builder) -> Case {
    // As wide as a vocabulary, in some cases.
    let vocab = if b.below(4) == 0 {
        b.tokens = b.first + b.count.min(4);
        b.count = b.tokens - b.first;
        b.pick(&[32_000, 50_257, 151_936])
    } else {
        b.size(b.tokens)
    };
    let mut values = b.random_values(b.tokens * vocab, 4.0);
    if b.flag() {
        // Many equal ones.
        values.iter_mut().for_each(|value| *value = value.round());
    }
    b.spoil(&mut values);
    let logits = b.input(&values);
    let out = b.output_words(b.tokens);
    b.finish(move |placed| {
        let op = Largest {
            logits: placed.at(logits),
            out: placed.at(out),
            vocab: vocab as u32,
            reserved: 0,
        };
        op.into()
    })
}
