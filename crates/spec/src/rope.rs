use std::f64::consts::TAU;

use crate::config::Config;
use crate::error::SpecError;
use crate::roles::Role;
use crate::validate::MAX_HEAD_DIM;

/// Rotary position embedding over the first `dims` values of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f32,
    pub dims: usize,
    pub pairs: RopePairs,
    pub scaling: RopeScaling,
    /// Positions have three axes. `None`: one.
    pub sections: Option<RopeSections>,
}

/// Which pairs rotate by the frame, which by the row, and which by the column. The three are equal
/// at positions of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeSections {
    /// Pairs of each axis.
    pub counts: [usize; 3],
    pub order: SectionOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectionOrder {
    /// One axis after another.
    Sequential,
    /// Frame, row, column in turn, as long as an axis has pairs; the rest rotate by the frame.
    Alternating,
}

impl RopeSections {
    /// The axis of a pair: 0 frame, 1 row, 2 column.
    pub fn axis(&self, pair: usize) -> usize {
        let [frame, row, column] = self.counts;
        match self.order {
            SectionOrder::Sequential if pair < frame => 0,
            SectionOrder::Sequential if pair < frame + row => 1,
            SectionOrder::Sequential => 2,
            SectionOrder::Alternating if pair % 3 == 1 && pair < 3 * row => 1,
            SectionOrder::Alternating if pair % 3 == 2 && pair < 3 * column => 2,
            SectionOrder::Alternating => 0,
        }
    }

    fn from_config(table: &Config, pairs: usize) -> Result<Option<Self>, SpecError> {
        let field = "mrope_section";
        let Some(counts) = table.f64s(field, 3)? else {
            return Ok(None);
        };
        let counts = [counts[0], counts[1], counts[2]].map(|count| count as usize);
        let sum = counts.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        if sum != pairs {
            let expected = format!("three numbers that add up to {pairs}, the rotated pairs");
            return Err(SpecError::invalid(table.path(field), sum, expected));
        }
        let alternating = table.bool_or("mrope_interleaved", false)?;
        Ok(Some(Self {
            counts,
            order: if alternating {
                SectionOrder::Alternating
            } else {
                SectionOrder::Sequential
            },
        }))
    }
}

/// Which two values rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Value `i` and value `i + dims / 2`.
    Halves,
    /// Values `2i` and `2i + 1`.
    Interleaved,
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
    Yarn(Yarn),
    /// Divisors per pair; the long ones if the session's context is above `original_context`. A
    /// session chooses once: otherwise a sequence that grows past the limit would mix keys of both
    /// kinds.
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
        original_context: usize,
        attention_factor: f32,
    },
    /// Only the first `rotating` pairs rotate, with the frequencies they have among all `dims / 2`.
    Proportional {
        rotating: usize,
        factor: f32,
    },
    /// Divisors per pair, stored in the checkpoint as [`Role::RopeFactors`].
    Tensor,
    /// [`RopeScaling::LongRope`] whose divisors the checkpoint stores as
    /// [`Role::RopeFactorsShort`] and [`Role::RopeFactorsLong`].
    LongTensor {
        original_context: usize,
        attention_factor: f32,
    },
}

/// High frequencies are kept, low ones divided by `factor`, with a ramp between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    pub factor: f32,
    pub beta_fast: f32,
    pub beta_slow: f32,
    pub original_context: usize,
    /// The ramp's ends are rounded to whole pairs.
    pub truncate: bool,
    /// Multiplies sines and cosines.
    pub attention_factor: f32,
}

impl Rope {
    /// With sections in turn instead of one after another, if there are any.
    pub(crate) fn with_alternating_sections(mut self) -> Self {
        if let Some(sections) = &mut self.sections {
            sections.order = SectionOrder::Alternating;
        }
        self
    }

    pub fn plain(theta: f32, dims: usize) -> Self {
        Self {
            theta,
            dims,
            pairs: RopePairs::Halves,
            scaling: RopeScaling::None,
            sections: None,
        }
    }

    pub fn interleaved(self) -> Self {
        Self {
            pairs: RopePairs::Interleaved,
            ..self
        }
    }

