//! Products and norms of a step some of whose tokens have adapters.
//!
//! Adjacent tokens with the same adapters form a segment. A matrix that no adapter of the step
//! changes is applied to all tokens as if there were none; otherwise the model's matrix is
//! multiplied once, and each segment's part of the product is changed.

use std::collections::BTreeMap;
use std::ops::Range;

use loquat_session::{AdapterId, AppliedAdapter};
use loquat_spec::Role;

use crate::adapter::LoadedAdapter;
use crate::array::{Array, Binary, Ops, Type, slice_axis};
use crate::error::MlxError;
use crate::linear::{Kernel, Linear, Part, StackChoice};
use crate::norm::StreamNorm;

/// The adapters of a step's tokens; the default is none.
#[derive(Default)]
pub struct StepAdapters<'a> {
    /// All tokens, in their order; empty if none has adapters.
    segments: Vec<Segment<'a>>,
}

/// Adjacent tokens with the same adapters.
#[derive(Clone)]
pub struct Segment<'a> {
    pub tokens: Range<usize>,
    pub applied: Vec<Applied<'a>>,
}

/// An adapter of a sequence in a step.
#[derive(Clone, Copy)]
pub struct Applied<'a> {
    pub adapter: &'a LoadedAdapter,
    /// Multiplies the adapter's own scales.
    pub scale: f32,
}

/// Which matrices of a role multiply an input.
pub enum Select<'a> {
    /// The only one: [tokens, cols].
    Matrix,
    /// A stack's, one for each entry of the batch: [count, tokens, cols].
    Each,
    /// Those chosen from a stack.
    Chosen(StackChoice<'a>),
}

impl<'a> StepAdapters<'a> {
    /// From the number of tokens and the adapters of each row.
    pub fn new<'r>(
        loaded: &'a BTreeMap<AdapterId, LoadedAdapter>,
        rows: impl IntoIterator<Item = (usize, &'r [AppliedAdapter])>,
    ) -> Result<Self, MlxError> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut last: Option<&[AppliedAdapter]> = None;
        let mut first = 0;
        for (tokens, own) in rows {
            let range = first..first + tokens;
            first = range.end;
            match segments.last_mut() {
                Some(segment) if last == Some(own) => segment.tokens.end = range.end,
                _ => segments.push(Segment {
                    tokens: range,
                    applied: find(loaded, own)?,
                }),
            }
            last = Some(own);
        }
        if segments.iter().all(|segment| segment.applied.is_empty()) {
            segments.clear();
        }
        Ok(Self { segments })
    }

    #[cfg(test)]
    pub fn of_segments(segments: Vec<Segment<'a>>) -> Self {
        Self { segments }
    }

    /// The adapters of these tokens, which are then numbered from 0.
    pub fn within(&self, tokens: Range<usize>) -> Self {
        let parts = self.segments.iter().filter_map(|segment| {
            let start = segment.tokens.start.max(tokens.start);
            let end = segment.tokens.end.min(tokens.end);
            (start < end).then(|| Segment {
                tokens: start - tokens.start..end - tokens.start,
                applied: segment.applied.clone(),
            })
        });
        Self {
            segments: parts.collect(),
        }
    }

    /// The same for rows of `tokens` each.
    pub fn of_rows(&self, tokens: usize) -> Self {
        let rows = self.segments.iter().map(|segment| Segment {
            tokens: segment.tokens.start / tokens..segment.tokens.end / tokens,
            applied: segment.applied.clone(),
        });
        Self {
            segments: rows.collect(),
        }
    }

    pub fn any(&self, test: impl Fn(&LoadedAdapter) -> bool) -> bool {
        let mut applied = self.segments.iter().flat_map(|segment| &segment.applied);
        applied.any(|applied| test(applied.adapter))
    }

    /// Whether an adapter changes one of the matrices.
    pub fn change_matrices<'p>(&self, parts: impl IntoIterator<Item = &'p Part>) -> bool {
        if self.segments.is_empty() {
            return false;
        }
        let mut parts = parts.into_iter();
        parts.any(|part| self.any(|adapter| adapter.changes_matrix(part.matrix)))
    }

    /// Whether an adapter replaces one of the vectors.
    pub fn change_vectors(&self, roles: impl IntoIterator<Item = Role>) -> bool {
        if self.segments.is_empty() {
            return false;
        }
        let mut roles = roles.into_iter();
        roles.any(|role| self.any(|adapter| adapter.vector(role).is_some()))
    }

    /// Computes each segment's part of an array and joins the parts along `axis`.
    pub fn each_segment(
        &self,
        ops: &Ops,
        axis: usize,
        compute: impl Fn(&Segment) -> Result<Array, MlxError>,
    ) -> Result<Array, MlxError> {
        let parts = self.segments.iter().map(compute);
        join(ops, parts.collect::<Result<_, _>>()?, axis)
    }
}

