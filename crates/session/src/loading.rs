//! The walk from a spec to its bound weights, for backends that run the spec themselves: which
//! weights a layer has, in which order they load, and the residual structure around its blocks.

use loquat_spec::{Inner, Layer, LayerRole, ModelSpec, Norm as NormSpec, Role, norm_roles};
use loquat_weights::{Matrix, Mismatch, Weights, WeightsError};

use crate::OpenError;

/// How a backend loads the parts of a layer.
pub trait LayerParts {
    /// A loaded norm.
    type Norm;
    /// What a branch computes between its norms.
    type Inner;
    /// A factor of the residual stream.
    type Scale;

    /// `weight` and `bias` are `None` when the norm has none. By their roles, adapters replace
    /// them.
    fn norm(
        &mut self,
        spec: &NormSpec,
        weight: Option<(Role, &[f32])>,
        bias: Option<(Role, &[f32])>,
    ) -> Result<Self::Norm, OpenError>;

    /// Loads what the spec describes: attention, a feed-forward network or another mixer.
    fn inner(&mut self, weights: LayerWeights, spec: &Inner) -> Result<Self::Inner, OpenError>;

    /// Loads a factor of the residual stream.
    fn scale(&mut self, values: &[f32]) -> Result<Self::Scale, OpenError>;
}

/// A layer as the backend runs it.
pub struct LoadedLayer<N, I, S> {
    /// The blocks, in the order they run.
    pub blocks: Vec<LoadedBlock<N, I>>,
    /// Multiplies the stream after the last block.
    pub scale: Option<S>,
}

/// `x += residual_scale * post_norm(sum of branches(x))`
pub struct LoadedBlock<N, I> {
    /// Their outputs are added.
    pub branches: Vec<LoadedBranch<N, I>>,
    /// Applied to the sum.
    pub post_norm: Option<N>,
    /// Multiplies what is added to the stream.
    pub residual_scale: f32,
}

/// `post_norm(inner(pre_norm(x) * input_scale) * output_scale)`
pub struct LoadedBranch<N, I> {
    /// Applied to the branch's input.
    pub pre_norm: Option<N>,
    /// Multiplies the normed input.
    pub input_scale: f32,
    /// What the branch computes.
    pub inner: I,
    /// Multiplies the result.
    pub output_scale: f32,
    /// Applied last.
    pub post_norm: Option<N>,
}

/// A layer whose parts a [`LayerParts`] loads.
pub type LayerFor<P> =
    LoadedLayer<<P as LayerParts>::Norm, <P as LayerParts>::Inner, <P as LayerParts>::Scale>;

/// Loads all layers. `progress` receives the share that is done; the head, which the backend loads
/// afterwards, counts as one more layer.
pub fn load_layers<P: LayerParts>(
    parts: &mut P,
    spec: &ModelSpec,
    weights: &Weights,
    progress: &mut dyn FnMut(f32),
) -> Result<Vec<LayerFor<P>>, OpenError> {
    let steps = (spec.layers.len() + 1) as f32;
    let mut layers = Vec::with_capacity(spec.layers.len());
    for (index, layer) in spec.layers.iter().enumerate() {
        progress(index as f32 / steps);
        layers.push(load_layer(parts, LayerWeights::new(weights, index), layer)?);
    }
    progress(spec.layers.len() as f32 / steps);
    Ok(layers)
}

fn load_layer<P: LayerParts>(
    parts: &mut P,
    weights: LayerWeights,
    spec: &Layer,
) -> Result<LayerFor<P>, OpenError> {
    let mut blocks = Vec::with_capacity(spec.blocks.len());
    for block in &spec.blocks {
        let mut branches = Vec::with_capacity(block.branches.len());
        for branch in &block.branches {
            let (pre, post) = norm_roles(&branch.inner);
            branches.push(LoadedBranch {
                pre_norm: weights.norm(parts, pre, branch.pre_norm.as_ref())?,
                input_scale: branch.input_scale,
                inner: parts.inner(weights, &branch.inner)?,
                output_scale: branch.output_scale,
                post_norm: weights.norm(parts, post, branch.post_norm.as_ref())?,
            });
        }
        blocks.push(LoadedBlock {
            branches,
            post_norm: weights.norm(parts, LayerRole::SumPostNorm, block.post_norm.as_ref())?,
            residual_scale: block.residual_scale,
        });
    }
    let scale = if spec.scaled {
        Some(parts.scale(weights.vector(LayerRole::LayerScale)?)?)
    } else {
        None
    };
    Ok(LoadedLayer { blocks, scale })
}

