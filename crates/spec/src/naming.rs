use std::fmt;
use std::ops::Range;

use crate::model::{Block, FeedForward, Mixer, ModelSpec};
use crate::rope::RopeScaling;

/// What a tensor is for. Backends ask for roles; only this module knows names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Embedding,
    FinalNorm,
    Head,
    RopeFactors,
    Layer(usize, LayerRole),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerRole {
    MixerPreNorm,
    MixerPostNorm,
    Query,
    Key,
    Value,
    Output,
    QueryBias,
    KeyBias,
    ValueBias,
    OutputBias,
    QueryNorm,
    KeyNorm,
    FeedForwardPreNorm,
    FeedForwardPostNorm,
    Gate,
    Up,
    Down,
    GateBias,
    UpBias,
    DownBias,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Layer(layer, role) => write!(f, "layer {layer} {role:?}"),
            role => write!(f, "{role:?}"),
        }
    }
}

/// How a role's values stand in the file, and what binding must do to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    None,
    /// A norm stored as `weight - 1`.
    AddOne,
    /// Query or key rows stored with rope pairs interleaved; ours are in halves.
    Unpermute {
        heads: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Matrix { rows: usize, cols: usize },
    Vector { len: usize },
}

/// One role, the tensor that fills it, and the shape it must have.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub role: Role,
    pub name: String,
    pub kind: Kind,
    pub transform: Transform,
    /// The rows of the file's tensor that are this role's, where one tensor fills several.
    pub rows: Option<FusedRows>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FusedRows {
    pub range: Range<usize>,
    /// Rows of the whole tensor in the file.
    pub total: usize,
}

/// The names one format gives to roles. `{}` stands for the layer's number; `.weight` and
/// `.bias` are added.
#[derive(Debug, Clone, Copy)]
pub struct Naming {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    pub rope_factors: &'static str,
    pub layer: &'static [(LayerRole, &'static str)],
    /// Looked up before `layer`: where a family departs from its format's habit.
    pub overrides: &'static [(LayerRole, &'static str)],
    /// One tensor that holds several roles' rows, in this order, as Phi-3 stores q, k and v.
    pub fused: &'static [(&'static str, &'static [LayerRole])],
    pub norms_minus_one: bool,
    pub interleaved_rope: bool,
    /// Name endings that may be left unread: buffers that the config says better.
    pub ignored: &'static [&'static str],
}

use LayerRole::*;

pub(crate) const HUGGING_FACE: Naming = Naming {
    embedding: "model.embed_tokens",
    final_norm: "model.norm",
    head: "lm_head",
    rope_factors: "rope_factors",
    layer: &[
        (MixerPreNorm, "model.layers.{}.input_layernorm"),
        (Query, "model.layers.{}.self_attn.q_proj"),
        (Key, "model.layers.{}.self_attn.k_proj"),
        (Value, "model.layers.{}.self_attn.v_proj"),
        (Output, "model.layers.{}.self_attn.o_proj"),
        (QueryNorm, "model.layers.{}.self_attn.q_norm"),
        (KeyNorm, "model.layers.{}.self_attn.k_norm"),
        (
            FeedForwardPreNorm,
            "model.layers.{}.post_attention_layernorm",
        ),
        (Gate, "model.layers.{}.mlp.gate_proj"),
        (Up, "model.layers.{}.mlp.up_proj"),
        (Down, "model.layers.{}.mlp.down_proj"),
    ],
    overrides: &[],
    fused: &[],
    norms_minus_one: false,
    interleaved_rope: false,
    ignored: &[".rotary_emb.inv_freq"],
};

