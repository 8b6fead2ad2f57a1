//! Which type each tensor gets: mlx-lm's and llama.cpp's own rules.

use loquat_spec::{FeedForward, Inner, LayerRole, ModelSpec, Role};
use loquat_weights::Dtype;
use loquat_weights::decode::MlxMode;
use serde_json::{Map, Value, json};

use crate::plan::{Content, Planned};
use crate::quantize::Encoding;
use crate::{Quant, Target};

/// What is asked for, and of which model.
pub(crate) struct Choice<'a> {
    pub target: Target,
    pub quant: Quant,
    pub spec: &'a ModelSpec,
    /// What plain tensors are stored as.
    pub float: Dtype,
}

/// A tensor's type, and what to say of it.
pub(crate) struct Chosen {
    pub encoding: Encoding,
    /// The rows do not divide into the type that the others have.
    pub fell_back: bool,
}

impl Choice<'_> {
    pub fn of(&self, planned: &Planned<'_>) -> Chosen {
        let chosen = match (self.target, self.quant) {
            (Target::Gguf, quant) => self.gguf(planned, quant),
            (_, Quant::Mlx(mode)) => self.mlx(planned, mode),
            _ => self.plain(),
        };
        chosen.unwrap_or(Chosen {
            encoding: Encoding::Plain(self.float),
            fell_back: true,
        })
    }

    fn plain(&self) -> Option<Chosen> {
        settled(Encoding::Plain(self.float))
    }

    /// `nn.Linear`, `nn.Embedding` and `SwitchLinear` are quantized, norms and vectors are not;
    /// some families have modules that keep more bits, or are none of these.
    fn mlx(&self, planned: &Planned<'_>, mode: MlxMode) -> Option<Chosen> {
        let plain_router = is_router(planned.role) && PLAIN_ROUTERS.contains(&self.spec.family);
        let is_module = planned.name.ends_with(".weight");
        if !matches!(planned.content, Content::Matrix(_)) || !is_module || plain_router {
            return self.plain();
        }
        let mode = if keeps_eight_bits(self.spec.family, planned.role) {
            eight_bits(planned.cols(), mode)
        } else {
            mode
        };
        let encoding = Encoding::Mlx {
            mode,
            float: self.float,
        };
        encoding.fits(planned.cols()).then(|| settled(encoding))?
    }

    fn gguf(&self, planned: &Planned<'_>, quant: Quant) -> Option<Chosen> {
        let full = Encoding::Plain(Dtype::F32);
        if stays_full(planned) {
            return settled(full);
        }
        let Quant::Blocks { dtype, mixture } = quant else {
            return self.plain();
        };
        if planned.role == Role::PerLayerProjection {
            return self.plain();
        }
        let wanted = self.block_type(planned, dtype, mixture);
        let cols = planned.cols();
        let fitting = [wanted, smaller_blocks(wanted), Dtype::F16]
            .into_iter()
            .find(|dtype| cols.is_multiple_of(dtype.block_len()))?;
        Some(Chosen {
            encoding: Encoding::Plain(fitting),
            fell_back: fitting != wanted,
        })
    }

    /// llama.cpp's choice: the head keeps more, and so do the tensors that matter most where a
    /// mixture is asked for.
    fn block_type(&self, planned: &Planned<'_>, dtype: Dtype, mixture: bool) -> Dtype {
        let is_head =
            planned.role == Role::Head || (planned.role == Role::Embedding && self.spec.head.tied);
        if is_head {
            return match planned.cols().is_multiple_of(dtype.block_len()) {
                false => Dtype::Q8_0,
                true if dtype == Dtype::Q8_0 => Dtype::Q8_0,
                true => Dtype::Q6K,
            };
        }
        let Role::Layer(layer, role) = planned.role else {
            return dtype;
        };
        use LayerRole::*;
        if planned.name.contains("attn_qkv") {
            return match (mixture, dtype) {
                (true, Dtype::Q4K) => Dtype::Q5K,
                (true, _) => Dtype::Q6K,
                (false, dtype) => dtype,
            };
        }
        // Few enough that they cost nothing beside eight experts.
        if matches!(role, Key | Value) && experts(self.spec) == Some(8) {
            return Dtype::Q8_0;
        }
        let matters = matches!(role, Value | Down | ExpertDown | SharedDown);
        if mixture && matters && more_bits(layer, self.spec.layers.len()) {
            Dtype::Q6K
        } else {
            dtype
        }
    }
}

