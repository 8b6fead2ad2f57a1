//! Nemotron-H: layers of one block each, which is Mamba-2, attention without positions, a
//! feed-forward without a gate, or experts of the same kind.

mod gguf;

use serde_json::{Value, json};

use super::common::{
    FURTHER_LAYERS, MambaFields, Sizes, UNGROUPED, activation, bounded_layers, corrected_experts,
    expect_switch, refuse_field, require_silu,
};
use super::mamba2::{BACKBONE, MIXER};
use super::{Family, GgufFamily, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::experts::{Experts, SharedExpert};
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::{Attention, Mamba2, MambaNorm, Mixer};
use crate::model::{Activation, Branch, Dense, FeedForward, Inner, Layer, ModelSpec, Norm};
use crate::naming::{ConvShape, LayerNames, Naming};
use crate::roles::LayerRole::{self, *};

pub(super) const FAMILY: Family = Family {
    model_types: &["nemotron_h"],
    from_config,
    hugging_face: Naming {
        overrides: &[MIXER, OTHERS, EXPERTS],
        ..BACKBONE
    },
    mlx: Some(Naming {
        overrides: &[MIXER, OTHERS, MLX_EXPERTS],
        conv_shape: ConvShape::ChannelLast,
        ..BACKBONE
    }),
    gguf: Some(GgufFamily {
        architectures: &["nemotron_h", "nemotron_h_moe"],
        from_gguf: gguf::from_gguf,
        naming: Naming {
            overrides: &[&[
                (FeedForwardPreNorm, "attn_norm.weight"),
                (ExpertsPreNorm, "attn_norm.weight"),
            ]],
            ignored: FURTHER_LAYERS,
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::with_router(RouterPrecision::Unquantized),
};

const OTHERS: LayerNames = &[
    (FeedForwardPreNorm, "norm.weight"),
    (ExpertsPreNorm, "norm.weight"),
    (Query, "mixer.q_proj.weight"),
    (Key, "mixer.k_proj.weight"),
    (LayerRole::Value, "mixer.v_proj.weight"),
    (Output, "mixer.o_proj.weight"),
    (Up, "mixer.up_proj.weight"),
    (Down, "mixer.down_proj.weight"),
    (LayerRole::Router, "mixer.gate.weight"),
    (RouterCorrection, "mixer.gate.e_score_correction_bias"),
    (SharedUp, "mixer.shared_experts.up_proj.weight"),
    (SharedDown, "mixer.shared_experts.down_proj.weight"),
];

const EXPERTS: LayerNames = &[
    (ExpertUp, "mixer.experts.{e}.up_proj.weight"),
    (ExpertDown, "mixer.experts.{e}.down_proj.weight"),
];

const MLX_EXPERTS: LayerNames = &[
    (ExpertUp, "mixer.switch_mlp.fc1.weight"),
    (ExpertDown, "mixer.switch_mlp.fc2.weight"),
];

const FIELDS: MambaFields = MambaFields {
    heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    groups: "n_groups",
    state: "ssm_state_size",
    kernel: "conv_kernel",
    conv_bias: "use_conv_bias",
    projection_bias: "use_bias",
};

/// Older names of some fields.
const OLD_NAMES: &[(&str, &str)] = &[
    ("mamba_n_groups", "n_groups"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_dt_min", "time_step_min"),
    ("mamba_conv_bias", "use_conv_bias"),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let kinds = kinds(config)?;
    let config = &config.renamed(OLD_NAMES);
    let config = &config.with_defaults(json!({
        "num_hidden_layers": kinds.len(),
        "num_key_value_heads": 8,
        "head_dim": 128,
    }));
    let sizes = Sizes::with_eps(config, "layer_norm_epsilon")?;
    require_silu(config, "mamba_hidden_act")?;
    expect_switch(config, "attention_bias", false)?;
    expect_switch(config, "mlp_bias", false)?;
    let activation = activation(config, "mlp_hidden_act", Activation::Relu2)?;
    let mamba = FIELDS.read(config, sizes.hidden)?;
    let parts = ModelParts {
        mamba: Mamba2 {
            norm: MambaNorm::AfterGate {
                norm: Norm::rms(sizes.eps),
                groups: mamba.groups,
            },
            step_limits: (config.f64_or("time_step_min", 0.001)? as f32, f32::INFINITY),
            ..mamba
        },
        attention: sizes.attention(None),
        dense: Dense::plain(sizes.feed_forward, activation, false),
        experts: if kinds.contains(&Kind::Experts) {
            refuse_field(config, "moe_latent_size")?;
            let shared = config.usize("moe_shared_expert_intermediate_size")?;
            let experts = corrected_experts(config, &UNGROUPED)?;
            Some(ungated(experts, shared, activation))
        } else {
            None
        },
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(parts.model(&sizes, tied, &kinds))
}

/// Removes the gates of the experts and of the shared expert, which has size `shared`.
fn ungated(experts: Experts, shared: usize, activation: Activation) -> Experts {
    Experts {
        expert: Dense::plain(experts.expert.size, activation, false),
        shared: Some(SharedExpert {
            dense: Dense::plain(shared, activation, false),
            gated: false,
        }),
        ..experts
    }
}

/// From a list of names or, in older configs, of letters, also as one string.
fn kinds(config: &Config) -> Result<Vec<Kind>, SpecError> {
    let field = match config.get("layers_block_type") {
        Some(_) => "layers_block_type",
        None => "hybrid_override_pattern",
    };
    let words: Vec<String> = match config.get(field) {
        Some(Value::String(pattern)) => pattern.chars().map(String::from).collect(),
        _ => {
            let list = config.array(field)?.ok_or_else(|| SpecError::Missing {
                field: config.path(field),
            })?;
            let words = list.iter().map(|word| word.as_str().unwrap_or_default());
            words.map(str::to_owned).collect()
        }
    };
    bounded_layers(field, words.len())?;
    let kinds = words.iter().map(|word| match word.as_str() {
        "linear_attention" | "mamba" | "M" => Ok(Kind::Mamba),
        "full_attention" | "attention" | "*" => Ok(Kind::Attention),
        "mlp" | "-" => Ok(Kind::Dense),
        "moe" | "E" => Ok(Kind::Experts),
        other => Err(SpecError::invalid(
            config.path(field),
            format!("a list with `{other}`"),
            "a list of mamba, attention, mlp, moe",
        )),
    });
    kinds.collect()
}

struct ModelParts {
    mamba: Mamba2,
    attention: Attention,
    dense: Dense,
    /// If any layer has them.
    experts: Option<Experts>,
}

impl ModelParts {
    fn model(&self, sizes: &Sizes, tied: bool, kinds: &[Kind]) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = kinds.iter().map(|kind| {
            let inner: Inner = match (kind, &self.experts) {
                (Kind::Mamba, _) => Mixer::Mamba2(self.mamba).into(),
                (Kind::Attention, _) => Mixer::Attention(self.attention.clone()).into(),
                (Kind::Experts, Some(experts)) => FeedForward::Experts(experts.clone()).into(),
                (Kind::Dense | Kind::Experts, _) => FeedForward::Dense(self.dense).into(),
            };
            Layer::new(vec![Branch::pre_norm(norm, inner).into()])
        });
        sizes.model("nemotron_h", tied, norm, layers.collect())
    }
}
