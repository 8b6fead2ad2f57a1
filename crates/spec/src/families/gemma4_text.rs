//! Gemma 4 (text): Gemma 3's layers with heads of another size on the global ones, unscaled
//! queries, normalised values and a learned scale per layer; some sizes add experts beside the
//! dense feed-forward, others inputs per layer and upper layers that read lower ones' keys.

use serde_json::json;

use super::parts::{
    Sizes, activation, gguf_rope, gguf_tied, gguf_windowed_layers, reach, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, RouterInput};
use crate::mixers::{Attention, KvSource, Mixer, QkNorm};
use crate::model::{
    Activation, Block, Branch, Dense, FeedForward, Layer, ModelSpec, Norm, PerLayerInputs,
};
use crate::naming::{Fused, Naming, Split};
use crate::roles::LayerRole::*;
use crate::roles::{LayerRole, Role};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text", "gemma4"],
    from_config,
    hugging_face: Naming {
        fused: &[
            Fused {
                name: "experts.gate_up_proj",
                parts: &[ExpertGate, ExpertUp],
                split: Split::Sequential,
            },
            Fused {
                name: "experts.down_proj",
                parts: &[ExpertDown],
                split: Split::Sequential,
            },
        ],
        ..NAMING
    },
    mlx: Some(NAMING),
    gguf: Some(GgufFamily {
        architectures: &["gemma4"],
        from_gguf,
        naming: Naming {
            fused: &[Fused {
                name: "ffn_gate_up_exps.weight",
                parts: &[ExpertGate, ExpertUp],
                split: Split::Sequential,
            }],
            // Gates and ups may be kept apart.
            also: Some(&GGUF_NAMING),
            ..GGUF_NAMING
        },
    }),
};

const GGUF_NAMING: Naming = Naming {
    overrides: &[
        (FeedForwardPostNorm, "post_ffw_norm_1.weight"),
        (ExpertsPreNorm, "pre_ffw_norm_2.weight"),
        (ExpertsPostNorm, "post_ffw_norm_2.weight"),
        (SumPostNorm, "post_ffw_norm.weight"),
        (LayerRole::RouterInput, "ffn_gate_inp.scale"),
        (ExpertScale, "ffn_down_exps.scale"),
        (PerLayerGate, "inp_gate.weight"),
        (PerLayerOutput, "proj.weight"),
        (PerLayerPostNorm, "post_norm.weight"),
        (LayerScale, "layer_output_scale.weight"),
    ],
    ..PLAIN.1
};

