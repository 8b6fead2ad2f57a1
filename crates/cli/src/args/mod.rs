//! All flags, each defined once. Sampling parameters take their help and ranges from the engine.

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
use loquat::ComputeCapability;

pub use answer::{AnswerArgs, AnswerConstraint};
pub use bench::BenchArgs;
pub use conversation::{ConversationArgs, FormatArgs, ThinkingArg};
pub use convert::ConvertArgs;
pub use model::{AdapterArgs, KindArgs, ModelArgs, ModelChoice, NetworkArgs};
pub use models::{ModelsArgs, PruneArgs, PullArgs, RmArgs, SearchArgs, ShowArgs, VerifyArgs};
pub use output::{OutputArgs, OutputForm};
pub use sampling::{FlagValue, SamplingArgs, flag_name};
pub use serve::{ConfigCommand, ServeArgs};
pub use session::{RETAINED_SEQUENCES, SessionArgs, SpeculationArgs};
pub use upkeep::{CompletionsArgs, DoctorArgs, FitArgs, ManArgs, QuickstartArgs};
pub use values::adapter_file;
use values::{count, date, disk_size, reference};

use crate::terminal::Colour;

/// Large language models on the hardware you already have.
#[derive(Debug, Parser)]
#[command(name = "loquat", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print more on stderr: what is loaded, the sampling parameters, and the statistics line even
    /// without a terminal.
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// When to use colours; `auto` uses them on terminals unless NO_COLOR is set.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub color: Colour,
}

