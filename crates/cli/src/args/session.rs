//! How a model is opened.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use loquat_server::config::units;
use loquat_session::{KvFormat, MemoryBudget, Precision, SessionOptions};

use super::values::at_least_one;

/// How a model is opened.
#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// Which backend computes (see `loquat backends`); `auto` takes one with a GPU where there is
    /// one, else the CPU.
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
    #[arg(long, value_name = "SIZE", env = "LOQUAT_MEMORY", value_parser = units::budget)]
    #[arg(allow_negative_numbers = true)]
    pub memory: Option<MemoryBudget>,
    /// Threads for computing; all cores when left out.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub threads: Option<NonZeroUsize>,
    /// `fast` rounds activations and KV as the device likes; `reference` computes in fp32.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fast)]
    pub precision: PrecisionArg,
    /// How keys and values are kept: f32, f16, bf16 or q8; as the backend prefers when left out.
    #[arg(long, value_name = "FORMAT", value_parser = kv_format)]
    pub kv_format: Option<KvFormat>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    Fast,
    Reference,
}

/// Ended sequences that a session has places for, so that a conversation's next turn finds what
/// its last one left. A place costs nothing until it is used, and the session's bound on memory
/// holds for them too.
pub const RETAINED: usize = 16;

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
            kv_format: self.kv_format,
            ..SessionOptions::default()
        }
    }
}

fn kv_format(name: &str) -> Result<KvFormat, String> {
    let names = || KvFormat::ALL.map(KvFormat::name).join(", ");
    KvFormat::from_name(name).ok_or_else(|| format!("expected one of {}", names()))
}
