//! Flags of generation and of its output.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use loquat_engine::{Distribution, Logprobs};

use super::sampling::SamplingArgs;
use super::values::{at_least_one, count};
use crate::error::CliError;

#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub struct OutputArgs {
    #[arg(long, short = 'n', value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true, help = max_tokens_help())]
    pub max_tokens: Option<NonZeroUsize>,
    /// Stop before this string. May be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Stream text, print one JSON object at the end, or stream one line of JSON per event.
    #[arg(long, short, value_enum, default_value_t = OutputForm::Text)]
    pub output: OutputForm,
    /// Include the log-probability of each token and of this many alternatives in JSON.
    #[arg(long, value_name = "COUNT", value_parser = count, allow_negative_numbers = true)]
    logprobs: Option<usize>,
    /// Report log-probabilities after sampling parameters instead of the model's own.
    #[arg(long, requires = "logprobs")]
    logprobs_after_sampling: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// How a reply is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    Text,
    Json,
    Events,
}

impl OutputArgs {
    pub fn logprobs(&self) -> Result<Option<Logprobs>, CliError> {
        if self.logprobs.is_some() && self.output == OutputForm::Text {
            return Err(CliError::Usage {
                what: "`--logprobs` needs JSON: `--output`".to_owned(),
                expected: "json or events".to_owned(),
            });
        }
        let of = if self.logprobs_after_sampling {
            Distribution::Sampled
        } else {
            Distribution::Model
        };
        Ok(self.logprobs.map(|alternatives| Logprobs {
            alternatives,
            distribution: of,
        }))
    }
}

fn max_tokens_help() -> String {
    let default = loquat::DEFAULT_MAX_TOKENS;
    format!(
        "Maximum number of tokens to generate [default: {default}, or what the context has room for]"
    )
}
