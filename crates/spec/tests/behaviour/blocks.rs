//! Access to a spec's blocks for comparisons.

use loquat_spec::{
    Attention, Config, FeedForward, Inner, KvSource, Mixer, ModelSpec, Reach, Rope, families,
};
use serde_json::Value;

pub fn spec(config: &Value) -> ModelSpec {
    let config = Config::parse(&config.to_string(), "config.json").unwrap();
    let described = families::from_config(&config).unwrap_or_else(|error| panic!("{error}"));
    described.spec
}

/// Vocabulary, hidden size, context, layers.
pub fn sizes(spec: &ModelSpec) -> (usize, usize, usize, usize) {
    (
        spec.vocab_size,
        spec.hidden_size,
        spec.max_context,
        spec.layers.len(),
    )
}

pub fn mixer(spec: &ModelSpec, layer: usize) -> &Mixer {
    spec.layers[layer].mixer().expect("a mixer")
}

/// The layer's first feed-forward.
pub fn feed_forward(spec: &ModelSpec, layer: usize) -> &FeedForward {
    let inner = spec.layers[layer]
        .branches()
        .find_map(|branch| match &branch.inner {
            Inner::FeedForward(feed_forward) => Some(feed_forward),
            Inner::Mixer(_) => None,
        });
    inner.expect("a feed-forward")
}

/// Attention with nothing but heads and rope.
pub fn attention(heads: usize, kv_heads: usize, head_dim: usize, rope: Option<Rope>) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        qkv_bias: false,
        output_bias: false,
        qk_norm: None,
        value_norm: None,
        rope,
        scale: 1.0 / (head_dim as f32).sqrt(),
        value_scale: 1.0,
        temperature: None,
        softcap: None,
        reach: Reach::All,
        sinks: false,
        output_gate: false,
        gate_bias: false,
        kv: KvSource::Own,
    }
}

/// The layers for which `is` holds.
pub fn layers_where(spec: &ModelSpec, is: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..spec.layers.len()).filter(|layer| is(*layer)).collect()
}
