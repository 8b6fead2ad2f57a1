//! Rotary positions, and factors that grow with the position.

use super::{Launch, Result, at, vector};
use crate::ops::{Angles, Rope, Temperature};

impl Launch<'_> {
    pub(super) fn angles(&mut self, op: &Angles) -> Result<()> {
        let pairs = op.pairs as usize;
        self.access.set_shared();
        let frequencies = self.access.f32s("frequencies", op.frequencies, pairs)?;
        let axes = if op.axes.is_none() {
            None
        } else {
            Some(self.access.u32s("axes", op.axes, pairs)?)
        };
        let is_axis = |axes: &Vec<u32>| axes.iter().all(|axis| *axis < 3);
        self.access
            .require(axes.as_ref().is_none_or(is_axis), "axes", "an axis above 2")?;
        for token in self.covered() {
            self.access.set_unit(token);
            let positions = if axes.is_some() {
                self.token_u32s("rope", self.tables.rope, token, 3)?
            } else {
                vec![self.position(token)? as u32]
            };
            let angle = |pair: usize| {
                let axis = axes.as_ref().map_or(0, |axes| axes[pair] as usize);
                (positions[axis] as f32 * frequencies[pair]).sin_cos()
            };
            let (sin, cos): (Vec<f32>, Vec<f32>) = (0..pairs)
                .map(angle)
                .map(|(sin, cos)| (sin * op.factor, cos * op.factor))
                .unzip();
            self.access
                .write("cos", vector(op.cos, token, op.pairs), &cos)?;
            self.access
                .write("sin", vector(op.sin, token, op.pairs), &sin)?;
        }
        Ok(())
    }

    pub(super) fn rope(&mut self, op: &Rope) -> Result<()> {
        let pairs = op.pairs as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let cos = vector(op.cos, token, op.pairs);
            let cos = self.access.f32s("cos", cos, pairs)?;
            let sin = vector(op.sin, token, op.pairs);
            let sin = self.access.f32s("sin", sin, pairs)?;
            for head in 0..op.heads as usize {
                let values = vector(op.values, token, op.stride);
                let values = at(values, head * op.head_step as usize);
                let mut head = self.access.f32s_in_place("values", values, 2 * pairs)?;
                for (pair, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
                    let (a, b) = if op.interleaved == 0 {
                        (pair, pair + pairs)
                    } else {
                        (2 * pair, 2 * pair + 1)
                    };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos - y * sin;
                    head[b] = y * cos + x * sin;
                }
                self.access.write("values", values, &head)?;
            }
        }
        Ok(())
    }

    pub(super) fn temperature(&mut self, op: &Temperature) -> Result<()> {
        self.access.require(op.span > 0, "span", "is 0")?;
        for token in self.covered() {
            self.access.set_unit(token);
            let spans = (self.position(token)? + op.offset as usize) / op.span as usize;
            let factor = 1.0 + op.beta * (spans as f32).ln_1p();
            let from = vector(op.values, token, op.stride);
            let mut values = self.access.f32s_in_place("values", from, op.len as usize)?;
            values.iter_mut().for_each(|value| *value *= factor);
            self.access.write("values", from, &values)?;
        }
        Ok(())
    }
}
