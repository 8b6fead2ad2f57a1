//! Writing to people: plain where nobody looks, and never a panic when the reader is gone.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;

pub use loquat::human::bytes;

use crate::error::CliError;

/// When to write in colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On terminals, unless `NO_COLOR` is set or `TERM` is dumb.
    #[default]
    Auto,
    Always,
    Never,
}

/// Said once, before anything is written; until then it is `auto`.
static COLOUR: OnceLock<Colour> = OnceLock::new();

pub fn choose_colour(colour: Colour) {
    // Only the first choice counts, and `main` makes it.
    let _ = COLOUR.set(colour);
}

/// Whether what is written to stderr is dimmed and coloured.
pub fn stderr_is_fancy() -> bool {
    is_fancy(std::io::stderr().is_terminal())
}

/// Whether what is written to stdout is.
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

/// Whether the terminal has no more than lines: none is written over there.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Writes to stdout at once.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(CliError::Output)
}

/// A remark on stderr, dimmed where that shows. One that cannot be written is not missed.
pub fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", dimmed(text));
}

/// As stderr shows what is not the answer.
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

/// Why something failed, on stderr if that still takes it.
pub fn complain(error: &impl Display) {
    let _ = writeln!(std::io::stderr(), "{} {error}", error_mark());
}

fn error_mark() -> &'static str {
    if stderr_is_fancy() {
        "\x1b[1;31merror:\x1b[0m"
    } else {
        "error:"
    }
}

/// What a model wrote, as it may appear on a terminal: control characters would move the
/// cursor, rewrite the screen or set the clipboard.
pub fn tame(text: &str) -> String {
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
    use super::tame;

    #[test]
    fn control_characters_stay_off_the_terminal() {
        for (text, expected) in [
            ("a\tb\r\nc", "a\tb\nc"),
            ("\x1b[2J é", "\u{fffd}[2J é"),
            ("\u{9b}2J\x07", "\u{fffd}2J\u{fffd}"),
        ] {
            assert_eq!(tame(text), expected);
        }
    }
}
