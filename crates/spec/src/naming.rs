use crate::mixers::{KvSource, Mixer};
use crate::model::{Layer, ModelSpec};
use crate::roles::{Kind, LayerRole, Role, layer_roles, roles};

/// How the file stores a role's values; binding reverses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    None,
    /// A norm stored as `weight - 1`.
    AddOne,
    /// A decay rate stored as `log(-rate)`.
    NegExp,
}

/// A role and its tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub role: Role,
    pub kind: Kind,
    /// One tensor for the whole role, or for a stack one for each of its matrices.
    pub names: Vec<String>,
    pub layout: Layout,
    pub transform: Transform,
}

/// Which rows of a tensor, or of each matrix of a stack, belong to a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub rows: RowMap,
    /// Rows of the whole tensor, along the axis that `rows` walks.
    pub total: usize,
    pub orientation: Orientation,
}

/// Row `r` of the role is row `first + r / block * stride + r % block` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMap {
    pub first: usize,
    pub block: usize,
    pub stride: usize,
}

impl RowMap {
    /// Whether the first `rows` rows are all below row `total` of the file.
    pub fn stays_below(&self, rows: usize, total: usize) -> bool {
        let Some(last) = rows.checked_sub(1) else {
            return true;
        };
        let end = (last / self.block)
            .checked_mul(self.stride)
            .and_then(|start| {
                start
                    .checked_add(self.first)?
                    .checked_add(last.min(self.block - 1))
            });
        end.is_some_and(|end| end < total)
    }

    pub fn file_row(&self, row: usize) -> usize {
        self.first + row / self.block * self.stride + row % self.block
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// The file's rows are the role's.
    Rows,
    /// The tensor is stored transposed: the map walks its columns.
    Columns,
    /// The map selects rows of the file; transposed, they are the role's matrix.
    PartColumns,
}

/// One tensor that holds several roles' rows.
#[derive(Debug, Clone, Copy)]
pub struct Fused {
    pub name: &'static str,
    pub parts: &'static [LayerRole],
    pub split: Split,
}

impl Fused {
    pub(crate) const fn sequential(name: &'static str, parts: &'static [LayerRole]) -> Self {
        Self {
            name,
            parts,
            split: Split::Sequential,
        }
    }

    pub(crate) const fn per_head(name: &'static str, parts: &'static [LayerRole]) -> Self {
        Self {
            name,
            parts,
            split: Split::PerHead,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// One part after another.
    Sequential,
    /// Head by head, the rows of each part. A delta rule's heads are its key heads.
    PerHead,
    /// Alternating rows of each part.
    Alternate,
}

/// How a format shapes a convolution's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvShape {
    /// `[channels, 1, kernel]`
    ChannelFirst,
    /// `[channels, kernel, 1]`
    ChannelLast,
    /// `[channels, kernel]`
    Flat,
}

/// Names of a layer's roles, without the prefix [`Naming::layers`].
pub type LayerNames = &'static [(LayerRole, &'static str)];

/// The names one format gives to roles. `{e}` is the expert's number; a stack whose name has none
/// is one tensor. A bias has the name of its matrix with `.bias` for `.weight`, or with `_bias`
/// appended.
#[derive(Debug, Clone, Copy)]
pub struct Naming {
    pub globals: &'static [(Role, &'static str)],
    /// The prefix of a layer's names; `{}` is the layer's number.
    pub layers: &'static str,
    pub layer: LayerNames,
    /// A family's exceptions, looked up before `globals`.
    pub global_overrides: &'static [(Role, &'static str)],
    /// A family's exceptions, looked up in order before `layer`.
    pub overrides: &'static [LayerNames],
    pub fused: &'static [Fused],
    /// Roles whose tensors are stored transposed.
    pub transposed: &'static [LayerRole],
    pub conv_shape: ConvShape,
    pub norms_minus_one: bool,
    pub log_rates: bool,
    /// Tensors that need not be read.
    pub ignored: Ignored,
    /// Adjusts the spec for files whose matrices already contain some of its multipliers.
    pub refit: Option<fn(&mut ModelSpec)>,
    /// Namings of other tools for the same format, tried next.
    pub also: Option<&'static Naming>,
}

