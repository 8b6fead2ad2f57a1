//! What to generate, and how to print it.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use loquat_engine::{Distribution, Logprobs};

use super::sampling::SamplingArgs;
use super::values::{at_least_one, count};
use crate::error::CliError;

#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub struct OutputArgs {
    /// Most tokens to generate. Left out: 1024, or what the context has room for.
    #[arg(long, short = 'n', value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub max_tokens: Option<NonZeroUsize>,
    /// End the text before this string. May be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// The text as it comes, one JSON object at the end, or a line of JSON for each event.
    #[arg(long, short, value_enum, default_value_t = Form::Text)]
    pub output: Form,
    /// Tell each token's log-probability in JSON, and those of this many likeliest alternatives.
    #[arg(long, value_name = "COUNT", value_parser = count, allow_negative_numbers = true)]
    logprobs: Option<usize>,
    /// Of the distribution that tokens were drawn from, instead of the model's own.
    #[arg(long, requires = "logprobs")]
    logprobs_after_sampling: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// How a reply is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
    Events,
}

impl OutputArgs {
    pub fn logprobs(&self) -> Result<Option<Logprobs>, CliError> {
        if self.logprobs.is_some() && self.output == Form::Text {
            return Err(CliError::Usage {
                what: "`--logprobs` has no place in text; `--output`".to_owned(),
                expected: "json or events".to_owned(),
            });
        }
        let of = if self.logprobs_after_sampling {
            Distribution::Sampled
        } else {
            Distribution::Model
        };
        let told = |alternatives| Logprobs {
            alternatives,
            distribution: of,
        };
        Ok(self.logprobs.map(told))
    }
}