    /// Angle per position for each of the `dims / 2` pairs, so that every backend rotates by
    /// the same numbers, in a session of at most `context` tokens. `tensor` looks up the divisors
    /// in the checkpoint.
    pub fn frequencies<'w>(
        &self,
        context: usize,
        tensor: impl Fn(Role) -> Option<&'w [f32]>,
    ) -> Vec<f32> {
        let divisors = self.divisors(context);
        let divisors = match (&self.scaling, divisors) {
            (RopeScaling::LongRope { short, long, .. }, Some(role)) => {
                if role == Role::RopeFactorsLong {
                    long
                } else {
                    short
                }
            }
            (_, Some(role)) => tensor(role).unwrap_or_default(),
            (_, None) => &[],
        };
        (0..self.dims / 2)
            .map(|i| {
                let exponent = (2 * i) as f64 / self.dims as f64;
                let base = f64::from(self.theta).powf(-exponent);
                let divided = base / f64::from(divisors.get(i).copied().unwrap_or(1.0));
                let scaled = match &self.scaling {
                    RopeScaling::None => base,
                    RopeScaling::Linear { factor } => base / f64::from(*factor),
                    RopeScaling::Tensor
                    | RopeScaling::LongRope { .. }
                    | RopeScaling::LongTensor { .. } => divided,
                    RopeScaling::Llama3 { .. } => self.llama3(base),
                    RopeScaling::Yarn(yarn) => {
                        let interpolated = base / f64::from(yarn.factor);
                        let kept = 1.0 - yarn.ramp(i, self);
                        interpolated * (1.0 - kept) + base * kept
                    }
                    RopeScaling::Proportional { rotating, factor } => {
                        if i < *rotating {
                            base / f64::from(*factor)
                        } else {
                            0.0
                        }
                    }
                };
                scaled as f32
            })
            .collect()
    }

    /// The role of the divisors in a session of at most `context` tokens.
    fn divisors(&self, context: usize) -> Option<Role> {
        match self.scaling {
            RopeScaling::Tensor => Some(Role::RopeFactors),
            RopeScaling::LongRope {
                original_context, ..
            }
            | RopeScaling::LongTensor {
                original_context, ..
            } => Some(if context > original_context {
                Role::RopeFactorsLong
            } else {
                Role::RopeFactorsShort
            }),
            _ => None,
        }
    }

    /// Multiplies the sines and cosines.
    pub fn attention_factor(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            RopeScaling::LongRope {
                attention_factor, ..
            }
            | RopeScaling::LongTensor {
                attention_factor, ..
            } => *attention_factor,
            _ => 1.0,
        }
    }

    fn llama3(&self, base: f64) -> f64 {
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } = self.scaling
        else {
            return base;
        };
        let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
        let turns = original_context as f64 * base / TAU;
        if turns < low {
            base / f64::from(factor)
        } else if turns > high {
            base
        } else {
            let smooth = (turns - low) / (high - low);
            (1.0 - smooth) * base / f64::from(factor) + smooth * base
        }
    }

    /// Reads rope from a config in either style: `rope_parameters` (transformers 5), or
    /// `rope_theta` and `rope_scaling` (older). `group` picks one of the per-layer-type tables
    /// some families nest inside `rope_parameters`.
    ///
    /// For families that rotate whole heads; see [`Rope::partial_from_config`] for the others.
    pub(crate) fn from_config(
        config: &Config,
        group: Option<&str>,
        default_theta: f64,
        head_dim: usize,
    ) -> Result<Self, SpecError> {
        let rope = Self::partial_from_config(config, group, default_theta, head_dim)?;
        if rope.dims == head_dim {
            return Ok(rope);
        }
        Err(SpecError::Unsupported {
            field: config.path("partial_rotary_factor"),
            found: format!("{} of {head_dim}", rope.dims),
            supported: "1, the whole head, in this family",
        })
    }

    /// The same over the part of a head given by `partial_rotary_factor`.
    pub(crate) fn partial_from_config(
        config: &Config,
        group: Option<&str>,
        default_theta: f64,
        head_dim: usize,
    ) -> Result<Self, SpecError> {
        // Checked here because every layer gets a copy of the factors.
        if head_dim > MAX_HEAD_DIM {
            return Err(SpecError::invalid(
                "head_dim",
                head_dim,
                format!("at most {MAX_HEAD_DIM}"),
            ));
        }
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
            Some(table) => {
                // A single table may leave theta to the surrounding config; groups have their own.
                let outer = match group {
                    None => config.f64_or("rope_theta", default_theta)?,
                    Some(_) => default_theta,
                };
                (table.f64_or("rope_theta", outer)?, parameters.clone())
            }
            None => (
                config.f64_or("rope_theta", default_theta)?,
                config.object("rope_scaling")?,
            ),
        };
        let partial = match &parameters {
            Some(table) => table.f64_opt("partial_rotary_factor")?,
            None => None,
        };
        let partial = match partial {
            Some(partial) => partial,
            // A number next to the groups' tables belongs to no group.
            None if group.is_some() => 1.0,
            None => config.f64_or("partial_rotary_factor", 1.0)?,
        };
        let dims = (head_dim as f64 * partial) as usize;
        let mut rope = Self {
            theta: theta as f32,
            dims,
            pairs: RopePairs::Halves,
            scaling: RopeScaling::None,
            sections: None,
        };
        if let Some(table) = scaling {
            rope.scaling = RopeScaling::from_config(config, &table, dims)?;
            rope.sections = RopeSections::from_config(&table, dims / 2)?;
        }
        if let RopeScaling::Proportional { .. } = rope.scaling {
            rope.dims = head_dim;
        }
        Ok(rope)
    }
}