impl Cli {
    /// A prompt after `--` is the prompt of the command.
    pub fn with_verbatim_prompt(mut self) -> Self {
        let (prompt, verbatim) = match &mut self.command {
            Command::Run(args) => (&mut args.prompt, args.input.verbatim_prompt.take()),
            Command::Generate(args) => (&mut args.prompt, args.verbatim_prompt.take()),
            Command::Render(args) => (&mut args.prompt, args.input.verbatim_prompt.take()),
            _ => return self,
        };
        *prompt = verbatim.or(prompt.take());
        self
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a model, or chat with it if no prompt is given.
    Run(Box<RunArgs>),
    /// Serve models over HTTP to OpenAI, Anthropic and Ollama clients.
    Serve(Box<ServeArgs>),
    /// Check, show and document the server's configuration; create API keys.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Continue a text verbatim, without a chat template.
    Generate(Box<GenerateArgs>),
    /// Show the prompt that a conversation renders to, without loading weights.
    Render(Box<RenderArgs>),
    /// Describe a model: blocks, tensors, memory, capabilities, chat template.
    Inspect(InspectArgs),
    /// Convert a model to another format or quantization, for mlx-lm or llama.cpp, and report the
    /// quantization error.
    Convert(Box<ConvertArgs>),
    /// Measure the engine overhead against the bare session, or one scenario under load.
    Bench(Box<BenchArgs>),
    /// List the compute backends and whether each can run here.
    Backends,
    /// List local models, including those other tools downloaded.
    Models(ModelsArgs),
    /// Search the catalog.
    Search(SearchArgs),
    /// Download or update a model.
    Pull(PullArgs),
    /// Show model details without opening or downloading the model.
    Show(ShowArgs),
    /// Verify the hashes of local models. Exits with 1 if a file is damaged.
    Verify(VerifyArgs),
    /// Remove models Loquat downloaded. A running process keeps its model until it exits.
    Rm(RmArgs),
    /// Remove unfinished downloads and unused files.
    Prune(PruneArgs),
    /// Show which models fit this machine, with which context, and how fast they run.
    Fit(FitArgs),
    /// Diagnose problems and suggest fixes. Exits with 1 if there is a problem.
    Doctor(DoctorArgs),
    /// Write a commented configuration for this machine, for `loquat serve`.
    Quickstart(QuickstartArgs),
    /// Print a shell completion script.
    Completions(CompletionsArgs),
    /// Generate manual pages.
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A catalog name (see `loquat search`), a hub repository (owner/name[@revision][:quant]), or
    /// the path of a directory or file [default: the catalog's default model].
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    /// The prompt, in quotes. Without it, stdin is read; on a terminal, a chat starts.
    #[arg(conflicts_with = "messages")]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub input: ChatInputArgs,
    /// Allow at most one tool call per reply.
    #[arg(long, requires = "tools", help_heading = "Conversation")]
    pub no_parallel_tool_calls: bool,
    /// Maximum number of thinking tokens; then the answer begins.
    #[arg(long, value_name = "TOKENS", value_parser = count, help_heading = "Conversation")]
    #[arg(allow_negative_numbers = true)]
    pub thinking_budget: Option<usize>,
    /// How to show thinking: in full, folded into one line with a counter, or hidden. On terminals
    /// the default is `full`, dimmed. Elsewhere the default is `hidden`, and `full` prints it
    /// before the answer, between <think> and </think>.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Conversation")]
    pub show_reasoning: Option<ShowReasoning>,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Disk space for the KV of finished turns, such as 10GiB, so that another start with the same
    /// conversation does not compute it again [default: none].
    #[arg(long, value_name = "SIZE", value_parser = disk_size, help_heading = "Session")]
    #[arg(allow_negative_numbers = true)]
    pub kv_disk: Option<u64>,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

/// What `run` and `render` read, besides the model and the prompt.
#[derive(Debug, Args)]
pub struct ChatInputArgs {
    /// The prompt, even if it is a single word.
    #[arg(last = true, value_name = "PROMPT", conflicts_with_all = ["prompt", "messages"])]
    pub verbatim_prompt: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    #[command(flatten)]
    pub conversation: ConversationArgs,
}

/// How much of the model's thinking is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShowReasoning {
    Full,
    Folded,
    Hidden,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A model, as for `run`.
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    /// The text to continue, in quotes. Without it, stdin is read.
    pub prompt: Option<String>,
    /// The text to continue, even if it is a single word.
    #[arg(last = true, value_name = "PROMPT", conflicts_with = "prompt")]
    pub verbatim_prompt: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// The text that follows: the model writes what is between the prompt and it. Only for models
    /// with fill-in-the-middle tokens, such as Qwen2.5-Coder.
    #[arg(long, value_name = "TEXT")]
    pub suffix: Option<String>,
    /// Continue past the model's end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

/// Flags that only affect how the engine lowers messages.
const RAW_EXCLUDES: [&str; 3] = ["thinking", "tool_choice", "read_special"];

#[derive(Debug, Args)]
pub struct RenderArgs {
    /// A model, as for `run`. Optional with --template.
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    /// The prompt, in quotes. Without it and without --messages, stdin is read.
    #[arg(conflicts_with = "messages")]
    pub prompt: Option<String>,
    #[command(flatten)]
    pub input: ChatInputArgs,
    /// Do not open the assistant's turn.
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Print token ids instead of text.
    #[arg(long)]
    pub tokens: bool,
    /// Pass the contents of --messages and --tools to the template unchanged, as transformers
    /// does.
    #[arg(long, requires = "messages", conflicts_with_all = RAW_EXCLUDES)]
    pub raw: bool,
    /// The template's `bos_token`, if there is no model.
    #[arg(long, value_name = "TEXT", requires = "template")]
    pub bos_token: Option<String>,
    /// The template's `eos_token`, if there is no model.
    #[arg(long, value_name = "TEXT", requires = "template")]
    pub eos_token: Option<String>,
    /// The time that templates see instead of the current one, such as 2026-01-02T03:04:05.
    #[arg(long, value_name = "TIME", value_parser = date)]
    pub date: Option<u64>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A model, as for `run`.
    #[arg(conflicts_with_all = ["gguf_file", "mlx_file"])]
    #[arg(value_parser = reference())]
    pub model: Option<String>,
    #[command(flatten)]
    pub source: ModelArgs,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// List the operations of a step and their buffers on the CUDA backend instead, whatever
    /// --backend says. Needs no GPU.
    #[arg(long, conflicts_with_all = ["tensors", "json"])]
    pub program: bool,
    /// The compute capability that --program is for, such as 8.6 [default: this machine's, or 9.0].
    #[arg(long, value_name = "MAJOR.MINOR", requires = "program")]
    pub gpu: Option<ComputeCapability>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub adapters: AdapterArgs,
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

    #[test]
    fn text_after_two_dashes_is_the_prompt() {
        for (words, model, prompt) in [
            (&["--", "hi"][..], None, Some("hi")),
            (&["m", "--", "hi"], Some("m"), Some("hi")),
            (&["m", "hi"], Some("m"), Some("hi")),
            (&["m"], Some("m"), None),
        ] {
            for command in ["run", "generate", "render"] {
                let cli = Cli::parse_from([&["loquat", command][..], words].concat());
                let found = match cli.with_verbatim_prompt().command {
                    Command::Run(args) => (args.model, args.prompt),
                    Command::Generate(args) => (args.model, args.prompt),
                    Command::Render(args) => (args.model, args.prompt),
                    other => panic!("{other:?}"),
                };
                let found = (found.0.as_deref(), found.1.as_deref());
                assert_eq!(found, (model, prompt), "{command} {words:?}");
            }
        }
    }
}
