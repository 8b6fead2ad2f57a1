//! Settings of a chat: the flags of `run` that may change between answers.

use std::error::Error;
use std::num::NonZeroUsize;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, FromArgMatches};
use loquat_chat::{ChatRequest, Effort};
use loquat_engine::{PARAMETERS, ParameterSlot, SamplingParams};
use serde_json::Value;

use super::suggest::nearest;
use crate::args::{FlagValue, RunArgs, SamplingArgs, ShowReasoning, ThinkingArg, flag_name};
use crate::error::CliError;

const SET: &str = "/set";

/// The flags that are not sampling parameters.
const OTHERS: [&str; 5] = [
    "max_tokens",
    "stop",
    "thinking",
    "thinking_budget",
    "show_reasoning",
];

/// Values of flags, changed by `/set`.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub max_tokens: Option<NonZeroUsize>,
    stop: Vec<String>,
    thinking: Option<ThinkingArg>,
    thinking_budget: Option<usize>,
    pub show_reasoning: Option<ShowReasoning>,
    pub sampling: SamplingArgs,
}

/// One row in the list of settings.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingRow {
    pub name: String,
    pub value: String,
    /// Set by a flag or `/set`.
    pub is_set: bool,
}

impl Settings {
    pub fn from_args(args: &RunArgs) -> Self {
        Self {
            max_tokens: args.output.max_tokens,
            stop: args.output.stop.clone(),
            thinking: args.input.conversation.thinking,
            thinking_budget: args.thinking_budget,
            show_reasoning: args.show_reasoning,
            sampling: args.output.sampling.clone(),
        }
    }

    /// Applies everything except sampling, which also depends on the checkpoint.
    pub fn apply_to(&self, request: &mut ChatRequest) {
        request.stop.clone_from(&self.stop);
        request.thinking.effort = self.thinking.map(Effort::from);
        request.thinking.budget = self.thinking_budget;
    }

    /// Sets a value as the flag of that name would parse it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), CliError> {
        let flag = find(name)?;
        let name = long(&flag);
        let words = words(value).into_iter();
        let words = words.map(|word| format!("--{name}={word}"));
        let parsed = command().try_get_matches_from(words);
        let parsed = parsed.map_err(|error| invalid(&name, &error))?;
        match flag.get_id().as_str() {
            "max_tokens" => self.max_tokens = parsed.get_one("max_tokens").copied(),
            "stop" => {
                let texts = parsed.get_many("stop").into_iter().flatten();
                self.stop = texts.cloned().collect();
            }
            "thinking" => self.thinking = parsed.get_one("thinking").copied(),
            "thinking_budget" => self.thinking_budget = parsed.get_one("thinking_budget").copied(),
            "show_reasoning" => self.show_reasoning = parsed.get_one("show_reasoning").copied(),
            parameter => {
                self.remove_parameter(parameter);
                let given = SamplingArgs::from_arg_matches(&parsed);
                let given = given.map_err(|error| invalid(&name, &error))?;
                self.sampling.0.extend(given.0);
            }
        }
        Ok(())
    }

    /// Restores the default of a setting.
    pub fn unset(&mut self, name: &str) -> Result<(), CliError> {
        match find(name)?.get_id().as_str() {
            "max_tokens" => self.max_tokens = None,
            "stop" => self.stop.clear(),
            "thinking" => self.thinking = None,
            "thinking_budget" => self.thinking_budget = None,
            "show_reasoning" => self.show_reasoning = None,
            parameter => self.remove_parameter(parameter),
        }
        Ok(())
    }

    fn remove_parameter(&mut self, parameter: &str) {
        self.sampling.0.retain(|(known, _)| known.name != parameter);
    }

    /// Every setting; `params` are the effective sampling parameters.
    pub fn all(&self, params: &SamplingParams) -> Vec<SettingRow> {
        let others = OTHERS.map(|id| self.other(id));
        let mut params = params.clone();
        let slots = params.slots();
        let sampling = PARAMETERS.iter().map(|parameter| {
            let mut slots = slots.iter();
            let slot = slots.find(|(known, _)| known.name == parameter.name);
            let mut given = self.sampling.0.iter();
            let given = given.find(|(known, _)| known.name == parameter.name);
            SettingRow {
                name: flag_name(parameter),
                value: match (given, slot) {
                    // The text as typed, not its tokens.
                    (Some((_, FlagValue::Texts(texts))), _) => list(texts),
                    (_, Some((_, slot))) => text(slot),
                    (_, None) => String::new(),
                },
                is_set: given.is_some(),
            }
        });
        others.into_iter().chain(sampling).collect()
    }

    fn other(&self, id: &str) -> SettingRow {
        let value = match id {
            "max_tokens" => self.max_tokens.map(|count| count.to_string()),
            "stop" => Some(&self.stop)
                .filter(|stop| !stop.is_empty())
                .map(|stop| list(stop)),
            "thinking" => self.thinking.and_then(|effort| named(&effort)),
            "thinking_budget" => self.thinking_budget.map(|count| count.to_string()),
            _ => self.show_reasoning.and_then(|how| named(&how)),
        };
        SettingRow {
            name: id.replace('_', "-"),
            is_set: value.is_some(),
            value: value.unwrap_or_default(),
        }
    }

    /// The value and the help of a setting.
    pub fn describe(&self, name: &str, params: &SamplingParams) -> Result<String, CliError> {
        let flag = find(name)?;
        let name = long(&flag);
        let mut all = self.all(params).into_iter();
        let value = all.find(|row| row.name == name);
        let value = value.map(|row| row.value).unwrap_or_default();
        let value = if value.is_empty() {
            "not set".to_owned()
        } else {
            value
        };
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        Ok(format!("{name}: {value}\n{help}"))
    }
}

