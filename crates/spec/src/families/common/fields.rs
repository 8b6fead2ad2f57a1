//! Single fields of a config, read and checked.

use crate::config::Config;
use crate::error::SpecError;
use crate::model::Activation;
use crate::validate::MAX_LAYERS;

/// Refuses the field.
pub(crate) fn refuse_field(config: &Config, field: &str) -> Result<(), SpecError> {
    match config.get(field) {
        None => Ok(()),
        Some(_) => Err(SpecError::Unsupported {
            field: config.path(field),
            found: "set".into(),
            supported: "null",
        }),
    }
}

pub(crate) fn activation(
    config: &Config,
    field: &str,
    default: Activation,
) -> Result<Activation, SpecError> {
    let Some(name) = config.str(field)? else {
        return Ok(default);
    };
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "quick_gelu" => Ok(Activation::QuickGelu),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::Relu2),
        other => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{other}`"),
            supported: "silu, gelu, gelu_pytorch_tanh, quick_gelu, relu, relu2",
        }),
    }
}

/// Refuses every value except the supported one.
pub(crate) fn expect_word(
    config: &Config,
    field: &str,
    known: &'static str,
) -> Result<(), SpecError> {
    match config.str(field)? {
        Some(found) if found != known => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{found}`"),
            supported: known,
        }),
        _ => Ok(()),
    }
}

/// Refuses a switch that differs from the family's setting.
pub(crate) fn expect_switch(config: &Config, field: &str, known: bool) -> Result<(), SpecError> {
    match config.bool_or(field, known)? {
        found if found != known => Err(SpecError::Unsupported {
            field: config.path(field),
            found: found.to_string(),
            supported: if known { "true" } else { "false" },
        }),
        _ => Ok(()),
    }
}

/// The `layer_types` of all layers, if listed: each one of `known`.
pub(crate) fn layer_types<'a>(
    config: &'a Config,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<&'a str>>, SpecError> {
    word_per_layer(config, "layer_types", layers, known)
}

/// A list with one of the `known` words for each layer, if present.
pub(crate) fn word_per_layer<'a>(
    config: &'a Config,
    field: &str,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<&'a str>>, SpecError> {
    let Some(types) = config.array(field)? else {
        return Ok(None);
    };
    if types.len() != layers {
        return Err(SpecError::invalid(
            config.path(field),
            format!("a list of {}", types.len()),
            format!("one entry for each of {layers} layers"),
        ));
    }
    let types = types.iter().map(|kind| match kind.as_str() {
        Some(name) if known.contains(&name) => Ok(name),
        _ => Err(SpecError::invalid(
            config.path(field),
            format!("a list with {kind}"),
            format!("a list of {}", known.join(", ")),
        )),
    });
    types.collect::<Result<_, _>>().map(Some)
}

/// A list of layers, by number.
pub(crate) fn layer_numbers(config: &Config, field: &str) -> Result<Option<Vec<usize>>, SpecError> {
    let Some(list) = config.array(field)? else {
        return Ok(None);
    };
    let numbers = list.iter().map(|value| match value.as_u64() {
        Some(number) => Ok(number as usize),
        None => Err(SpecError::invalid(
            config.path(field),
            format!("a list with {value}"),
            "a list of layers' numbers",
        )),
    });
    numbers.collect::<Result<_, _>>().map(Some)
}

/// The interval of layers that differ; it cannot be 0.
pub(crate) fn interval(config: &Config, field: &str, default: usize) -> Result<usize, SpecError> {
    positive(&config.path(field), config.usize_or(field, default)?)
}

/// Every `interval`th layer.
pub(crate) fn each(interval: usize, layers: usize) -> Vec<bool> {
    (1..=layers)
        .map(|layer| layer.is_multiple_of(interval))
        .collect()
}

/// All layers but every `interval`th.
pub(crate) fn all_but_each(interval: usize, layers: usize) -> Vec<bool> {
    each(interval, layers).iter().map(|each| !each).collect()
}

/// Checked here because layers are allocated before the spec is validated.
pub(crate) fn bounded_layers(field: &str, layers: usize) -> Result<usize, SpecError> {
    if layers <= MAX_LAYERS {
        Ok(layers)
    } else {
        Err(SpecError::invalid(
            field,
            layers,
            format!("at most {MAX_LAYERS}"),
        ))
    }
}

/// Checked here because sizes are divided by it before the spec is validated.
pub(crate) fn positive(field: &str, value: usize) -> Result<usize, SpecError> {
    match value {
        0 => Err(SpecError::invalid(field, 0, "at least 1")),
        value => Ok(value),
    }
}

pub(crate) fn even_split(
    whole_name: &str,
    whole: usize,
    parts_name: &str,
    parts: usize,
) -> Result<usize, SpecError> {
    if parts > 0 && whole.is_multiple_of(parts) {
        Ok(whole / parts)
    } else {
        Err(SpecError::invalid(
            parts_name,
            parts,
            format!("a divisor of {whole_name} ({whole})"),
        ))
    }
}
