//! Fields that several requests share, as properties of a schema.

use loquat_engine::{DEFAULT_ORDER, PARAMETERS, Parameter, ParameterKind, TOP_K};
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use crate::openai::answer_format::AnswerFormatFields;
use crate::samplers::SAMPLERS;
use crate::sampling::ALIASES;

/// The fields that constrain an answer.
pub fn answer_format() -> Map<String, Value> {
    let schema = serde_json::to_value(AnswerFormatFields::schema()).unwrap_or_default();
    let properties = schema["properties"].as_object().cloned();
    properties.unwrap_or_default()
}

/// The engine's sampling parameters by name, in the order of application.
pub fn sampling() -> Map<String, Value> {
    let all = PARAMETERS.iter();
    let named = all.map(|parameter| (parameter.name.to_owned(), property(parameter)));
    let aliases = ALIASES.iter().filter_map(alias);
    named.chain(aliases).chain([samplers()]).collect()
}

fn samplers() -> (String, Value) {
    let schema = json!({
        "oneOf": [
            { "type": "array", "items": { "type": "string" } },
            { "type": "string" },
        ],
        "description": "llama.cpp's form of `order`: a list of names, or a text of its letters. The \
            parameters of other steps have no effect",
    });
    (SAMPLERS.to_owned(), schema)
}

fn alias((theirs, ours): &(&str, &str)) -> Option<(String, Value)> {
    let parameter = PARAMETERS.iter().find(|known| known.name == *ours)?;
    let mut schema = kind(parameter);
    schema["description"] = format!("Another name for `{ours}`").into();
    Some(((*theirs).to_owned(), schema))
}

fn property(parameter: &Parameter) -> Value {
    let mut schema = kind(parameter);
    schema["description"] = described(parameter).into();
    // The page shows these.
    schema["x-sampling"] = true.into();
    schema
}

fn described(parameter: &Parameter) -> String {
    let help = parameter.help;
    match parameter.kind {
        ParameterKind::Float | ParameterKind::Integer => {
            let neutral = parameter.default;
            format!("{help}. Neutral at {neutral}; where left out, as the model is set up")
        }
        _ => help.to_owned(),
    }
}

fn kind(parameter: &Parameter) -> Value {
    let (min, max) = (parameter.min, parameter.max);
    match parameter.kind {
        ParameterKind::Float => json!({
            "type": ["number", "null"],
            "minimum": decimal(min),
            "maximum": decimal(max),
        }),
        ParameterKind::Integer => json!({
            "type": ["integer", "null"],
            "minimum": lowest(parameter),
            "maximum": max as i64,
        }),
        ParameterKind::Biases => biases(min, max),
        ParameterKind::Tokens => {
            list(json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }))
        }
        ParameterKind::TokenSequences | ParameterKind::Strings => list(json!({ "type": "string" })),
        ParameterKind::Steps => list(json!({ "enum": DEFAULT_ORDER.map(|step| step.name()) })),
        ParameterKind::Seed => json!({
            "type": ["integer", "null"],
            "minimum": i64::MIN,
            "maximum": u64::MAX,
        }),
    }
}

/// From token ids or texts, as `logit_bias::LogitBias` reads them.
fn biases(min: f32, max: f32) -> Value {
    let bias = json!({ "anyOf": [
        { "type": "number", "minimum": decimal(min), "maximum": decimal(max) },
        { "const": false },
    ]});
    let target = json!({ "type": ["integer", "string"], "minimum": 0, "maximum": u32::MAX });
    json!({
        "type": ["object", "array", "null"],
        "additionalProperties": bias,
        "items": { "type": "array", "prefixItems": [target, bias], "minItems": 2, "maxItems": 2 },
    })
}

/// Other servers use -1 for "off", and `sampling::apply` accepts it.
fn lowest(parameter: &Parameter) -> i64 {
    if parameter.name == TOP_K.name {
        -1
    } else {
        parameter.min as i64
    }
}

fn list(items: Value) -> Value {
    json!({ "type": ["array", "null"], "items": items })
}

/// The decimal number of the engine's table: 0.01, not the nearest `f32`.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
