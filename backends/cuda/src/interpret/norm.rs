//! Norms.

use super::{Launch, Result, at, dot, vector};
use crate::ops::{Address, Norm, NormFunction};

impl Launch<'_> {
    pub(super) fn norm(&mut self, op: &Norm) -> Result<()> {
        let (parts, len) = (op.parts as usize, op.len as usize);
        let shares = op.weight_stride == 0;
        let access = &mut self.access;
        access.require(
            shares || op.weight_stride == op.len,
            "weight_stride",
            "neither 0 nor len",
        )?;
        let has_vectors = !(op.weight.is_none() && op.bias.is_none());
        access.require(
            op.function != NormFunction::None || !has_vectors,
            "weight",
            "without a norm, there are only the factors",
        )?;
        access.set_shared();
        let vectors = if shares { len } else { parts * len };
        let weight = access.optional_f32s("weight", op.weight, vectors)?;
        let bias = access.optional_f32s("bias", op.bias, vectors)?;
        let part_of = |vectors: &Option<Vec<f32>>, part: usize| {
            let first = part * op.weight_stride as usize;
            vectors
                .as_ref()
                .map(|vectors| vectors[first..first + len].to_vec())
        };
        for token in self.covered() {
            self.access.set_unit(token);
            let input = vector(op.input, token, op.input_stride);
            let out = vector(op.out, token, op.out_stride);
            for part in 0..parts {
                let [input, out] = [input, out].map(|from: Address| at(from, part * len));
                let mut x = self.access.f32s_in_place("input", input, len)?;
                x.iter_mut().for_each(|x| *x *= op.before);
                normalise(op, &mut x);
                if let Some(weight) = part_of(&weight, part) {
                    x.iter_mut()
                        .zip(weight)
                        .for_each(|(x, weight)| *x *= weight);
                }
                if let Some(bias) = part_of(&bias, part) {
                    x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                x.iter_mut().for_each(|x| *x *= op.after);
                self.access.write("out", out, &x)?;
            }
        }
        Ok(())
    }
}

fn normalise(op: &Norm, x: &mut [f32]) {
    let count = x.len() as f32;
    if op.function == NormFunction::Layer {
        let mean = x.iter().sum::<f32>() / count;
        x.iter_mut().for_each(|x| *x -= mean);
    }
    let divisor = match op.function {
        NormFunction::None => return,
        NormFunction::Rms | NormFunction::Layer => count,
        NormFunction::UnitLength => 1.0,
    };
    let scale = 1.0 / (dot(x, x) / divisor + op.eps).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}
