//! What checkpoints call the tensors of a tower.

use crate::naming::{Layout, Orientation, RowMap, Slot, Transform, bias_name};
use crate::roles::{Kind, LayerRole, Role};
use crate::vision::{ProjectorStep, VisionSpec};
use crate::vision_roles::{BlockHalf, ClampBound, StepTensor, VisionRole};

/// Names of a tower's tensors, after [`VisionNaming::canonical_name`].
#[derive(Debug, Clone, Copy)]
pub struct VisionNaming {
    /// Weights outside of layers. A bias has the name of its weight.
    pub globals: &'static [(VisionRole, &'static str)],
    /// The prefix of a layer's names; `{}` is the layer's number.
    pub layers: &'static str,
    pub layer: &'static [(LayerRole, &'static str)],
    /// One tensor with queries, keys and values.
    pub fused_qkv: Option<&'static str>,
    /// Of attention and feed-forward.
    pub gains: [&'static str; 2],
    /// The projector's learned steps in order, and those that a config leaves out.
    pub projector: &'static [StepName],
    /// The same for further projectors; `{}` is the number.
    pub deepstack: &'static [StepName],
    /// Further projectors are numbered by the layers that they follow, instead of in sequence.
    pub deepstack_by_layer: bool,
    /// The projector's norms are stored as `weight - 1`.
    pub norms_minus_one: bool,
    /// Tensors that need not be read: those of layers after the last, and names with these
    /// beginnings.
    pub ignored: &'static [&'static str],
}