#[derive(Debug, Clone, Copy)]
pub struct Ignored {
    pub beginnings: &'static [&'static str],
    pub endings: &'static [&'static str],
    /// Layers after the spec's last, for multi-token prediction.
    pub further_layers: bool,
}

use LayerRole::*;

pub(crate) const HUGGING_FACE: Naming = Naming {
    globals: &[
        (Role::Embedding, "model.embed_tokens.weight"),
        (Role::FinalNorm, "model.norm.weight"),
        (Role::Head, "lm_head.weight"),
    ],
    layers: "model.layers.{}.",
    layer: &[
        (MixerPreNorm, "input_layernorm.weight"),
        (Query, "self_attn.q_proj.weight"),
        (Key, "self_attn.k_proj.weight"),
        (Value, "self_attn.v_proj.weight"),
        (Output, "self_attn.o_proj.weight"),
        (QueryNorm, "self_attn.q_norm.weight"),
        (KeyNorm, "self_attn.k_norm.weight"),
        (FeedForwardPreNorm, "post_attention_layernorm.weight"),
        (ExpertsPreNorm, "post_attention_layernorm.weight"),
        (Gate, "mlp.gate_proj.weight"),
        (Up, "mlp.up_proj.weight"),
        (Down, "mlp.down_proj.weight"),
        (Router, "mlp.gate.weight"),
        (RouterCorrection, "mlp.gate.e_score_correction_bias"),
        (ExpertGate, "mlp.experts.{e}.gate_proj.weight"),
        (ExpertUp, "mlp.experts.{e}.up_proj.weight"),
        (ExpertDown, "mlp.experts.{e}.down_proj.weight"),
        (SharedGate, "mlp.shared_experts.gate_proj.weight"),
        (SharedUp, "mlp.shared_experts.up_proj.weight"),
        (SharedDown, "mlp.shared_experts.down_proj.weight"),
        (QueryDown, "self_attn.q_a_proj.weight"),
        (QueryDownNorm, "self_attn.q_a_layernorm.weight"),
        (QueryUp, "self_attn.q_b_proj.weight"),
        (LatentNorm, "self_attn.kv_a_layernorm.weight"),
        (DeltaGate, "linear_attn.in_proj_z.weight"),
        (DeltaBeta, "linear_attn.in_proj_b.weight"),
        (DeltaDecay, "linear_attn.in_proj_a.weight"),
        (DeltaDecayBias, "linear_attn.dt_bias"),
        (DeltaRate, "linear_attn.A_log"),
        (DeltaNorm, "linear_attn.norm.weight"),
        (DeltaOutput, "linear_attn.out_proj.weight"),
        (MambaIn, "mamba.in_proj.weight"),
        (MambaConv, "mamba.conv1d.weight"),
        (MambaStepBias, "mamba.dt_bias"),
        (MambaRate, "mamba.A_log"),
        (MambaSkip, "mamba.D"),
        (MambaOutNorm, "mamba.norm.weight"),
        (MambaOut, "mamba.out_proj.weight"),
    ],
    global_overrides: &[],
    overrides: &[],
    fused: &[],
    transposed: &[],
    conv_shape: ConvShape::ChannelFirst,
    norms_minus_one: false,
    log_rates: true,
    ignored: Ignored {
        beginnings: &["mtp."],
        endings: &[".rotary_emb.inv_freq"],
        further_layers: false,
    },
    refit: None,
    also: None,
};

