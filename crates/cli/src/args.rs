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
    /// What to ask. Without it stdin is read; on a terminal that is a conversation.
    pub prompt: Option<String>,
    /// How the model is to behave.
    #[arg(long)]
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
    /// The text to continue. Without it stdin is read.
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
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub session: SessionArgs,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// Prompt lengths to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [32, 512].map(nonzero))]
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to decode in each measurement.
    #[arg(long, default_value_t = nonzero(64))]
    pub decode_tokens: NonZeroUsize,
    /// Tokens already in the context when decoding starts.
    #[arg(long, value_delimiter = ',', default_values_t = [nonzero(1)])]
    pub depth: Vec<NonZeroUsize>,
    /// Sequences decoding at once.
    #[arg(long, value_delimiter = ',', default_values_t = [nonzero(1)])]
    pub batch: Vec<NonZeroUsize>,
    /// Rounds; the median is reported.
    #[arg(long, default_value_t = nonzero(5))]
    pub rounds: NonZeroUsize,
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
    /// Which backend computes; `auto` takes the first that can.
    #[arg(long, env = "LOQUAT_BACKEND", default_value = "auto")]
    pub backend: String,
    /// Longest context; the model's own when left out.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Threads for computing; all cores when left out.
    #[arg(long)]
    pub threads: Option<usize>,
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
            context: self.context,
            threads: self.threads,
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
    #[arg(long, short = 'n', value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// End the text before this string. May be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[arg(long, short, default_value_t = 0.6, help = TEMPERATURE.help)]
    #[arg(value_parser = ranged(TEMPERATURE))]
    pub temperature: f32,
    #[arg(long, default_value_t = TOP_K.default as usize, help = TOP_K.help)]
    pub top_k: usize,
    #[arg(long, default_value_t = 0.95, help = TOP_P.help, value_parser = ranged(TOP_P))]
    pub top_p: f32,
    #[arg(long, default_value_t = MIN_P.default, help = MIN_P.help, value_parser = ranged(MIN_P))]
    pub min_p: f32,
    #[arg(long, default_value_t = REPETITION_PENALTY.default, help = REPETITION_PENALTY.help)]
    #[arg(value_parser = ranged(REPETITION_PENALTY))]
    pub repetition_penalty: f32,
    #[arg(long, default_value_t = PRESENCE_PENALTY.default, help = PRESENCE_PENALTY.help)]
    #[arg(value_parser = ranged(PRESENCE_PENALTY), allow_negative_numbers = true)]
    pub presence_penalty: f32,
    #[arg(long, default_value_t = FREQUENCY_PENALTY.default, help = FREQUENCY_PENALTY.help)]
    #[arg(value_parser = ranged(FREQUENCY_PENALTY), allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    #[arg(long, value_name = "TOKEN=BIAS", help = LOGIT_BIAS.help, value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Repeat a generation: the same seed and request give the same tokens.
    #[arg(long)]
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

fn ranged(parameter: Parameter) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let value: f32 = text.parse().map_err(|_| "not a number".to_owned())?;
        if (parameter.min..=parameter.max).contains(&value) {
            Ok(value)
        } else {
            Err(format!(
                "must be from {} to {}",
                parameter.min, parameter.max
            ))
        }
    }
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
            ("1=x", "not a number"),
            ("1=101", "from -100 to 100"),
            ("1=NaN", "from -100 to 100"),
        ] {
            assert!(bias(text).unwrap_err().contains(why), "{text}");
        }
    }
}
