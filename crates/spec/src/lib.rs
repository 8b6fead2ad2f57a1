//! Model families as data: a checkpoint's config becomes one block-level [`ModelSpec`].
//!
//! A family is a function from a config (Hugging Face `config.json` or a GGUF header) to a
//! spec, the names of its tensors, and facts for converters and chat templates. This crate reads
//! no tensors and computes nothing: it describes *what* a model computes; backends decide *how*.

mod config;
mod error;
mod experts;
mod facts;
pub mod families;
mod mixers;
mod model;
mod naming;
mod roles;
mod rope;
mod validate;
mod vision;
mod vision_naming;
mod vision_roles;

pub use config::{Config, GgufHeader};
pub use error::SpecError;
pub use experts::{ExpertGroups, Experts, GroupScore, Router, RouterInput, Scores, SharedExpert};
pub use facts::{
    ConfigExport, ConfigFields, FamilyFacts, GgufExport, GgufKeys, GgufVariant, MlxFacts,
    MlxLayerTypes, RouterPrecision, VariantTrait,
};
pub use mixers::{
    Attention, Decay, DeltaOutputGate, DeltaRule, KeySharing, KvSource, LatentAttention, Mamba2,
    MambaNorm, Mixer, QkNorm, QkSpan, Reach, ShortConv, Temperature,
};
pub use model::{
    Activation, Block, Branch, Dense, Embedding, FeedForward, Head, Inner, Layer, ModelSpec, Norm,
    NormKind, PerLayerInputs,
};
pub use naming::{
    ConvShape, Fused, LayerNames, Layout, Naming, Orientation, RowMap, Slot, Split, Transform,
};
pub use roles::{Kind, LayerRole, Role, norm_roles};
pub use rope::{Rope, RopeOrder, RopePairs, RopeScaling, RopeSections, SectionOrder, Yarn};
pub use vision::{
    Arrangement, ClassToken, Deepstack, Grid, MediaAttention, MergeOrder, PatchEmbedding,
    PatchOrder, PatchPositions, PatchRope, PatchRopeLayout, PatchSpan, PixelInput, Projector,
    ProjectorStep, Sampling, VisionBlock, VisionSpec,
};
pub use vision_naming::{StepName, VisionNaming, canonical_name as vision_tensor_name};
pub use vision_roles::{BlockHalf, ClampBound, StepTensor, VisionRole};
