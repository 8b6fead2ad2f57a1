//! The field `keep_alive`: how long a model stays loaded.

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use crate::field::Field;
use crate::models::KeepAlive;

/// The field has no effect on callers that may not affect others.
pub const IGNORED: &[(&str, &str)] = &[(
    Field::KeepAlive.name(),
    "only if the key lacks the scope `manage`",
)];

/// The longest finite duration, in seconds.
const CENTURY: f64 = 100.0 * 365.0 * 86_400.0;

/// Seconds, or a duration such as `5m` or `1h30m`. Negative values mean forever; 0 unloads the
/// model after the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OllamaKeepAlive(pub KeepAlive);

impl OllamaKeepAlive {
    fn from_seconds(seconds: f64) -> Self {
        Self(if (0.0..=CENTURY).contains(&seconds) {
            KeepAlive::For(Duration::from_secs_f64(seconds))
        } else {
            KeepAlive::Forever
        })
    }

    /// Whether the model is unloaded after the request.
    pub fn unloads(self) -> bool {
        self.0 == KeepAlive::For(Duration::ZERO)
    }
}

impl<'de> Deserialize<'de> for OllamaKeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = OllamaKeepAlive;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds, or a duration such as \"5m\" or \"1h30m\"")
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Self::Value, E> {
        Ok(OllamaKeepAlive::from_seconds(seconds))
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<Self::Value, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Self::Value, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let seconds = seconds(text);
        let found =
            seconds.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self));
        found.map(OllamaKeepAlive::from_seconds)
    }
}

/// Parses a duration in Go's notation: a sequence of numbers with units.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut total = None;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let (unit, after) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((unit, rest[digits..].strip_prefix(name)?)))?;
        total = Some(total.unwrap_or(0.0) + number * unit);
        rest = after;
    }
    total.map(|total| sign * total)
}

/// A unit comes before its prefixes.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_and_durations_match_ollama() {
        let lasts = |seconds: f64| KeepAlive::For(Duration::from_secs_f64(seconds));
        let cases: [(Value, Option<KeepAlive>); 17] = [
            (json!(300), Some(lasts(300.0))),
            (json!(0), Some(lasts(0.0))),
            (json!(2.5), Some(lasts(2.5))),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("5m"), Some(lasts(300.0))),
            (json!("1h30m"), Some(lasts(5400.0))),
            (json!("250ms"), Some(lasts(0.25))),
            (json!("1.5s"), Some(lasts(1.5))),
            (json!("0"), Some(lasts(0.0))),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!("5"), None),
            (json!("m"), None),
            (json!(""), None),
            (json!("5 m"), None),
            (json!("1.2.3s"), None),
            (json!(true), None),
        ];
        for (value, expected) in cases {
            let read: Result<OllamaKeepAlive, _> = serde_json::from_value(value.clone());
            assert_eq!(read.ok().map(|keep| keep.0), expected, "{value}");
        }
    }
}
