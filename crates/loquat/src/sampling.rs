//! Sampling defaults: the checkpoint's, else Loquat's. Not part of the public API.

use loquat_engine::{Parameter, SamplingParams};
use loquat_text::GenerationConfig;

use crate::Error;

/// For checkpoints without sampling parameters: unmodified distributions ramble.
const TEMPERATURE: f32 = 0.6;
const TOP_P: f32 = 0.95;

/// A parameter's value if neither the caller nor the checkpoint sets it.
pub fn default_value(parameter: &Parameter) -> f32 {
    match parameter.name {
        "temperature" => TEMPERATURE,
        "top_p" => TOP_P,
        _ => parameter.default,
    }
}

/// The checkpoint's parameters, completed with Loquat's; and the names of those that are Loquat's.
pub fn defaults(
    config: &GenerationConfig,
) -> Result<(SamplingParams, &'static [&'static str]), Error> {
    let params = SamplingParams::from_defaults(config).map_err(Error::Defaults)?;
    if sets_sampling(config) {
        return Ok((params, &[]));
    }
    let ours = SamplingParams {
        temperature: TEMPERATURE,
        top_p: TOP_P,
        ..params
    };
    Ok((ours, &["temperature", "top_p"]))
}

/// Whether the checkpoint sets any parameter that restricts sampling.
fn sets_sampling(config: &GenerationConfig) -> bool {
    config.do_sample.is_some()
        || config.temperature.is_some()
        || config.top_k.is_some()
        || config.top_p.is_some()
        || config.min_p.is_some()
        || config.typical_p.is_some()
        || config.mirostat.is_some()
}
