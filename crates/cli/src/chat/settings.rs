//! What may change from one answer to the next: flags of `run`, by their names.

use std::error::Error;
use std::num::NonZeroUsize;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, FromArgMatches};
use loquat_chat::{ChatRequest, Effort};
use loquat_engine::{PARAMETERS, SamplingParams, ParameterSlot};
use serde_json::Value;

use super::near::nearest;
use crate::args::{Given, RunArgs, SamplingArgs, ShowReasoning, ThinkingArg, flag_name};
use crate::error::CliError;

const SET: &str = "/set";

/// The flags that are no sampling parameters.
const OTHERS: [&str; 5] = [
    "max_tokens",
    "stop",
    "thinking",
    "thinking_budget",
    "show_reasoning",
];

/// What flags said, and then the person.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub max_tokens: Option<NonZeroUsize>,
    stop: Vec<String>,
    thinking: Option<ThinkingArg>,
    thinking_budget: Option<usize>,
    pub show_reasoning: Option<ShowReasoning>,
    pub sampling: SamplingArgs,
}

/// A setting as it stands.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    pub value: String,
    /// Somebody said so.
    pub given: bool,
}

impl Settings {
    pub fn of(args: &RunArgs) -> Self {
        Self {
            max_tokens: args.output.max_tokens,
            stop: args.output.stop.clone(),
            thinking: args.conversation.thinking,
            thinking_budget: args.thinking_budget,
            show_reasoning: args.show_reasoning,
            sampling: args.output.sampling.clone(),
        }
    }

    /// All but how tokens are chosen, for which a checkpoint has to be asked too.
    pub fn ask_for(&self, request: &mut ChatRequest) {
        request.stop.clone_from(&self.stop);
        request.thinking.effort = self.thinking.map(Effort::from);
        request.thinking.budget = self.thinking_budget;
    }

    /// Sets what a person named to what the flag of that name would read.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), CliError> {
        let flag = find(name)?;
        let name = long(&flag);
        let words = words(value).into_iter();
        let words = words.map(|word| format!("--{name}={word}"));
        let read = command().try_get_matches_from(words);
        let read = read.map_err(|error| refused(&name, &error))?;
        match flag.get_id().as_str() {
            "max_tokens" => self.max_tokens = read.get_one("max_tokens").copied(),
            "stop" => {
                let texts = read.get_many("stop").into_iter().flatten();
                self.stop = texts.cloned().collect();
            }
            "thinking" => self.thinking = read.get_one("thinking").copied(),
            "thinking_budget" => self.thinking_budget = read.get_one("thinking_budget").copied(),
            "show_reasoning" => self.show_reasoning = read.get_one("show_reasoning").copied(),
            parameter => {
                self.forget(parameter);
                let given = SamplingArgs::from_arg_matches(&read);
                let given = given.map_err(|error| refused(&name, &error))?;
                self.sampling.0.extend(given.0);
            }
        }
        Ok(())
    }

    /// Leaves a setting as it is where nobody says.
    pub fn unset(&mut self, name: &str) -> Result<(), CliError> {
        match find(name)?.get_id().as_str() {
            "max_tokens" => self.max_tokens = None,
            "stop" => self.stop.clear(),
            "thinking" => self.thinking = None,
            "thinking_budget" => self.thinking_budget = None,
            "show_reasoning" => self.show_reasoning = None,
            parameter => self.forget(parameter),
        }
        Ok(())
    }

    fn forget(&mut self, parameter: &str) {
        self.sampling.0.retain(|(known, _)| known.name != parameter);
    }

    /// Every setting; `params` are those in force, whoever decided on them.
    pub fn all(&self, params: &SamplingParams) -> Vec<Shown> {
        let others = OTHERS.map(|id| self.other(id));
        let mut params = params.clone();
        let slots = params.slots();
        let sampling = PARAMETERS.iter().map(|parameter| {
            let mut slots = slots.iter();
            let slot = slots.find(|(name, _)| *name == parameter.name);
            let mut given = self.sampling.0.iter();
            let given = given.find(|(known, _)| known.name == parameter.name);
            Shown {
                name: flag_name(parameter),
                value: match (given, slot) {
                    // What was typed, not the tokens it came to.
                    (Some((_, Given::Texts(texts))), _) => list(texts),
                    (_, Some((_, slot))) => text(slot),
                    (_, None) => String::new(),
                },
                given: given.is_some(),
            }
        });
        others.into_iter().chain(sampling).collect()
    }

    fn other(&self, id: &str) -> Shown {
        let value = match id {
            "max_tokens" => self.max_tokens.map(|count| count.to_string()),
            "stop" => Some(&self.stop)
                .filter(|stop| !stop.is_empty())
                .map(|stop| list(stop)),
            "thinking" => self.thinking.and_then(|effort| named(&effort)),
            "thinking_budget" => self.thinking_budget.map(|count| count.to_string()),
            _ => self.show_reasoning.and_then(|how| named(&how)),
        };
        Shown {
            name: id.replace('_', "-"),
            given: value.is_some(),
            value: value.unwrap_or_default(),
        }
    }

    /// One setting, and what it is about.
    pub fn explained(&self, name: &str, params: &SamplingParams) -> Result<String, CliError> {
        let flag = find(name)?;
        let name = long(&flag);
        let mut all = self.all(params).into_iter();
        let value = all.find(|shown| shown.name == name);
        let value = value.map(|shown| shown.value).unwrap_or_default();
        let value = if value.is_empty() {
            "not set".to_owned()
        } else {
            value
        };
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        Ok(format!("{name}: {value}\n{help}"))
    }
}

