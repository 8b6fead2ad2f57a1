//! What a person may say to the program instead of to the model.

use super::near::nearest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Set,
    Unset,
    System,
    Save,
    SaveOver,
    Load,
    Model,
    Stats,
    Reasoning,
    Undo,
    Retry,
    Clear,
    Help,
    Exit,
}

/// What stands behind a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    /// A setting's name and its value, or less.
    Assignment,
    Setting,
    Text,
    File,
    Model,
    /// How much of the thinking is shown.
    How,
}

/// A command as it is typed, completed and explained.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    /// Other names for it, which nobody is told of.
    aliases: &'static [&'static str],
    pub command: Command,
    pub argument: Argument,
    /// The argument as help has it; in brackets where it may be left out.
    pub usage: &'static str,
    pub help: &'static str,
}

const fn entry(
    name: &'static str,
    command: Command,
    (argument, usage): (Argument, &'static str),
    help: &'static str,
) -> Entry {
    Entry {
        name,
        aliases: &[],
        command,
        argument,
        usage,
        help,
    }
}

impl Entry {
    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The command with its argument, as help has it.
    pub fn form(&self) -> String {
        let form = format!("/{} {}", self.name, self.usage);
        form.trim_end().to_owned()
    }

    /// What is wrong with an argument, before anything is done with it.
    pub fn check(&self, argument: &str) -> Result<(), String> {
        let form = self.form();
        match (self.usage, argument) {
            ("", "") => Ok(()),
            ("", _) => Err(format!(
                "{form} takes nothing behind it; after a space, a line is said as it stands"
            )),
            (usage, "") if !usage.starts_with('[') => Err(format!("it is {form}")),
            (_, _) => Ok(()),
        }
    }
}

const NONE: (Argument, &str) = (Argument::None, "");

/// In the order of help.
pub const COMMANDS: [Entry; 14] = [
    entry(
        "set",
        Command::Set,
        (Argument::Assignment, "[NAME [VALUE]]"),
        "change a setting, explain it, or list them all",
    ),
    entry(
        "unset",
        Command::Unset,
        (Argument::Setting, "NAME"),
        "leave a setting to the model again",
    ),
    entry(
        "system",
        Command::System,
        (Argument::Text, "[TEXT]"),
        "say how the model is to behave, or show what was said",
    ),
    entry(
        "model",
        Command::Model,
        (Argument::Model, "[MODEL]"),
        "go on with another model, or show which it is",
    ),
    entry(
        "save",
        Command::Save,
        (Argument::File, "FILE"),
        "write the conversation to a new file, as --messages reads it",
    ),
    entry(
        "save!",
        Command::SaveOver,
        (Argument::File, "FILE"),
        "the same, in the place of a file that is there",
    ),
    entry(
        "load",
        Command::Load,
        (Argument::File, "FILE"),
        "go on with a conversation from a file",
    ),
    entry(
        "reasoning",
        Command::Reasoning,
        (Argument::How, "[full|folded|hidden]"),
        "show the last thinking, or say how it is shown",
    ),
    entry(
        "stats",
        Command::Stats,
        NONE,
        "tokens, speed, context and memory",
    ),
    entry(
        "undo",
        Command::Undo,
        NONE,
        "take the last question back, with its answer",
    ),
    entry("retry", Command::Retry, NONE, "ask the last question again"),
    entry("clear", Command::Clear, NONE, "forget the conversation"),
    entry("help", Command::Help, NONE, "show this").also(&["?"]),
    entry("exit", Command::Exit, NONE, "leave (Ctrl-D too)").also(&["quit", "bye"]),
];

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// For the model.
    Said(&'a str),
    Command {
        command: Command,
        argument: &'a str,
    },
    /// For the program, which cannot make sense of it.
    Wrong(String),
}

/// A command stands at the very beginning. What only looks like one, as a path does, is said.
pub fn read(line: &str) -> Line<'_> {
    let Some(rest) = line.strip_prefix('/') else {
        return Line::Said(line);
    };
    let (name, argument) = split(rest);
    if let Some(entry) = COMMANDS.iter().find(|entry| entry.is_called(name)) {
        let command = entry.command;
        return match entry.check(argument) {
            Ok(()) => Line::Command { command, argument },
            Err(wrong) => Line::Wrong(wrong),
        };
    }
    let near = nearest(name, COMMANDS.iter().map(|entry| entry.name));
    match near {
        Some(near) => Line::Wrong(format!("there is no /{name}; did you mean /{near}?")),
        None if argument.is_empty() && is_word(name) => {
            Line::Wrong(format!("there is no /{name}; /help lists what there is"))
        }
        None => Line::Said(line),
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
    let widest = COMMANDS.iter().map(|entry| entry.form().len()).max();
    let widest = widest.unwrap_or_default();
    let line = |entry: &Entry| format!("{:widest$}  {}\n", entry.form(), entry.help);
    let lines: String = COMMANDS.iter().map(line).collect();
    format!(
        "{lines}\
         Several lines: between \"\"\" and \"\"\", after a \\ at a line's end, with Alt-Enter, or pasted.\n\
         Ctrl-C stops an answer, and pressed again at once leaves. Tab completes."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let obey = |command, argument| Line::Command { command, argument };
        let wrong = |text: &str| Line::Wrong(text.to_owned());
        for (line, expected) in [
            ("hello", Line::Said("hello")),
            ("  two words ", Line::Said("  two words ")),
            ("/clear", obey(Command::Clear, "")),
            ("/? ", obey(Command::Help, "")),
            ("/quit", obey(Command::Exit, "")),
            ("/set", obey(Command::Set, "")),
            ("/set top-p  0.5 ", obey(Command::Set, "top-p  0.5")),
            ("/system Be\nkind.", obey(Command::System, "Be\nkind.")),
            ("/save! a b.json", obey(Command::SaveOver, "a b.json")),
            // After a space it is said, whatever it is.
            (" /clear", Line::Said(" /clear")),
            ("/etc is what?", Line::Said("/etc is what?")),
            ("/etc/passwd", Line::Said("/etc/passwd")),
            ("/", Line::Said("/")),
            ("/ is a slash", Line::Said("/ is a slash")),
            ("/sett x 1", wrong("there is no /sett; did you mean /set?")),
            ("/hlep", wrong("there is no /hlep; did you mean /help?")),
            (
                "/nope",
                wrong("there is no /nope; /help lists what there is"),
            ),
            ("/load", wrong("it is /load FILE")),
            (
                "/clear sky",
                wrong("/clear takes nothing behind it; after a space, a line is said as it stands"),
            ),
        ] {
            assert_eq!(read(line), expected, "{line:?}");
        }
    }

    #[test]
    fn help_has_every_command_once() {
        let help = help();
        for entry in &COMMANDS {
            let lines = help.lines();
            let begins = format!("/{} ", entry.name);
            let found = lines.filter(|line| line.starts_with(&begins)).count();
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
