//! Arrays of heads, and norms over them.

use std::ops::Range;

use loquat_session::OpenError;
use loquat_spec::{Attention as Spec, KvSource, LayerRole, QkSpan, Role};

use crate::adapted::Segment;
use crate::array::{Array, Ops, slice_axis};
use crate::error::MlxError;
use crate::loader::LayerLoader;
use crate::norm::{Norm, StreamNorm};
use crate::step::Group;

/// [rows * tokens, heads * dim] to [rows, heads, tokens, dim].
pub fn to_heads(ops: &Ops, group: &Group, x: &Array, dim: usize) -> Result<Array, MlxError> {
    split_heads(ops, group.tokens, x, dim)
}

/// The same for rows of `tokens` each.
fn split_heads(ops: &Ops, tokens: usize, x: &Array, dim: usize) -> Result<Array, MlxError> {
    let (tokens, dim) = (tokens as i32, dim as i32);
    let rows = x.dim(0) / tokens;
    if tokens == 1 {
        return ops.reshape(x, &[rows, -1, 1, dim]);
    }
    let heads = ops.reshape(x, &[rows, tokens, -1, dim])?;
    ops.transpose(&heads, &[0, 2, 1, 3])
}

/// [rows, heads, tokens, dim] to [rows * tokens, heads * dim].
pub fn from_heads(ops: &Ops, heads: &Array) -> Result<Array, MlxError> {
    let width = heads.dim(1) * heads.dim(3);
    if heads.dim(2) == 1 {
        return ops.reshape(heads, &[-1, width]);
    }
    ops.reshape(&ops.transpose(heads, &[0, 2, 1, 3])?, &[-1, width])
}

/// The norms of queries and keys.
pub struct QkNorms {
    queries: StreamNorm,
    /// If the layer has its own keys.
    keys: Option<StreamNorm>,
}

/// Over queries and, if the layer has its own, over keys below them.
pub enum HeadNorm {
    /// Each head separately.
    Each {
        norm: Norm,
        /// [heads, 1, dim], if weights differ between heads.
        weight: Option<Array>,
        bias: Option<Array>,
    },
    /// All heads as one vector.
    All { queries: Norm, keys: Option<Norm> },
}

impl QkNorms {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Option<Self>, OpenError> {
        let Some(qk) = &spec.qk_norm else {
            return Ok(None);
        };
        Ok(Some(Self {
            queries: loader.stream_norm(LayerRole::QueryNorm, &qk.norm)?,
            keys: match spec.kv {
                KvSource::Own | KvSource::KeyIsValue => {
                    Some(loader.stream_norm(LayerRole::KeyNorm, &qk.norm)?)
                }
                KvSource::Layer(_) => None,
            },
        }))
    }

    pub fn roles(&self) -> impl Iterator<Item = Role> {
        let norms = std::iter::once(&self.queries).chain(&self.keys);
        norms.flat_map(|norm| norm.roles.into_iter().flatten())
    }

    /// With the weights of a segment's rows.
    pub fn of_heads(
        &self,
        ops: &Ops,
        spec: &Spec,
        segment: Option<&Segment>,
    ) -> Result<HeadNorm, MlxError> {
        let of = |norm: &StreamNorm| match segment {
            Some(segment) => norm.of_segment(segment),
            None => norm.norm.clone(),
        };
        HeadNorm::new(ops, spec, of(&self.queries), self.keys.as_ref().map(of))
    }
}

impl HeadNorm {
    pub fn new(
        ops: &Ops,
        spec: &Spec,
        queries: Norm,
        keys: Option<Norm>,
    ) -> Result<Self, MlxError> {
        let span = spec.qk_norm.map_or(QkSpan::Head, |qk| qk.span);
        if span == QkSpan::AllHeads {
            return Ok(Self::All { queries, keys });
        }
        if span == QkSpan::Head && keys.is_none() {
            return Ok(Self::Each {
                norm: queries,
                weight: None,
                bias: None,
            });
        }
        let of_heads = |of_queries: Option<&Array>, of_keys: Option<&Array>| {
            let mut parts = Vec::new();
            for (values, heads) in [(of_queries, spec.heads), (of_keys, spec.kv_heads)] {
                if let Some(values) = values {
                    parts.push(for_each_head(ops, values, heads, spec.head_dim)?);
                }
            }
            let parts: Vec<&Array> = parts.iter().collect();
            if parts.is_empty() {
                Ok(None)
            } else {
                ops.concatenate(&parts, 0).map(Some)
            }
        };
        let (of_queries, of_keys) = (&queries, keys.as_ref());
        Ok(Self::Each {
            weight: of_heads(
                of_queries.weight.as_ref(),
                of_keys.and_then(|norm| norm.weight.as_ref()),
            )?,
            bias: of_heads(
                of_queries.bias.as_ref(),
                of_keys.and_then(|norm| norm.bias.as_ref()),
            )?,
            norm: Norm {
                weight: None,
                bias: None,
                ..queries
            },
        })
    }

    /// `heads`: [rows, heads, `tokens`, dim], the first `queries` of them queries.
    pub fn apply(
        &self,
        ops: &Ops,
        tokens: usize,
        heads: &Array,
        queries: usize,
    ) -> Result<Array, MlxError> {
        match self {
            Self::Each { norm, weight, bias } => {
                let mut normed = norm.apply(ops, heads)?;
                if let Some(weight) = weight {
                    normed = ops.multiply(&normed, weight)?;
                }
                match bias {
                    Some(bias) => ops.add(&normed, bias),
                    None => Ok(normed),
                }
            }
            Self::All {
                queries: norm,
                keys,
            } => {
                let dim = heads.dim(3) as usize;
                let all = |norm: &Norm, range: Range<usize>| {
                    let flat = from_heads(ops, &slice_axis(ops, heads, 1, range)?)?;
                    split_heads(ops, tokens, &norm.apply(ops, &flat)?, dim)
                };
                let of_queries = all(norm, 0..queries)?;
                match keys {
                    Some(norm) => {
                        let of_keys = all(norm, queries..heads.dim(1) as usize)?;
                        ops.concatenate(&[&of_queries, &of_keys], 1)
                    }
                    None => Ok(of_queries),
                }
            }
        }
    }
}

/// A weight of [dim], the same for all heads, or of [heads * dim], as [heads, 1, dim].
fn for_each_head(ops: &Ops, values: &Array, heads: usize, dim: usize) -> Result<Array, MlxError> {
    let own = ops.reshape(values, &[-1, 1, dim as i32])?;
    ops.broadcast_to(&own, &[heads as i32, 1, dim as i32])
}
