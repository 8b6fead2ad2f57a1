//! Literal values in a schema.

use serde_json::{Number, Value};

/// Integers up to here are exact as doubles, the type of bounds and constants.
const EXACT: u64 = 1 << 53;

/// A value for a message, truncated if it is long.
pub(super) fn display(value: &Value) -> String {
    const MAX_LENGTH: usize = 60;
    let kind = match value {
        Value::Array(items) if items.is_empty() => return "an empty list".to_string(),
        Value::Array(_) => return "a list".to_string(),
        Value::Object(_) => return "an object".to_string(),
        scalar => scalar.to_string(),
    };
    match kind.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("`{}…`", &kind[..end]),
        None => format!("`{kind}`"),
    }
}

pub(super) fn is_exact(number: &Number) -> bool {
    match number.as_i64() {
        Some(integer) => integer.unsigned_abs() <= EXACT,
        None => number
            .as_f64()
            .is_some_and(|number| number.abs() <= EXACT as f64),
    }
}

/// Divisibility is checked digit by digit, with a state for each remainder.
const MAX_DIVISOR: u64 = 10_000;

/// Combined schemas combine their divisors to the least common multiple.
const MAX_MULTIPLE: u64 = 100_000;

/// The divisors of a document, as multiples of its smallest decimal place.
#[derive(Debug, Default)]
pub(super) struct Divisors {
    places: u32,
    multiple: Option<u64>,
}

impl Divisors {
    /// Adds a divisor, unless the combined one becomes too large.
    pub(super) fn add(&mut self, value: &Value) -> bool {
        let Some((digits, places)) = decimal(value) else {
            return false;
        };
        let max_places = places.max(self.places);
        let scale = |number: u64, places: u32| {
            let factor = 10u64.checked_pow(max_places - places)?;
            number.checked_mul(factor)
        };
        let combined = match self.multiple {
            None => scale(digits, places),
            Some(multiple) => scale(multiple, self.places)
                .zip(scale(digits, places))
                .and_then(|(one, other)| least_common_multiple(one, other)),
        };
        (self.places, self.multiple) = (max_places, combined);
        digits <= MAX_DIVISOR
            && is_exact_in_binary(value)
            && combined.is_some_and(|multiple| multiple <= MAX_MULTIPLE)
    }
}

/// Whether validators, which divide floating-point numbers, recognize multiples: of 0.25, but not
/// of 0.1.
fn is_exact_in_binary(value: &Value) -> bool {
    value
        .as_f64()
        .is_some_and(|number| (number * 1024.0).fract() == 0.0)
}

/// `0.25` is 25 with two decimal places.
fn decimal(value: &Value) -> Option<(u64, u32)> {
    let text = value.as_f64().filter(|number| *number > 0.0)?.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, fraction.len() as u32))
}

fn least_common_multiple(one: u64, other: u64) -> Option<u64> {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (one / a).checked_mul(other)
}

/// Whether a string can be written with the allowed escapes.
pub(super) fn is_writable(text: &str) -> bool {
    let short = ['\n', '\r', '\t', '\u{8}', '\u{c}'];
    !text
        .chars()
        .any(|c| (c < ' ' && !short.contains(&c)) || c == '\u{7f}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn divisors_are_enumerated_up_to_a_limit() {
        let cases: [(&[f64], bool); 10] = [
            (&[7.0], true),
            (&[0.25, 5.0], true),
            (&[0.01], false),
            (&[2.0, 3.0, 5.0, 10.0, 0.5], true),
            (&[10_000.0], true),
            (&[10_001.0], false),
            (&[0.0], false),
            (&[-2.0], false),
            (&[9973.0, 9967.0], false),
            (&[1e-300, 1.0], false),
        ];
        for (numbers, good) in cases {
            let mut divisors = Divisors::default();
            let taken = numbers.iter().all(|number| divisors.add(&json!(number)));
            assert_eq!(taken, good, "{numbers:?}");
        }
    }
}