pub(crate) const GGUF: Naming = Naming {
    globals: &[
        (Role::Embedding, "token_embd.weight"),
        (Role::Positions, "position_embd.weight"),
        (Role::FinalNorm, "output_norm.weight"),
        (Role::Head, "output.weight"),
        (Role::RopeFactors, "rope_freqs.weight"),
        (Role::RopeFactorsShort, "rope_factors_short.weight"),
        (Role::RopeFactorsLong, "rope_factors_long.weight"),
        (Role::PerLayerEmbedding, "per_layer_token_embd.weight"),
        (Role::PerLayerProjection, "per_layer_model_proj.weight"),
        (Role::PerLayerNorm, "per_layer_proj_norm.weight"),
    ],
    layers: "blk.{}.",
    layer: &[
        (MixerPreNorm, "attn_norm.weight"),
        (MixerPostNorm, "post_attention_norm.weight"),
        (Query, "attn_q.weight"),
        (Key, "attn_k.weight"),
        (Value, "attn_v.weight"),
        (Output, "attn_output.weight"),
        (QueryNorm, "attn_q_norm.weight"),
        (KeyNorm, "attn_k_norm.weight"),
        (Sinks, "attn_sinks.weight"),
        (FeedForwardPreNorm, "ffn_norm.weight"),
        (FeedForwardPostNorm, "post_ffw_norm.weight"),
        (ExpertsPreNorm, "ffn_norm.weight"),
        (Gate, "ffn_gate.weight"),
        (Up, "ffn_up.weight"),
        (Down, "ffn_down.weight"),
        (Router, "ffn_gate_inp.weight"),
        (RouterCorrection, "exp_probs_b.bias"),
        (ExpertGate, "ffn_gate_exps.weight"),
        (ExpertUp, "ffn_up_exps.weight"),
        (ExpertDown, "ffn_down_exps.weight"),
        (SharedRouter, "ffn_gate_inp_shexp.weight"),
        (SharedGate, "ffn_gate_shexp.weight"),
        (SharedUp, "ffn_up_shexp.weight"),
        (SharedDown, "ffn_down_shexp.weight"),
        (QueryDown, "attn_q_a.weight"),
        (QueryDownNorm, "attn_q_a_norm.weight"),
        (QueryUp, "attn_q_b.weight"),
        (LatentNorm, "attn_kv_a_norm.weight"),
        (KeyAbsorb, "attn_k_b.weight"),
        (ValueUp, "attn_v_b.weight"),
        (ConvIn, "shortconv.in_proj.weight"),
        (Conv, "shortconv.conv.weight"),
        (ConvOut, "shortconv.out_proj.weight"),
        (DeltaGate, "attn_gate.weight"),
        (DeltaBeta, "ssm_beta.weight"),
        (DeltaDecay, "ssm_alpha.weight"),
        (DeltaDecayBias, "ssm_dt.bias"),
        (DeltaRate, "ssm_a"),
        (DeltaNorm, "ssm_norm.weight"),
        (DeltaOutput, "ssm_out.weight"),
        (MambaIn, "ssm_in.weight"),
        (MambaConv, "ssm_conv1d.weight"),
        (MambaStepBias, "ssm_dt.bias"),
        (MambaRate, "ssm_a"),
        (MambaSkip, "ssm_d"),
        (MambaOutNorm, "ssm_norm.weight"),
        (MambaOut, "ssm_out.weight"),
    ],
    conv_shape: ConvShape::Flat,
    log_rates: false,
    ignored: Ignored {
        beginnings: &[],
        endings: &[],
        further_layers: false,
    },
    ..HUGGING_FACE
};

impl Naming {
    /// This naming and those to try after it.
    pub(crate) fn variants(self) -> impl Iterator<Item = Naming> {
        std::iter::successors(Some(self), |naming| naming.also.copied())
    }

    /// `spec` adjusted for files with this naming.
    pub fn fitted(&self, mut spec: ModelSpec) -> ModelSpec {
        if let Some(refit) = self.refit {
            refit(&mut spec);
        }
        spec
    }

    /// Every tensor `spec` needs, under this naming.
    pub fn slots(&self, spec: &ModelSpec) -> Vec<Slot> {
        let roles = roles(spec).into_iter();
        roles
            .map(|(role, kind)| match role {
                Role::Layer(index, of_layer) => {
                    self.layer_slot(index, of_layer, kind, &spec.layers[index], spec.hidden_size)
                }
                role => self.global_slot(role, kind),
            })
            .collect()
    }

