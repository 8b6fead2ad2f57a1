//! Rope's divisors: config fields in one format, tensors in the other.

use std::collections::HashMap;

use loquat_spec::{ModelSpec, Role, Rope, RopeScaling};
use serde_json::{Value, json};

use super::each_rope;

/// The spec with divisors as tensors, and those tensors' values.
pub(crate) fn factors_as_tensors(spec: &ModelSpec) -> (ModelSpec, HashMap<Role, Vec<f32>>) {
    let mut spec = spec.clone();
    let mut generated = HashMap::new();
    each_rope(&mut spec, |rope| match &rope.scaling {
        RopeScaling::Llama3 { .. } => {
            generated.insert(Role::RopeFactors, llama3_divisors(rope));
            rope.scaling = RopeScaling::Tensor;
        }
        RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        } => {
            generated.insert(Role::RopeFactorsShort, short.clone());
            generated.insert(Role::RopeFactorsLong, long.clone());
            rope.scaling = RopeScaling::LongTensor {
                original_context: *original_context,
                attention_factor: *attention_factor,
            };
        }
        _ => {}
    });
    (spec, generated)
}

/// The divisor of each pair's frequency.
fn llama3_divisors(rope: &Rope) -> Vec<f32> {
    let plain = Rope::plain(rope.theta, rope.dims);
    let none = |_| None;
    let (plain, scaled) = (plain.frequencies(0, none), rope.frequencies(0, none));
    let pairs = plain.iter().zip(scaled);
    pairs.map(|(plain, scaled)| plain / scaled).collect()
}

/// Llama 3's published scaling, recognised by its divisors; the largest is its factor.
const LLAMA3: (f32, f32, usize) = (1.0, 4.0, 8192);
const CLOSE: f32 = 1e-3;

/// `rope_scaling` of a config; `tensor` finds the rope's divisors. `Err` says what a config cannot
/// express.
pub(crate) fn config_scaling(
    rope: &Rope,
    tensor: impl Fn(Role) -> Option<Vec<f32>>,
) -> Result<Option<Value>, &'static str> {
    Ok(Some(match &rope.scaling {
        RopeScaling::None => return Ok(None),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Yarn(yarn) => json!({
            "rope_type": "yarn",
            "factor": yarn.factor,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "original_max_position_embeddings": yarn.original_context,
            "attention_factor": yarn.attention_factor,
        }),
        RopeScaling::Tensor => {
            let divisors = tensor(Role::RopeFactors).unwrap_or_default();
            let (low, high, original_context) = LLAMA3;
            let factor = divisors.iter().copied().fold(1.0, f32::max);
            let guess = Rope {
                scaling: RopeScaling::Llama3 {
                    factor,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_context,
                },
                ..rope.clone()
            };
            let guessed = llama3_divisors(&guess);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= CLOSE * b.abs();
            if !divisors.iter().zip(&guessed).all(close) {
                return Err("its rope divisors are not those of any published Llama 3");
            }
            json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low,
                "high_freq_factor": high, "original_max_position_embeddings": original_context,
            })
        }
        RopeScaling::LongTensor { .. } => json!({
            "type": "longrope",
            "short_factor": tensor(Role::RopeFactorsShort),
            "long_factor": tensor(Role::RopeFactorsLong),
        }),
        RopeScaling::Llama3 { .. }
        | RopeScaling::LongRope { .. }
        | RopeScaling::Proportional { .. } => return Err("config.json cannot express its rope"),
    }))
}
