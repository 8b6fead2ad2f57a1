//! `[models.sampling]`: the engine's parameters by their names, within their ranges.

use loquat_engine::{PARAMETERS, Parameter, ParameterKind, SamplingStep};
use serde_json::{Map, Value, json};

use super::option_value::{Bounds, OptionValue, quoted};
use super::raw_value::{InvalidValue, RawValue};
use super::suggestion::did_you_mean;

impl OptionValue for Map<String, Value> {
    fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        let table = raw.table().ok_or_else(|| raw.invalid())?;
        let (mut sampling, mut invalid) = (Self::new(), Vec::new());
        for (name, value) in table {
            match parameter(name.get_ref(), RawValue::Toml(value)) {
                Ok(value) => {
                    sampling.insert(name.get_ref().to_string(), value);
                }
                Err(InvalidParameter::Unknown(message)) => invalid.push(InvalidValue {
                    span: Some(name.span()),
                    message: Some(message),
                }),
                Err(InvalidParameter::Value(message)) => invalid.push(InvalidValue {
                    span: Some(value.span()),
                    message: Some(message),
                }),
            }
        }
        if invalid.is_empty() {
            Ok(sampling)
        } else {
            Err(invalid)
        }
    }

    fn to_toml(&self, _: &Bounds) -> Option<String> {
        (!self.is_empty()).then(|| object(self))
    }

    fn expected(_: &Bounds) -> String {
        "a table of sampling parameters".to_owned()
    }
}

enum InvalidParameter {
    Unknown(String),
    Value(String),
}

fn parameter(name: &str, raw: RawValue<'_>) -> Result<Value, InvalidParameter> {
    let known = PARAMETERS.iter().find(|parameter| parameter.name == name);
    let Some(parameter) = known else {
        let known = PARAMETERS.iter().map(|parameter| parameter.name);
        let guess = did_you_mean(name, known);
        let what = format!("`{name}` is not a sampling parameter{guess}");
        return Err(InvalidParameter::Unknown(what));
    };
    value(parameter, raw).ok_or_else(|| {
        let what = format!("`sampling.{name}` must be {}", expected(parameter));
        InvalidParameter::Value(what)
    })
}

fn value(parameter: &Parameter, raw: RawValue<'_>) -> Option<Value> {
    let fits =
        |number: &f64| (f64::from(parameter.min)..=f64::from(parameter.max)).contains(number);
    let number = |raw: RawValue<'_>| raw.real().filter(fits);
    Some(match parameter.kind {
        ParameterKind::Float => json!(number(raw)?),
        ParameterKind::Integer => {
            let whole = raw.whole().filter(|whole| fits(&(*whole as f64)))?;
            json!(i64::try_from(whole).ok()?)
        }
        ParameterKind::Biases => {
            let biases = raw.table()?.iter().map(|(id, bias)| {
                id.get_ref().parse::<u32>().ok()?;
                Some((
                    id.get_ref().to_string(),
                    json!(number(RawValue::Toml(bias))?),
                ))
            });
            Value::Object(biases.collect::<Option<_>>()?)
        }
        ParameterKind::Tokens => list(raw, |id| u32::try_from(id.whole()?).ok().map(Value::from))?,
        ParameterKind::TokenSequences | ParameterKind::Strings => {
            list(raw, |text| text.text().map(Value::from))?
        }
        ParameterKind::Steps => list(raw, |step| {
            let name = step.text()?;
            SamplingStep::from_name(name)
                .ok()
                .map(|_| Value::from(name))
        })?,
        ParameterKind::Seed => {
            let seed = raw.whole()?;
            u64::try_from(seed).map(Value::from).ok().or_else(|| {
                let signed = i64::try_from(seed).ok()?;
                Some(Value::from(signed))
            })?
        }
    })
}

fn list<'a>(raw: RawValue<'a>, item: impl Fn(RawValue<'a>) -> Option<Value>) -> Option<Value> {
    let items = raw.list()?.into_iter().map(item);
    items.collect::<Option<Vec<_>>>().map(Value::Array)
}

fn expected(parameter: &Parameter) -> String {
    let Parameter { min, max, .. } = parameter;
    match parameter.kind {
        ParameterKind::Float => format!("a number from {min} to {max}"),
        ParameterKind::Integer => format!("a whole number from {min} to {max}"),
        ParameterKind::Biases => {
            format!("a table from token ids to numbers from {min} to {max}")
        }
        ParameterKind::Tokens => "a list of token ids".to_owned(),
        ParameterKind::TokenSequences => "a list of words".to_owned(),
        ParameterKind::Strings => "a list of strings".to_owned(),
        ParameterKind::Steps => "a list of names of sampling steps".to_owned(),
        ParameterKind::Seed => "a whole number of 64 bits".to_owned(),
    }
}

fn object(fields: &Map<String, Value>) -> String {
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| match value {
            // Token ids and names are keys that need no quotes.
            Value::Object(inner) => format!("{name} = {}", object(inner)),
            value => format!("{name} = {}", toml(value)),
        })
        .collect();
    format!("{{ {} }}", fields.join(", "))
}

fn toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        plain => plain.to_string(),
    }
}