/// The names of all settings, spelled like flags.
pub fn names() -> Vec<String> {
    flags().iter().map(long).collect()
}

/// The possible values of a setting, if they are a fixed set.
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

/// Finds a flag by its name, spelled with `-` or `_`, or by its parameter.
fn find(name: &str) -> Result<Arg, CliError> {
    let plain = name
        .trim_start_matches('-')
        .replace('_', "-")
        .to_lowercase();
    let flags = flags();
    let matches =
        |flag: &&Arg| long(flag) == plain || flag.get_id().as_str().replace('_', "-") == plain;
    if let Some(flag) = flags.iter().find(matches) {
        return Ok(flag.clone());
    }
    let names = names();
    let near = nearest(&plain, names.iter().map(String::as_str));
    Err(CliError::Field {
        flag: SET,
        what: match near {
            Some(near) => format!("no setting {name}. Did you mean {near}?"),
            None => format!("no setting {name}. {SET} lists all"),
        },
    })
}

/// A JSON string or list of strings, which may hold line breaks; any other value verbatim.
fn words(value: &str) -> Vec<String> {
    let texts = |value: Value| match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => {
            let text = |item: &Value| item.as_str().map(str::to_owned);
            items.iter().map(text).collect()
        }
        _ => None,
    };
    let parsed = serde_json::from_str(value).ok().and_then(texts);
    parsed.unwrap_or_else(|| vec![value.to_owned()])
}

fn invalid(name: &str, error: &clap::Error) -> CliError {
    let reason = match (
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
        what: format!("{name}: {reason}"),
    }
}

fn named(value: &impl clap::ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

/// A value as it is typed.
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
        ParameterSlot::Words(words) => format!("{} from the model", words.len()),
        ParameterSlot::Texts(texts) => list(texts),
        ParameterSlot::Steps(steps) => {
            joined(steps.iter().map(|step| step.name().to_owned()).collect())
        }
        ParameterSlot::Seed(seed) => seed.map(|seed| seed.to_string()).unwrap_or_default(),
    }
}

/// Texts as a JSON list.
fn list(texts: &[String]) -> String {
    Value::from(texts.to_vec()).to_string()
}

#[cfg(test)]
mod tests;
