//! Writes a model's spec as a format's metadata, and checks that it reads back as the same model.

pub(crate) mod config;
pub(crate) mod gguf;
pub(crate) mod mlx;
mod rope;
mod summary;

use loquat_spec::{Mixer, ModelSpec, Rope, RopePairs, RopeScaling};

pub(crate) use rope::{config_scaling, factors_as_tensors};

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

/// The spec without what differs between formats: the family's name, rope's pairs, and whether
/// divisors are stored or computed.
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

/// An error with the first difference, if the metadata reads back as another model.
pub(crate) fn same(
    target: &'static str,
    expected: &ModelSpec,
    read: &ModelSpec,
) -> Result<(), ConvertError> {
    let (expected, read) = (essence(expected), essence(read));
    if expected == read {
        return Ok(());
    }
    let (expected, read) = (format!("{expected:#?}"), format!("{read:#?}"));
    let difference = expected.lines().zip(read.lines()).find(|(a, b)| a != b);
    let (expected, read) = difference.unwrap_or(("fewer layers", "more"));
    Err(ConvertError::Differs {
        target,
        why: format!("`{}` instead of `{}`", read.trim(), expected.trim()),
    })
}