    /// Whether a tensor without a role may be ignored.
    pub fn ignores(&self, spec: &ModelSpec, name: &str) -> bool {
        let head = self.global_name(Role::Head);
        let redundant_head = spec.head.tied
            && module_of(name) == module_of(&head)
            && [".weight", ".scales", ".biases"]
                .iter()
                .any(|ending| name.ends_with(ending));
        let ignored = &self.ignored;
        redundant_head
            || self.is_unread_key(spec, name)
            || ignored.endings.iter().any(|ending| name.ends_with(ending))
            || ignored
                .beginnings
                .iter()
                .any(|start| name.starts_with(start))
            || (ignored.further_layers
                && layer_number(name).is_some_and(|layer| layer >= spec.layers.len()))
    }

    /// Files may contain unused keys and values of layers that read those of another layer.
    fn is_unread_key(&self, spec: &ModelSpec, name: &str) -> bool {
        let Some(index) = layer_number(name) else {
            return false;
        };
        let mixer = spec.layers.get(index).and_then(Layer::mixer);
        let attention = mixer.and_then(Mixer::as_attention);
        let reads_another =
            attention.is_some_and(|attention| matches!(attention.kv, KvSource::Layer(_)));
        let in_layer = name.strip_prefix(&self.layer_prefix(index));
        reads_another
            && [Key, Value, KeyNorm].into_iter().any(|role| {
                let module = self.listed(role).and_then(module_of);
                module.is_some() && module == in_layer.and_then(module_of)
            })
    }

    fn layer_prefix(&self, index: usize) -> String {
        self.layers.replace("{}", &index.to_string())
    }

    fn global_name(&self, role: Role) -> String {
        let (base, bias) = match role {
            Role::FinalNormBias => (Role::FinalNorm, true),
            Role::HeadBias => (Role::Head, true),
            role => (role, false),
        };
        let mut table = self.global_overrides.iter().chain(self.globals);
        let name = table
            .find(|(of, _)| *of == base)
            .map_or("", |(_, name)| name);
        if bias {
            bias_name(name)
        } else {
            name.to_owned()
        }
    }

    fn global_slot(&self, role: Role, kind: Kind) -> Slot {
        let norm = matches!(role, Role::FinalNorm | Role::PerLayerNorm);
        Slot {
            role,
            kind,
            names: vec![self.global_name(role)],
            layout: Layout::whole(kind),
            transform: if norm && self.norms_minus_one {
                Transform::AddOne
            } else {
                Transform::None
            },
        }
    }

    fn layer_slot(
        &self,
        index: usize,
        role: LayerRole,
        kind: Kind,
        layer: &Layer,
        hidden: usize,
    ) -> Slot {
        let base = role.biased().unwrap_or(role);
        let listed = self.listed(role);
        let fused = self.fused.iter().find(|fused| fused.parts.contains(&base));
        let (pattern, layout) = match fused {
            Some(fused) => (fused.name, fused_layout(fused, role, layer, hidden)),
            None => (
                listed.or(self.listed(base)).unwrap_or(""),
                Layout::whole(kind),
            ),
        };
        let named_apart = role == base || (fused.is_none() && listed.is_some());
        let name = if named_apart {
            pattern.to_owned()
        } else {
            bias_name(pattern)
        };
        let name = self.layer_prefix(index) + &name;
        let names = if name.contains("{e}") {
            let members = 0..kind.count();
            members
                .map(|member| name.replace("{e}", &member.to_string()))
                .collect()
        } else {
            vec![name]
        };
        Slot {
            role: Role::Layer(index, role),
            kind,
            names,
            layout: Layout {
                orientation: self.orientation(role, fused.is_some()),
                ..layout
            },
            transform: self.transform(role),
        }
    }

    fn orientation(&self, role: LayerRole, fused: bool) -> Orientation {
        if self.transposed.contains(&role) {
            Orientation::Columns
        } else if role == KeyAbsorb && fused {
            Orientation::PartColumns
        } else {
            Orientation::Rows
        }
    }