/// What a checkpoint calls a projector's learned step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepName {
    /// The module of a norm.
    Norm(&'static str),
    /// The module of a matrix.
    Matrix(&'static str),
    /// The tensor of a matrix that is stored transposed.
    Transposed(&'static str),
    /// The prefix of `_bias` and `_scale`.
    Standardize(&'static str),
    /// The tensors of a gated feed-forward: gate, up and down.
    Gated([&'static str; 3]),
}

impl StepName {
    fn fits(self, step: &ProjectorStep) -> bool {
        match step {
            ProjectorStep::Norm(_) => matches!(self, Self::Norm(_)),
            ProjectorStep::Standardize => matches!(self, Self::Standardize(_)),
            ProjectorStep::Gated(_) => matches!(self, Self::Gated(_)),
            _ => matches!(self, Self::Matrix(_) | Self::Transposed(_)),
        }
    }

    fn tensor(self, tensor: StepTensor) -> String {
        match (self, tensor) {
            (Self::Standardize(prefix), StepTensor::Bias) => format!("{prefix}_bias"),
            (Self::Standardize(prefix), _) => format!("{prefix}_scale"),
            (Self::Gated([gate, ..]), StepTensor::Gate) => gate.to_owned(),
            (Self::Gated([_, up, _]), StepTensor::Up) => up.to_owned(),
            (Self::Gated([.., down]), _) => down.to_owned(),
            (Self::Transposed(name), StepTensor::Bias) => bias_name(name),
            (Self::Transposed(name), _) => name.to_owned(),
            (Self::Norm(module) | Self::Matrix(module), StepTensor::Bias) => {
                format!("{module}.bias")
            }
            (Self::Norm(module) | Self::Matrix(module), _) => format!("{module}.weight"),
        }
    }
}

/// The name of a tensor of the vision part, without the prefixes that differ between versions of
/// transformers. `None` for tensors of other parts.
pub fn canonical_name(name: &str) -> Option<String> {
    const ROOTS: [&str; 7] = [
        "vision_tower.",
        "vision_model.",
        "visual.",
        "multi_modal_projector.",
        "connector.",
        "embed_vision.",
        "image_newline",
    ];
    let bare = name.strip_prefix("model.").unwrap_or(name);
    let bare = bare.strip_prefix("vlm.").unwrap_or(bare);
    if !ROOTS.iter().any(|root| bare.starts_with(root)) {
        return None;
    }
    Some(match bare.strip_prefix("vision_tower.") {
        Some(rest) => {
            let rest = rest.strip_prefix("vision_model.").unwrap_or(rest);
            format!("vision_tower.{rest}")
        }
        None => bare.to_owned(),
    })
}

impl VisionNaming {
    /// The name that a tensor of the vision part has here, whichever tool wrote it. `None` for
    /// tensors of other parts.
    pub fn canonical_name(&self, name: &str) -> Option<String> {
        let name = canonical_name(name)?;
        // mlx-vlm calls every tower the same.
        match name.strip_prefix("vision_tower.") {
            Some(rest) if self.layers.starts_with("visual.") => Some(format!("visual.{rest}")),
            _ => Some(name),
        }
    }

    /// Every tensor that the vision part needs.
    pub fn slots(&self, vision: &VisionSpec, text_hidden: usize) -> Vec<Slot> {
        let roles = vision.roles(text_hidden).into_iter();
        roles
            .map(|(role, kind)| self.slot(vision, role, kind))
            .collect()
    }

    /// Whether a tensor without a role may be ignored.
    pub fn ignores(&self, vision: &VisionSpec, name: &str) -> bool {
        if name.ends_with(".position_ids") || name.ends_with("inv_freq") {
            return true;
        }
        if self.ignored.iter().any(|start| name.starts_with(start)) {
            return true;
        }
        let (before, after) = self.layers.split_once("{}").unwrap_or((self.layers, ""));
        let number = name
            .strip_prefix(before)
            .and_then(|rest| rest.split_once(after.get(..1).unwrap_or(".")))
            .and_then(|(number, _)| number.parse::<usize>().ok());
        number.is_some_and(|layer| layer >= vision.layers.len())
    }

    fn slot(&self, vision: &VisionSpec, role: VisionRole, kind: Kind) -> Slot {
        let mut layout = Layout::whole(kind);
        let name = match role {
            VisionRole::Layer(layer, of_layer) => {
                let prefix = self.layer_prefix(layer);
                let base = of_layer.biased().unwrap_or(of_layer);
                let part = [LayerRole::Query, LayerRole::Key, LayerRole::Value]
                    .iter()
                    .position(|part| *part == base);
                let name = match (self.fused_qkv, part) {
                    (Some(fused), Some(part)) => {
                        layout = fused_part(vision, kind, part);
                        fused
                    }
                    _ => self.listed(base),
                };
                let name = format!("{prefix}{name}");
                if of_layer == base {
                    name
                } else {
                    bias_name(&name)
                }
            }
            VisionRole::Gain(layer, half) => {
                let index = usize::from(half == BlockHalf::FeedForward);
                self.layer_prefix(layer) + self.gains[index]
            }
            VisionRole::Clamp(layer, of_layer, bound) => {
                let module = self.listed(of_layer);
                let module = module.trim_end_matches(".weight");
                let module = module.trim_end_matches(".linear");
                let bound = match bound {
                    ClampBound::InputMin => "input_min",
                    ClampBound::InputMax => "input_max",
                    ClampBound::OutputMin => "output_min",
                    ClampBound::OutputMax => "output_max",
                };
                format!("{}{module}.{bound}", self.layer_prefix(layer))
            }
            VisionRole::Step {
                projector,
                step,
                tensor,
            } => {
                let (name, number) = self.step_name(vision, projector, step);
                if matches!(name, Some(StepName::Transposed(_))) && tensor == StepTensor::Weight {
                    layout.orientation = Orientation::Columns;
                }
                let name = name.map(|name| name.tensor(tensor)).unwrap_or_default();
                name.replace("{}", &number.to_string())
            }
            VisionRole::PatchBias => bias_name(self.global(VisionRole::Patch)),
            VisionRole::PatchNormBias => bias_name(self.global(VisionRole::PatchNorm)),
            VisionRole::EmbeddingNormBias => bias_name(self.global(VisionRole::EmbeddingNorm)),
            VisionRole::FinalNormBias => bias_name(self.global(VisionRole::FinalNorm)),
            role => self.global(role).to_owned(),
        };
        Slot {
            role: Role::Vision(role),
            kind,
            names: vec![name],
            layout,
            transform: if self.norms_minus_one && is_step_norm(vision, role) {
                Transform::AddOne
            } else {
                Transform::None
            },
        }
    }

    fn layer_prefix(&self, layer: usize) -> String {
        self.layers.replace("{}", &layer.to_string())
    }

    fn listed(&self, role: LayerRole) -> &'static str {
        let mut names = self.layer.iter();
        names
            .find(|(of, _)| *of == role)
            .map_or("", |(_, name)| name)
    }

    fn global(&self, role: VisionRole) -> &'static str {
        let mut names = self.globals.iter();
        names
            .find(|(of, _)| *of == role)
            .map_or("", |(_, name)| name)
    }

    /// The name of a projector's step, and the number of the projector.
    fn step_name(
        &self,
        vision: &VisionSpec,
        projector: usize,
        step: usize,
    ) -> (Option<StepName>, usize) {
        let Some(index) = projector.checked_sub(1) else {
            return (name_of(&vision.projector.steps, self.projector, step), 0);
        };
        let stacked = &vision.deepstack[index];
        let number = if self.deepstack_by_layer {
            stacked.after
        } else {
            index
        };
        (
            name_of(&stacked.projector.steps, self.deepstack, step),
            number,
        )
    }
}

fn name_of(steps: &[ProjectorStep], names: &[StepName], step: usize) -> Option<StepName> {
    let mut rest = names.iter();
    let mut found = None;
    for step in steps[..=step].iter().filter(|step| step.is_learned()) {
        found = rest.find(|name| name.fits(step)).copied();
    }
    found
}

fn is_step_norm(vision: &VisionSpec, role: VisionRole) -> bool {
    match role {
        VisionRole::Step {
            projector: 0,
            step,
            tensor: StepTensor::Weight,
        } => matches!(vision.projector.steps[step], ProjectorStep::Norm(_)),
        _ => false,
    }
}

/// Queries, keys and values one after another.
fn fused_part(vision: &VisionSpec, kind: Kind, part: usize) -> Layout {
    let rows = vision.block.heads * vision.block.head_dim;
    Layout {
        rows: RowMap {
            first: part * rows,
            block: rows.max(1),
            stride: rows,
        },
        total: 3 * rows,
        ..Layout::whole(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::{VisionNaming, canonical_name};

    #[test]
    fn names_of_all_versions_are_one() {
        let table = [
            (
                "vision_tower.vision_model.encoder.x",
                Some("vision_tower.encoder.x"),
            ),
            (
                "model.vision_tower.vision_model.encoder.x",
                Some("vision_tower.encoder.x"),
            ),
            (
                "model.vision_tower.encoder.x",
                Some("vision_tower.encoder.x"),
            ),
            (
                "vision_tower.patch_embedder.x",
                Some("vision_tower.patch_embedder.x"),
            ),
            ("model.visual.blocks.0.x", Some("visual.blocks.0.x")),
            ("visual.merger.x", Some("visual.merger.x")),
            (
                "model.multi_modal_projector.x",
                Some("multi_modal_projector.x"),
            ),
            (
                "vision_model.model.layers.0.x",
                Some("vision_model.model.layers.0.x"),
            ),
            ("model.connector.x", Some("connector.x")),
            ("image_newline", Some("image_newline")),
            ("model.language_model.layers.0.x", None),
            ("audio_tower.x", None),
            ("lm_head.weight", None),
        ];
        for (name, expected) in table {
            assert_eq!(canonical_name(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn tower_of_mlx_vlm_has_the_familys_name() {
        let naming = |layers| VisionNaming {
            globals: &[],
            layers,
            layer: &[],
            fused_qkv: None,
            gains: [""; 2],
            projector: &[],
            deepstack: &[],
            norms_minus_one: false,
            ignored: &[],
            deepstack_by_layer: false,
        };
        let (visual, plain) = (
            naming("visual.blocks.{}."),
            naming("vision_tower.encoder.layers.{}."),
        );
        for name in [
            "vision_tower.post_layernorm.x",
            "model.visual.post_layernorm.x",
        ] {
            let found = visual.canonical_name(name);
            assert_eq!(found.as_deref(), Some("visual.post_layernorm.x"), "{name}");
        }
        let found = plain.canonical_name("vision_tower.vision_model.post_layernorm.x");
        assert_eq!(found.as_deref(), Some("vision_tower.post_layernorm.x"));
        assert_eq!(visual.canonical_name("lm_head.weight"), None);
    }
}
