//! The plain feed-forward.

use loquat_session::OpenError;
use loquat_spec::{Activation, Dense as DenseSpec, LayerRole};

use crate::adapted::StepAdapters;
use crate::array::{Array, Fused, Ops, Type};
use crate::error::MlxError;
use crate::linear::{JoinedLinear, Linear};
use crate::loader::LayerLoader;

/// `down(activation(gate(x) * gate_scale) * up(x))`, or `down(activation(up(x)))`.
pub struct Dense {
    /// Gate and up, or up alone.
    inner: JoinedLinear,
    activate: Activate,
    down: Linear,
}

impl Dense {
    pub fn load(loader: LayerLoader, spec: &DenseSpec) -> Result<Self, OpenError> {
        let roles = [LayerRole::Gate, LayerRole::Up, LayerRole::Down];
        Self::load_as(loader, spec, roles)
    }

    /// Loads from other roles, such as those of a shared expert.
    pub fn load_as(
        loader: LayerLoader,
        spec: &DenseSpec,
        [gate, up, down]: [LayerRole; 3],
    ) -> Result<Self, OpenError> {
        let inner: &[LayerRole] = if spec.gated { &[gate, up] } else { &[up] };
        Ok(Self {
            inner: loader.joined(inner)?,
            activate: Activate::load(loader, spec)?,
            down: loader.linear(down)?,
        })
    }

    pub fn run(&self, ops: &Ops, x: &Array, adapters: &StepAdapters) -> Result<Array, MlxError> {
        let inner = self.inner.apply(ops, x, adapters)?;
        let activated = self.activate.run(ops, &inner)?;
        self.down.adapted(ops, &activated, adapters)
    }
}

/// The activation between a feed-forward's matrices.
pub struct Activate {
    gate_scale: f32,
    function: Function,
}

impl Activate {
    pub fn load(loader: LayerLoader, spec: &DenseSpec) -> Result<Self, OpenError> {
        let loader = loader.loader();
        Ok(Self {
            gate_scale: spec.gate_scale,
            function: Function::new(loader.ops, spec.activation, loader.dtype)?,
        })
    }

    /// `inner`: gate and up, or up alone.
    pub fn run(&self, ops: &Ops, inner: &[Array]) -> Result<Array, MlxError> {
        match inner {
            [gate, up] if self.gate_scale != 1.0 => {
                let gate = ops.scale(gate, self.gate_scale)?;
                self.function.times(ops, &gate, up)
            }
            [gate, up] => self.function.times(ops, gate, up),
            [up] => self.function.alone(ops, up),
            _ => Err(MlxError(
                "a feed-forward needs one or two inputs".to_owned(),
            )),
        }
    }
}

/// An activation and its parameters.
pub struct Function {
    /// A fused kernel of the activation and the product with a second input, if there is one.
    times: Option<Fused>,
    alone: Option<Fused>,
    numbers: Vec<Array>,
}

impl Function {
    pub fn new(ops: &Ops, activation: Activation, dtype: Type) -> Result<Self, MlxError> {
        let number = |value| ops.full(&[1], value, dtype);
        let (times, alone, numbers) = match activation {
            Activation::Silu => (Some(Fused::SiluTimes), Some(Fused::Silu), Vec::new()),
            Activation::Gelu => (Some(Fused::GeluTimes), Some(Fused::Gelu), Vec::new()),
            Activation::GeluTanh => (
                Some(Fused::GeluTanhTimes),
                Some(Fused::GeluTanh),
                Vec::new(),
            ),
            Activation::QuickGelu => (
                Some(Fused::QuickGeluTimes),
                Some(Fused::QuickGelu),
                Vec::new(),
            ),
            Activation::Relu => (None, Some(Fused::Relu), Vec::new()),
            Activation::Relu2 => (None, Some(Fused::Relu2), Vec::new()),
            Activation::ClampedSwiglu { alpha, limit } => (
                Some(Fused::ClampedSwiglu),
                None,
                vec![number(alpha)?, number(limit)?],
            ),
        };
        Ok(Self {
            times,
            alone,
            numbers,
        })
    }

    /// `activation(gate) * up`
    pub fn times(&self, ops: &Ops, gate: &Array, up: &Array) -> Result<Array, MlxError> {
        let Some(times) = self.times else {
            return ops.multiply(&self.alone(ops, gate)?, up);
        };
        let mut inputs = vec![gate, up];
        inputs.extend(&self.numbers);
        ops.fused(times, &inputs)
    }

    /// `activation(x)`
    pub fn alone(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match self.alone {
            Some(alone) => ops.fused(alone, &[x]),
            None => Err(MlxError("this activation needs two inputs".to_owned())),
        }
    }
}
