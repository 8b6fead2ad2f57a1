//! Every flag, defined once. Sampling parameters take their help and ranges from the engine.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use loquat_engine::{
    EngineOptions, FREQUENCY_PENALTY, LOGIT_BIAS, MIN_P, PRESENCE_PENALTY, Parameter,
    REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_K, TOP_P,
};
use loquat_session::{MemoryBudget, Precision, SessionOptions};

use crate::memory;

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
    /// Measure the engine: its speed beside the bare session's, or one scenario under load.
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

/// Flags that choose a scenario exclude each other; all others name those they do not serve.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("scenario").args(["clients", "intruder", "turns", "soak"]))]
pub struct BenchArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// Prompt lengths to measure, such as 32,512.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [32, 512].map(nonzero), conflicts_with = "scenario")]
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to decode in each measurement, before an intruder enters, or in each turn.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(default_value_t = nonzero(64), conflicts_with_all = ["clients", "soak"])]
    pub decode_tokens: NonZeroUsize,
    /// Tokens already in the context when decoding starts, such as 1,1024.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [nonzero(1)], conflicts_with = "scenario")]
    pub depth: Vec<NonZeroUsize>,
    /// Sequences decoding at once, such as 1,4 [default: 1, or 4 when an intruder enters].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(conflicts_with_all = ["clients", "turns", "soak"])]
    batch: Vec<NonZeroUsize>,
    /// Rounds; the median is reported [default: 5, or 3 of an intruder's or of turns].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(conflicts_with_all = ["clients", "soak"])]
    rounds: Option<NonZeroUsize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Many clients at once: as many as this, one count after the other, such as 1,4,8,16,32.
    #[arg(long, value_name = "COUNTS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(help_heading = SCENARIOS)]
    pub clients: Vec<NonZeroUsize>,
    /// Requests to serve at each count of clients [default: four for each of the most clients].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, requires = "clients")]
    #[arg(help_heading = SCENARIOS, conflicts_with_all = ["seconds", "intruder", "turns", "soak"])]
    pub requests: Option<NonZeroUsize>,
    /// How long to send requests at each count of clients, instead of a number of them.
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one, requires = "clients")]
    #[arg(help_heading = SCENARIOS, conflicts_with_all = ["intruder", "turns", "soak"])]
    pub seconds: Option<NonZeroUsize>,
    /// Lengths of clients' prompts, drawn so that doubling a length makes it half as frequent.
    #[arg(long, value_name = "LOW-HIGH", value_parser = span, requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = Span { low: 16, high: 512 })]
    #[arg(conflicts_with_all = ["intruder", "turns", "soak"])]
    pub prompt_range: Span,
    /// Lengths of clients' answers, drawn likewise.
    #[arg(long, value_name = "LOW-HIGH", value_parser = span, requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = Span { low: 32, high: 128 })]
    #[arg(conflicts_with_all = ["intruder", "turns", "soak"])]
    pub output_range: Span,
    /// What running streams suffer while a prompt of this length enters.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub intruder: Option<NonZeroUsize>,
    /// How many times as long running streams may take for a token while prompts come in; `inf`
    /// is no bound.
    #[arg(long, value_name = "NUMBER", value_parser = slowdown, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = EngineOptions::default().max_slowdown)]
    #[arg(conflicts_with_all = ["turns", "soak"])]
    pub max_slowdown: f32,
    /// A conversation of this many turns, with the prefix cache and without it.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub turns: Option<NonZeroUsize>,
    /// New tokens in each turn's question.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, requires = "turns")]
    #[arg(help_heading = SCENARIOS, default_value_t = nonzero(64))]
    #[arg(conflicts_with_all = ["clients", "intruder", "soak"])]
    pub user_tokens: NonZeroUsize,
    /// Unreliable clients for this long, on little memory, and a check that nothing leaks.
    #[arg(long, value_name = "SECONDS", value_parser = soak_seconds, help_heading = SCENARIOS)]
    pub soak: Option<NonZeroUsize>,
    /// Draws a scenario's prompts, lengths and whims.
    #[arg(long, value_name = "NUMBER", value_parser = seed, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = 0)]
    pub seed: u64,
    /// Draw a scenario's results into this file.
    #[arg(long, value_name = "FILE", requires = "scenario", help_heading = SCENARIOS)]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub session: SessionArgs,
}

const SCENARIOS: &str = "Scenarios";

impl BenchArgs {
    /// Sequences decoding at once, or as many as the scenario takes by itself.
    pub fn batches(&self, default: usize) -> Vec<usize> {
        match self.batch.is_empty() {
            true => vec![default],
            false => self.batch.iter().map(|batch| batch.get()).collect(),
        }
    }

    /// Rounds, or as many as the scenario takes by itself.
    pub fn rounds(&self, default: usize) -> usize {
        self.rounds.map_or(default, NonZeroUsize::get)
    }
}

/// Lengths from `low` to `high`, both at least 1 and both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub low: usize,
    pub high: usize,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

fn span(text: &str) -> Result<Span, String> {
    let wanted = || "must be two lengths of at least 1, the shorter first, such as 16-512";
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let span = Span {
        low: low.parse().map_err(|_| wanted())?,
        high: high.parse().map_err(|_| wanted())?,
    };
    // One more must still be a number.
    let sound = (1..=span.high).contains(&span.low) && span.high < usize::MAX;
    sound.then_some(span).ok_or_else(|| wanted().to_owned())
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
    /// All memory to take, such as 6GiB, 800MB or 60% (of this machine's): what weights leave of
    /// it is for KV. Left out, KV takes at most a quarter of the machine.
    #[arg(long, value_name = "SIZE", env = "LOQUAT_MEMORY", value_parser = memory::budget)]
    #[arg(allow_negative_numbers = true)]
    pub memory: Option<MemoryBudget>,
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

/// Ended sequences that a session has places for, so that a conversation's next turn finds what
/// its last one left. A place costs nothing until it is used, and the session's bound on memory
/// holds for them too.
const RETAINED: usize = 16;

impl SessionArgs {
    /// For `sequences` at once, and those that have ended and are kept.
    pub fn options(&self, sequences: usize) -> SessionOptions {
        SessionOptions {
            context: self.context.map(NonZeroUsize::get),
            memory: self.memory,
            threads: self.threads.map(NonZeroUsize::get),
            max_sequences: sequences.saturating_add(RETAINED),
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

fn soak_seconds(text: &str) -> Result<NonZeroUsize, String> {
    const MONTH: usize = 31 * 86_400;
    match text.parse() {
        Ok(seconds) if seconds <= nonzero(MONTH) => Ok(seconds),
        _ => Err(format!("must be a whole number from 1 to {MONTH}")),
    }
}

fn slowdown(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(value) if (1.0..=f32::INFINITY).contains(&value) => Ok(value),
        _ => Err("must be a number of at least 1, or inf".to_owned()),
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
    fn spans_parse_or_say_why() {
        assert_eq!(span("16-512"), Ok(Span { low: 16, high: 512 }));
        assert_eq!(span("7"), Ok(Span { low: 7, high: 7 }));
        for text in [
            "",
            "-",
            "0-4",
            "5-4",
            "x-4",
            "4-x",
            "1-18446744073709551615",
        ] {
            let error = span(text).unwrap_err();
            assert!(error.contains("such as 16-512"), "{text}: {error}");
        }
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
