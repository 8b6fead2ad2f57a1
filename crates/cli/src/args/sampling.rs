//! A flag for each sampling parameter of the engine's table.

use clap::builder::ValueParser;
use clap::parser::ValuesRef;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use loquat::sampling;
use loquat_engine::{PARAMETERS, Parameter, ParameterKind, SamplingStep};

use super::values::{seed, token};

/// The parameters set by flags, with their values.
#[derive(Debug, Clone, Default)]
pub struct SamplingArgs(pub Vec<(Parameter, FlagValue)>);

/// A value from the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum FlagValue {
    Float(f32),
    Integer(i64),
    Biases(Vec<(u32, f32)>),
    Tokens(Vec<u32>),
    /// Words to encode, or strings that stay strings.
    Texts(Vec<String>),
    Steps(Vec<SamplingStep>),
    Seed(u64),
}

impl Args for SamplingArgs {
    fn augment_args(command: Command) -> Command {
        let flags = PARAMETERS.iter().map(flag);
        flags.fold(command, |command, flag| command.arg(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |parameter: &Parameter| Some((*parameter, given(parameter, matches)?));
        Ok(Self(PARAMETERS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a parameter.
pub fn flag_name(parameter: &Parameter) -> String {
    match parameter.name {
        // llama.cpp's flag, whose step names it accepts.
        "order" => "samplers".to_owned(),
        // Each use adds one.
        "dry_sequence_breakers" => "dry-sequence-breaker".to_owned(),
        name => name.replace('_', "-"),
    }
}

const HEADING: &str = "Sampling (a model's own defaults take precedence over these)";

fn flag(parameter: &Parameter) -> Arg {
    let parameter = *parameter;
    let flag = Arg::new(parameter.name)
        .long(flag_name(&parameter))
        .help(help(&parameter))
        .help_heading(HEADING)
        .allow_negative_numbers(true);
    let flag = match parameter.kind {
        ParameterKind::Float => flag.value_name("NUMBER").value_parser(ranged(parameter)),
        ParameterKind::Integer => flag.value_name("COUNT").value_parser(whole(parameter)),
        ParameterKind::Biases => list(flag, "TOKEN=BIAS", bias(parameter)),
        ParameterKind::Tokens => list(flag, "IDS", token.into()).value_delimiter(','),
        ParameterKind::TokenSequences | ParameterKind::Strings => {
            list(flag, "TEXT", clap::value_parser!(String))
        }
        ParameterKind::Steps => list(flag, "NAMES", step.into()).value_delimiter(','),
        ParameterKind::Seed => flag.value_name("NUMBER").value_parser(seed),
    };
    match parameter.name {
        "temperature" => flag.short('t'),
        _ => flag,
    }
}

fn list(flag: Arg, value: &'static str, parser: ValueParser) -> Arg {
    let flag = flag.action(ArgAction::Append).value_name(value);
    flag.value_parser(parser)
}

fn help(parameter: &Parameter) -> String {
    let Parameter {
        kind,
        min,
        max,
        help,
        ..
    } = parameter;
    match kind {
        ParameterKind::Float | ParameterKind::Integer => {
            let default = sampling::default_value(parameter);
            format!("{help} [{min} to {max}] [default: {default}]")
        }
        ParameterKind::Biases => format!("{help} [{min} to {max}]"),
        ParameterKind::TokenSequences | ParameterKind::Strings => {
            format!("{help}. May be repeated")
        }
        ParameterKind::Tokens | ParameterKind::Steps | ParameterKind::Seed => (*help).to_owned(),
    }
}

fn ranged(parameter: Parameter) -> impl Fn(&str) -> Result<f32, String> + Clone {
    let Parameter { min, max, .. } = parameter;
    move |text| match text.parse() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("must be a number from {min} to {max}")),
    }
}

fn whole(parameter: Parameter) -> impl Fn(&str) -> Result<i64, String> + Clone {
    let (min, max) = (parameter.min as i64, parameter.max as i64);
    move |text| match text.parse() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("must be a whole number from {min} to {max}")),
    }
}

fn bias(parameter: Parameter) -> ValueParser {
    let parse = move |text: &str| -> Result<(u32, f32), String> {
        let split = text.split_once('=');
        let (token, bias) = split.ok_or("must be TOKEN=BIAS, such as 42=-100")?;
        Ok((self::token(token)?, ranged(parameter)(bias)?))
    };
    parse.into()
}

fn step(name: &str) -> Result<SamplingStep, String> {
    SamplingStep::from_name(name.trim()).map_err(|error| error.to_string())
}

fn given(parameter: &Parameter, matches: &ArgMatches) -> Option<FlagValue> {
    let name = parameter.name;
    Some(match parameter.kind {
        ParameterKind::Float => FlagValue::Float(*matches.get_one(name)?),
        ParameterKind::Integer => FlagValue::Integer(*matches.get_one(name)?),
        ParameterKind::Biases => FlagValue::Biases(all(matches.get_many(name)?)),
        ParameterKind::Tokens => FlagValue::Tokens(all(matches.get_many(name)?)),
        ParameterKind::TokenSequences | ParameterKind::Strings => {
            FlagValue::Texts(all(matches.get_many(name)?))
        }
        ParameterKind::Steps => FlagValue::Steps(all(matches.get_many(name)?)),
        ParameterKind::Seed => FlagValue::Seed(*matches.get_one(name)?),
    })
}

fn all<T: Clone + 'static>(values: ValuesRef<'_, T>) -> Vec<T> {
    values.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<(&'static str, FlagValue)>, String> {
        let command = SamplingArgs::augment_args(Command::new("test"));
        let words = ["test"].iter().chain(args);
        let matches = command.try_get_matches_from(words);
        let matches = matches.map_err(|error| error.to_string())?;
        let given = SamplingArgs::from_arg_matches(&matches).unwrap().0;
        let named = given.into_iter().map(|(key, value)| (key.name, value));
        Ok(named.collect())
    }

    #[test]
    fn every_parameter_has_a_flag() {
        assert_eq!(parse(&[]), Ok(Vec::new()));
        for parameter in PARAMETERS {
            let flag = format!("--{}", flag_name(&parameter));
            let (text, value) = match parameter.kind {
                ParameterKind::Float => ("0.5", FlagValue::Float(0.5)),
                ParameterKind::Integer => ("1", FlagValue::Integer(1)),
                ParameterKind::Biases => ("42=-7.5", FlagValue::Biases(vec![(42, -7.5)])),
                ParameterKind::Tokens => ("4, 5", FlagValue::Tokens(vec![4, 5])),
                ParameterKind::TokenSequences | ParameterKind::Strings => {
                    ("a,b", FlagValue::Texts(vec!["a,b".into()]))
                }
                ParameterKind::Steps => (
                    "top_p,dry",
                    FlagValue::Steps(vec![SamplingStep::TopP, SamplingStep::Dry]),
                ),
                ParameterKind::Seed => ("7", FlagValue::Seed(7)),
            };
            // One parameter starts above 0.5.
            let text = match parameter.kind {
                ParameterKind::Float if parameter.min > 0.5 => "1.5",
                _ => text,
            };
            let value = match (value, text) {
                (FlagValue::Float(_), text) => FlagValue::Float(text.parse().unwrap()),
                (value, _) => value,
            };
            assert_eq!(parse(&[&flag, text]), Ok(vec![(parameter.name, value)]));
        }
    }

    #[test]
    fn invalid_values_name_the_flag() {
        for (args, words) in [
            (["--logit-bias", "42"], ["logit-bias", "TOKEN=BIAS"]),
            (["--logit-bias", "x=1"], ["`x`", "not a token id"]),
            (
                ["--logit-bias", "1=x"],
                ["1=x", "a number from -100 to 100"],
            ),
            (["--logit-bias", "1=101"], ["1=101", "from -100 to 100"]),
            (["--logit-bias", "1=NaN"], ["1=NaN", "from -100 to 100"]),
            (["--samplers", "top_k,tfs"], ["--samplers", "`tfs`"]),
            (["--allowed-tokens", "1,x"], ["--allowed-tokens", "`x`"]),
            (["--top-k", "1.5"], ["--top-k", "whole number from 0"]),
            (["--penalty-last-n", "-2"], ["--penalty-last-n", "from -1"]),
        ] {
            let error = parse(&args).unwrap_err();
            for word in words {
                assert!(error.contains(word), "no {word} in {error}");
            }
        }
        let twice = parse(&["--bad-words", "one", "--bad-words", "two"]);
        let texts = FlagValue::Texts(vec!["one".into(), "two".into()]);
        assert_eq!(twice, Ok(vec![("bad_words", texts)]));
    }
}