/// The experts' names are mlx-lm's; transformers fuses them.
const NAMING: Naming = Naming {
    global_overrides: &[
        (
            Role::PerLayerEmbedding,
            "model.embed_tokens_per_layer.weight",
        ),
        (
            Role::PerLayerProjection,
            "model.per_layer_model_projection.weight",
        ),
        (Role::PerLayerNorm, "model.per_layer_projection_norm.weight"),
    ],
    overrides: &[
        (MixerPostNorm, "post_attention_layernorm.weight"),
        (FeedForwardPreNorm, "pre_feedforward_layernorm.weight"),
        (FeedForwardPostNorm, "post_feedforward_layernorm_1.weight"),
        (ExpertsPreNorm, "pre_feedforward_layernorm_2.weight"),
        (ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
        (SumPostNorm, "post_feedforward_layernorm.weight"),
        (LayerRole::Router, "router.proj.weight"),
        (LayerRole::RouterInput, "router.scale"),
        (ExpertScale, "router.per_expert_scale"),
        (ExpertGate, "experts.switch_glu.gate_proj.weight"),
        (ExpertUp, "experts.switch_glu.up_proj.weight"),
        (ExpertDown, "experts.switch_glu.down_proj.weight"),
        (PerLayerGate, "per_layer_input_gate.weight"),
        (PerLayerOutput, "per_layer_projection.weight"),
        (PerLayerPostNorm, "post_per_layer_input_norm.weight"),
        (LayerScale, "layer_scalar"),
    ],
    ..PLAIN.0
};

/// Every sixth layer is global unless the config says otherwise.
const PATTERN: usize = 6;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
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
    if config.str("use_bidirectional_attention")? == Some("all") {
        return Err(SpecError::Unsupported {
            field: config.path("use_bidirectional_attention"),
            found: "`all`".into(),
            supported: "vision, null",
        });
    }
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let mut windowed = windowed_layers(config, sizes.layers, |layer| (layer + 1) % PATTERN != 0)?;
    if let Some(last) = windowed.last_mut() {
        // Whatever the config says of it: so transformers reads it.
        *last = false;
    }
    let shared = config.usize_or("num_kv_shared_layers", 0)?;
    let first_shared = first_shared(&sizes, config.path("num_kv_shared_layers"), shared)?;
    let double_wide = config.bool_or("use_double_wide_mlp", false)? && first_shared > 0;
    let key_is_value = config.bool_or("attention_k_eq_v", false)?;
    let mut shapes = Vec::with_capacity(sizes.layers);
    for (layer, (head_dim, kv_heads)) in heads(config, &sizes, &windowed)?.into_iter().enumerate() {
        let local = windowed[layer];
        let (group, theta) = match local {
            true => ("sliding_attention", 10_000.0),
            false => ("full_attention", 1_000_000.0),
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
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let experts = match config.bool_or("enable_moe_block", false)? {
        false => None,
        true => Some(experts(
            &sizes,
            config.usize("num_experts")?,
            config.usize("top_k_experts")?,
            Dense::gated(config.usize("moe_intermediate_size")?, activation),
        )),
    };
    let per_layer = match config.usize_or("hidden_size_per_layer_input", 0)? {
        0 => None,
        dim => Some(per_layer_inputs(
            &sizes,
            dim,
            config.usize("vocab_size_per_layer_input")?,
        )),
    };
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = Parts {
        shapes,
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

/// Each layer's head size and key/value heads: by layer in newer configs, by kind of layer in
/// older ones.
fn heads(
    config: &Config,
    sizes: &Sizes,
    windowed: &[bool],
) -> Result<Vec<(usize, usize)>, SpecError> {
    let own = (sizes.head_dim, sizes.kv_heads);
    let Some(by_layer) = config.object("per_layer_config")? else {
        let kv_heads = match config.bool_or("attention_k_eq_v", false)? {
            true => config.usize_or("num_global_key_value_heads", sizes.kv_heads)?,
            false => sizes.kv_heads,
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

fn first_shared(sizes: &Sizes, field: String, shared: usize) -> Result<usize, SpecError> {
    let first = sizes.layers.checked_sub(shared);
    first.ok_or_else(|| {
        SpecError::invalid(field, shared, format!("at most {} layers", sizes.layers))
    })
}

/// From `first_shared` up a layer reads the last one below that is of its kind.
fn kv_source(
    windowed: &[bool],
    first_shared: usize,
    layer: usize,
    key_is_value: bool,
) -> Result<KvSource, SpecError> {
    if layer < first_shared {
        return Ok(match key_is_value {
            true => KvSource::KeyIsValue,
            false => KvSource::Own,
        });
    }
    let mut below = windowed[..first_shared].iter();
    match below.rposition(|local| *local == windowed[layer]) {
        Some(source) => Ok(KvSource::Layer(source)),
        None => Err(SpecError::invalid(
            "num_kv_shared_layers",
            windowed.len() - first_shared,
            format!("so few that a layer below is of the kind of layer {layer}"),
        )),
    }
}

fn experts(sizes: &Sizes, count: usize, top_k: usize, expert: Dense) -> Experts {
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

fn per_layer_inputs(sizes: &Sizes, dim: usize, vocab_size: usize) -> PerLayerInputs {
    PerLayerInputs {
        dim,
        vocab_size,
        embedding_scale: (dim as f32).sqrt(),
        projection_scale: 1.0 / (sizes.hidden as f32).sqrt(),
        combined_scale: std::f32::consts::FRAC_1_SQRT_2,
        norm: Norm::rms(sizes.eps),
    }
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let global_dim = config.usize("attention.key_length")?;
    let local_dim = config.usize("attention.key_length_swa")?;
    let sizes = Sizes::gguf_with_heads(config, local_dim, None)?;
    let windowed = gguf_windowed_layers(config, sizes.layers, PATTERN)?;
    let kv_heads = config.per_layer("attention.head_count_kv", sizes.layers)?;
    let kv_heads = kv_heads.unwrap_or_else(|| vec![sizes.heads; sizes.layers]);
    let feed_forward = config.per_layer("feed_forward_length", sizes.layers)?;
    let feed_forward = feed_forward.unwrap_or_default();
    let shared = config.usize_opt("attention.shared_kv_layers")?.unwrap_or(0);
    let field = config.key("attention.shared_kv_layers");
    let first_shared = first_shared(&sizes, field, shared)?;
    let global = gguf_rope(config, global_dim, RopePairs::Halves)?;
    let local_theta = config.f64_opt("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local_turning = config.usize_opt("rope.dimension_count_swa")?;
    let local = Rope::plain(local_theta as f32, local_turning.unwrap_or(local_dim));
    let mut shapes = Vec::with_capacity(sizes.layers);
    for (layer, is_local) in windowed.iter().enumerate() {
        let key_is_value = !config.has(&format!("blk.{layer}.attn_v.weight"));
        shapes.push(Shape {
            local: *is_local,
            head_dim: if *is_local { local_dim } else { global_dim },
            kv_heads: kv_heads[layer],
            kv: kv_source(&windowed, first_shared, layer, key_is_value)?,
            feed_forward: feed_forward
                .get(layer)
                .copied()
                .unwrap_or(sizes.feed_forward),
            rope: if *is_local { &local } else { &global }.clone(),
        });
    }
    let activation = Activation::GeluTanh;
    let experts = match config.usize_opt("expert_count")?.unwrap_or(0) {
        0 => None,
        count => Some(experts(
            &sizes,
            count,
            config.usize("expert_used_count")?,
            Dense::gated(config.usize("expert_feed_forward_length")?, activation),
        )),
    };
    let dim = config.usize_opt("embedding_length_per_layer_input")?;
    let per_layer = match dim.unwrap_or(0) {
        0 => None,
        dim => Some(per_layer_inputs(
            &sizes,
            dim,
            config.rows("per_layer_token_embd.weight")?,
        )),
    };
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = Parts {
        shapes,
        window: config.usize("attention.sliding_window")?,
        bias: false,
        activation,
        experts,
        per_layer,
        scaled: config.has("blk.0.layer_output_scale.weight"),
        tied: gguf_tied(config),
        softcap: softcap.map(|cap| cap as f32),
    };
    Ok(parts.model(&sizes))
}

/// What differs from layer to layer.
struct Shape {
    local: bool,
    head_dim: usize,
    kv_heads: usize,
    kv: KvSource,
    feed_forward: usize,
    rope: Rope,
}

struct Parts {
    shapes: Vec<Shape>,
    window: usize,
    bias: bool,
    activation: Activation,
    experts: Option<Experts>,
    per_layer: Option<PerLayerInputs>,
    scaled: bool,
    tied: bool,
    softcap: Option<f32>,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
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
