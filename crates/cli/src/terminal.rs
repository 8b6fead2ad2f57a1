//! Writing to people: plain where nobody looks, and never a panic when the reader is gone.

use std::io::{IsTerminal, Write};

pub use loquat::human::bytes;

use crate::error::CliError;

pub fn stderr_is_fancy() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
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
    let mut stderr = std::io::stderr().lock();
    let _ = if stderr_is_fancy() {
        writeln!(stderr, "\x1b[2m{text}\x1b[0m")
    } else {
        writeln!(stderr, "{text}")
    };
}

/// Why a command failed, on stderr if that still takes it.
pub fn complain(error: &CliError) {
    let _ = writeln!(std::io::stderr(), "error: {error}");
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
