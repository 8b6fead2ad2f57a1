//! Output to stdout and stderr: colours only on terminals, no panic on a closed pipe.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use serde_json::Value;

pub use loquat::human::bytes;

use crate::error::CliError;

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On terminals, unless `NO_COLOR` is set or `TERM` is dumb.
    #[default]
    Auto,
    Always,
    Never,
}

/// Set once by `main`, before any output.
static COLOUR: OnceLock<Colour> = OnceLock::new();

pub fn set_colour(colour: Colour) {
    // Only `main` calls this.
    let _ = COLOUR.set(colour);
}

/// Whether stderr uses colours.
pub fn stderr_is_fancy() -> bool {
    is_fancy(std::io::stderr().is_terminal())
}

/// Whether stdout uses colours.
pub fn stdout_is_fancy() -> bool {
    is_fancy(std::io::stdout().is_terminal())
}

fn is_fancy(is_terminal: bool) -> bool {
    match COLOUR.get().copied().unwrap_or_default() {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            is_terminal && !no_colour && !is_dumb()
        }
    }
}

/// Whether the terminal cannot move its cursor.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Writes to stdout and flushes.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(CliError::Output)
}

/// Prints indented JSON to stdout.
pub fn print_json(value: &Value) -> Result<(), CliError> {
    print(&format!("{value:#}\n"))
}

/// Prints a dimmed line on stderr. Write errors are ignored.
pub fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", dimmed(text));
}

/// Dimmed if stderr uses colours.
pub fn dimmed(text: &str) -> String {
    if stderr_is_fancy() {
        dim(text)
    } else {
        text.to_owned()
    }
}

pub fn dim(text: &str) -> String {
    format!("\x1b[2m{text}\x1b[0m")
}

/// Prints an error on stderr. Write errors are ignored.
pub fn print_error(error: &impl Display) {
    let _ = writeln!(std::io::stderr(), "{} {error}", error_mark());
}

fn error_mark() -> &'static str {
    if stderr_is_fancy() {
        "\x1b[1;31merror:\x1b[0m"
    } else {
        "error:"
    }
}

/// Replaces control characters, which would move the cursor, rewrite the screen or set the
/// clipboard.
pub fn sanitize(text: &str) -> String {
    let text = text.chars().filter(|letter| *letter != '\r');
    text.map(|letter| match letter {
        '\n' | '\t' => letter,
        _ if letter.is_control() => char::REPLACEMENT_CHARACTER,
        _ => letter,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::sanitize;

    #[test]
    fn control_characters_stay_off_the_terminal() {
        for (text, expected) in [
            ("a\tb\r\nc", "a\tb\nc"),
            ("\x1b[2J é", "\u{fffd}[2J é"),
            ("\u{9b}2J\x07", "\u{fffd}2J\u{fffd}"),
        ] {
            assert_eq!(sanitize(text), expected);
        }
    }
}
