//! Flags of the session.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use loquat_engine::{SpeculationMode, SpeculationOptions};
use loquat_server::config::units;
use loquat_session::{KvFormat, MemoryBudget, Precision, SessionOptions};

use super::values::at_least_one;

/// Session options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// The compute backend (see `loquat backends`); `auto` uses a GPU if there is one, else the CPU.
    #[arg(long, value_name = "NAME", env = "LOQUAT_BACKEND")]
    #[arg(default_value = "auto")]
    pub backend: String,
    /// Context length, at most the model's [default: the model's].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<NonZeroUsize>,
    /// Memory limit, such as 6GiB, 800MB or 60% (of this machine's); the KV cache gets what the
    /// weights leave [default: the KV cache gets at most a quarter of the machine's memory].
    #[arg(long, value_name = "SIZE", env = "LOQUAT_MEMORY", value_parser = units::budget)]
    #[arg(allow_negative_numbers = true)]
    pub memory: Option<MemoryBudget>,
    /// Positions of images and videos that may be encoded at once; 0 leaves a model's vision tower
    /// unloaded [default: 8192 if the model reads images].
    #[arg(long, value_name = "COUNT")]
    pub media_positions: Option<usize>,
    /// Compute threads [default: one per physical core].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    #[arg(allow_negative_numbers = true)]
    pub threads: Option<NonZeroUsize>,
    /// `fast` rounds activations and KV as suits the device; `reference` computes in fp32.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fast)]
    pub precision: PrecisionArg,
    /// Format of the KV cache: f32, f16, bf16, q8, k8v4, turbo4, turbo3, turbo2, or KEYS:VALUES
    /// such as q8:turbo3 [default: the backend's preference].
    #[arg(long, value_name = "FORMAT")]
    pub kv_format: Option<KvFormat>,
}

/// Options of speculative decoding.
#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub struct SpeculationArgs {
    /// Speculative decoding, which changes the speed and not the text: `lookup` drafts what followed
    /// the last tokens when they occurred before, and verifies as many drafts in a step as pay;
    /// `auto` does so if results stay the same to the last bit; `off` drafts nothing.
    #[arg(long, value_name = "WHO", value_parser = drafter, env = "LOQUAT_SPECULATIVE")]
    #[arg(default_value = "auto")]
    pub speculative: SpeculationMode,
    /// Most drafts in a step [default: 31].
    #[arg(long, value_name = "TOKENS", value_parser = draft_max, env = "LOQUAT_DRAFT_MAX")]
    #[arg(allow_negative_numbers = true)]
    pub draft_max: Option<usize>,
}

impl SpeculationArgs {
    pub fn options(&self) -> SpeculationOptions {
        let default = SpeculationOptions::default();
        SpeculationOptions {
            mode: self.speculative,
            max_tokens: self.draft_max.unwrap_or(default.max_tokens),
        }
    }
}

/// Parses the name of a mode.
pub fn drafter(text: &str) -> Result<SpeculationMode, String> {
    let mut modes = SpeculationMode::ALL.into_iter();
    if let Some((_, mode)) = modes.find(|(name, _)| *name == text) {
        return Ok(mode);
    }
    let all = SpeculationMode::ALL.map(|(name, _)| name).join(", ");
    let what = match text.split('=').next() {
        Some("draft") => "draft models are not supported yet",
        Some("heads") => "heads of checkpoints are not supported yet",
        _ => "nobody drafts under this name",
    };
    Err(format!("{what}. Use one of: {all}"))
}

fn draft_max(text: &str) -> Result<usize, String> {
    let most = SpeculationOptions::MOST_TOKENS;
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("it must be from 1 to {most}"))
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    Fast,
    Reference,
}

/// Ended sequences that a session may keep, so that the next turn of a conversation hits the prefix
/// cache. An unused slot costs nothing, and the session's memory limit includes them.
pub const RETAINED_SEQUENCES: usize = 16;

impl SessionArgs {
    /// For `sequences` at once, plus retained ones.
    pub fn options(&self, sequences: usize) -> SessionOptions {
        SessionOptions {
            context: self.context.map(NonZeroUsize::get),
            memory: self.memory,
            threads: self.threads.map(NonZeroUsize::get),
            max_sequences: sequences.saturating_add(RETAINED_SEQUENCES),
            precision: match self.precision {
                PrecisionArg::Fast => Precision::Fast,
                PrecisionArg::Reference => Precision::Reference,
            },
            kv_format: self.kv_format,
            media_positions: self.media_positions,
            ..SessionOptions::default()
        }
    }
}
