use crate::config::Config;
use crate::error::SpecError;

/// Rotary position embedding over the first `dims` values of a head, pairing value `i` with
/// value `i + dims / 2`. Checkpoints that store interleaved pairs are unpermuted when bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f32,
    pub dims: usize,
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context: usize,
    },
    /// Divisors per frequency, carried by the checkpoint as [`crate::Role::RopeFactors`].
    Tensor,
}

impl Rope {
    pub fn plain(theta: f32, dims: usize) -> Self {
        Self {
            theta,
            dims,
            scaling: RopeScaling::None,
        }
    }

    /// Angle per position for each of the `dims / 2` pairs, so that every backend rotates by
    /// the same numbers. `tensor_factors` answers for [`RopeScaling::Tensor`].
    pub fn frequencies(&self, tensor_factors: Option<&[f32]>) -> Vec<f32> {
        (0..self.dims / 2)
            .map(|i| {
                let exponent = (2 * i) as f64 / self.dims as f64;
                let base = f64::from(self.theta).powf(-exponent);
                let factor = tensor_factors.and_then(|f| f.get(i)).copied();
                self.scale(base, factor) as f32
            })
            .collect()
    }

    fn scale(&self, base: f64, tensor_factor: Option<f32>) -> f64 {
        match self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base / f64::from(factor),
            RopeScaling::Tensor => base / f64::from(tensor_factor.unwrap_or(1.0)),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let turns = original_context as f64 * base / std::f64::consts::TAU;
                if turns < low {
                    base / f64::from(factor)
                } else if turns > high {
                    base
                } else {
                    let smooth = (turns - low) / (high - low);
                    (1.0 - smooth) * base / f64::from(factor) + smooth * base
                }
            }
        }
    }

    /// Reads rope from a config in either style: `rope_parameters` (transformers 5), or
    /// `rope_theta` and `rope_scaling` (older). `group` picks one of the per-layer-type tables
    /// some families nest inside `rope_parameters`.
    pub(crate) fn from_config(
        config: &Config,
        group: Option<&str>,
        default_theta: f64,
        head_dim: usize,
    ) -> Result<Self, SpecError> {
        let parameters = match config.object("rope_parameters")? {
            Some(table) => Some(match group {
                Some(group) => table.object(group)?.ok_or_else(|| SpecError::Missing {
                    field: table.path(group),
                })?,
                None => table,
            }),
            None => None,
        };
        let (theta, scaling) = match &parameters {
            Some(table) => (
                table.f64_or("rope_theta", default_theta)?,
                parameters.clone(),
            ),
            None => (
                config.f64_or("rope_theta", default_theta)?,
                config.object("rope_scaling")?,
            ),
        };
        let partial = match &parameters {
            Some(table) => table.f64_or("partial_rotary_factor", 1.0)?,
            None => config.f64_or("partial_rotary_factor", 1.0)?,
        };
        let scaling = match scaling {
            Some(table) => RopeScaling::from_config(&table)?,
            None => RopeScaling::None,
        };
        Ok(Self {
            theta: theta as f32,
            dims: (head_dim as f64 * partial) as usize,
            scaling,
        })
    }
}

impl RopeScaling {
    fn from_config(table: &Config) -> Result<Self, SpecError> {
        // Older configs say `type`; newer ones may carry both.
        let field = ["rope_type", "type"]
            .into_iter()
            .find(|field| table.get(field).is_some())
            .unwrap_or("rope_type");
        let Some(kind) = table.str(field)? else {
            // A factor without a kind would be scaling that we leave out.
            return match table.get("factor") {
                Some(_) => Err(SpecError::Missing {
                    field: table.path(field),
                }),
                None => Ok(Self::None),
            };
        };
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear {
                factor: table.f64("factor")? as f32,
            }),
            "llama3" => Ok(Self::Llama3 {
                factor: table.f64("factor")? as f32,
                low_freq_factor: table.f64("low_freq_factor")? as f32,
                high_freq_factor: table.f64("high_freq_factor")? as f32,
                original_context: table.usize("original_max_position_embeddings")?,
            }),
            other => Err(SpecError::Unsupported {
                field: table.path(field),
                found: format!("`{other}`"),
                supported: "default, linear, llama3",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_high_divides_low_and_ramps_between() {
        let rope = Rope {
            theta: 500_000.0,
            dims: 128,
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 8192,
            },
        };
        let plain = Rope::plain(500_000.0, 128).frequencies(None);
        let scaled = rope.frequencies(None);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        // Pair 31 turns 8192 * 500000^(-62/128) / tau = 2.26 times: between 1 and 4.
        assert!(scaled[31] < plain[31] && scaled[31] > plain[31] / 8.0);
    }

    #[test]
    fn tensor_factors_divide() {
        let rope = Rope {
            scaling: RopeScaling::Tensor,
            ..Rope::plain(10_000.0, 4)
        };
        assert_eq!(rope.frequencies(Some(&[1.0, 4.0])), [1.0, 0.01 / 4.0]);
    }
}