/// The names there are, as flags have them.
pub fn names() -> Vec<String> {
    flags().iter().map(long).collect()
}

/// What a setting may be, where that is one of a few words.
pub fn values(name: &str) -> Vec<String> {
    let Ok(flag) = find(name) else {
        return Vec::new();
    };
    let values = flag.get_possible_values();
    values
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect()
}

fn flags() -> Vec<Arg> {
    let all = RunArgs::augment_args(clap::Command::new(SET));
    let is_parameter = |id: &str| PARAMETERS.iter().any(|parameter| parameter.name == id);
    let settable = |flag: &&Arg| {
        let id = flag.get_id().as_str();
        OTHERS.contains(&id) || is_parameter(id)
    };
    all.get_arguments().filter(settable).cloned().collect()
}

fn command() -> clap::Command {
    clap::Command::new(SET)
        .no_binary_name(true)
        .disable_help_flag(true)
        .args(flags())
}

fn long(flag: &Arg) -> String {
    flag.get_long().unwrap_or_default().to_owned()
}

/// A flag by its name, with `-` or with `_`, or the name that the parameter has elsewhere.
fn find(name: &str) -> Result<Arg, CliError> {
    let plain = name
        .trim_start_matches('-')
        .replace('_', "-")
        .to_lowercase();
    let flags = flags();
    let is_meant =
        |flag: &&Arg| long(flag) == plain || flag.get_id().as_str().replace('_', "-") == plain;
    if let Some(flag) = flags.iter().find(is_meant) {
        return Ok(flag.clone());
    }
    let names = names();
    let near = nearest(&plain, names.iter().map(String::as_str));
    Err(CliError::Field {
        flag: SET,
        what: match near {
            Some(near) => format!("there is no setting {name}; did you mean {near}?"),
            None => format!("there is no setting {name}; {SET} alone lists them"),
        },
    })
}

/// JSON where it is a text or a list of them, so that line breaks and several can be written;
/// otherwise as it stands.
fn words(value: &str) -> Vec<String> {
    let texts = |value: Value| match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => {
            let text = |item: &Value| item.as_str().map(str::to_owned);
            items.iter().map(text).collect()
        }
        _ => None,
    };
    let read = serde_json::from_str(value).ok().and_then(texts);
    read.unwrap_or_else(|| vec![value.to_owned()])
}

fn refused(name: &str, error: &clap::Error) -> CliError {
    let why = match (
        error.kind(),
        error.get(ContextKind::ValidValue),
        error.source(),
    ) {
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(values)), _) => {
            format!("must be one of {}", values.join(", "))
        }
        (_, _, Some(source)) => source.to_string(),
        (_, _, None) => error.kind().to_string(),
    };
    CliError::Field {
        flag: SET,
        what: format!("{name}: {why}"),
    }
}

fn named(value: &impl clap::ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

/// A value as it would be typed.
fn text(slot: &ParameterSlot<'_>) -> String {
    let joined = |words: Vec<String>| words.join(",");
    match slot {
        ParameterSlot::Float(value) => value.to_string(),
        ParameterSlot::Count(value) => value.to_string(),
        ParameterSlot::Window(value) => value.to_string(),
        ParameterSlot::Mode(value) => value.to_string(),
        ParameterSlot::Biases(biases) => {
            let biases: Vec<String> = biases
                .iter()
                .map(|(id, bias)| format!("{id}={bias}"))
                .collect();
            match biases.len() {
                0 | 1 => biases.concat(),
                _ => list(&biases),
            }
        }
        ParameterSlot::Tokens(ids) => joined(ids.iter().map(u32::to_string).collect()),
        ParameterSlot::Words(words) if words.is_empty() => String::new(),
        ParameterSlot::Words(words) => format!("{} of the model's own", words.len()),
        ParameterSlot::Texts(texts) => list(texts),
        ParameterSlot::Steps(steps) => joined(steps.iter().map(|step| step.name().to_owned()).collect()),
        ParameterSlot::Seed(seed) => seed.map(|seed| seed.to_string()).unwrap_or_default(),
    }
}

/// Texts, in the one form that keeps them apart.
fn list(texts: &[String]) -> String {
    Value::from(texts.to_vec()).to_string()
}

#[cfg(test)]
mod tests;
