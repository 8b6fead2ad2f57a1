//! What is said to a model, and how it is written out for it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loquat_chat::{Effort, ToolChoice};
use loquat_text::ChatTemplate;
use loquat_text::format::{CallFormat, FormatOverrides, OutputFormat, ReasoningFormat};
use serde_json::Value;

use super::values::variable;

/// The words of a conversation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationArgs {
    /// How the model is to behave.
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub system: Option<String>,
    /// A whole conversation instead of a prompt: a JSON list of messages as OpenAI's API has
    /// them. As for every file, `-` is stdin.
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Functions that the model may call: a JSON list of definitions as OpenAI's API has them,
    /// or one of them.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Whether tools are called: auto (as the model likes), none, required, or a tool's name.
    #[arg(long, value_name = "CHOICE", value_parser = tool_choice, requires = "tools")]
    #[arg(default_value = "auto")]
    pub tool_choice: ToolChoice,
    /// How hard to think before the answer, where the model's template knows.
    #[arg(long, value_enum, value_name = "EFFORT")]
    pub thinking: Option<ThinkingArg>,
    /// Another chat template than the model's own: a file, or the name of a built-in one.
    #[arg(long, value_name = "FILE|NAME", long_help = template_help())]
    pub template: Option<PathBuf>,
    /// A variable of the template: JSON, or a text where it does not read as that. May be given
    /// several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    pub template_var: Vec<(String, Value)>,
    /// Read special tokens that messages spell out, such as <|im_end|>, as such. Otherwise they
    /// are plain text, and only the template writes special tokens.
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
        "Another chat template than the model's own: a file, or the name of a built-in one \
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

/// How the model marks its thinking and its calls, where its template does not tell.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Conversation")]
pub struct FormatArgs {
    /// How the model marks its thinking, where its template and vocabulary mislead; `none` where
    /// it does not.
    #[arg(long, value_name = "NAME", value_parser = reasoning_format)]
    reasoning_format: Option<Named<ReasoningFormat>>,
    /// How the model writes tool calls, likewise.
    #[arg(long, value_name = "NAME", value_parser = tool_format)]
    tool_format: Option<Named<CallFormat>>,
}

/// A format by its name; `None` is none at all.
#[derive(Debug)]
struct Named<T: 'static>(Option<&'static T>);

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

const NO_FORMAT: &str = "none";

fn reasoning_format(name: &str) -> Result<Named<ReasoningFormat>, String> {
    let format = OutputFormat::named(Some(name).filter(|name| *name != NO_FORMAT), None);
    let format = format.map_err(|error| format!("{error}, {NO_FORMAT}"))?;
    Ok(Named(format.reasoning))
}

fn tool_format(name: &str) -> Result<Named<CallFormat>, String> {
    let format = OutputFormat::named(None, Some(name).filter(|name| *name != NO_FORMAT));
    let format = format.map_err(|error| format!("{error}, {NO_FORMAT}"))?;
    Ok(Named(format.calls))
}

impl FormatArgs {
    pub fn overrides(&self) -> FormatOverrides {
        FormatOverrides {
            reasoning: self.reasoning_format.as_ref().map(|named| named.0),
            calls: self.tool_format.as_ref().map(|named| named.0),
        }
    }
}
