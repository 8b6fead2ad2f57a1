//! Reads Gemma 4 from `config.json`.

use serde_json::json;

use super::PATTERN;
use super::model::{Gemma4, Shape, experts, first_shared, kv_source, per_layer_inputs};
use crate::config::Config;
use crate::error::SpecError;
use crate::families::common::{Sizes, activation, expect_word, windowed_layers};
use crate::model::{Activation, Dense, ModelSpec};
use crate::rope::Rope;

pub(super) fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
    }));
    // Fields for images do not affect text.
    expect_word(config, "use_bidirectional_attention", "vision")?;
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let experts = if config.bool_or("enable_moe_block", false)? {
        Some(experts(
            &sizes,
            config.usize("num_experts")?,
            config.usize("top_k_experts")?,
            Dense::gated(config.usize("moe_intermediate_size")?, activation),
        ))
    } else {
        None
    };
    let per_layer = match config.usize_or("hidden_size_per_layer_input", 0)? {
        0 => None,
        dim => Some(per_layer_inputs(
            &sizes,
            dim,
            config.usize("vocab_size_per_layer_input")?,
            config.usize_or("pad_token_id", 0)? as u32,
        )),
    };
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = Gemma4 {
        shapes: shapes(config, &sizes)?,
        window: config.usize("sliding_window")?,
        bias: config.bool_or("attention_bias", false)?,
        activation,
        experts,
        per_layer,
        scaled: true,
        tied: config.bool_or("tie_word_embeddings", true)?,
        softcap: softcap.map(|cap| cap as f32),
    };
    Ok(parts.model(&sizes))
}

fn shapes(config: &Config, sizes: &Sizes) -> Result<Vec<Shape>, SpecError> {
    let mut windowed = windowed_layers(config, sizes.layers, |layer| (layer + 1) % PATTERN != 0)?;
    if let Some(last) = windowed.last_mut() {
        // transformers ignores the config's value.
        *last = false;
    }
    let shared = config.usize_or("num_kv_shared_layers", 0)?;
    let first_shared = first_shared(sizes, config.path("num_kv_shared_layers"), shared)?;
    let double_wide = config.bool_or("use_double_wide_mlp", false)? && first_shared > 0;
    let key_is_value = config.bool_or("attention_k_eq_v", false)?;
    let mut shapes = Vec::with_capacity(sizes.layers);
    for (layer, (head_dim, kv_heads)) in heads(config, sizes, &windowed)?.into_iter().enumerate() {
        let local = windowed[layer];
        let (group, theta) = if local {
            ("sliding_attention", 10_000.0)
        } else {
            ("full_attention", 1_000_000.0)
        };
        let widen = double_wide && layer >= first_shared;
        shapes.push(Shape {
            local,
            head_dim,
            kv_heads,
            kv: kv_source(&windowed, first_shared, layer, key_is_value && !local)?,
            feed_forward: sizes.feed_forward * if widen { 2 } else { 1 },
            rope: Rope::from_config(config, Some(group), theta, head_dim)?,
        });
    }
    Ok(shapes)
}

/// Each layer's head size and key/value heads: by layer in newer configs, by kind of layer in
/// older ones.
fn heads(
    config: &Config,
    sizes: &Sizes,
    windowed: &[bool],
) -> Result<Vec<(usize, usize)>, SpecError> {
    let own = (sizes.head_dim, sizes.kv_heads);
    let Some(by_layer) = config.object("per_layer_config")? else {
        let kv_heads = if config.bool_or("attention_k_eq_v", false)? {
            config.usize_or("num_global_key_value_heads", sizes.kv_heads)?
        } else {
            sizes.kv_heads
        };
        let global = (config.usize_or("global_head_dim", 512)?, kv_heads);
        let heads = windowed
            .iter()
            .map(|local| if *local { own } else { global });
        return Ok(heads.collect());
    };
    let mut heads = vec![own; sizes.layers];
    for layer in by_layer.fields() {
        let index = layer.parse::<usize>().ok();
        let Some(entry) = index.and_then(|index| heads.get_mut(index)) else {
            return Err(SpecError::invalid(
                config.path("per_layer_config"),
                format!("an object with `{layer}`"),
                format!("an object of layers below {}", sizes.layers),
            ));
        };
        let Some(of_layer) = by_layer.object(layer)? else {
            continue;
        };
        let known = ["head_dim", "num_key_value_heads"];
        if let Some(other) = of_layer.fields().find(|field| !known.contains(field)) {
            return Err(SpecError::Unsupported {
                field: of_layer.path(other),
                found: "set".into(),
                supported: "head_dim, num_key_value_heads",
            });
        }
        let [head_dim, kv_heads] = known;
        *entry = (
            of_layer.usize_or(head_dim, own.0)?,
            of_layer.usize_or(kv_heads, own.1)?,
        );
    }
    Ok(heads)
}
