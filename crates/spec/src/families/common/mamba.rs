//! Mamba-2 in configs and headers.

use super::fields::even_split;
use super::gguf::gguf_any_layer;
use super::recurrent::gguf_inner_split;
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::{Mamba2, MambaNorm};
use crate::model::Norm;

/// The fields of Mamba-2's numbers, by family.
pub(crate) struct MambaFields {
    pub heads: &'static str,
    pub head_dim: &'static str,
    pub groups: &'static str,
    pub state: &'static str,
    pub kernel: &'static str,
    pub conv_bias: &'static str,
    pub projection_bias: &'static str,
}

/// For families with other mixers too.
pub(crate) const MAMBA_FIELDS: MambaFields = MambaFields {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    kernel: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
    projection_bias: "mamba_proj_bias",
};

impl MambaFields {
    /// Without a norm; `inner` is the heads' total size if the config does not give a head's.
    pub fn read(&self, config: &Config, inner: usize) -> Result<Mamba2, SpecError> {
        let heads = config.usize(self.heads)?;
        let left_open = config.get(self.head_dim).is_none_or(|dim| dim == "auto");
        let step_limits = match config.f64s("time_step_limit", 2)?.as_deref() {
            Some([least, most]) => (*least as f32, *most as f32),
            _ => (0.0, f32::INFINITY),
        };
        Ok(Mamba2 {
            heads,
            head_dim: if left_open {
                even_split("the mixer's width", inner, self.heads, heads)?
            } else {
                config.usize(self.head_dim)?
            },
            groups: config.usize(self.groups)?,
            state: config.usize(self.state)?,
            kernel: config.usize_or(self.kernel, 4)?,
            conv_bias: config.bool_or(self.conv_bias, true)?,
            projection_bias: config.bool_or(self.projection_bias, false)?,
            norm: MambaNorm::None,
            step_limits,
            scales: [1.0; 5],
        })
    }
}

/// llama.cpp's Mamba-2: an optional norm over each group after the gate, and no limits on the
/// step.
pub(crate) fn gguf_mamba2(
    config: &GgufConfig,
    layers: usize,
    eps: f32,
) -> Result<Mamba2, SpecError> {
    let heads = config.usize("ssm.time_step_rank")?;
    let groups = config.usize("ssm.group_count")?;
    let norm = Norm::rms(eps);
    Ok(Mamba2 {
        heads,
        head_dim: gguf_inner_split(config, heads)?,
        groups,
        state: config.usize("ssm.state_size")?,
        kernel: config.usize("ssm.conv_kernel")?,
        conv_bias: gguf_any_layer(config, layers, "ssm_conv1d.bias"),
        projection_bias: gguf_any_layer(config, layers, "ssm_in.bias"),
        norm: if gguf_any_layer(config, layers, "ssm_norm.weight") {
            MambaNorm::AfterGate { norm, groups }
        } else {
            MambaNorm::None
        },
        step_limits: (0.0, f32::INFINITY),
        scales: [1.0; 5],
    })
}
