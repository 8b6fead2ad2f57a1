//! Literal values in a schema.

use serde_json::{Number, Value};

/// Integers up to here are doubles, which is what bounds and constants are held as.
const EXACT: u64 = 1 << 53;

/// A value for a message, cut where it grows long.
pub(super) fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let kind = match value {
        Value::Array(items) if items.is_empty() => return "an empty list".to_string(),
        Value::Array(_) => return "a list".to_string(),
        Value::Object(_) => return "an object".to_string(),
        scalar => scalar.to_string(),
    };
    match kind.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("`{}…`", &kind[..end]),
        None => format!("`{kind}`"),
    }
}

pub(super) fn is_exact(number: &Number) -> bool {
    match number.as_i64() {
        Some(integer) => integer.unsigned_abs() <= EXACT,
        None => number.as_f64().is_some_and(|number| number.abs() <= EXACT as f64),
    }
}

/// Divisibility is told digit by digit, with a state for each remainder.
const LARGEST_DIVISOR: u32 = 10_000;

pub(super) fn is_divisor(value: &Value) -> bool {
    let Some(number) = value.as_f64().filter(|number| *number > 0.0) else {
        return false;
    };
    let digits: String = number.to_string().chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().is_ok_and(|digits| digits <= LARGEST_DIVISOR.into())
}

/// Whether a string can be written with the escapes that are allowed.
pub(super) fn is_writable(text: &str) -> bool {
    let short = ['\n', '\r', '\t', '\u{8}', '\u{c}'];
    !text.chars().any(|c| (c < ' ' && !short.contains(&c)) || c == '\u{7f}')
}
