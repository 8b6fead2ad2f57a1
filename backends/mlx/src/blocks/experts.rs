//! Experts: each token uses a few of many feed-forwards, chosen and computed on the device.

mod router;

use loquat_session::OpenError;
use loquat_spec::{Experts as Spec, LayerRole, SharedExpert};

use super::dense::{Activate, Dense};
use crate::adapted::{Applied, StepAdapters};
use crate::array::{Array, Binary, Fused, Ops, Reduce};
use crate::error::MlxError;
use crate::linear::{JoinedStack, Linear, Stack, StackChoice};
use crate::loader::LayerLoader;
use router::Router;

/// With at least this many pairs of a token and an expert, they are sorted by expert, so that an
/// expert's matrices are read once for all its tokens. Below, sorting costs more than it saves. The
/// number is mlx-lm's.
const SORTED_FROM: i32 = 64;

pub struct Experts {
    router: Router,
    /// Gates and ups, or ups alone.
    inner: JoinedStack,
    activate: Activate,
    down: Stack,
    top_k: i32,
    /// The same as an array.
    choices: Array,
    weigh_input: bool,
    shared: Option<Shared>,
}

impl Experts {
    pub fn load(loader: LayerLoader, spec: &Spec) -> Result<Self, OpenError> {
        let inner: &[LayerRole] = if spec.expert.gated {
            &[LayerRole::ExpertGate, LayerRole::ExpertUp]
        } else {
            &[LayerRole::ExpertUp]
        };
        let shared = spec.shared.as_ref();
        let top_k = spec.top_k as u32;
        Ok(Self {
            router: Router::load(loader, spec)?,
            inner: loader.joined_stack(inner)?,
            activate: Activate::load(loader, &spec.expert)?,
            down: loader.stack(LayerRole::ExpertDown)?,
            top_k: spec.top_k as i32,
            choices: loader.loader().ops.upload_u32(&[top_k], &[1])?,
            weigh_input: spec.weigh_input,
            shared: shared.map(|spec| Shared::load(loader, spec)).transpose()?,
        })
    }

    /// `stream` is the residual stream that `x` was computed from.
    pub fn run(
        &self,
        ops: &Ops,
        x: &Array,
        stream: &Array,
        adapters: &StepAdapters,
    ) -> Result<Array, MlxError> {
        let (chosen, weights) = self.router.choose(ops, x, stream, adapters)?;
        let (tokens, top_k, hidden) = (x.dim(0), self.top_k, x.dim(1));
        let weights = ops.astype(&weights, x.dtype())?;
        let mut input = ops.reshape(x, &[tokens, 1, 1, hidden])?;
        if self.weigh_input {
            let weights = ops.reshape(&weights, &[tokens, top_k, 1, 1])?;
            input = ops.multiply(&input, &weights)?;
        }
        let stacks = self.inner.parts().chain(&self.down.parts);
        let outputs = if adapters.change_matrices(stacks) {
            adapters.each_segment(ops, 0, |segment| {
                let input = segment.part(ops, &input, 0)?;
                let chosen = segment.part(ops, &chosen, 0)?;
                self.token_outputs(ops, &input, &chosen, &segment.applied)
            })?
        } else {
            self.token_outputs(ops, &input, &chosen, &[])?
        };
        let shared = self.shared.as_ref();
        let shared = shared.map(|shared| shared.run(ops, x, adapters));
        let shared = shared.transpose()?;
        if self.weigh_input {
            return plain_sum(ops, &outputs, shared.as_ref());
        }
        let weights = ops.reshape(&weights, &[tokens, 1, top_k])?;
        weighted_sum(ops, &outputs, &weights, shared.as_ref())
    }

    /// The outputs of each token's experts, [tokens, top_k, hidden]. `input`: [tokens, 1 or top_k,
    /// 1, hidden], `chosen`: [tokens, top_k].
    fn token_outputs(
        &self,
        ops: &Ops,
        input: &Array,
        chosen: &Array,
        applied: &[Applied],
    ) -> Result<Array, MlxError> {
        let (tokens, hidden) = (input.dim(0), input.dim(3));
        let outputs = if tokens * self.top_k >= SORTED_FROM {
            self.sorted_outputs(ops, input, chosen, applied)?
        } else {
            let unsorted = StackChoice {
                matrices: chosen,
                sorted: false,
            };
            self.outputs(ops, input, unsorted, applied)?
        };
        ops.reshape(&outputs, &[tokens, self.top_k, hidden])
    }

