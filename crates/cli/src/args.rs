//! Every flag, defined once. Sampling parameters take their help and ranges from the engine.

use std::num::NonZeroUsize;

use clap::{Args, Parser, Subcommand, ValueEnum};
use loquat_engine::{
    FREQUENCY_PENALTY, LOGIT_BIAS, MIN_P, PRESENCE_PENALTY, Parameter, REPETITION_PENALTY,
    SamplingParams, TEMPERATURE, TOP_K, TOP_P,
};
use loquat_session::{Precision, SessionOptions};

/// Large language models on the hardware you already have.
#[derive(Debug, Parser)]
#[command(name = "loquat", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Say more on stderr: what is loaded, and a closing line even when not on a terminal.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a model, or chat with it when no prompt is given.
    Run(RunArgs),
    /// Continue a text exactly as given, without a chat template.
    Generate(GenerateArgs),
    /// Say what a model is: blocks, tensors, memory need, capabilities.
    Inspect(InspectArgs),
    /// Measure prompt and decode speed, through the engine and on the bare session.
    Bench(BenchArgs),
    /// List the compute backends and whether each can run here.
    Backends,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A model directory, a .gguf or .safetensors file, or a catalog name; the catalog's
    /// default when left out.
    pub model: Option<String>,
    /// What to ask, in quotes. Without it stdin is read; on a terminal that is a conversation.
    pub prompt: Option<String>,
    /// How the model is to behave.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// The text to continue, in quotes. Without it stdin is read.
    pub prompt: Option<String>,
    /// Generate past the model's own end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub session: SessionArgs,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// Prompt lengths to measure, such as 32,512.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [32, 512].map(nonzero))]
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to decode in each measurement.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(default_value_t = nonzero(64))]
    pub decode_tokens: NonZeroUsize,
    /// Tokens already in the context when decoding starts, such as 1,1024.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [nonzero(1)])]
    pub depth: Vec<NonZeroUsize>,
    /// Sequences decoding at once, such as 1,4.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [nonzero(1)])]
    pub batch: Vec<NonZeroUsize>,
    /// Rounds; the median is reported.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(default_value_t = nonzero(5))]
    pub rounds: NonZeroUsize,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub session: SessionArgs,
}

fn nonzero(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap_or(NonZeroUsize::MIN)
}

/// How a model is opened.
#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// Which backend computes (see `loquat backends`); `auto` takes the first that can.
    #[arg(
        long,
        value_name = "NAME",
        env = "LOQUAT_BACKEND",
        default_value = "auto"
    )]
    pub backend: String,
    /// Longest context, at most the model's own, which it is when left out.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<NonZeroUsize>,
    /// Threads for computing; all cores when left out.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub threads: Option<NonZeroUsize>,
    /// `fast` rounds activations and KV as the device likes; `reference` computes in fp32.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fast)]
    pub precision: PrecisionArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    Fast,
    Reference,
}

impl SessionArgs {
    /// For `sequences` at once.
    pub fn options(&self, sequences: usize) -> SessionOptions {
        SessionOptions {
            context: self.context.map(NonZeroUsize::get),
            threads: self.threads.map(NonZeroUsize::get),
            max_sequences: sequences,
            precision: match self.precision {
                PrecisionArg::Fast => Precision::Fast,
                PrecisionArg::Reference => Precision::Reference,
            },
            ..SessionOptions::default()
        }
    }
}

/// What to generate, and how to choose.
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
    #[arg(long, short, value_name = "NUMBER", default_value_t = 0.6)]
    #[arg(help = help(TEMPERATURE), value_parser = ranged(TEMPERATURE))]
    #[arg(allow_negative_numbers = true)]
    pub temperature: f32,
    #[arg(long, value_name = "COUNT", default_value_t = TOP_K.default as usize)]
    #[arg(help = help(TOP_K), value_parser = whole(TOP_K), allow_negative_numbers = true)]
    pub top_k: usize,
    #[arg(long, value_name = "NUMBER", default_value_t = 0.95)]
    #[arg(help = help(TOP_P), value_parser = ranged(TOP_P), allow_negative_numbers = true)]
    pub top_p: f32,
    #[arg(long, value_name = "NUMBER", default_value_t = MIN_P.default)]
    #[arg(help = help(MIN_P), value_parser = ranged(MIN_P), allow_negative_numbers = true)]
    pub min_p: f32,
    #[arg(long, value_name = "NUMBER", default_value_t = REPETITION_PENALTY.default)]
    #[arg(help = help(REPETITION_PENALTY), value_parser = ranged(REPETITION_PENALTY))]
    #[arg(allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    #[arg(long, value_name = "NUMBER", default_value_t = PRESENCE_PENALTY.default)]
    #[arg(help = help(PRESENCE_PENALTY), value_parser = ranged(PRESENCE_PENALTY))]
    #[arg(allow_negative_numbers = true)]
    pub presence_penalty: f32,
    #[arg(long, value_name = "NUMBER", default_value_t = FREQUENCY_PENALTY.default)]
    #[arg(help = help(FREQUENCY_PENALTY), value_parser = ranged(FREQUENCY_PENALTY))]
    #[arg(allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    #[arg(long, value_name = "TOKEN=BIAS", help = help(LOGIT_BIAS), value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Repeat a generation: the same seed and request give the same tokens. Another each time
    /// when left out; --verbose tells which.
    #[arg(long, value_name = "NUMBER", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

impl OutputArgs {
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

fn help(parameter: Parameter) -> String {
    let Parameter { min, max, help, .. } = parameter;
    format!("{help} [{min} to {max}]")
}

fn ranged(parameter: Parameter) -> impl Fn(&str) -> Result<f32, String> + Clone {
    let Parameter { min, max, .. } = parameter;
    move |text| match text.parse() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("must be a number from {min} to {max}")),
    }
}

fn whole(parameter: Parameter) -> impl Fn(&str) -> Result<usize, String> + Clone {
    let (min, max) = (parameter.min as usize, parameter.max as usize);
    move |text| match text.parse() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("must be a whole number from {min} to {max}")),
    }
}

fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    let value = text.parse();
    value.map_err(|_| "must be a whole number of at least 1".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    let value = text.parse();
    value.map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let (token, bias) = text
        .split_once('=')
        .ok_or("must be TOKEN=BIAS, such as 42=-100")?;
    let token = token
        .parse()
        .map_err(|_| format!("`{token}` is not a token id"))?;
    Ok((token, ranged(LOGIT_BIAS)(bias)?))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn biases_parse_or_say_why() {
        assert_eq!(bias("42=-7.5"), Ok((42, -7.5)));
        for (text, why) in [
            ("42", "TOKEN=BIAS"),
            ("x=1", "not a token id"),
            ("-1=1", "not a token id"),
            ("1=x", "a number from -100 to 100"),
            ("1=101", "from -100 to 100"),
            ("1=NaN", "from -100 to 100"),
        ] {
            assert!(bias(text).unwrap_err().contains(why), "{text}");
        }
    }
}
