//! The flags of `loquat bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use loquat_bench::{LengthRange, Workload};
use loquat_engine::{EngineOptions, SpeculationMode};
use loquat_synthetic::Recipe;

use super::model::{MODEL_FLAGS, ModelArgs};
use super::session::{SessionArgs, drafter};
use super::values::{at_least_one, disk_size, nonzero, reference, seed};

/// Scenarios exclude each other; every other flag lists the scenarios that it does not apply to.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("scenario")
    .args([
        "clients", "prefill_interference", "turns", "soak", "constrained", "contended", "encode",
        "http", "work", "machine", "draw", "start", "adapters", "speculative",
    ]))]
pub struct BenchArgs {
    /// A model, as for `run`.
    #[arg(conflicts_with_all = ["gguf_file", "mlx_file"])]
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// Random weights with the shape of a known model instead, such as llama-1b:q4_0 [default
    /// format: bf16]. An unknown name lists the known ones.
    #[arg(long, value_name = "SHAPE[:FORMAT]", conflicts_with_all = ["model", "constrained", "http", "start"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub synthetic: Option<Recipe>,
    /// Write the synthetic model to this path and measure nothing: a file that ends in .gguf, or a
    /// directory of safetensors.
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
    /// Tokens to decode per measurement, per turn, or before the interfering prefill.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(default_value_t = nonzero(64), conflicts_with_all = ["clients", "soak", "encode", "start"])]
    pub decode_tokens: NonZeroUsize,
    /// Context lengths at which decoding starts, such as 1,1024.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(default_values_t = [nonzero(1)], conflicts_with = "scenario")]
    pub depth: Vec<NonZeroUsize>,
    /// Sequences that decode at once, such as 1,4 [default: 1; 4 for prefill interference].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(conflicts_with_all = ["clients", "turns", "soak", "contended", "encode", "start", "adapters"])]
    batch: Vec<NonZeroUsize>,
    /// Rounds; the median is reported [default: 5; 3 for prefill interference and turns].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(conflicts_with_all = ["clients", "soak"])]
    rounds: Option<NonZeroUsize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Many clients at once; each count is measured in turn, such as 1,4,8,16,32.
    #[arg(long, value_name = "COUNTS", value_parser = at_least_one, value_delimiter = ',')]
    #[arg(help_heading = SCENARIOS)]
    pub clients: Vec<NonZeroUsize>,
    /// Requests per count of clients [default: four times the largest count].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, requires = "clients")]
    #[arg(conflicts_with_all = ["seconds", "prefill_interference", "turns", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    #[arg(help_heading = SCENARIOS)]
    pub requests: Option<NonZeroUsize>,
    /// How long to send requests per count of clients, instead of --requests.
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one, requires = "clients")]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    #[arg(help_heading = SCENARIOS)]
    pub seconds: Option<NonZeroUsize>,
    /// Prompt lengths of the clients, drawn log-uniformly.
    #[arg(long, value_name = "LOW-HIGH", requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = LengthRange { low: 16, high: 512 })]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    pub prompt_range: LengthRange,
    /// Answer lengths of the clients, drawn log-uniformly.
    #[arg(long, value_name = "LOW-HIGH", requires = "clients")]
    #[arg(help_heading = SCENARIOS, default_value_t = LengthRange { low: 32, high: 128 })]
    #[arg(conflicts_with_all = ["prefill_interference", "turns", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    pub output_range: LengthRange,
    /// The slowdown of running streams while a prompt of this length is prefilled.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub prefill_interference: Option<NonZeroUsize>,
    /// How much longer running streams may take per token during a prefill; `inf` for no bound.
    #[arg(long, value_name = "NUMBER", value_parser = slowdown, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = EngineOptions::default().max_slowdown)]
    #[arg(conflicts_with_all = ["turns", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    pub max_slowdown: f32,
    /// This many random adapters of all layers' matrices, against none: a prompt, and decoding in
    /// batches of 1 and of as many as there are adapters.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["svg", "seed"])]
    pub adapters: Option<NonZeroUsize>,
    /// The adapters' rank.
    #[arg(long, value_name = "RANK", value_parser = at_least_one, requires = "adapters")]
    #[arg(help_heading = SCENARIOS, default_value_t = nonzero(16))]
    pub adapter_rank: NonZeroUsize,
    /// A conversation of this many turns, with and without the prefix cache.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub turns: Option<NonZeroUsize>,
    /// New tokens per turn.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one, requires = "turns")]
    #[arg(help_heading = SCENARIOS, default_value_t = nonzero(64))]
    #[arg(conflicts_with_all = ["clients", "prefill_interference", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    pub user_tokens: NonZeroUsize,
    /// Chaos clients for this long on little memory, and a check that nothing leaks.
    #[arg(long, value_name = "SECONDS", value_parser = soak_seconds, help_heading = SCENARIOS)]
    pub soak: Option<NonZeroUsize>,
    /// Decoding constrained by a JSON schema against free decoding.
    #[arg(long, help_heading = SCENARIOS)]
    pub constrained: bool,
    /// Speculative decoding against decoding without: an edit of a file and, in batches of --batch,
    /// free prose. Drafts come from `lookup`, or as for `run` [possible values: auto, lookup].
    #[arg(long, value_name = "WHO", value_parser = drafter, help_heading = SCENARIOS)]
    #[arg(num_args = 0..=1, default_missing_value = "auto")]
    #[arg(conflicts_with_all = ["synthetic", "svg"])]
    pub speculative: Option<SpeculationMode>,
    /// Decoding while this many other threads keep a core busy each, against an idle machine.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, help_heading = SCENARIOS)]
    pub contended: Option<NonZeroUsize>,
    /// The model's vision tower on one picture of this many pixels a side. Towers of a fixed size
    /// encode a picture of their own.
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one, help_heading = SCENARIOS)]
    #[arg(conflicts_with = "synthetic")]
    pub encode: Option<NonZeroUsize>,
    /// Streaming over HTTP against the bare session, many clients (--batch, or 32), and the time and
    /// memory of a server's start.
    #[arg(long, help_heading = SCENARIOS, conflicts_with = "kv_format")]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub http: bool,
    /// These workloads only, once each, through the engine, in a session just large enough, such as
    /// prompt:512,decode:64@2048,decode:64@1x8 (tokens, depth, sequences). For programs that
    /// compare processes.
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',', help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["synthetic", "decode_tokens", "batch", "rounds", "svg", "seed"])]
    pub work: Vec<Workload>,
    /// This machine's limits: memory bandwidth and int8 arithmetic.
    #[arg(long, help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["model", "synthetic", "decode_tokens", "batch", "rounds", "svg"])]
    #[arg(conflicts_with_all = ["seed", "context", "precision", "kv_format"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub machine: bool,
    /// Draw the figure described by this JSON file: a title, a caption and panels of lines.
    #[arg(long, value_name = "FILE", requires = "svg", help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["model", "synthetic", "decode_tokens", "batch", "rounds", "json"])]
    #[arg(conflicts_with_all = ["seed", "context", "threads", "precision", "kv_format"])]
    #[arg(conflicts_with_all = MODEL_FLAGS)]
    pub draw: Option<PathBuf>,
    /// Time from a command to its first token, in a new process, against the same prompt on a loaded
    /// model.
    #[arg(long, help_heading = SCENARIOS)]
    pub start: bool,
    /// Seed of the scenario's prompts, lengths and client behaviour.
    #[arg(long, value_name = "NUMBER", value_parser = seed, requires = "scenario")]
    #[arg(help_heading = SCENARIOS, default_value_t = 0, conflicts_with_all = ["start", "contended"])]
    pub seed: u64,
    /// Also draw the results into this file.
    #[arg(long, value_name = "FILE", requires = "scenario", help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["constrained", "contended", "encode", "http", "start"])]
    pub svg: Option<PathBuf>,
    /// Store the cached prefixes of `--turns` and `--clients` on disk, at most so many bytes, such as
    /// 10GiB; they are removed afterwards.
    #[arg(long, value_name = "SIZE", value_parser = disk_size, help_heading = SCENARIOS)]
    #[arg(conflicts_with_all = ["prefill_interference", "soak", "constrained", "contended", "encode", "http", "start", "work", "machine", "draw", "adapters", "speculative"])]
    pub kv_disk: Option<u64>,
    #[command(flatten)]
    pub session: SessionArgs,
}

const SCENARIOS: &str = "Scenarios";

impl BenchArgs {
    /// Sequences that decode at once, or the scenario's default.
    pub fn batches(&self, default: usize) -> Vec<usize> {
        if self.batch.is_empty() {
            vec![default]
        } else {
            self.batch.iter().map(|batch| batch.get()).collect()
        }
    }

    /// Rounds, or the scenario's default.
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
