//! How layers are put together, and how they differ.

/// `x += mixer(norm(x))`, then `x += feed_forward(norm(x))`.
pub(super) fn pre_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::pre_norm(norm, mixer).into(),
        Branch::pre_norm(norm, feed_forward).into(),
    ])
}

/// A norm before each of the two and another after.
pub(super) fn sandwich_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::sandwich(norm, mixer).into(),
        Branch::sandwich(norm, feed_forward).into(),
    ])
}

/// `x += norm(mixer(x))`, then `x += norm(feed_forward(x))`.
pub(super) fn post_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::post_norm(norm, mixer).into(),
        Branch::post_norm(norm, feed_forward).into(),
    ])
}

/// `x += mixer(norm(x)) + feed_forward(norm(x))`.
pub(super) fn parallel_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![Block::parallel(vec![
        Branch::pre_norm(norm, mixer),
        Branch::pre_norm(norm, feed_forward),
    ])])
}

/// Which layers look through a window: what `layer_types` says, else `default(layer)`.
pub(super) fn windowed_layers(
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

pub(super) fn reach(window: Option<usize>) -> Reach {
    window.map_or(Reach::All, Reach::Window)
}

/// Rope for families in which only `default` of a head turns unless the config says otherwise.
pub(super) fn partial_rope(
    config: &Config,
    default_theta: f64,
    head_dim: usize,
    default: usize,
) -> Result<Rope, SpecError> {
    let rope = Rope::from_config(config, None, default_theta, head_dim)?;
    let field = "partial_rotary_factor";
    let table = config.object("rope_parameters")?;
    let stated = table.is_some_and(|table| table.get(field).is_some());
    Ok(match stated || config.get(field).is_some() {
        true => rope,
        false => Rope {
            dims: default,
            ..rope
        },
    })
}

