//! Writing to people: plain where nobody looks, and never a panic when the reader is gone.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;

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

/// Whether what the line editor shows is.
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
    match stderr_is_fancy() {
        true => dim(text),
        false => text.to_owned(),
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
    match stderr_is_fancy() {
        true => "\x1b[1;31merror:\x1b[0m",
        false => "error:",
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

/// `98.4 MB`
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value < 99.95) {
        (0, _) => format!("{count} B"),
        (_, true) => format!("{value:.1} {}", UNITS[unit]),
        (_, false) => format!("{value:.0} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, tame};

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

    #[test]
    fn sizes_keep_three_digits() {
        let table = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_600, "1.0 MB"),
            (123_456_789, "123 MB"),
            (4_700_000_000, "4.7 GB"),
        ];
        for (count, expected) in table {
            assert_eq!(bytes(count), expected);
        }
    }
}
