//! Text as in Python: white space, line ends and string escapes.

use std::fmt::Write as _;

use super::budget::{Budget, PaidText};
use super::error::{FaultKind, Result, TemplateFault};

/// `str.isspace` of one character: Unicode's white space and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// `str.splitlines`.
pub(super) fn lines<'t>(text: &'t str, keep_ends: bool, budget: &Budget) -> Result<Vec<&'t str>> {
    budget.items::<&str>(text.matches(ends_line).count() + 1, 0)?;
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(ends_line) {
        let (line, tail) = rest.split_at(end);
        let length = match tail.strip_prefix("\r\n") {
            Some(_) => 2,
            None => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(if keep_ends {
            &rest[..end + length]
        } else {
            line
        });
        rest = &tail[length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

/// The most bytes that a text takes after a change of case.
pub(super) fn cased_bytes(text: &str) -> usize {
    if text.is_ascii() {
        text.len()
    } else {
        text.len().saturating_mul(3)
    }
}

/// `markupsafe.escape`.
pub(super) fn escape_html(text: &str, budget: &Budget) -> Result<String> {
    let mut out = PaidText::new(budget);
    push_escaped(&mut out, text)?;
    Ok(out.finish())
}

/// Appends a text as `markupsafe.escape` writes it.
pub(super) fn push_escaped(out: &mut PaidText<'_>, text: &str) -> Result<()> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '"' => out.push_str("&#34;")?,
            '\'' => out.push_str("&#39;")?,
            c => out.push(c)?,
        }
    }
    Ok(())
}

/// The most bytes by which [`repr`] writes one.
pub(super) const REPR_GROWTH: usize = 4;

/// `repr(str)`: single quotes, or double ones if only they need no escape.
pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => push_code(&mut out, c),
        }
    }
    out.push(quote);
    out
}

/// [`repr`], paid for before it is built.
pub(super) fn paid_repr(text: &str, budget: &Budget) -> Result<String> {
    budget.scans(text.len())?;
    budget.bytes(text.len().saturating_mul(REPR_GROWTH))?;
    Ok(repr(text))
}

/// A character by its code, as `repr` and `ascii` write it.
fn push_code(out: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = match c as u32 {
        code @ 0..=0xff => write!(out, "\\x{code:02x}"),
        code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

/// `str.isprintable` of one character. The standard library exposes this only through escaping: a
/// character after another one is escaped if it is no letter, mark, number, symbol or space.
pub(super) fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c => String::from_iter(['a', c]).escape_debug().count() == 2,
    }
}

/// `repr(float)`: like Rust's, but with a signed exponent of two digits at least.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{number:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A string literal's inside with its escapes resolved, as Python's `unicode-escape` codec does.
pub(super) fn unescape(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            None => out.push('\\'),
            Some('\n') => {}
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\u{b}'),
            Some('x') => out.push(coded(&mut rest, 2)?),
            Some('u') => out.push(coded(&mut rest, 4)?),
            Some('U') => out.push(coded(&mut rest, 8)?),
            Some('N') => return malformed("`\\N{…}` is not supported in strings"),
            Some(c @ '0'..='7') => out.push(octal(c, &mut rest)),
            Some(c) if c.is_ascii() => out.extend(['\\', c]),
            // The codec sees the character as an escape already, whose backslash this one escapes.
            Some(c) => push_code(&mut out, c),
        }
    }
    Ok(out)
}

fn coded(rest: &mut std::str::Chars<'_>, digits: usize) -> Result<char> {
    let code: String = rest.take(digits).collect();
    let value = if code.len() == digits && code.chars().all(|c| c.is_ascii_hexdigit()) {
        u32::from_str_radix(&code, 16).ok()
    } else {
        None
    };
    match value.and_then(char::from_u32) {
        Some(c) => Ok(c),
        None => malformed(&format!("`\\…{code}` in a string is not a character")),
    }
}

fn octal(first: char, rest: &mut std::str::Chars<'_>) -> char {
    let mut code = first.to_digit(8).unwrap_or_default();
    for _ in 0..2 {
        let Some(digit) = rest.as_str().chars().next().and_then(|c| c.to_digit(8)) else {
            break;
        };
        code = code * 8 + digit;
        rest.next();
    }
    // Three octal digits end below 0o1000, where every code is a character.
    char::from_u32(code).unwrap_or_default()
}

fn malformed<T>(reason: &str) -> Result<T> {
    Err(TemplateFault::new(FaultKind::Syntax, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_escape_like_python() {
        let cases = [
            ("it's", r#""it's""#),
            ("a\"b'c", r#"'a"b\'c'"#),
            ("é\n\u{0}\u{200b}\u{a0}😀", r"'é\n\x00\u200b\xa0😀'"),
            ("a\u{301}", "'a\u{301}'"),
            ("\u{e000}\u{10ffff}", r"'\ue000\U0010ffff'"),
        ];
        for (text, wanted) in cases {
            assert_eq!(repr(text), wanted);
        }
    }

    #[test]
    fn escapes_resolve_like_python() {
        let cases = [
            (r"a\tb\\n\x41\u00e9\'", "a\tb\\nAé'"),
            (r"\101\0\q", "A\0\\q"),
            (r"\é", "\\xe9"),
            ("a\\\nb", "ab"),
        ];
        for (text, wanted) in cases {
            assert_eq!(unescape(text).as_deref(), Ok(wanted), "{text}");
        }
        for text in [r"\x4", r"\ud83d", r"\N{BULLET}", r"\u+123"] {
            assert!(unescape(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_split_like_python() {
        let text = "a\nb\r\nc\u{2028}d\u{1c}\r";
        let split = |text, keep_ends| lines(text, keep_ends, &Budget::for_input(0)).unwrap();
        assert_eq!(split(text, false), ["a", "b", "c", "d", ""]);
        assert_eq!(split(text, true).concat(), text);
        assert!(split("", false).is_empty());
    }

    #[test]
    fn floats_print_like_python() {
        let cases = [
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
            (1.5e300, "1.5e+300"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (number, text) in cases {
            assert_eq!(float(number), text);
        }
    }
}