    fn transform(&self, role: LayerRole) -> Transform {
        match role {
            norm if norm.is_stream_norm() && self.norms_minus_one => Transform::AddOne,
            DeltaRate | MambaRate if self.log_rates => Transform::NegExp,
            _ => Transform::None,
        }
    }

    /// The role's own entry, which for a bias may differ from its matrix's.
    fn listed(&self, role: LayerRole) -> Option<&'static str> {
        let mut table = self.overrides.iter().copied().flatten().chain(self.layer);
        table.find(|(of, _)| *of == role).map(|(_, name)| *name)
    }
}

impl Layout {
    pub(crate) fn whole(kind: Kind) -> Self {
        let rows = kind.rows();
        Self {
            rows: RowMap {
                first: 0,
                block: rows.max(1),
                stride: rows,
            },
            total: rows,
            orientation: Orientation::Rows,
        }
    }
}

fn fused_layout(fused: &Fused, role: LayerRole, layer: &Layer, hidden: usize) -> Layout {
    let all = layer_roles(layer, hidden);
    // A bias is fused like its matrix.
    let is_bias = role.biased().is_some();
    let rows_of = |part: LayerRole| {
        let found = all.iter().find(|(other, _)| match other.biased() {
            Some(base) => is_bias && base == part,
            None => !is_bias && *other == part,
        });
        found.map_or(0, |(other, kind)| match other {
            // Its rows in the file are the columns of its matrices.
            KeyAbsorb => kind.cols(),
            _ => kind.rows(),
        })
    };
    let base = role.biased().unwrap_or(role);
    let before = fused.parts.iter().take_while(|part| **part != base);
    let first: usize = before.map(|part| rows_of(*part)).sum();
    let total: usize = fused.parts.iter().map(|part| rows_of(*part)).sum();
    let own = rows_of(base);
    let groups = match fused.split {
        Split::Sequential => 1,
        Split::PerHead => heads(layer),
        Split::Alternate => own,
    }
    .max(1);
    Layout {
        rows: RowMap {
            first: first / groups,
            block: (own / groups).max(1),
            stride: total / groups,
        },
        total,
        orientation: Orientation::Rows,
    }
}

fn heads(layer: &Layer) -> usize {
    match layer.mixer() {
        Some(Mixer::Attention(attention)) => attention.heads,
        Some(Mixer::Latent(latent)) => latent.heads,
        Some(Mixer::DeltaRule(delta)) => delta.key_heads,
        Some(Mixer::ShortConv(_) | Mixer::Mamba2(_)) | None => 1,
    }
}

pub(crate) fn bias_name(name: &str) -> String {
    match name.strip_suffix(".weight") {
        Some(module) => format!("{module}.bias"),
        None => format!("{name}_bias"),
    }
}

fn module_of(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(module, _)| module)
}

/// The first number between dots.
fn layer_number(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::Config;
    use crate::families;

    #[test]
    fn unused_keys_of_sharing_layers_are_ignored() {
        let config = json!({
            "model_type": "gemma4_text", "vocab_size": 32, "hidden_size": 16,
            "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 8, "global_head_dim": 16, "intermediate_size": 24,
            "max_position_embeddings": 64, "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 0, "layer_types": [
                "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            ],
        });
        let config = Config::parse(&config.to_string(), "config.json").unwrap();
        let described = families::from_config(&config).unwrap();
        let table = [
            ("model.layers.2.self_attn.k_proj.weight", true),
            ("model.layers.3.self_attn.v_proj.scales", true),
            ("model.layers.3.self_attn.k_norm.weight", true),
            ("model.layers.2.self_attn.q_proj.weight", false),
            ("model.layers.1.self_attn.k_proj.weight", false),
            ("model.layers.4.self_attn.k_proj.weight", false),
            ("other.layers.2.self_attn.k_proj.weight", false),
        ];
        for (name, ignored) in table {
            for naming in &described.namings {
                assert_eq!(naming.ignores(&described.spec, name), ignored, "{name}");
            }
        }
    }
}
