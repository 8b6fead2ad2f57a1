//! Additional inputs of every layer, computed from the token alone.

use loquat_session::OpenError;
use loquat_spec::{Activation, LayerRole, PerLayerInputs as Spec, Role};

use super::dense::Function;
use crate::array::{Array, Binary, Ops, Type};
use crate::error::MlxError;
use crate::linear::{Linear, Table};
use crate::loader::{LayerLoader, Loader};
use crate::norm::Norm;
use crate::step::Step;

/// Computes them, once for all layers.
pub struct PerLayerInputs {
    spec: Spec,
    /// Handles tokens that the table has no rows for.
    guard: Option<Guard>,
    embedding: Table,
    projection: Linear,
    norm: Norm,
}

/// For tables that are shorter than the vocabulary: their last row, and a value for missing ones.
struct Guard {
    last: Array,
    missing: Array,
}

impl PerLayerInputs {
    pub fn load(loader: &Loader, spec: &Spec, vocab_size: usize) -> Result<Self, OpenError> {
        let guard = if spec.vocab_size < vocab_size {
            Some(Guard {
                last: loader.ops.upload_u32(&[spec.vocab_size as u32 - 1], &[1])?,
                missing: loader.ops.full(&[1], f32::NAN, loader.dtype)?,
            })
        } else {
            None
        };
        Ok(Self {
            spec: *spec,
            guard,
            embedding: loader.table(Role::PerLayerEmbedding)?,
            projection: loader.linear(Role::PerLayerProjection, None)?,
            norm: loader.norm(&spec.norm, Role::PerLayerNorm, None)?,
        })
    }

    /// [tokens, layers, dim] from the embedded tokens `x`.
    pub fn compute(&self, step: &Step, x: &Array, ids: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let projected = self.projection.adapted(ops, x, &step.adapters)?;
        let projected = ops.scale(&projected, self.spec.projection_scale)?;
        let dims = [x.dim(0), -1, self.spec.dim as i32];
        let projected = self.norm.apply(ops, &ops.reshape(&projected, &dims)?)?;
        let embedded = self.rows(ops, ids, step.dtype)?;
        let embedded = ops.scale(&embedded, self.spec.embedding_scale)?;
        let sum = ops.add(&projected, &ops.reshape(&embedded, &dims)?)?;
        ops.scale(&sum, self.spec.combined_scale)
    }

    /// The tokens' rows of the table; NaN for tokens without one.
    fn rows(&self, ops: &Ops, ids: &Array, dtype: Type) -> Result<Array, MlxError> {
        let Some(Guard { last, missing }) = &self.guard else {
            return self.embedding.rows(ops, ids, dtype);
        };
        let within = ops.binary(Binary::GreaterEqual, last, ids)?;
        let safe = ops.binary(Binary::Minimum, ids, last)?;
        let rows = self.embedding.rows(ops, &safe, dtype)?;
        ops.select(&ops.reshape(&within, &[-1, 1])?, &rows, missing)
    }
}

/// `output(activation(gate(x)) * input)` with the layer's own input.
pub struct PerLayerInput {
    dim: i32,
    activation: Function,
    gate: Linear,
    output: Linear,
}

impl PerLayerInput {
    pub fn load(
        loader: LayerLoader,
        dim: usize,
        activation: Activation,
    ) -> Result<Self, OpenError> {
        let shared = loader.loader();
        Ok(Self {
            dim: dim as i32,
            activation: Function::new(shared.ops, activation, shared.dtype)?,
            gate: loader.linear(LayerRole::PerLayerGate)?,
            output: loader.linear(LayerRole::PerLayerOutput)?,
        })
    }

    pub fn run(&self, step: &mut Step, layer: usize, x: &Array) -> Result<Array, MlxError> {
        let ops = step.ops;
        let Some(all) = &step.per_layer else {
            return Err(MlxError("the per-layer inputs are missing".to_owned()));
        };
        let (tokens, layer) = (x.dim(0), layer as i32);
        let own = ops.slice(all, &[0, layer, 0], &[tokens, layer + 1, self.dim])?;
        let own = ops.reshape(&own, &[tokens, self.dim])?;
        let gate = self.gate.adapted(ops, x, &step.adapters)?;
        let activated = self.activation.times(ops, &gate, &own)?;
        self.output.adapted(ops, &activated, &step.adapters)
    }
}
