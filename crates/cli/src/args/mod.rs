//! Every flag, defined once. Sampling parameters take their help and ranges from the engine.

mod answer;
mod bench;
mod conversation;
mod convert;
mod model;
mod models;
mod output;
mod sampling;
mod serve;
mod session;
mod upkeep;
mod values;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use answer::{AnswerArgs, Wanted};
pub use bench::BenchArgs;
pub use conversation::{ConversationArgs, FormatArgs, ThinkingArg};
pub use convert::ConvertArgs;
pub use model::{Chosen, KindArgs, ModelArgs, NetworkArgs};
pub use models::{ModelsArgs, PruneArgs, PullArgs, RmArgs, SearchArgs, ShowArgs, VerifyArgs};
pub use output::{Form, OutputArgs};
pub use sampling::{Given, SamplingArgs, flag_name};
pub use serve::{ConfigCommand, ServeArgs};
pub use session::{RETAINED, SessionArgs};
pub use upkeep::{CompletionsArgs, DoctorArgs, FitArgs, ManArgs, QuickstartArgs};
use values::{count, date};

use crate::terminal::Colour;

/// Large language models on the hardware you already have.
#[derive(Debug, Parser)]
#[command(name = "loquat", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Say more on stderr: what is loaded, how tokens are chosen, and a closing line even when
    /// not on a terminal.
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// When to write in colours; `auto` is on terminals, unless NO_COLOR is set.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub color: Colour,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a model, or chat with it when no prompt is given.
    Run(Box<RunArgs>),
    /// Serve models over HTTP to OpenAI, Anthropic and Ollama clients.
    Serve(Box<ServeArgs>),
    /// Check, show and explain the server's configuration; make keys.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Continue a text exactly as given, without a chat template.
    Generate(Box<GenerateArgs>),
    /// Show a conversation as the model would be given it, without loading weights.
    Render(Box<RenderArgs>),
    /// Say what a model is: blocks, tensors, memory need, capabilities, manner of speaking.
    Inspect(InspectArgs),
    /// Write a model in another format or a smaller type, for mlx-lm or llama.cpp, and say how far
    /// it is from the first.
    Convert(Box<ConvertArgs>),
    /// Measure the engine: its speed beside the bare session's, or one scenario under load.
    Bench(Box<BenchArgs>),
    /// List the compute backends and whether each can run here.
    Backends,
    /// List the models on this machine, whoever brought them.
    Models(ModelsArgs),
    /// Search the catalog.
    Search(SearchArgs),
    /// Download a model, or what is new of it.
    Pull(PullArgs),
    /// Say what is known of a model, without opening or downloading it.
    Show(ShowArgs),
    /// Hash models again, and say what is damaged. Exits with 1 if anything is.
    Verify(VerifyArgs),
    /// Remove models that Loquat brought. A process that is running one keeps it until it ends.
    Rm(RmArgs),
    /// Remove unfinished downloads and what no model uses.
    Prune(PruneArgs),
    /// Say which models fit this machine, at which context, and how fast they will be.
    Fit(FitArgs),
    /// Look this installation over, and say what to do about what is wrong. Exits with 1 if
    /// anything is.
    Doctor(DoctorArgs),
    /// Write a commented configuration for this machine, for `loquat serve`.
    Quickstart(QuickstartArgs),
    /// Print a script that completes commands and flags.
    Completions(CompletionsArgs),
    /// Make manual pages.
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A catalog name (see `loquat search`), a hub repository (owner/name[@revision][:quant]), or
    /// the path of a directory or file; the catalog's default when left out.
    pub model: Option<String>,
    /// What to ask, in quotes. Without it stdin is read; on a terminal that is a conversation.
    #[arg(conflicts_with = "messages")]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
    /// At most one tool call in a reply.
    #[arg(long, requires = "tools", help_heading = "Conversation")]
    pub no_parallel_tool_calls: bool,
    /// Most tokens to think; then the answer begins.
    #[arg(long, value_name = "TOKENS", value_parser = count, help_heading = "Conversation")]
    #[arg(allow_negative_numbers = true)]
    pub thinking_budget: Option<usize>,
    /// How thinking is shown: all of it, one line that counts, or not at all. On terminals it is
    /// dimmed, and `full` when left out. Elsewhere it is left out, and `full` prints it before the
    /// answer, between <think> and </think>.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Conversation")]
    pub show_reasoning: Option<ShowReasoning>,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

/// How much of a model's thinking is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShowReasoning {
    Full,
    Folded,
    Hidden,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A model, as for `run`.
    pub model: Option<String>,
    /// The text to continue, in quotes. Without it stdin is read.
    pub prompt: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// Generate past the model's own end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

/// What the engine would have made of them.
const RAW_EXCLUDES: [&str; 3] = ["thinking", "tool_choice", "read_special"];

#[derive(Debug, Args)]
pub struct RenderArgs {
    /// A model, as for `run`. None is needed where --template is given.
    pub model: Option<String>,
    /// What to ask, in quotes. Without it, and without --messages, stdin is read.
    #[arg(conflicts_with = "messages")]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
    /// Leave the assistant's turn unopened.
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Print token ids instead of text.
    #[arg(long)]
    pub tokens: bool,
    /// Hand the template what --messages and --tools hold untouched, as transformers does,
    /// instead of what the engine makes of it.
    #[arg(long, requires = "messages", conflicts_with_all = RAW_EXCLUDES)]
    pub raw: bool,
    /// What the template calls `bos_token`, where there is no model.
    #[arg(long, value_name = "TEXT", requires = "template")]
    pub bos_token: Option<String>,
    /// What it calls `eos_token`, likewise.
    #[arg(long, value_name = "TEXT", requires = "template")]
    pub eos_token: Option<String>,
    /// The time that templates see instead of the clock's, such as 2026-01-02T03:04:05.
    #[arg(long, value_name = "TIME", value_parser = date)]
    pub date: Option<u64>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A model, as for `run`.
    #[arg(conflicts_with_all = ["gguf_file", "mlx_file"])]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub session: SessionArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }
}