impl RopeScaling {
    fn from_config(config: &Config, table: &Config, dims: usize) -> Result<Self, SpecError> {
        // Older configs use `type`; newer ones may have both.
        let field = ["rope_type", "type"]
            .into_iter()
            .find(|field| table.get(field).is_some())
            .unwrap_or("rope_type");
        let Some(kind) = table.str(field)? else {
            // Ignoring a factor without a kind would drop a scaling.
            return match table.get("factor") {
                Some(_) => Err(SpecError::Missing {
                    field: table.path(field),
                }),
                None => Ok(Self::None),
            };
        };
        match kind {
            // `dynamic` scales only past `max_position_embeddings`, which no session exceeds.
            "default" | "mrope" | "dynamic" => Ok(Self::None),
            "linear" => Ok(Self::Linear {
                factor: table.f64("factor")? as f32,
            }),
            "llama3" => Ok(Self::Llama3 {
                factor: table.f64("factor")? as f32,
                low_freq_factor: table.f64("low_freq_factor")? as f32,
                high_freq_factor: table.f64("high_freq_factor")? as f32,
                original_context: table.usize("original_max_position_embeddings")?,
            }),
            "yarn" => Yarn::from_config(config, table).map(Self::Yarn),
            "longrope" | "su" => long_rope(config, table, dims),
            "proportional" => Ok(Self::Proportional {
                rotating: dims / 2,
                factor: table.f64_or("factor", 1.0)? as f32,
            }),
            other => Err(SpecError::Unsupported {
                field: table.path(field),
                found: format!("`{other}`"),
                supported: "default, dynamic, linear, llama3, yarn, longrope, proportional",
            }),
        }
    }
}

/// Grows slowly with the scaling factor, in proportion to `weight`.
pub(crate) fn yarn_magnitude(stretch: f64, weight: f64) -> f64 {
    if stretch <= 1.0 {
        1.0
    } else {
        0.1 * weight * stretch.ln() + 1.0
    }
}

/// The context the frequencies were trained for, and the scaling factor.
fn original_context(config: &Config, table: &Config) -> Result<(usize, Option<f64>), SpecError> {
    let field = "original_max_position_embeddings";
    // If both exist, transformers uses the outer one.
    let original = match config.usize_opt(field)? {
        Some(original) => Some(original),
        None => table.usize_opt(field)?,
    };
    let context = config.usize_opt("max_position_embeddings")?;
    let Some(original) = original.or(context) else {
        return Err(SpecError::Missing {
            field: table.path(field),
        });
    };
    if original == 0 {
        return Err(SpecError::invalid(table.path(field), 0, "at least 1"));
    }
    let stretch = context.map(|context| context as f64 / original as f64);
    Ok((original, stretch))
}

impl Yarn {
    fn from_config(config: &Config, table: &Config) -> Result<Self, SpecError> {
        let (original_context, stretch) = original_context(config, table)?;
        let factor = match table.f64_opt("factor")?.or(stretch) {
            Some(factor) => factor,
            None => table.f64("factor")?,
        };
        let weights = (table.f64_opt("mscale")?, table.f64_opt("mscale_all_dim")?);
        let attention_factor = match (table.f64_opt("attention_factor")?, weights) {
            (Some(given), _) => given,
            (None, (Some(part), Some(all))) if part != 0.0 && all != 0.0 => {
                yarn_magnitude(factor, part) / yarn_magnitude(factor, all)
            }
            (None, _) => yarn_magnitude(factor, 1.0),
        };
        Ok(Self {
            factor: factor as f32,
            beta_fast: table.f64_or("beta_fast", 32.0)? as f32,
            beta_slow: table.f64_or("beta_slow", 1.0)? as f32,
            original_context,
            truncate: table.bool_or("truncate", true)?,
            attention_factor: attention_factor as f32,
        })
    }

