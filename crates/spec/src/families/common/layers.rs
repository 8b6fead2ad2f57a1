//! Layer schemes, and properties that differ by layer.

use super::fields::layer_types;
use crate::config::Config;
use crate::error::SpecError;
use crate::mixers::{Attention, Mixer, Reach};
use crate::model::{Block, Branch, FeedForward, Layer, Norm};
use crate::rope::Rope;

/// Combines a norm, a mixer and a feed-forward into a layer.
pub(crate) type LayerScheme = fn(Norm, Mixer, FeedForward) -> Layer;

/// `x += mixer(norm(x))`, then `x += feed_forward(norm(x))`.
pub(crate) fn pre_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::pre_norm(norm, mixer).into(),
        Branch::pre_norm(norm, feed_forward).into(),
    ])
}

/// A norm before each of the two and another after.
pub(crate) fn sandwich_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::sandwich(norm, mixer).into(),
        Branch::sandwich(norm, feed_forward).into(),
    ])
}

/// `x += norm(mixer(x))`, then `x += norm(feed_forward(x))`.
pub(crate) fn post_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::post_norm(norm, mixer).into(),
        Branch::post_norm(norm, feed_forward).into(),
    ])
}

/// `x += mixer(norm(x)) + feed_forward(norm(x))`.
pub(crate) fn parallel_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![Block::parallel(vec![
        Branch::pre_norm(norm, mixer),
        Branch::pre_norm(norm, feed_forward),
    ])])
}

/// Which layers are windowed: from `layer_types`, else `default(layer)`.
pub(crate) fn windowed_layers(
    config: &Config,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, SpecError> {
    let known = &["full_attention", "sliding_attention"];
    Ok(match layer_types(config, layers, known)? {
        Some(types) => types
            .iter()
            .map(|kind| *kind == "sliding_attention")
            .collect(),
        None => (0..layers).map(default).collect(),
    })
}

pub(crate) fn reach(window: Option<usize>) -> Reach {
    window.map_or(Reach::All, Reach::Window)
}

/// Attention that has a window in some layers.
pub(crate) struct WindowedAttention {
    pub windowed: Vec<bool>,
    pub window: usize,
    /// Without the window.
    pub attention: Attention,
}

impl WindowedAttention {
    /// The attention of one layer.
    pub fn layer(&self, layer: usize) -> Attention {
        Attention {
            reach: reach(self.windowed[layer].then_some(self.window)),
            ..self.attention.clone()
        }
    }
}

/// Rope parameters besides the base; newer and older configs have different tables.
pub(crate) fn rope_table(config: &Config) -> Result<Option<Config>, SpecError> {
    match config.object("rope_parameters")? {
        Some(table) => Ok(Some(table)),
        None => config.object("rope_scaling"),
    }
}

/// Rope for families that rotate only `default` of a head unless the config says otherwise.
pub(crate) fn partial_rope(
    config: &Config,
    default_theta: f64,
    head_dim: usize,
    default: usize,
) -> Result<Rope, SpecError> {
    let rope = Rope::partial_from_config(config, None, default_theta, head_dim)?;
    let field = "partial_rotary_factor";
    let table = config.object("rope_parameters")?;
    let stated = table.is_some_and(|table| table.get(field).is_some());
    Ok(if stated || config.get(field).is_some() {
        rope
    } else {
        Rope {
            dims: default,
            ..rope
        }
    })
}
