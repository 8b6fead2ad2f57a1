//! Python's strings and numbers, as far as they differ from JSON's.

use super::json::{Step, escape_into, is_json_number};
use super::literal::{LiteralReader, Notation};

/// The state of a string's escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    No,
    Backslash,
    Hex { kind: char, left: u8, value: u32 },
}

/// The character after a backslash, as Python reads it.
pub(super) fn unescape(c: char, out: &mut String) -> Escape {
    let digits = match c {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if digits > 0 {
        return Escape::Hex {
            kind: c,
            left: digits,
            value: 0,
        };
    }
    match c {
        'n' => out.push_str("\\n"),
        't' => out.push_str("\\t"),
        'r' => out.push_str("\\r"),
        'b' => out.push_str("\\b"),
        'f' => out.push_str("\\f"),
        '\\' => out.push_str("\\\\"),
        '\'' | '"' | '/' => escape_into(c, out),
        '\n' => {}
        _ => {
            out.push_str("\\\\");
            escape_into(c, out);
        }
    }
    Escape::No
}

/// A character by its number. Halves of a surrogate pair stay escaped: JSON joins them.
pub(super) fn hex_into(kind: char, value: u32, out: &mut String) -> bool {
    match char::from_u32(value) {
        Some(c) => escape_into(c, out),
        None if kind == 'u' => out.push_str(&format!("\\u{value:04x}")),
        None => return false,
    }
    true
}

/// A number as Python alone writes it: `1_000`, `.5`, `1.`, `+1`.
pub(super) fn number(word: &str) -> Option<String> {
    let word = word.replace('_', "");
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(&word);
    let sign = if word.starts_with('-') { "-" } else { "" };
    let padded = match unsigned.split_once('.') {
        Some(("", fraction)) => format!("{sign}0.{fraction}"),
        Some((whole, "")) => format!("{sign}{whole}.0"),
        _ => format!("{sign}{unsigned}"),
    };
    is_json_number(&padded).then_some(padded)
}

/// Converts a complete Python literal to JSON.
pub(super) fn to_json(text: &str) -> Option<String> {
    let mut reader = LiteralReader::new(Notation::Python);
    let mut out = String::new();
    // The line break ends a bare word.
    let mut rest = text.trim().chars().chain(['\n']);
    let end = rest
        .by_ref()
        .map(|c| reader.push(c, &mut out))
        .find(|step| *step != Step::More);
    let whole = matches!(end, Some(Step::Done | Step::DoneBefore));
    (whole && rest.all(char::is_whitespace)).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_literals_are_converted() {
        for (python, json) in [
            ("{'a': 1}", Some(r#"{"a":1}"#)),
            ("12", Some("12")),
            ("True", Some("true")),
            ("[1] x", None),
            ("[1", None),
            ("", None),
        ] {
            assert_eq!(to_json(python).as_deref(), json, "{python}");
        }
    }
}