    /// `input`: [tokens, 1 or top_k, 1, hidden] with a choice of [tokens, top_k], or
    /// [routes, 1, hidden] with [routes].
    fn outputs(
        &self,
        ops: &Ops,
        input: &Array,
        choice: StackChoice,
        applied: &[Applied],
    ) -> Result<Array, MlxError> {
        let inner = self.inner.apply(ops, input, choice, applied)?;
        let activated = self.activate.run(ops, &inner)?;
        self.down.apply(ops, &activated, choice, applied)
    }

    /// Like [`Self::outputs`], but computed in the experts' order; outputs are in the tokens'
    /// order.
    fn sorted_outputs(
        &self,
        ops: &Ops,
        input: &Array,
        chosen: &Array,
        applied: &[Applied],
    ) -> Result<Array, MlxError> {
        let chosen = ops.reshape(chosen, &[-1])?;
        let order = ops.argsort(&chosen, 0)?;
        let back = ops.argsort(&order, 0)?;
        // Weighted inputs differ per expert; otherwise all experts of a token share its input.
        let from = if self.weigh_input {
            order.clone()
        } else {
            ops.binary(Binary::FloorDivide, &order, &self.choices)?
        };
        let input = ops.reshape(input, &[-1, 1, input.dim(3)])?;
        let input = ops.take_rows(&input, &from, 0)?;
        let ascending = StackChoice {
            matrices: &ops.take_rows(&chosen, &order, 0)?,
            sorted: true,
        };
        let outputs = self.outputs(ops, &input, ascending, applied)?;
        ops.take_rows(&outputs, &back, 0)
    }
}

/// `outputs`: [tokens, top_k, hidden], `weights`: [tokens, 1, top_k], `more`: [tokens, hidden].
fn weighted_sum(
    ops: &Ops,
    outputs: &Array,
    weights: &Array,
    more: Option<&Array>,
) -> Result<Array, MlxError> {
    let (tokens, hidden) = (outputs.dim(0), outputs.dim(2));
    // A matrix product is one operation and accumulates in float32 for every type.
    let sum = match more {
        Some(more) => {
            let more = ops.reshape(more, &[tokens, 1, hidden])?;
            ops.addmm(&more, weights, outputs)?
        }
        None => ops.matmul(weights, outputs)?,
    };
    ops.reshape(&sum, &[tokens, hidden])
}

fn plain_sum(ops: &Ops, outputs: &Array, more: Option<&Array>) -> Result<Array, MlxError> {
    let sum = match outputs.dim(1) {
        1 => ops.reshape(outputs, &[outputs.dim(0), outputs.dim(2)])?,
        _ => ops.reduce(Reduce::Sum, outputs, 1, false)?,
    };
    match more {
        Some(more) => ops.add(&sum, more),
        None => Ok(sum),
    }
}

/// The expert that every token uses.
struct Shared {
    dense: Dense,
    router: Option<Linear>,
}

impl Shared {
    fn load(loader: LayerLoader, spec: &SharedExpert) -> Result<Self, OpenError> {
        let roles = [
            LayerRole::SharedGate,
            LayerRole::SharedUp,
            LayerRole::SharedDown,
        ];
        Ok(Self {
            dense: Dense::load_as(loader, &spec.dense, roles)?,
            router: loader.optional_linear(spec.gated, LayerRole::SharedRouter)?,
        })
    }

    fn run(&self, ops: &Ops, x: &Array, adapters: &StepAdapters) -> Result<Array, MlxError> {
        let answer = self.dense.run(ops, x, adapters)?;
        match &self.router {
            Some(router) => {
                let gate = router.adapted(ops, x, adapters)?;
                ops.fused(Fused::TimesSigmoid, &[&answer, &gate])
            }
            None => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests;
