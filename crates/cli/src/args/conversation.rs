//! Flags of a conversation and of how it is rendered.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loquat_chat::{Effort, ToolChoice};
use loquat_text::ChatTemplate;
use loquat_text::format::{CallFormat, FormatOverrides, OutputFormat, ReasoningFormat};
use serde_json::Value;

use super::values::variable;

/// The content of a conversation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationArgs {
    /// The system prompt.
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub system: Option<String>,
    /// A conversation instead of a prompt: a JSON list of messages in OpenAI's format. As for every
    /// file, `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// An image that the prompt is about: PNG, JPEG, WebP, GIF or BMP. For models that read images.
    /// May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "messages")]
    pub image: Vec<PathBuf>,
    /// A video that the prompt is about, for models that read videos: an animated GIF or WebP, or
    /// any file that `ffmpeg` reads, if it is installed. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "messages")]
    pub video: Vec<PathBuf>,
    /// The start of the answer, which the model continues. Not for interactive chats.
    #[arg(long, value_name = "TEXT")]
    pub prefill: Option<String>,
    /// Functions that the model may call: a JSON list of definitions in OpenAI's format, or one
    /// definition.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Whether tools are called: auto (the model decides), none, required, or a tool's name.
    #[arg(long, value_name = "CHOICE", value_parser = tool_choice, requires = "tools")]
    #[arg(default_value = "auto")]
    pub tool_choice: ToolChoice,
    /// How much to think before the answer, if the model's template supports it.
    #[arg(long, value_enum, value_name = "EFFORT")]
    pub thinking: Option<ThinkingArg>,
    /// A chat template to use instead of the model's: a file, or the name of a built-in one.
    #[arg(long, value_name = "FILE|NAME", long_help = template_help())]
    pub template: Option<PathBuf>,
    /// A template variable: JSON, or text if the value is not valid JSON. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub template_var: Vec<(String, Value)>,
    /// Parse special tokens in messages, such as <|im_end|>. By default they are plain text, and
    /// only the template writes special tokens.
    #[arg(long)]
    pub read_special: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ThinkingArg {
    Off,
    On,
    Low,
    Medium,
    High,
}

impl From<ThinkingArg> for Effort {
    fn from(thinking: ThinkingArg) -> Self {
        match thinking {
            ThinkingArg::Off => Effort::Off,
            ThinkingArg::On => Effort::On,
            ThinkingArg::Low => Effort::Low,
            ThinkingArg::Medium => Effort::Medium,
            ThinkingArg::High => Effort::High,
        }
    }
}

fn template_help() -> String {
    let names: Vec<&str> = ChatTemplate::builtin_names().collect();
    let names = names.join(", ");
    format!(
        "A chat template to use instead of the model's: a file, or the name of a built-in one \
         ({names})"
    )
}

fn tool_choice(text: &str) -> Result<ToolChoice, String> {
    Ok(match text {
        "" => return Err("must be auto, none, required or a tool's name".to_owned()),
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "required" => ToolChoice::Required,
        name => ToolChoice::Named(name.to_owned()),
    })
}

/// Overrides of the detected thinking and tool-call formats.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Conversation")]
pub struct FormatArgs {
    /// How the model marks its thinking, if detection is wrong; `none` if it does not think.
    #[arg(long, value_name = "NAME", value_parser = reasoning_format)]
    reasoning_format: Option<NamedFormat<ReasoningFormat>>,
    /// How the model writes tool calls, if detection is wrong; `none` if it does not call tools.
    #[arg(long, value_name = "NAME", value_parser = tool_format)]
    tool_format: Option<NamedFormat<CallFormat>>,
}

/// A format selected by name; `None` for `none`.
#[derive(Debug)]
struct NamedFormat<T: 'static>(Option<&'static T>);

impl<T> Clone for NamedFormat<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

const NO_FORMAT: &str = "none";

fn reasoning_format(name: &str) -> Result<NamedFormat<ReasoningFormat>, String> {
    let format = OutputFormat::named(Some(name).filter(|name| *name != NO_FORMAT), None);
    let format = format.map_err(|error| format!("{error}, {NO_FORMAT}"))?;
    Ok(NamedFormat(format.reasoning))
}

fn tool_format(name: &str) -> Result<NamedFormat<CallFormat>, String> {
    let format = OutputFormat::named(None, Some(name).filter(|name| *name != NO_FORMAT));
    let format = format.map_err(|error| format!("{error}, {NO_FORMAT}"))?;
    Ok(NamedFormat(format.calls))
}

impl FormatArgs {
    pub fn overrides(&self) -> FormatOverrides {
        FormatOverrides {
            reasoning: self.reasoning_format.as_ref().map(|named| named.0),
            calls: self.tool_format.as_ref().map(|named| named.0),
        }
    }
}
