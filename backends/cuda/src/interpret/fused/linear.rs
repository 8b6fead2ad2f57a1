//! Products with matrices in fragment order.

use super::{TILE, WIDE_LOAD, X_BLOCK, XVectors};
use crate::fused::{Epilogue, FusedLinear, GELU_TANH, MIN_COLS, SILU, TILED, fragment_index};
use crate::fused_launch::{MAX_TILED_CHOICES, MAX_TOKENS};
use crate::interpret::elementwise::gelu_tanh;
use crate::interpret::{Launch, Result, at, dot, vector};
use crate::ops::NOT_A_NUMBER;

impl Launch<'_> {
    pub(super) fn fused_linear(&mut self, epilogue: Epilogue, op: &FusedLinear) -> Result<()> {
        self.check_linear(epilogue, op)?;
        let rows = op.rows as usize;
        let x = XVectors::fragments("x", op.x, op.cols).in_order(op.flags, op.groups);
        let (mut inputs, mut scales) = (Vec::new(), Vec::new());
        for (index, token) in self.covered().enumerate() {
            self.access.set_unit(token);
            let from = if op.index.is_none() {
                token
            } else {
                self.token_u32s("index", op.index, index, 1)?[0] as usize
            };
            inputs.push(self.read_x(&x, from)?);
            scales.push(self.norm_scale(op, from)?);
        }
        self.access.set_shared();
        let mut products = self.fused_products(op, &inputs)?;
        let bias = if epilogue == Epilogue::Gated {
            None
        } else {
            self.access.optional_f32s("bias", op.bias, rows)?
        };
        for (products, scale) in products.iter_mut().zip(scales) {
            for (row, y) in products.iter_mut().enumerate() {
                *y = *y * scale + bias.as_ref().map_or(0.0, |bias| bias[row]);
            }
        }
        match epilogue {
            Epilogue::Store => self.store(op, &products),
            Epilogue::Residual => self.add_to_stream(op, &products),
            Epilogue::Gated => self.gate(op, &products),
            Epilogue::Largest => self.choose(op, &products),
        }
    }

    /// What the kernels take for granted.
    fn check_linear(&self, epilogue: Epilogue, op: &FusedLinear) -> Result<()> {
        let require = |holds, operand, why| self.access.require(holds, operand, why);
        let most = match epilogue {
            _ if op.flags & TILED == 0 || !op.index.is_none() => MAX_TOKENS,
            Epilogue::Largest => MAX_TILED_CHOICES,
            _ => u32::MAX,
        };
        require(
            (1..=most).contains(&self.step.count),
            "step",
            "covers no tokens, or more than a kernel can",
        )?;
        self.check_x(&XVectors::fragments("x", op.x, op.cols))?;
        self.access
            .check_span("weights", op.weights, 0, WIDE_LOAD)?;
        require(op.cols >= MIN_COLS, "cols", "fewer than a block cuts")?;
        // A block's warps are the parts, and its threads end the tiles of eight tokens.
        let wide = matches!(epilogue, Epilogue::Store | Epilogue::Residual);
        let most = if wide { 16 } else { 8 };
        require(
            (4..=most).contains(&op.parts),
            "parts",
            "no kernel cuts a matrix so",
        )?;
        require(op.rows > 0, "rows", "is 0")?;
        require(
            op.sums.is_none() || op.sum_count > 0,
            "sum_count",
            "is 0 for a norm",
        )?;
        let reads_tiles = matches!(epilogue, Epilogue::Store | Epilogue::Largest);
        let is_few = self.step.count <= MAX_TOKENS;
        let has_kernel = reads_tiles || is_few == (op.flags & TILED == 0);
        require(has_kernel, "flags", "no kernel reads tiles for this")?;
        match epilogue {
            Epilogue::Store => Ok(()),
            Epilogue::Residual => self.check_x(&next_vectors(op, op.rows)),
            Epilogue::Gated => {
                let is_known = [SILU, GELU_TANH].contains(&op.activation);
                require(is_known, "activation", "unknown")?;
                let is_even = op.rows.is_multiple_of(2);
                require(is_even, "rows", "not as many gates as ups")?;
                self.check_x(&next_vectors(op, op.rows / 2))
            }
            Epilogue::Largest => {
                // A kernel's best so far begins as this one.
                let fits = op.rows < i32::MAX as u32;
                require(fits, "rows", "more than tokens can be")
            }
        }
    }

    /// 1/rms of a token's `x`, from its parts of the sum of squares.
    fn norm_scale(&mut self, op: &FusedLinear, token: usize) -> Result<f32> {
        if op.sums.is_none() {
            return Ok(1.0);
        }
        let from = vector(op.sums, token, op.sum_count);
        let sums = self.access.f32s("sums", from, op.sum_count as usize)?;
        let mean = sums.iter().sum::<f32>() / op.cols as f32;
        Ok(1.0 / (mean + op.eps).sqrt())
    }

    /// `[input][row]`, without norm and bias.
    fn fused_products(&mut self, op: &FusedLinear, inputs: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let (rows, cols) = (op.rows as usize, op.cols as usize);
        let (parts, blocks) = (op.parts as usize, cols / X_BLOCK);
        let begin = |part: usize| part * blocks / parts * X_BLOCK;
        let mut products = vec![vec![0.0; rows]; inputs.len()];
        let mut weights = vec![0.0; cols];
        for first in (0..rows).step_by(TILE) {
            let tile = self.weight_tile("weights", op.weights, first / TILE, cols)?;
            for row in first..rows.min(first + TILE) {
                for (column, weight) in weights.iter_mut().enumerate() {
                    *weight = tile[fragment_index(row - first, column, cols)];
                }
                for (input, products) in inputs.iter().zip(&mut products) {
                    for part in 0..parts {
                        let columns = begin(part)..begin(part + 1);
                        products[row] += dot(&weights[columns.clone()], &input[columns]);
                    }
                }
            }
        }
        Ok(products)
    }

    fn store(&mut self, op: &FusedLinear, products: &[Vec<f32>]) -> Result<()> {
        for (token, products) in self.covered().zip(products) {
            self.access.set_unit(token);
            let out = vector(op.out, token, op.rows);
            self.access.write("out", out, products)?;
        }
        Ok(())
    }

    fn add_to_stream(&mut self, op: &FusedLinear, products: &[Vec<f32>]) -> Result<()> {
        let rows = op.rows as usize;
        self.access.set_shared();
        let gain = self.access.f32s("gain", op.gain, rows)?;
        for (token, products) in self.covered().zip(products) {
            self.access.set_unit(token);
            let out = vector(op.out, token, op.rows);
            let mut stream = self.access.f32s_in_place("out", out, rows)?;
            for (value, y) in stream.iter_mut().zip(products) {
                *value = op.factor.mul_add(*y, *value);
            }
            self.access.write("out", out, &stream)?;
            let next: Vec<f32> = stream.iter().zip(&gain).map(|(x, gain)| x * gain).collect();
            self.write_x(&next_vectors(op, op.rows), token, &next)?;
            let square = |tile: &[f32]| tile.iter().map(|value| value * value).sum();
            let sums: Vec<f32> = stream.chunks(TILE).map(square).collect();
            let to = vector(op.next_sums, token, op.rows.div_ceil(TILE as u32));
            self.access.write("next_sums", to, &sums)?;
        }
        Ok(())
    }

    fn gate(&mut self, op: &FusedLinear, products: &[Vec<f32>]) -> Result<()> {
        let activate = |x: f32| match op.activation {
            SILU => x / (1.0 + (-x).exp()),
            _ => gelu_tanh(x),
        };
        for (token, products) in self.covered().zip(products) {
            self.access.set_unit(token);
            let next: Vec<f32> = products
                .chunks_exact(TILE)
                .map(|tile| tile.split_at(TILE / 2))
                .flat_map(|(gates, ups)| gates.iter().zip(ups))
                .map(|(gate, up)| activate(*gate) * up)
                .collect();
            self.write_x(&next_vectors(op, op.rows / 2), token, &next)?;
        }
        Ok(())
    }

    fn choose(&mut self, op: &FusedLinear, products: &[Vec<f32>]) -> Result<()> {
        self.access.set_shared();
        // Of each token and block; how many blocks there are depends on the GPU.
        let candidates = 8 * products.len();
        self.access
            .scratch("candidates", op.candidates, candidates, 8)?;
        let arrivals = self.access.u32s_in_place("arrivals", op.arrivals, 1)?;
        self.access
            .require(arrivals[0] == 0, "arrivals", "not 0 before the launch")?;
        self.access.write_u32s("arrivals", op.arrivals, &[0])?;
        for (token, logits) in self.covered().zip(products) {
            self.access.set_unit(token);
            let mut best = 0;
            for (id, logit) in logits.iter().enumerate() {
                if *logit > logits[best] {
                    best = id;
                }
            }
            let chosen = if logits.iter().any(|logit| logit.is_nan()) {
                NOT_A_NUMBER
            } else {
                best as u32
            };
            self.access
                .write_u32s("tokens", at(op.tokens, token), &[chosen])?;
        }
        Ok(())
    }
}

fn next_vectors(op: &FusedLinear, width: u32) -> XVectors {
    XVectors::fragments("next", op.next, width).in_order(op.flags, op.groups)
}
