//! How tokens are chosen where nobody says: as the checkpoint does, else as we do.

use loquat_engine::{Parameter, SamplingParams};
use loquat_text::GenerationConfig;

use crate::Error;

/// For checkpoints that do not say how to draw: less than all that a model knows to say.
const TEMPERATURE: f32 = 0.6;
const TOP_P: f32 = 0.95;

/// What a number is where neither the caller nor the checkpoint says.
pub fn usual(parameter: &Parameter) -> f32 {
    match parameter.name {
        "temperature" => TEMPERATURE,
        "top_p" => TOP_P,
        _ => parameter.default,
    }
}

/// What the checkpoint asks for, or what it gets where it asks for nothing; with the names of
/// what is ours and not the checkpoint's.
pub fn defaults(
    config: &GenerationConfig,
) -> Result<(SamplingParams, &'static [&'static str]), Error> {
    let params = SamplingParams::from_defaults(config).map_err(Error::Defaults)?;
    if says_how_to_draw(config) {
        return Ok((params, &[]));
    }
    let ours = SamplingParams {
        temperature: TEMPERATURE,
        top_p: TOP_P,
        ..params
    };
    Ok((ours, &["temperature", "top_p"]))
}

/// Whether a checkpoint knows which of its tokens are worth drawing.
fn says_how_to_draw(config: &GenerationConfig) -> bool {
    config.do_sample.is_some()
        || config.temperature.is_some()
        || config.top_k.is_some()
        || config.top_p.is_some()
        || config.min_p.is_some()
        || config.typical_p.is_some()
        || config.mirostat.is_some()
}