    /// From 0, kept, to 1, divided.
    fn ramp(&self, pair: usize, rope: &Rope) -> f64 {
        let dims = rope.dims as f64;
        // The pair that rotates `turns` times within the original context.
        let pair_of = |turns: f64| {
            dims * (self.original_context as f64 / (turns * TAU)).ln()
                / (2.0 * f64::from(rope.theta).ln())
        };
        let mut low = pair_of(f64::from(self.beta_fast));
        let mut high = pair_of(f64::from(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims - 1.0));
        if low == high {
            high += 0.001;
        }
        ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }
}

fn long_rope(config: &Config, table: &Config, dims: usize) -> Result<RopeScaling, SpecError> {
    let (original_context, stretch) = original_context(config, table)?;
    let stretch = table.f64_opt("factor")?.or(stretch).unwrap_or(1.0);
    let attention_factor = match table.f64_opt("attention_factor")? {
        Some(given) => given,
        None if stretch <= 1.0 => 1.0,
        None => (1.0 + stretch.ln() / (original_context as f64).ln()).sqrt(),
    };
    Ok(RopeScaling::LongRope {
        short: factors(table, "short_factor", dims / 2)?,
        long: factors(table, "long_factor", dims / 2)?,
        original_context,
        attention_factor: attention_factor as f32,
    })
}

fn factors(table: &Config, field: &str, pairs: usize) -> Result<Vec<f32>, SpecError> {
    let list = table.array(field)?.ok_or_else(|| SpecError::Missing {
        field: table.path(field),
    })?;
    let refuse = |found: String| {
        let expected = format!("a list of {pairs} numbers above 0, one for each pair");
        SpecError::invalid(table.path(field), found, expected)
    };
    if list.len() != pairs {
        return Err(refuse(format!("a list of {}", list.len())));
    }
    let numbers = list.iter().map(|value| match value.as_f64() {
        Some(number) if number > 0.0 && number.is_finite() => Ok(number as f32),
        _ => Err(refuse(format!("a list with {value}"))),
    });
    numbers.collect()
}

/// Rows of queries or keys that rotate together are adjacent in one format and half a head apart in
/// the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeOrder {
    pub head_dim: usize,
    /// How many of them rotate.
    pub dims: usize,
    /// The pairs of the target tensor.
    pub to: RopePairs,
}

impl RopeOrder {
    /// The source's row for row `row` of the target.
    pub fn source(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim * self.head_dim, row % self.head_dim);
        if at >= self.dims {
            return row;
        }
        let half = self.dims / 2;
        head + match self.to {
            RopePairs::Interleaved => at / 2 + at % 2 * half,
            RopePairs::Halves => at % half * 2 + at / half,
        }
    }

    pub fn reordered(self, values: &[f32]) -> Vec<f32> {
        (0..values.len())
            .map(|row| values[self.source(row)])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: Role) -> Option<&'static [f32]> {
        None
    }

    #[test]
    fn llama3_scaling_divides_low_frequencies() {
        let rope = Rope {
            scaling: RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 8192,
            },
            ..Rope::plain(500_000.0, 128)
        };
        let plain = Rope::plain(500_000.0, 128).frequencies(8192, none);
        let scaled = rope.frequencies(8192, none);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        // Pair 31 rotates 8192 * 500000^(-62/128) / tau = 2.26 times: between 1 and 4.
        assert!(scaled[31] < plain[31] && scaled[31] > plain[31] / 8.0);
    }

    #[test]
    fn tensor_factors_divide() {
        let rope = Rope {
            scaling: RopeScaling::Tensor,
            ..Rope::plain(10_000.0, 4)
        };
        let tensor = |role| (role == Role::RopeFactors).then_some(&[1.0, 4.0][..]);
        assert_eq!(rope.frequencies(64, tensor), [1.0, 0.01 / 4.0]);
    }

    #[test]
    fn long_rope_depends_on_session_context() {
        let rope = Rope {
            scaling: RopeScaling::LongRope {
                short: vec![1.0, 2.0],
                long: vec![4.0, 8.0],
                original_context: 32,
                attention_factor: 1.0,
            },
            ..Rope::plain(10_000.0, 4)
        };
        assert_eq!(rope.frequencies(32, none), [1.0, 0.01 / 2.0]);
        assert_eq!(rope.frequencies(33, none), [1.0 / 4.0, 0.01 / 8.0]);
    }

    #[test]
    fn proportional_rope_does_not_rotate_later_pairs() {
        let rope = Rope {
            scaling: RopeScaling::Proportional {
                rotating: 1,
                factor: 1.0,
            },
            ..Rope::plain(10_000.0, 8)
        };
        assert_eq!(rope.frequencies(64, none), [1.0, 0.0, 0.0, 0.0]);
    }
}
