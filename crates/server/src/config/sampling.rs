//! `[models.sampling]`: the engine's parameters by their names, within their ranges.

use loquat_engine::{PARAMETERS, Parameter, ParameterKind, SamplingStep};
use serde_json::{Map, Value, json};

use super::given::{Given, Wrong};
use super::kinds::{Bounds, Kind, quoted};
use super::nearest::did_you_mean;

impl Kind for Map<String, Value> {
    fn parse(given: Given<'_>, _: &Bounds) -> Result<Self, Vec<Wrong>> {
        let table = given.table().ok_or_else(|| given.wrong())?;
        let (mut sampling, mut wrong) = (Self::new(), Vec::new());
        for (name, value) in table {
            match parameter(name.get_ref(), Given::Toml(value)) {
                Ok(value) => {
                    sampling.insert(name.get_ref().to_string(), value);
                }
                Err(Refused::Unknown(message)) => wrong.push(Wrong {
                    span: Some(name.span()),
                    message: Some(message),
                }),
                Err(Refused::Value(message)) => wrong.push(Wrong {
                    span: Some(value.span()),
                    message: Some(message),
                }),
            }
        }
        if wrong.is_empty() {
            Ok(sampling)
        } else {
            Err(wrong)
        }
    }

    fn written(&self, _: &Bounds) -> Option<String> {
        (!self.is_empty()).then(|| object(self))
    }

    fn what(_: &Bounds) -> String {
        "a table of sampling parameters".to_owned()
    }
}

enum Refused {
    Unknown(String),
    Value(String),
}

fn parameter(name: &str, given: Given<'_>) -> Result<Value, Refused> {
    let known = PARAMETERS.iter().find(|parameter| parameter.name == name);
    let Some(parameter) = known else {
        let known = PARAMETERS.iter().map(|parameter| parameter.name);
        let guess = did_you_mean(name, known);
        let what = format!("`{name}` is no sampling parameter{guess}");
        return Err(Refused::Unknown(what));
    };
    value(parameter, given).ok_or_else(|| {
        let what = format!("`sampling.{name}` must be {}", expected(parameter));
        Refused::Value(what)
    })
}

fn value(parameter: &Parameter, given: Given<'_>) -> Option<Value> {
    let fits =
        |number: &f64| (f64::from(parameter.min)..=f64::from(parameter.max)).contains(number);
    let number = |given: Given<'_>| given.real().filter(fits);
    Some(match parameter.kind {
        ParameterKind::Float => json!(number(given)?),
        ParameterKind::Integer => {
            let whole = given.whole().filter(|whole| fits(&(*whole as f64)))?;
            json!(i64::try_from(whole).ok()?)
        }
        ParameterKind::Biases => {
            let biases = given.table()?.iter().map(|(id, bias)| {
                id.get_ref().parse::<u32>().ok()?;
                Some((id.get_ref().to_string(), json!(number(Given::Toml(bias))?)))
            });
            Value::Object(biases.collect::<Option<_>>()?)
        }
        ParameterKind::Tokens => {
            list(given, |id| u32::try_from(id.whole()?).ok().map(Value::from))?
        }
        ParameterKind::TokenSequences | ParameterKind::Strings => {
            list(given, |text| text.text().map(Value::from))?
        }
        ParameterKind::Steps => list(given, |step| {
            let name = step.text()?;
            SamplingStep::from_name(name)
                .ok()
                .map(|_| Value::from(name))
        })?,
        ParameterKind::Seed => {
            let seed = given.whole()?;
            u64::try_from(seed).map(Value::from).ok().or_else(|| {
                let signed = i64::try_from(seed).ok()?;
                Some(Value::from(signed))
            })?
        }
    })
}

fn list<'a>(given: Given<'a>, item: impl Fn(Given<'a>) -> Option<Value>) -> Option<Value> {
    let items = given.list()?.into_iter().map(item);
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
        ParameterKind::Strings => "a list of texts".to_owned(),
        ParameterKind::Steps => "a list of names of sampling steps".to_owned(),
        ParameterKind::Seed => "a whole number of 64 bits".to_owned(),
    }
}

fn object(fields: &Map<String, Value>) -> String {
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| match value {
            // Ids of tokens are keys that need no quotes; names neither.
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
