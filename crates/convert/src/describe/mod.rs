//! A model's spec in the words of a format, and the proof that the format's reader takes them as
//! meant.

pub(crate) mod config;
pub(crate) mod gguf;
pub(crate) mod mlx;
mod rope;
mod summary;

use loquat_spec::{Mixer, ModelSpec, Rope, RopePairs, RopeScaling};

pub(crate) use rope::{carried_factors, config_scaling};

use crate::ConvertError;

/// All ropes of a spec.
fn each_rope(spec: &mut ModelSpec, mut change: impl FnMut(&mut Rope)) {
    let blocks = spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks);
    for branch in blocks.flat_map(|block| &mut block.branches) {
        if let loquat_spec::Inner::Mixer(mixer) = &mut branch.inner {
            let rope = match mixer {
                Mixer::Attention(attention) => attention.rope.as_mut(),
                Mixer::Latent(latent) => latent.rope.as_mut(),
                Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
            };
            rope.into_iter().for_each(&mut change);
        }
    }
}

/// The spec without what formats say differently of the same model: its family's name, how
/// rope's values stand in a head, and whether divisors are given or computed.
fn essence(spec: &ModelSpec) -> ModelSpec {
    let mut spec = spec.clone();
    spec.family = "";
    each_rope(&mut spec, |rope| {
        rope.pairs = RopePairs::Halves;
        rope.scaling = match &rope.scaling {
            RopeScaling::Llama3 { .. } => RopeScaling::Tensor,
            RopeScaling::LongRope {
                original_context,
                attention_factor,
                ..
            } => RopeScaling::LongTensor {
                original_context: *original_context,
                attention_factor: *attention_factor,
            },
            other => other.clone(),
        };
    });
    spec
}

/// Refuses, saying where, if what was written reads as another model.
pub(crate) fn same(
    target: &'static str,
    wanted: &ModelSpec,
    read: &ModelSpec,
) -> Result<(), ConvertError> {
    let (wanted, read) = (essence(wanted), essence(read));
    if wanted == read {
        return Ok(());
    }
    let (wanted, read) = (format!("{wanted:#?}"), format!("{read:#?}"));
    let apart = wanted.lines().zip(read.lines()).find(|(a, b)| a != b);
    let (wanted, read) = apart.unwrap_or(("fewer layers", "more"));
    Err(ConvertError::Differs {
        target,
        why: format!("`{}` where the model has `{}`", read.trim(), wanted.trim()),
    })
}