fn find<'a>(
    loaded: &'a BTreeMap<AdapterId, LoadedAdapter>,
    applied: &[AppliedAdapter],
) -> Result<Vec<Applied<'a>>, MlxError> {
    let found = applied.iter().map(|applied| {
        let missing = || MlxError("an adapter of a sequence is missing".to_owned());
        Ok(Applied {
            adapter: loaded.get(&applied.id).ok_or_else(missing)?,
            scale: applied.scale,
        })
    });
    found.collect()
}

fn join(ops: &Ops, parts: Vec<Array>, axis: usize) -> Result<Array, MlxError> {
    match <[Array; 1]>::try_from(parts) {
        Ok([whole]) => Ok(whole),
        Err(parts) => ops.concatenate(&parts.iter().collect::<Vec<_>>(), axis as i32),
    }
}

impl Segment<'_> {
    /// Its part of an array with a dimension of tokens.
    pub fn part(&self, ops: &Ops, x: &Array, axis: usize) -> Result<Array, MlxError> {
        slice_axis(ops, x, axis, self.tokens.clone())
    }

    /// The vector that replaces the model's.
    pub fn vector(&self, role: Option<Role>) -> Option<&Array> {
        let mut applied = self.applied.iter();
        applied.find_map(|applied| applied.adapter.vector(role?))
    }
}

impl StreamNorm {
    /// `x`: [tokens, width].
    pub fn adapted(
        &self,
        ops: &Ops,
        x: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        if !adapters.change_vectors(self.roles.into_iter().flatten()) {
            return self.norm.apply(ops, x);
        }
        adapters.each_segment(ops, 0, |segment| {
            let norm = self.of_segment(segment);
            norm.apply(ops, &segment.part(ops, x, 0)?)
        })
    }
}

impl Linear {
    /// `x`: [tokens, cols] to [tokens, rows].
    pub fn adapted(
        &self,
        ops: &Ops,
        x: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        let biases = || self.parts.iter().filter_map(|part| part.bias);
        let biases_change = adapters.change_vectors(biases());
        if !biases_change && !adapters.change_matrices(&self.parts) {
            return self.apply(ops, x);
        }
        let adds_only = |part: &Part| !adapters.any(|adapter| !adapter.adds_only(part.matrix));
        let adds_only = !biases_change && self.parts.iter().all(adds_only);
        let product = if adds_only {
            self.apply(ops, x)?
        } else {
            self.kernel.multiply(ops, x)?
        };
        adapters.each_segment(ops, 0, |segment| {
            let own = segment.part(ops, &product, 0)?;
            if segment.applied.is_empty() && adds_only {
                return Ok(own);
            }
            let x = segment.part(ops, x, 0)?;
            let own = change(ops, own, &x, &self.parts, &segment.applied, &Select::Matrix)?;
            match self.bias_of(ops, segment)? {
                Some(bias) if !adds_only => ops.add(&own, &bias),
                _ => Ok(own),
            }
        })
    }