/// The matrix that turns hidden states into logits.
pub fn head_role(spec: &ModelSpec) -> Role {
    if spec.head.tied {
        Role::Embedding
    } else {
        Role::Head
    }
}

/// The norm before the head.
pub fn load_final_norm<P: LayerParts>(
    parts: &mut P,
    spec: &ModelSpec,
    weights: &Weights,
) -> Result<P::Norm, OpenError> {
    let bias = Some(Role::FinalNormBias);
    load_norm(parts, weights, &spec.final_norm, Role::FinalNorm, bias)
}

/// A norm with the weight and the bias that its spec says it has.
pub fn load_norm<P: LayerParts>(
    parts: &mut P,
    weights: &Weights,
    spec: &NormSpec,
    weight: Role,
    bias: Option<Role>,
) -> Result<P::Norm, OpenError> {
    let weight = Some(weight).filter(|_| spec.weight);
    let bias = bias.filter(|_| spec.bias);
    let values = |role| Ok::<_, OpenError>((role, vector(weights, role)?));
    let weight = weight.map(values).transpose()?;
    let bias = bias.map(values).transpose()?;
    parts.norm(spec, weight, bias)
}

/// The matrix with this role, or an error that names the role.
pub fn matrix(weights: &Weights, role: Role) -> Result<&Matrix, OpenError> {
    weights.matrix(role).ok_or_else(|| unbound(role))
}

/// The stacked matrices with this role (experts), or an error that names the role.
pub fn stack(weights: &Weights, role: Role) -> Result<&[Matrix], OpenError> {
    weights.stack(role).ok_or_else(|| unbound(role))
}

/// The vector with this role, or an error that names the role.
pub fn vector(weights: &Weights, role: Role) -> Result<&[f32], OpenError> {
    weights.vector(role).ok_or_else(|| unbound(role))
}

/// The weights were bound to another spec.
fn unbound(role: Role) -> OpenError {
    OpenError::Weights(WeightsError::Binding(Mismatch {
        missing: vec![role.to_string()],
        ..Default::default()
    }))
}

/// The weights of one layer, by role.
#[derive(Clone, Copy)]
pub struct LayerWeights<'a> {
    weights: &'a Weights,
    index: usize,
}

impl<'a> LayerWeights<'a> {
    /// The weights of layer `index`.
    pub fn new(weights: &'a Weights, index: usize) -> Self {
        Self { weights, index }
    }

    /// The role in this layer.
    pub fn role(&self, role: LayerRole) -> Role {
        Role::Layer(self.index, role)
    }

    /// The layer's matrix, or an error that names its role.
    pub fn matrix(&self, role: LayerRole) -> Result<&'a Matrix, OpenError> {
        matrix(self.weights, self.role(role))
    }

    /// The layer's stacked matrices, or an error that names their role.
    pub fn stack(&self, role: LayerRole) -> Result<&'a [Matrix], OpenError> {
        stack(self.weights, self.role(role))
    }

    /// The layer's vector, or an error that names its role.
    pub fn vector(&self, role: LayerRole) -> Result<&'a [f32], OpenError> {
        vector(self.weights, self.role(role))
    }

    /// The layer's vector, if the checkpoint has it.
    pub fn optional(&self, role: LayerRole) -> Option<&'a [f32]> {
        self.weights.vector(self.role(role))
    }

    /// The bias of a matrix, if the checkpoint has one.
    pub fn bias(&self, role: LayerRole) -> Option<&'a [f32]> {
        role.bias().and_then(|bias| self.optional(bias))
    }

    /// A norm that the spec may leave out.
    pub fn norm<P: LayerParts>(
        &self,
        parts: &mut P,
        role: LayerRole,
        spec: Option<&NormSpec>,
    ) -> Result<Option<P::Norm>, OpenError> {
        spec.map(|spec| self.required_norm(parts, role, spec))
            .transpose()
    }

    /// A norm that the spec has.
    pub fn required_norm<P: LayerParts>(
        &self,
        parts: &mut P,
        role: LayerRole,
        spec: &NormSpec,
    ) -> Result<P::Norm, OpenError> {
        let bias = role.bias().map(|bias| self.role(bias));
        load_norm(parts, self.weights, spec, self.role(role), bias)
    }
}
