//! What most towers share.

use super::VisionConfig;
use crate::config::Config;
use crate::error::SpecError;
use crate::families::common::activation;
use crate::model::{Activation, Dense, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{
    Arrangement, MediaAttention, MergeOrder, PatchEmbedding, PatchOrder, PatchPositions, PatchSpan,
    PixelInput, Projector, ProjectorStep, VisionBlock, VisionSpec,
};
use crate::vision_naming::VisionNaming;
use crate::vision_roles::VisionRole;

/// Sizes under the names that most configs use, with the defaults of their classes.
pub(super) struct Sizes {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub mlp: usize,
    pub patch: usize,
    pub image: usize,
    pub eps: f32,
    pub activation: Activation,
}

impl Sizes {
    pub fn new(config: &Config, eps: f32, act: Activation) -> Result<Self, SpecError> {
        let either = |fields: [&'static str; 2], default| match config.get(fields[0]) {
            Some(_) => config.usize(fields[0]),
            None => config.usize_or(fields[1], default),
        };
        let mut epsilon = f64::from(eps);
        for field in ["layer_norm_eps", "rms_norm_eps", "norm_eps"] {
            epsilon = config.f64_or(field, epsilon)?;
        }
        let field = if config.get("hidden_activation").is_some() {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        Ok(Self {
            hidden: either(["embed_dim", "hidden_size"], 768)?,
            layers: either(["num_hidden_layers", "depth"], 12)?,
            heads: either(["num_attention_heads", "num_heads"], 12)?,
            mlp: config.usize_or("intermediate_size", 3072)?,
            patch: side(config, "patch_size", 16)?,
            image: side(config, "image_size", 224)?,
            eps: epsilon as f32,
            activation: activation(config, field, act)?,
        })
    }

    /// Patches along a side of the only image size.
    pub fn patches(&self) -> usize {
        self.image.checked_div(self.patch).unwrap_or(0)
    }

    pub fn head_dim(&self) -> usize {
        self.hidden.checked_div(self.heads).unwrap_or(0)
    }

    /// Pre-norm blocks with biases everywhere and no rotary positions, as in SigLIP and CLIP.
    pub fn block(&self) -> VisionBlock {
        VisionBlock {
            norm: Norm::layer(self.eps, true),
            sandwich: false,
            gains: false,
            heads: self.heads,
            head_dim: self.head_dim(),
            qkv_bias: true,
            output_bias: true,
            qk_norm: None,
            value_norm: None,
            scale: (self.head_dim() as f32).powf(-0.5),
            rope: None,
            mlp: Dense::plain(self.mlp, self.activation, true),
            clamped: false,
        }
    }

    /// A tower over planes, with these blocks, and no positions, norms or projector.
    pub fn tower(&self, block: VisionBlock) -> VisionSpec {
        VisionSpec {
            hidden_size: self.hidden,
            patch: PatchEmbedding {
                channels: 3,
                frames: 1,
                side: self.patch,
                bias: true,
                scale: 1.0,
                offset: 0.0,
                input: PixelInput::Planes,
                order: PatchOrder::RowMajor,
            },
            class_token: None,
            patch_norm: None,
            positions: None,
            embedding_norm: None,
            block,
            layers: vec![PatchSpan::Frame; self.layers.min(crate::validate::MAX_LAYERS)],
            final_norm: None,
            projector: Projector::default(),
            deepstack: Vec::new(),
            arrangement: Arrangement::Views,
            attention: MediaAttention::Causal,
            video: false,
            positions_per_second: None,
        }
    }

    /// A table with a row for each patch, and `more` for a class token.
    pub fn fixed_positions(&self, more: usize) -> Option<PatchPositions> {
        let rows = self.patches().saturating_mul(self.patches());
        Some(PatchPositions::Fixed { rows: rows + more })
    }
}

/// A size that may be written as a list of two equal numbers.
fn side(config: &Config, field: &str, default: usize) -> Result<usize, SpecError> {
    if !config.get(field).is_some_and(serde_json::Value::is_array) {
        return config.usize_or(field, default);
    }
    match config.f64s(field, 2)?.as_deref() {
        Some([rows, cols]) if rows == cols && *rows >= 0.0 => Ok(*rows as usize),
        found => Err(SpecError::invalid(
            config.path(field),
            format!("{found:?}"),
            "two equal numbers",
        )),
    }
}

impl VisionConfig<'_> {
    /// How many of the tower's layers run: `vision_feature_layer` counts from the end.
    pub fn used_layers(&self, layers: usize, default: i64) -> Result<usize, SpecError> {
        let field = "vision_feature_layer";
        let value = match self.outer.get(field) {
            None => Some(default),
            Some(value) => value.as_i64(),
        };
        let used = value.and_then(|value| match value {
            ..0 => (layers + 1).checked_sub(value.unsigned_abs() as usize),
            value => usize::try_from(value).ok(),
        });
        let expected = format!("one layer from {} to {layers}", -(layers as i64) - 1);
        used.filter(|used| *used <= layers).ok_or_else(|| {
            SpecError::invalid(self.outer.path(field), format!("{value:?}"), expected)
        })
    }

    /// Two matrices with an activation between, to the text model's size.
    pub fn mlp(&self, between: usize, bias: bool) -> Result<[ProjectorStep; 3], SpecError> {
        let act = activation(self.outer, "projector_hidden_act", Activation::Gelu)?;
        Ok([
            linear(between, bias),
            ProjectorStep::Activation(act),
            linear(self.text.hidden_size, bias),
        ])
    }

    /// A count of the outer config.
    pub fn outer_usize(&self, field: &str, default: usize) -> Result<usize, SpecError> {
        match self.outer.usize_or(field, default)? {
            0 => Err(SpecError::invalid(self.outer.path(field), 0, "at least 1")),
            count => Ok(count),
        }
    }
}

pub(super) fn linear(rows: usize, bias: bool) -> ProjectorStep {
    ProjectorStep::Linear { rows, bias }
}

pub(super) fn merge(side: usize) -> ProjectorStep {
    ProjectorStep::Merge {
        side,
        values: MergeOrder::ChannelLast,
    }
}

/// SigLIP's and CLIP's names of a layer.
pub(super) const SIGLIP_LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "layer_norm1.weight"),
    (Query, "self_attn.q_proj.weight"),
    (Key, "self_attn.k_proj.weight"),
    (Value, "self_attn.v_proj.weight"),
    (Output, "self_attn.out_proj.weight"),
    (FeedForwardPreNorm, "layer_norm2.weight"),
    (Up, "mlp.fc1.weight"),
    (Down, "mlp.fc2.weight"),
];

/// SigLIP's names under `vision_tower`.
pub(super) const SIGLIP: VisionNaming = VisionNaming {
    globals: &[
        (
            VisionRole::Patch,
            "vision_tower.embeddings.patch_embedding.weight",
        ),
        (
            VisionRole::Positions,
            "vision_tower.embeddings.position_embedding.weight",
        ),
        (VisionRole::FinalNorm, "vision_tower.post_layernorm.weight"),
    ],
    layers: "vision_tower.encoder.layers.{}.",
    layer: SIGLIP_LAYER,
    fused_qkv: None,
    gains: ["", ""],
    projector: &[],
    deepstack: &[],
    deepstack_by_layer: false,
    norms_minus_one: false,
    ignored: &["vision_tower.head."],
};