    /// The biases of the segment's tokens.
    fn bias_of(&self, ops: &Ops, segment: &Segment) -> Result<Option<Array>, MlxError> {
        let replaced = |part: &Part| segment.vector(part.bias);
        if !self.parts.iter().any(|part| replaced(part).is_some()) {
            return Ok(self.bias.clone());
        }
        let mut first = 0;
        let mut biases = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let rows = first..first + part.rows;
            first = rows.end;
            biases.push(match (replaced(part), &self.bias) {
                (Some(bias), _) => bias.clone(),
                (None, Some(bias)) => slice_axis(ops, bias, 0, rows)?,
                (None, None) => {
                    let like = self.parts.iter().find_map(replaced);
                    let dtype = like.map_or(Type::F32, Array::dtype);
                    ops.full(&[part.rows as i32], 0.0, dtype)?
                }
            });
        }
        join(ops, biases, 0).map(Some)
    }
}

/// Changes the product of `x` and matrices that are concatenated by rows.
pub fn change(
    ops: &Ops,
    product: Array,
    x: &Array,
    parts: &[Part],
    applied: &[Applied],
    select: &Select,
) -> Result<Array, MlxError> {
    let changes = |part: &Part| {
        let mut applied = applied.iter();
        applied.any(|applied| applied.adapter.changes_matrix(part.matrix))
    };
    if !parts.iter().any(changes) {
        return Ok(product);
    }
    let last = product.shape().len() - 1;
    let mut first = 0;
    let mut changed = Vec::with_capacity(parts.len());
    for part in parts {
        let rows = first..first + part.rows;
        first = rows.end;
        let own = slice_axis(ops, &product, last, rows)?;
        changed.push(change_part(ops, own, x, part.matrix, applied, select)?);
    }
    join(ops, changed, last)
}

fn change_part(
    ops: &Ops,
    product: Array,
    x: &Array,
    role: Role,
    applied: &[Applied],
    select: &Select,
) -> Result<Array, MlxError> {
    let mut replaced = applied.iter();
    let replaced = replaced.find_map(|applied| applied.adapter.replaced(role));
    let mut out = match replaced {
        Some(kernel) => select.multiply(ops, kernel, x)?,
        None => product,
    };
    let mut changes = Vec::new();
    let mut own_factor: Option<Array> = None;
    for Applied { adapter, scale } in applied {
        let Some(change) = adapter.low_rank(role) else {
            continue;
        };
        let factor = match &change.lengths {
            Some(lengths) => {
                let factor = lengths.factors(ops, *scale)?;
                Some(ops.astype(&select.of_outputs(ops, &factor, &out)?, out.dtype())?)
            }
            None => None,
        };
        own_factor = match (own_factor, &factor) {
            (own, None) => own,
            (None, Some(factor)) => Some(factor.clone()),
            (Some(own), Some(factor)) => {
                let one = ops.full(&[1], 1.0, out.dtype())?;
                let more = ops.binary(Binary::Subtract, factor, &one)?;
                Some(ops.add(&own, &more)?)
            }
        };
        changes.push((change, *scale, factor));
    }
    if let Some(factor) = own_factor {
        out = ops.multiply(&out, &factor)?;
    }
    for (change, scale, factor) in changes {
        for factors in &change.factors {
            out = match &factor {
                None => factors.add(ops, &out, x, scale, select)?,
                Some(factor) => {
                    let more = factors.product(ops, x, scale, select)?;
                    ops.add(&out, &ops.multiply(&more, factor)?)?
                }
            };
        }
    }
    Ok(out)
}

impl Select<'_> {
    fn multiply(&self, ops: &Ops, kernel: &Kernel, x: &Array) -> Result<Array, MlxError> {
        match self {
            Self::Matrix | Self::Each => kernel.multiply(ops, x),
            Self::Chosen(choice) => kernel.gather(ops, x, *choice),
        }
    }

    /// A value for each row of the matrices, shaped to multiply outputs.
    fn of_outputs(&self, ops: &Ops, values: &Array, outputs: &Array) -> Result<Array, MlxError> {
        match self {
            Self::Matrix => Ok(values.clone()),
            Self::Each => ops.reshape(values, &[values.dim(0), 1, values.dim(1)]),
            Self::Chosen(choice) => {
                let own = ops.take_rows(values, choice.matrices, 0)?;
                ops.reshape(&own, &outputs.shape())
            }
        }
    }
}
