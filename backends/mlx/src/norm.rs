//! Norms and RoPE, which several blocks share.

use loquat_spec::{NormKind, RopePairs};

use crate::array::{Array, Ops};
use crate::error::MlxError;

/// Over the last dimension.
pub struct Norm {
    pub kind: NormKind,
    pub eps: f32,
    pub weight: Option<Array>,
    pub bias: Option<Array>,
}

impl Norm {
    pub fn apply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match self.kind {
            NormKind::Rms => {
                let normed = ops.rms_norm(x, self.weight.as_ref(), self.eps)?;
                match &self.bias {
                    Some(bias) => ops.add(&normed, bias),
                    None => Ok(normed),
                }
            }
            NormKind::Layer => {
                ops.layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps)
            }
        }
    }
}

/// Rotates heads by their positions.
#[derive(Clone)]
pub struct Rope {
    pub dims: i32,
    pub pairs: RopePairs,
    /// The inverse of each pair's angle per position, float32.
    pub periods: Array,
    /// A factor for each value of a head; `None` if all are one.
    pub factors: Option<Array>,
}

impl Rope {
    /// `heads`: [rows, heads, tokens, dim]; `offsets`: the rows' first positions.
    pub fn rotate(&self, ops: &Ops, heads: &Array, offsets: &Array) -> Result<Array, MlxError> {
        let neighbours = self.pairs == RopePairs::Interleaved;
        let turned = ops.rope(heads, self.dims, neighbours, offsets, &self.periods)?;
        match &self.factors {
            Some(factors) => ops.multiply(&turned, factors),
            None => Ok(turned),
        }
    }
}
