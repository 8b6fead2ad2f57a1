//! The flags of `loquat bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use loquat_bench::{LengthRange, Workload};
use loquat_engine::EngineOptions;
use loquat_synthetic::Recipe;

use super::model::{MODEL_FLAGS, ModelArgs};
use super::session::SessionArgs;
use super::values::{at_least_one, nonzero, seed};

/// Flags that choose a scenario exclude each other; all others name those they do not serve.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("scenario")
    .args([
        "clients", "prefill_interference", "turns", "soak", "constrained", "contended", "http", "work",
        "machine", "draw", "start",
    ]))]
pub struct BenchArgs {
    /// A model, as for `run`.
    #[arg(conflicts_with_all = ["gguf_file", "mlx_file"])]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// Random weights of a known model's shape instead, such as llama-1b:q4_0 [default format:
    /// bf16]. A name that is not known is answered with those that are.
    #[arg(long, value_name = "SHAPE[:FORMAT]", conflicts_with_all = ["model", "constrained", "http", "start"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub synthetic: Option<Recipe>,
    /// Write the synthetic model to this path and measure nothing: a file that ends in .gguf, or a
    /// folder of safetensors.
    #[arg(
        long,
        value_name = "PATH",
        requires = "synthetic",
        conflicts_with_all = [
            "scenario", "prompt_tokens", "decode_tokens", "depth", "batch", "rounds", "json", "svg",
            "context", "memory", "threads", "precision", "kv_format",
        ]
    )]
    pub save: Option<PathBuf>,
    /// Prompt lengths to measure, such as 32,512.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [32, 512].map(nonzero), conflicts_with = "scenario")]
    pub prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to decode in each measurement, before an prefill_interference enters, or in each turn.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(default_value_t = nonzero(64), conflicts_with_all = ["clients", "soak", "start"])]
    pub decode_tokens: NonZeroUsize,
    /// Tokens already in the context when decoding starts, such as 1,1024.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [nonzero(1)], conflicts_with = "scenario")]
    pub depth: Vec<NonZeroUsize>,
    /// Sequences decoding at once, such as 1,4 [default: 1, or 4 when an prefill_interference enters].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(conflicts_with_all = ["clients", "turns", "soak", "contended", "start"])]
    batch: Vec<NonZeroUsize>,
    /// Rounds; the median is reported [default: 5, or 3 of an prefill_interference's or of turns].
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
    #[arg(conflicts_with_all = ["seconds", "prefill_interference", "turns", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    #[arg(help_heading = SCENARIOS)]
    pub requests: Option<NonZeroUsize>,
    /// How long to send requests at each count of clients, instead of a number of them.
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one, requires = "clients")]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    #[arg(help_heading = SCENARIOS)]
    pub seconds: Option<NonZeroUsize>,
    /// Lengths of clients' prompts, drawn so that doubling a length makes it half as frequent.
    #[arg(long, value_name = "LOW-HIGH", requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = LengthRange { low: 16, high: 512 })]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    pub prompt_range: LengthRange,
    /// Lengths of clients' answers, drawn likewise.
    #[arg(long, value_name = "LOW-HIGH", requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = LengthRange { low: 32, high: 128 })]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    pub output_range: LengthRange,
    /// What running streams suffer while a prompt of this length enters.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub prefill_interference: Option<NonZeroUsize>,
    /// How many times as long running streams may take for a token while prompts come in; `inf`
    /// is no bound.
    #[arg(long, value_name = "NUMBER", value_parser = slowdown, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = EngineOptions::default().max_slowdown)]
    #[arg(conflicts_with_all = ["turns", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    pub max_slowdown: f32,
    /// A conversation of this many turns, with the prefix cache and without it.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub turns: Option<NonZeroUsize>,
    /// New tokens in each turn's question.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, requires = "turns")]
    #[arg(help_heading = SCENARIOS, default_value_t = nonzero(64))]
    #[arg(conflicts_with_all = ["clients", "prefill_interference", "soak", "constrained", "contended", "http", "start", "work", "machine", "draw"])]
    pub user_tokens: NonZeroUsize,
    /// Unreliable clients for this long, on little memory, and a check that nothing leaks.
    #[arg(long, value_name = "SECONDS", value_parser = soak_seconds, help_heading = SCENARIOS)]
    pub soak: Option<NonZeroUsize>,
    /// Decoding held to a JSON schema, beside free decoding.
    #[arg(long, help_heading = SCENARIOS)]
    pub constrained: bool,
    /// Decoding while so many others keep a core busy each, beside decoding undisturbed.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub contended: Option<NonZeroUsize>,
    /// Streaming over HTTP beside the bare session, many clients (as many as `--batch` says, or 32),
    /// and what a server's start takes.
    #[arg(long, help_heading = SCENARIOS, conflicts_with = "kv_format")]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub http: bool,
    /// These works alone, once each, through the engine and in a session with just the room they
    /// need, such as prompt:512,decode:64@2048,decode:64@1x8 (tokens, depth, sequences): for
    /// programs that compare processes.
    #[arg(long, value_name = "WORKS", value_delimiter = ',', help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["synthetic", "decode_tokens", "batch", "rounds", "svg", "seed"])]
    pub work: Vec<Workload>,
    /// What this machine can do at most: how fast its memory is read, and its int8 arithmetic.
    #[arg(long, help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["model", "synthetic", "decode_tokens", "batch", "rounds", "svg"])]
    #[arg(conflicts_with_all = ["seed", "context", "precision", "kv_format"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub machine: bool,
    /// Draw the figure that this JSON file describes: a title, a caption and panels of lines.
    #[arg(long, value_name = "FILE", requires = "svg", help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["model", "synthetic", "decode_tokens", "batch", "rounds", "json"])]
    #[arg(conflicts_with_all = ["seed", "context", "threads", "precision", "kv_format"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub draw: Option<PathBuf>,
    /// From the command to the first token, as a process of its own, beside the time that the
    /// same prompt takes once all is loaded.
    #[arg(long, help_heading = SCENARIOS)]
    pub start: bool,
    /// Draws a scenario's prompts, lengths and whims.
    #[arg(long, value_name = "NUMBER", value_parser = seed, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = 0, conflicts_with_all = ["start", "contended"])]
    pub seed: u64,
    /// Draw a scenario's results into this file.
    #[arg(long, value_name = "FILE", requires = "scenario", help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["constrained", "contended", "http", "start"])]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub session: SessionArgs,
}

const SCENARIOS: &str = "Scenarios";

impl BenchArgs {
    /// Sequences decoding at once, or as many as the scenario takes by itself.
    pub fn batches(&self, default: usize) -> Vec<usize> {
        if self.batch.is_empty() {
            vec![default]
        } else {
            self.batch.iter().map(|batch| batch.get()).collect()
        }
    }

    /// Rounds, or as many as the scenario takes by itself.
    pub fn rounds(&self, default: usize) -> usize {
        self.rounds.map_or(default, NonZeroUsize::get)
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