fn settled(encoding: Encoding) -> Option<Chosen> {
    Some(Chosen {
        encoding,
        fell_back: false,
    })
}

/// Families whose routers are no `nn.Linear` in mlx-lm.
const PLAIN_ROUTERS: &[&str] = &[
    "afmoe",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "mimo_v2_flash",
    "nemotron_h",
];

/// Families whose `quant_predicate` gives routers eight bits.
const EIGHT_BIT_ROUTERS: &[&str] = &[
    "gemma4_text",
    "gpt_oss",
    "granitemoe",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2_moe",
    "minimax_m2",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
];

/// Families whose `quant_predicate` gives eight bits to what writes to the stream.
const EIGHT_BIT_OUTPUTS: &[&str] = &["granite", "granitemoe"];

fn is_router(role: Role) -> bool {
    matches!(
        role,
        Role::Layer(_, LayerRole::Router | LayerRole::SharedRouter)
    )
}

fn keeps_eight_bits(family: &str, role: Role) -> bool {
    use LayerRole::*;
    let output = matches!(
        role,
        Role::Head | Role::Layer(_, Output | Down | ExpertDown)
    );
    (is_router(role) && EIGHT_BIT_ROUTERS.contains(&family))
        || (output && EIGHT_BIT_OUTPUTS.contains(&family))
}

/// As mlx-lm's predicates ask, where the rows allow.
fn eight_bits(cols: usize, mode: MlxMode) -> MlxMode {
    let group = match (cols.is_multiple_of(64), mode) {
        (true, _) => 64,
        (false, MlxMode::Affine { group, .. }) => group,
        (false, _) => 32,
    };
    MlxMode::Affine { bits: 8, group }
}

/// The table that `config.json` gets, with the modules that differ.
pub(crate) fn mlx_table<'a>(
    mode: MlxMode,
    modules: impl Iterator<Item = (&'a str, Encoding)>,
) -> Map<String, Value> {
    let mut table = Map::new();
    table.insert("group_size".into(), json!(mode.group()));
    table.insert("bits".into(), json!(mode.bits()));
    table.insert("mode".into(), json!(mode.name()));
    for (module, encoding) in modules {
        if let Encoding::Mlx { mode: own, .. } = encoding
            && own != mode
        {
            let entry = json!({
                "group_size": own.group(), "bits": own.bits(), "mode": own.name(),
            });
            table.insert(module.to_owned(), entry);
        }
    }
    table
}

/// What llama.cpp reads as full floats only.
fn stays_full(planned: &Planned<'_>) -> bool {
    let matrix = matches!(planned.content, Content::Matrix(_));
    !matrix
        || planned.shape.len() < 2
        || is_router(planned.role)
        || planned.role == Role::Positions
        || !planned.name.ends_with(".weight")
        || planned.name.ends_with("_norm.weight")
}

/// What takes the place of a type whose blocks do not divide the rows.
fn smaller_blocks(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Q4K => Dtype::Q5_0,
        Dtype::Q5K => Dtype::Q5_1,
        Dtype::Q6K => Dtype::Q8_0,
        other => other,
    }
}

/// The first and the last eighth of the layers, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

fn experts(spec: &ModelSpec) -> Option<usize> {
    spec.branches().find_map(|(_, branch)| match &branch.inner {
        Inner::FeedForward(FeedForward::Experts(experts)) => Some(experts.count),
        _ => None,
    })
}

/// llama.cpp's number for a file of mostly this type.
pub(crate) fn file_type(quant: Quant, float: Dtype) -> u32 {
    match quant {
        Quant::Blocks { dtype, mixture } => match (dtype, mixture) {
            (Dtype::Q4_0, _) => 2,
            (Dtype::Q4_1, _) => 3,
            (Dtype::Q8_0, _) => 7,
            (Dtype::Q5_0, _) => 8,
            (Dtype::Q5_1, _) => 9,
            (Dtype::Q4K, false) => 14,
            (Dtype::Q4K, true) => 15,
            (Dtype::Q5K, false) => 16,
            (Dtype::Q5K, true) => 17,
            _ => 18,
        },
        Quant::Plain(_) | Quant::Mlx(_) => match float {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            _ => 32,
        },
    }
}