pub(crate) const GGUF: Naming = Naming {
    embedding: "token_embd",
    final_norm: "output_norm",
    head: "output",
    rope_factors: "rope_freqs",
    layer: &[
        (MixerPreNorm, "blk.{}.attn_norm"),
        (MixerPostNorm, "blk.{}.post_attention_norm"),
        (Query, "blk.{}.attn_q"),
        (Key, "blk.{}.attn_k"),
        (Value, "blk.{}.attn_v"),
        (Output, "blk.{}.attn_output"),
        (QueryNorm, "blk.{}.attn_q_norm"),
        (KeyNorm, "blk.{}.attn_k_norm"),
        (FeedForwardPreNorm, "blk.{}.ffn_norm"),
        (FeedForwardPostNorm, "blk.{}.post_ffw_norm"),
        (Gate, "blk.{}.ffn_gate"),
        (Up, "blk.{}.ffn_up"),
        (Down, "blk.{}.ffn_down"),
    ],
    overrides: &[],
    fused: &[],
    norms_minus_one: false,
    interleaved_rope: false,
    ignored: &[],
};

impl LayerRole {
    /// The role whose name this one shares, and the ending that tells them apart.
    fn base(self) -> (LayerRole, &'static str) {
        match self {
            QueryBias => (Query, ".bias"),
            KeyBias => (Key, ".bias"),
            ValueBias => (Value, ".bias"),
            OutputBias => (Output, ".bias"),
            GateBias => (Gate, ".bias"),
            UpBias => (Up, ".bias"),
            DownBias => (Down, ".bias"),
            role => (role, ".weight"),
        }
    }

    fn is_norm(self) -> bool {
        matches!(
            self,
            MixerPreNorm
                | MixerPostNorm
                | QueryNorm
                | KeyNorm
                | FeedForwardPreNorm
                | FeedForwardPostNorm
        )
    }
}

impl Naming {
    /// Every tensor `spec` needs, under this naming.
    pub fn slots(&self, spec: &ModelSpec) -> Vec<Slot> {
        let (vocab, hidden) = (spec.vocab_size, spec.hidden_size);
        let mut slots = vec![
            self.global(Role::Embedding, self.embedding, matrix(vocab, hidden)),
            self.global(Role::FinalNorm, self.final_norm, vector(hidden)),
        ];
        if !spec.head.tied {
            slots.push(self.global(Role::Head, self.head, matrix(vocab, hidden)));
        }
        let tensor_rope = spec
            .attentions()
            .filter_map(|a| a.rope.as_ref())
            .find(|rope| rope.scaling == RopeScaling::Tensor);
        if let Some(rope) = tensor_rope {
            let kind = vector(rope.dims / 2);
            slots.push(self.global(Role::RopeFactors, self.rope_factors, kind));
        }
        for (index, layer) in spec.layers.iter().enumerate() {
            let mut roles = Vec::new();
            mixer_roles(&layer.mixer, hidden, &mut roles);
            feed_forward_roles(&layer.feed_forward, hidden, &mut roles);
            slots.extend(
                roles
                    .iter()
                    .map(|role| self.layer_slot(index, *role, &roles, spec)),
            );
        }
        slots
    }

    /// Whether a tensor that fills no role may be passed over in silence.
    pub fn ignores(&self, spec: &ModelSpec, name: &str) -> bool {
        let redundant_head = spec.head.tied
            && name
                .strip_prefix(self.head)
                .is_some_and(|rest| matches!(rest, ".weight" | ".scales" | ".biases"));
        redundant_head || self.ignored.iter().any(|ending| name.ends_with(ending))
    }

    fn global(&self, role: Role, name: &str, kind: Kind) -> Slot {
        let norm = role == Role::FinalNorm && self.norms_minus_one;
        Slot {
            role,
            name: format!("{name}.weight"),
            kind,
            transform: if norm {
                Transform::AddOne
            } else {
                Transform::None
            },
            rows: None,
        }
    }

