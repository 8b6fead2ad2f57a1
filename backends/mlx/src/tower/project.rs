//! Projectors: from the tower's output to features.

use loquat_session::tower::{ProjectedGrids, TowerBatch};
use loquat_spec::MergeOrder;

use super::concatenate;
use crate::array::{Array, Binary, Ops, Reduce, slice_axis};
use crate::blocks::Function;
use crate::error::MlxError;
use crate::linear::Linear;
use crate::norm::Norm;

/// A step of a projector with its weights.
pub enum LoadedStep {
    Merge { side: usize, values: MergeOrder },
    AveragePool { side: usize },
    Scale(f32),
    Standardize { bias: Array, scale: Array },
    Norm(Norm),
    Linear(Linear),
    Activation(Function),
    Gated(Box<GatedStep>),
}

/// `down(activation(gate(x)) * up(x))`
pub struct GatedStep {
    pub gate: Linear,
    pub up: Linear,
    pub activation: Function,
    pub down: Linear,
}

/// The output of a projector for the patches of all views, one after another.
pub fn run(
    ops: &Ops,
    steps: &[LoadedStep],
    x: &Array,
    batch: &TowerBatch,
) -> Result<Array, MlxError> {
    let mut grids = ProjectedGrids::new(batch);
    let mut x = patches(ops, x, batch)?;
    for step in steps {
        x = step.run(ops, &x, &mut grids)?;
    }
    Ok(x)
}

/// The batch without its class tokens.
fn patches(ops: &Ops, x: &Array, batch: &TowerBatch) -> Result<Array, MlxError> {
    if batch.views.iter().all(|view| view.class.is_none()) {
        return Ok(x.clone());
    }
    let views = batch.views.iter();
    let own = views.map(|view| slice_axis(ops, x, 0, view.patches()));
    concatenate(ops, &own.collect::<Result<Vec<_>, _>>()?)
}

impl LoadedStep {
    fn run(&self, ops: &Ops, x: &Array, grids: &mut ProjectedGrids) -> Result<Array, MlxError> {
        match self {
            Self::Merge { side, values } => {
                let blocks = blocks(ops, x, grids.merge(*side), *side)?;
                let blocks = match values {
                    MergeOrder::ChannelLast => blocks,
                    MergeOrder::ChannelFirst => ops.transpose(&blocks, &[0, 2, 1])?,
                };
                let width = blocks.dim(1) * blocks.dim(2);
                ops.reshape(&blocks, &[blocks.dim(0), width])
            }
            Self::AveragePool { side } => {
                let blocks = blocks(ops, x, grids.merge(*side), *side)?;
                let sum = ops.reduce(Reduce::Sum, &blocks, 1, false)?;
                ops.scale(&sum, 1.0 / (side * side) as f32)
            }
            Self::Scale(scale) => ops.scale(x, *scale),
            Self::Standardize { bias, scale } => {
                ops.multiply(&ops.binary(Binary::Subtract, x, bias)?, scale)
            }
            Self::Norm(norm) => norm.apply(ops, x),
            Self::Linear(linear) => linear.apply(ops, x),
            Self::Activation(activation) => activation.alone(ops, x),
            Self::Gated(step) => {
                let (gate, up) = (step.gate.apply(ops, x)?, step.up.apply(ops, x)?);
                let inner = step.activation.times(ops, &gate, &up)?;
                step.down.apply(ops, &inner)
            }
        }
    }
}

/// [blocks, side * side, width]; `order`: the vectors of all blocks, if `x` is in another order.
fn blocks(ops: &Ops, x: &Array, order: Option<Vec<usize>>, side: usize) -> Result<Array, MlxError> {
    let ordered = match order {
        None => x.clone(),
        Some(order) => {
            let order: Vec<i32> = order.into_iter().map(|index| index as i32).collect();
            let order = ops.upload_i32(&order, &[order.len() as i32])?;
            ops.take_rows(x, &order, 0)?
        }
    };
    ops.reshape(&ordered, &[-1, (side * side) as i32, x.dim(1)])
}
