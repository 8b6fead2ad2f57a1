//! Facts about a family for converters, quantizers and chat templates, in addition to its blocks.
//!
//! `convert` and `text` interpret them; only this crate lists families.

use crate::mixers::Reach;
use crate::model::{FeedForward, Inner, ModelSpec};

/// The part of a family's row that other crates read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyFacts {
    /// Names of built-in chat templates that fit this family's models and few others; templates
    /// that a vocabulary alone identifies are not listed.
    pub templates: &'static [&'static str],
    /// How to write the family as GGUF; `None`: its metadata keys are not known.
    pub gguf_export: Option<GgufExport>,
    /// How to write a `config.json` from GGUF metadata; `None`: GGUF does not contain enough.
    pub config_export: Option<ConfigExport>,
    /// Other families that llama.cpp writes under this one's architecture; the first match counts.
    pub gguf_variants: &'static [GgufVariant],
    /// GGUF files pair neighbouring rows of queries and keys, and the hub's pair rows half a head
    /// apart.
    pub gguf_pairs_neighbours: bool,
    pub mlx: MlxFacts,
}

/// How llama.cpp names the family and the numbers it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufExport {
    pub architecture: &'static str,
    /// Metadata beyond sizes, rope and experts.
    pub keys: &'static [GgufKeys],
    /// llama.cpp applies the sliding window; for other families it attends to everything.
    pub windowed: bool,
}

/// A group of GGUF metadata keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufKeys {
    Softcaps,
    /// Windowed layers have their own RoPE base, and flags mark them.
    LocalRope,
    /// Granite's.
    Multipliers,
}

/// How the hub's configs describe the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigExport {
    /// The entry in `architectures`.
    pub class: &'static str,
    /// Fields beyond the sizes.
    pub fields: &'static [ConfigFields],
}

/// A group of `config.json` fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFields {
    Biases,
    SlidingWindow,
    NoSlidingWindow,
    /// Mixtral's names for experts.
    LocalExperts,
    /// Qwen's names for experts.
    SparseExperts,
    /// Gemma's name for the activation.
    HiddenActivation,
    /// Gemma's attention scale, layer kinds and softcaps.
    GemmaAttention,
    LocalRope,
    /// Granite's.
    Multipliers,
    /// Phi's partial and long ropes.
    PartialRope,
    NoRopeLayers,
}

/// A family that shares an architecture name, and the trait that identifies its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufVariant {
    pub when: VariantTrait,
    pub model_type: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariantTrait {
    Experts,
    Windowed,
    NotWindowed,
}

/// What mlx-lm does for the family in addition to its general rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlxFacts {
    /// How routers are quantized; `None` for families without experts.
    pub router: Option<RouterPrecision>,
    /// Its `quant_predicate` gives eight bits to matrices that write to the residual stream.
    pub eight_bit_outputs: bool,
    /// The `model_type` under which mlx-lm reads the text model as part of a larger one.
    pub wrapper: Option<&'static str>,
    /// mlx-lm reads the text model on its own.
    pub text_model: bool,
    /// Fields that mlx-lm reads under another name: its name, the hub's.
    pub copied_fields: &'static [(&'static str, &'static str)],
    /// The same for fields of a rope.
    pub rope_fields: &'static [(&'static str, &'static str)],
    /// Fields that mlx-lm needs and transformers may leave out.
    pub required_fields: &'static [&'static str],
    pub layer_types: Option<MlxLayerTypes>,
}

/// How mlx-lm quantizes the matrices that choose experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterPrecision {
    /// Not quantized: the router is not an `nn.Linear`.
    Unquantized,
    /// With eight bits, by `quant_predicate`.
    EightBits,
    /// Like every other matrix.
    Uniform,
}

/// mlx-lm's form of `layer_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlxLayerTypes {
    /// `sliding_window_pattern`, a letter per layer.
    Letters,
    /// `mamba` and `attention`.
    Mamba,
}

impl FamilyFacts {
    /// No template, no exporter, no special rules in mlx-lm.
    pub const PLAIN: Self = Self {
        templates: &[],
        gguf_export: None,
        config_export: None,
        gguf_variants: &[],
        gguf_pairs_neighbours: false,
        mlx: MlxFacts::PLAIN,
    };

    /// Plain, for a family with experts.
    pub(crate) const fn with_router(precision: RouterPrecision) -> Self {
        Self {
            mlx: MlxFacts::with_router(precision),
            ..Self::PLAIN
        }
    }
}

impl MlxFacts {
    pub const PLAIN: Self = Self {
        router: None,
        eight_bit_outputs: false,
        wrapper: None,
        text_model: true,
        copied_fields: &[],
        rope_fields: &[],
        required_fields: &[],
        layer_types: None,
    };

    pub(crate) const fn with_router(precision: RouterPrecision) -> Self {
        Self {
            router: Some(precision),
            ..Self::PLAIN
        }
    }
}

impl GgufExport {
    /// Sizes, RoPE and experts are enough.
    pub(crate) const fn plain(architecture: &'static str) -> Self {
        Self {
            architecture,
            keys: &[],
            windowed: false,
        }
    }
}

impl VariantTrait {
    pub(crate) fn applies(self, spec: &ModelSpec) -> bool {
        let windowed = || {
            let mut attentions = spec.mixers().filter_map(|(_, mixer)| mixer.as_attention());
            attentions.any(|attention| attention.reach != Reach::All)
        };
        match self {
            Self::Experts => spec.has_experts(),
            Self::Windowed => windowed(),
            Self::NotWindowed => !windowed(),
        }
    }
}

impl ModelSpec {
    pub fn has_experts(&self) -> bool {
        let is_experts =
            |inner: &Inner| matches!(inner, Inner::FeedForward(FeedForward::Experts(_)));
        self.branches().any(|(_, branch)| is_experts(&branch.inner))
    }
}