    fn layer_slot(
        &self,
        index: usize,
        (role, kind): (LayerRole, Kind),
        all: &[(LayerRole, Kind)],
        spec: &ModelSpec,
    ) -> Slot {
        let (base, ending) = role.base();
        let Mixer::Attention(attention) = &spec.layers[index].mixer.inner;
        let transform = match base {
            Query if self.interleaved_rope => Transform::Unpermute {
                heads: attention.heads,
            },
            Key if self.interleaved_rope => Transform::Unpermute {
                heads: attention.kv_heads,
            },
            norm if norm.is_norm() && self.norms_minus_one => Transform::AddOne,
            _ => Transform::None,
        };
        let (pattern, rows) = self
            .fused_rows(role, all)
            .unwrap_or_else(|| (self.pattern(base), None));
        Slot {
            role: Role::Layer(index, role),
            name: pattern.replace("{}", &index.to_string()) + ending,
            kind,
            transform,
            rows,
        }
    }

    fn pattern(&self, base: LayerRole) -> &'static str {
        let mut table = self.overrides.iter().chain(self.layer);
        table
            .find(|(role, _)| *role == base)
            .map_or("", |(_, name)| name)
    }

    fn fused_rows(
        &self,
        role: LayerRole,
        all: &[(LayerRole, Kind)],
    ) -> Option<(&'static str, Option<FusedRows>)> {
        let (base, ending) = role.base();
        let (name, parts) = self.fused.iter().find(|(_, parts)| parts.contains(&base))?;
        let rows_of = |part: LayerRole| {
            all.iter()
                .find(|(role, _)| role.base() == (part, ending))
                .map_or(0, |(_, kind)| kind.rows())
        };
        let before = parts.iter().take_while(|part| **part != base);
        let start = before.map(|part| rows_of(*part)).sum::<usize>();
        let rows = FusedRows {
            range: start..start + rows_of(base),
            total: parts.iter().map(|part| rows_of(*part)).sum(),
        };
        Some((name, Some(rows)))
    }
}

impl Kind {
    pub fn rows(self) -> usize {
        match self {
            Kind::Matrix { rows, .. } => rows,
            Kind::Vector { len } => len,
        }
    }
}

fn matrix(rows: usize, cols: usize) -> Kind {
    Kind::Matrix { rows, cols }
}

fn vector(len: usize) -> Kind {
    Kind::Vector { len }
}

fn mixer_roles(block: &Block<Mixer>, hidden: usize, roles: &mut Vec<(LayerRole, Kind)>) {
    let Mixer::Attention(attention) = &block.inner;
    let (q, kv) = (attention.q_dim(), attention.kv_dim());
    let mut add = |present: bool, role, kind| {
        if present {
            roles.push((role, kind));
        }
    };
    add(block.pre_norm.is_some(), MixerPreNorm, vector(hidden));
    add(true, Query, matrix(q, hidden));
    add(true, Key, matrix(kv, hidden));
    add(true, Value, matrix(kv, hidden));
    add(true, Output, matrix(hidden, q));
    add(attention.qkv_bias, QueryBias, vector(q));
    add(attention.qkv_bias, KeyBias, vector(kv));
    add(attention.qkv_bias, ValueBias, vector(kv));
    add(attention.output_bias, OutputBias, vector(hidden));
    add(
        attention.qk_norm.is_some(),
        QueryNorm,
        vector(attention.head_dim),
    );
    add(
        attention.qk_norm.is_some(),
        KeyNorm,
        vector(attention.head_dim),
    );
    add(block.post_norm.is_some(), MixerPostNorm, vector(hidden));
}

fn feed_forward_roles(
    block: &Block<FeedForward>,
    hidden: usize,
    roles: &mut Vec<(LayerRole, Kind)>,
) {
    let FeedForward::Gated { size, bias, .. } = block.inner;
    let mut add = |present: bool, role, kind| {
        if present {
            roles.push((role, kind));
        }
    };
    add(block.pre_norm.is_some(), FeedForwardPreNorm, vector(hidden));
    add(true, Gate, matrix(size, hidden));
    add(true, Up, matrix(size, hidden));
    add(true, Down, matrix(hidden, size));
    add(bias, GateBias, vector(size));
    add(bias, UpBias, vector(size));
    add(bias, DownBias, vector(hidden));
    add(
        block.post_norm.is_some(),
        FeedForwardPostNorm,
        vector(hidden),
    );
}
