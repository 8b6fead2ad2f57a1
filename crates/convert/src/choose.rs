//! The type of each tensor, by mlx-lm's and llama.cpp's rules.

use loquat_spec::{FeedForward, Inner, LayerRole, ModelSpec, Role, RouterPrecision};
use loquat_weights::Dtype;
use loquat_weights::decode::MlxMode;
use serde_json::{Map, Value, json};

use crate::plan::{Content, Planned};
use crate::quantize::Encoding;
use crate::{Quant, Target};

/// What the type of a tensor depends on.
pub(crate) struct Choice<'a> {
    pub target: Target,
    pub quant: Quant,
    pub spec: &'a ModelSpec,
    /// The type of plain tensors.
    pub float: Dtype,
}

/// A tensor's type.
pub(crate) struct Chosen {
    pub encoding: Encoding,
    /// The requested type does not divide the rows.
    pub fell_back: bool,
}

impl Choice<'_> {
    pub fn encoding(&self, planned: &Planned<'_>) -> Chosen {
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
        let is_module = planned.name.ends_with(".weight");
        if !matches!(planned.content, Content::Matrix(_)) || !is_module {
            return self.plain();
        }
        let facts = &self.spec.facts().mlx;
        let router = facts.router.filter(|_| is_router(planned.role));
        let mode = match router {
            Some(RouterPrecision::Unquantized) => return self.plain(),
            Some(RouterPrecision::EightBits) => eight_bits(planned.cols(), mode),
            _ if facts.eight_bit_outputs && is_output(planned.role) => {
                eight_bits(planned.cols(), mode)
            }
            Some(RouterPrecision::Uniform) | None => mode,
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
        let requested = self.block_type(planned, dtype, mixture);
        let cols = planned.cols();
        let fitting = [requested, smaller_blocks(requested), Dtype::F16]
            .into_iter()
            .find(|dtype| cols.is_multiple_of(dtype.block_len()))?;
        Some(Chosen {
            encoding: Encoding::Plain(fitting),
            fell_back: fitting != requested,
        })
    }

    /// llama.cpp's choice: the head keeps more bits and, in a mixture, so do the most important
    /// tensors.
    fn block_type(&self, planned: &Planned<'_>, dtype: Dtype, mixture: bool) -> Dtype {
        let is_head =
            planned.role == Role::Head || (planned.role == Role::Embedding && self.spec.head.tied);
        if is_head {
            let divides = planned.cols().is_multiple_of(dtype.block_len());
            return if divides && dtype != Dtype::Q8_0 {
                Dtype::Q6K
            } else {
                Dtype::Q8_0
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
        // Small compared with eight experts.
        if matches!(role, Key | Value) && experts(self.spec) == Some(8) {
            return Dtype::Q8_0;
        }
        let important = matches!(role, Value | Down | ExpertDown | SharedDown);
        if mixture && important && more_bits(layer, self.spec.layers.len()) {
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

fn is_router(role: Role) -> bool {
    matches!(
        role,
        Role::Layer(_, LayerRole::Router | LayerRole::SharedRouter)
    )
}

/// Whether the role writes to the residual stream or to the logits.
fn is_output(role: Role) -> bool {
    use LayerRole::*;
    matches!(
        role,
        Role::Head | Role::Layer(_, Output | Down | ExpertDown)
    )
}

/// Eight bits as in mlx-lm's predicates, if the group divides the rows.
fn eight_bits(cols: usize, mode: MlxMode) -> MlxMode {
    let group = match (cols.is_multiple_of(64), mode) {
        (true, _) => 64,
        (false, MlxMode::Affine { group, .. }) => group,
        (false, _) => 32,
    };
    MlxMode::Affine { bits: 8, group }
}

/// Why the model cannot be quantized like mlx-lm does, if its family's row does not say how routers
/// are quantized.
pub(crate) fn unlisted_router(spec: &ModelSpec) -> Option<&'static str> {
    let unlisted = spec.has_experts() && spec.facts().mlx.router.is_none();
    unlisted.then_some("how mlx-lm quantizes its routers is unknown")
}

/// The `quantization` table of `config.json`, with the modules that differ.
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

/// Tensors that llama.cpp reads only as full floats.
fn stays_full(planned: &Planned<'_>) -> bool {
    let matrix = matches!(planned.content, Content::Matrix(_));
    !matrix
        || planned.shape.len() < 2
        || is_router(planned.role)
        || planned.role == Role::Positions
        || !planned.name.ends_with(".weight")
        || planned.name.ends_with("_norm.weight")
}

/// The fallback for a type whose blocks do not divide the rows.
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

#[cfg(test)]
mod tests {
    use loquat_testkit::goldens;

    use super::*;

    #[test]
    fn unlisted_expert_family_is_refused() {
        let open = |name| goldens::source(&goldens::family(name)).unwrap().spec;
        for (name, refused) in [("mixtral", true), ("llama", false)] {
            let mut spec = ModelSpec::clone(&open(name));
            assert_eq!(unlisted_router(&spec), None, "{name}");
            spec.family = "unlisted";
            assert_eq!(unlisted_router(&spec).is_some(), refused, "{name}");
        }
    }
}
