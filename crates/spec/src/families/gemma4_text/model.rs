//! Gemma 4's blocks, from either kind of config.

use crate::error::SpecError;
use crate::experts::{Experts, Router, RouterInput};
use crate::families::common::{Sizes, reach};
use crate::mixers::{Attention, KvSource, Mixer, QkNorm};
use crate::model::{
    Activation, Block, Branch, Dense, FeedForward, Layer, ModelSpec, Norm, PerLayerInputs,
};
use crate::rope::Rope;

/// Properties that differ by layer.
pub(super) struct Shape {
    pub local: bool,
    pub head_dim: usize,
    pub kv_heads: usize,
    pub kv: KvSource,
    pub feed_forward: usize,
    pub rope: Rope,
}

/// The model, read from either kind of config.
pub(super) struct Gemma4 {
    pub shapes: Vec<Shape>,
    pub window: usize,
    pub bias: bool,
    pub activation: Activation,
    pub experts: Option<Experts>,
    pub per_layer: Option<PerLayerInputs>,
    /// Each layer has a learned scale.
    pub scaled: bool,
    pub tied: bool,
    pub softcap: Option<f32>,
}

impl Gemma4 {
    pub fn model(self, sizes: &Sizes) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = self.shapes.iter().map(|shape| self.layer(sizes, shape));
        let mut spec = sizes.model("gemma4_text", self.tied, norm, layers.collect());
        spec.embedding.scale = (sizes.hidden as f32).sqrt();
        spec.per_layer_inputs = self.per_layer;
        spec.head.softcap = self.softcap;
        spec
    }

    fn layer(&self, sizes: &Sizes, shape: &Shape) -> Layer {
        let norm = Norm::rms(sizes.eps);
        let attention = Attention {
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            value_dim: shape.head_dim,
            qkv_bias: self.bias,
            output_bias: self.bias,
            qk_norm: Some(QkNorm::per_head(norm)),
            value_norm: Some(norm.weightless()),
            scale: 1.0,
            reach: reach(shape.local.then_some(self.window)),
            kv: shape.kv,
            ..sizes.attention(Some(shape.rope.clone()))
        };
        let dense = FeedForward::Dense(Dense::gated(shape.feed_forward, self.activation));
        let branches = match &self.experts {
            None => vec![Branch::pre_norm(norm, dense)],
            Some(experts) => vec![
                Branch::sandwich(norm, dense),
                Branch::sandwich(norm, FeedForward::Experts(experts.clone())),
            ],
        };
        let mut blocks = vec![
            Branch::sandwich(norm, Mixer::Attention(attention)).into(),
            Block {
                post_norm: Some(norm),
                ..Block::parallel(branches)
            },
        ];
        if let Some(PerLayerInputs { dim, .. }) = self.per_layer {
            let activation = self.activation;
            let inner = FeedForward::PerLayerInput { dim, activation };
            blocks.push(Branch::post_norm(norm, inner).into());
        }
        Layer {
            blocks,
            scaled: self.scaled,
        }
    }
}

/// The first of the last `shared` layers, which read the keys and values of earlier layers.
pub(super) fn first_shared(
    sizes: &Sizes,
    field: String,
    shared: usize,
) -> Result<usize, SpecError> {
    let first = sizes.layers.checked_sub(shared);
    first.ok_or_else(|| {
        SpecError::invalid(field, shared, format!("at most {} layers", sizes.layers))
    })
}

/// From `first_shared` on, a layer reads the last earlier layer of its kind.
pub(super) fn kv_source(
    windowed: &[bool],
    first_shared: usize,
    layer: usize,
    key_is_value: bool,
) -> Result<KvSource, SpecError> {
    if layer < first_shared {
        return Ok(if key_is_value {
            KvSource::KeyIsValue
        } else {
            KvSource::Own
        });
    }
    let mut below = windowed[..first_shared].iter();
    match below.rposition(|local| *local == windowed[layer]) {
        Some(source) => Ok(KvSource::Layer(source)),
        None => Err(SpecError::invalid(
            "num_kv_shared_layers",
            windowed.len() - first_shared,
            format!("small enough that an earlier layer has the kind of layer {layer}"),
        )),
    }
}

pub(super) fn experts(sizes: &Sizes, count: usize, top_k: usize, expert: Dense) -> Experts {
    Experts {
        count,
        top_k,
        expert,
        router: Router {
            expert_scale: true,
            input: Some(RouterInput {
                norm: Norm::rms(sizes.eps),
                scale: 1.0 / (sizes.hidden as f32).sqrt(),
            }),
            ..Router::softmax(true)
        },
        shared: None,
        weigh_input: false,
    }
}

pub(super) fn per_layer_inputs(
    sizes: &Sizes,
    dim: usize,
    vocab_size: usize,
    media_token: u32,
) -> PerLayerInputs {
    PerLayerInputs {
        dim,
        vocab_size,
        embedding_scale: (dim as f32).sqrt(),
        projection_scale: 1.0 / (sizes.hidden as f32).sqrt(),
        combined_scale: std::f32::consts::FRAC_1_SQRT_2,
        norm: Norm::rms(sizes.eps),
        media_token,
    }
}
