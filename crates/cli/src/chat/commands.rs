//! The slash commands of a chat.

use super::suggest::nearest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Set,
    Unset,
    System,
    Image,
    Video,
    Save,
    SaveOver,
    Load,
    Model,
    Adapter,
    Stats,
    Reasoning,
    Undo,
    Retry,
    Clear,
    Help,
    Exit,
}

/// The kind of argument that a command takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    /// A setting's name and optional value.
    Assignment,
    Setting,
    Text,
    File,
    Model,
    /// How much of the thinking to show.
    ReasoningDisplay,
}

/// A command: its name, argument and help.
#[derive(Debug)]
pub struct CommandEntry {
    pub name: &'static str,
    /// Other names, not listed in help.
    aliases: &'static [&'static str],
    pub command: Command,
    pub argument: Argument,
    /// The argument as shown in help; in brackets if optional.
    pub usage: &'static str,
    pub help: &'static str,
}

const fn entry(
    name: &'static str,
    command: Command,
    (argument, usage): (Argument, &'static str),
    help: &'static str,
) -> CommandEntry {
    CommandEntry {
        name,
        aliases: &[],
        command,
        argument,
        usage,
        help,
    }
}

impl CommandEntry {
    const fn with_aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The command with its argument, as shown in help.
    pub fn usage_line(&self) -> String {
        let line = format!("/{} {}", self.name, self.usage);
        line.trim_end().to_owned()
    }

    /// Checks the presence of an argument.
    pub fn check(&self, argument: &str) -> Result<(), String> {
        let usage_line = self.usage_line();
        match (self.usage, argument) {
            ("", "") => Ok(()),
            ("", _) => Err(format!(
                "{usage_line} takes no arguments. To send the line verbatim, start it with a space"
            )),
            (usage, "") if !usage.starts_with('[') => Err(format!("usage: {usage_line}")),
            (_, _) => Ok(()),
        }
    }
}

const NONE: (Argument, &str) = (Argument::None, "");

/// In the order of help.
pub const COMMANDS: [CommandEntry; 17] = [
    entry(
        "set",
        Command::Set,
        (Argument::Assignment, "[NAME [VALUE]]"),
        "change, describe or list settings",
    ),
    entry(
        "unset",
        Command::Unset,
        (Argument::Setting, "NAME"),
        "restore a setting's default",
    ),
    entry(
        "system",
        Command::System,
        (Argument::Text, "[TEXT]"),
        "set or show the system prompt",
    ),
    entry(
        "model",
        Command::Model,
        (Argument::Model, "[MODEL]"),
        "switch to another model, or show the current one",
    ),
    entry(
        "adapter",
        Command::Adapter,
        (Argument::File, "[PATH[@SCALE]|off]"),
        "apply an adapter, change its scale, or list adapters",
    ),
    entry(
        "image",
        Command::Image,
        (Argument::File, "FILE"),
        "add an image to the next message",
    ),
    entry(
        "video",
        Command::Video,
        (Argument::File, "FILE"),
        "add a video to the next message",
    ),
    entry(
        "save",
        Command::Save,
        (Argument::File, "FILE"),
        "save the conversation to a new file, in the format of --messages",
    ),
    entry(
        "save!",
        Command::SaveOver,
        (Argument::File, "FILE"),
        "save the conversation, overwriting the file",
    ),
    entry(
        "load",
        Command::Load,
        (Argument::File, "FILE"),
        "continue a conversation from a file",
    ),
    entry(
        "reasoning",
        Command::Reasoning,
        (Argument::ReasoningDisplay, "[full|folded|hidden]"),
        "show the last thinking, or set how thinking is shown",
    ),
    entry(
        "stats",
        Command::Stats,
        NONE,
        "show tokens, speed, context and memory",
    ),
    entry(
        "undo",
        Command::Undo,
        NONE,
        "remove the last question and its answer",
    ),
    entry("retry", Command::Retry, NONE, "ask the last question again"),
    entry("clear", Command::Clear, NONE, "start a new conversation"),
    entry("help", Command::Help, NONE, "show this help").with_aliases(&["?"]),
    entry("exit", Command::Exit, NONE, "leave (also Ctrl-D)").with_aliases(&["quit", "bye"]),
];

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub enum ChatLine<'a> {
    /// A message for the model.
    Message(&'a str),
    Command {
        command: Command,
        argument: &'a str,
    },
    /// A command with an error.
    Invalid(String),
}

/// A command starts with `/` in the first column. What only looks like one, such as a path, is a
/// message.
pub fn parse(line: &str) -> ChatLine<'_> {
    let Some(rest) = line.strip_prefix('/') else {
        return ChatLine::Message(line);
    };
    let (name, argument) = split(rest);
    if let Some(entry) = COMMANDS.iter().find(|entry| entry.has_name(name)) {
        let command = entry.command;
        return match entry.check(argument) {
            Ok(()) => ChatLine::Command { command, argument },
            Err(reason) => ChatLine::Invalid(reason),
        };
    }
    let near = nearest(name, COMMANDS.iter().map(|entry| entry.name));
    match near {
        Some(near) => ChatLine::Invalid(format!("no command /{name}. Did you mean /{near}?")),
        None if argument.is_empty() && is_word(name) => {
            ChatLine::Invalid(format!("no command /{name}. /help lists the commands"))
        }
        None => ChatLine::Message(line),
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(char::is_alphanumeric)
}

/// The first word and what follows it.
pub fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

pub fn help() -> String {
    let widest = COMMANDS.iter().map(|entry| entry.usage_line().len()).max();
    let widest = widest.unwrap_or_default();
    let line = |entry: &CommandEntry| format!("{:widest$}  {}\n", entry.usage_line(), entry.help);
    let lines: String = COMMANDS.iter().map(line).collect();
    format!(
        "{lines}\
         Multiple lines: between \"\"\" and \"\"\", after a trailing \\, with Alt-Enter, or pasted.\n\
         Ctrl-C stops an answer, and pressed twice leaves. Tab completes."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_are_distinguished() {
        let command = |command, argument| ChatLine::Command { command, argument };
        let wrong = |text: &str| ChatLine::Invalid(text.to_owned());
        for (line, expected) in [
            ("hello", ChatLine::Message("hello")),
            ("  two words ", ChatLine::Message("  two words ")),
            ("/clear", command(Command::Clear, "")),
            ("/? ", command(Command::Help, "")),
            ("/quit", command(Command::Exit, "")),
            ("/set", command(Command::Set, "")),
            ("/set top-p  0.5 ", command(Command::Set, "top-p  0.5")),
            ("/system Be\nkind.", command(Command::System, "Be\nkind.")),
            ("/save! a b.json", command(Command::SaveOver, "a b.json")),
            // A leading space makes it a message.
            (" /clear", ChatLine::Message(" /clear")),
            ("/etc is what?", ChatLine::Message("/etc is what?")),
            ("/etc/passwd", ChatLine::Message("/etc/passwd")),
            ("/", ChatLine::Message("/")),
            ("/ is a slash", ChatLine::Message("/ is a slash")),
            ("/sett x 1", wrong("no command /sett. Did you mean /set?")),
            ("/hlep", wrong("no command /hlep. Did you mean /help?")),
            ("/nope", wrong("no command /nope. /help lists the commands")),
            ("/load", wrong("usage: /load FILE")),
            (
                "/clear sky",
                wrong(
                    "/clear takes no arguments. To send the line verbatim, start it with a space",
                ),
            ),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn help_lists_every_command_once() {
        let help = help();
        for entry in &COMMANDS {
            let lines = help.lines();
            let start = format!("/{} ", entry.name);
            let found = lines.filter(|line| line.starts_with(&start)).count();
            assert_eq!(found, 1, "{}", entry.name);
        }
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
        let page = include_str!("../../../../docs/run.md");
        for entry in &COMMANDS {
            let mention = format!("`/{}", entry.name);
            assert!(page.contains(&mention), "docs/run.md lacks {mention}");
        }
    }
}
