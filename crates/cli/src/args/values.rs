//! Parsers of flag values.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use loquat::AdapterFile;
use loquat_server::config::units;
use loquat_store::path_reference;
use serde_json::Value;

/// A model reference. A path that is not valid UTF-8 becomes a URL.
pub fn reference() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|text| path_reference(Path::new(&text)))
}

/// An adapter's path or reference, and its scale: what follows the last `@`, if that is a number.
/// Anything else there is a part of the path, or a revision on the hub.
pub fn adapter() -> impl TypedValueParser<Value = AdapterFile> {
    OsStringValueParser::new().try_map(|text| adapter_file(&text))
}

pub fn adapter_file(text: &OsStr) -> Result<AdapterFile, String> {
    let (path, scale) = split_scale(text);
    if scale.is_finite() && scale != 0.0 {
        Ok(AdapterFile { path, scale })
    } else {
        Err(format!(
            "the scale is {scale}; use a finite number other than 0"
        ))
    }
}

fn split_scale(text: &OsStr) -> (PathBuf, f32) {
    let split = text.to_str().and_then(|text| text.rsplit_once('@'));
    let split = split.filter(|(_, scale)| is_decimal(scale));
    let scaled = split.and_then(|(path, scale)| Some((path, scale.parse().ok()?)));
    match scaled {
        Some((path, scale)) if !path.is_empty() => (path.into(), scale),
        _ => (text.into(), 1.0),
    }
}

/// Digits with at most a sign and a point. Not `1e5`, which may be a commit.
fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_digit = |letter: char| letter.is_ascii_digit();
    digits.contains(is_digit) && digits.replacen('.', "", 1).chars().all(is_digit)
}

pub fn nonzero(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap_or(NonZeroUsize::MIN)
}

pub fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    let value = text.parse();
    value.map_err(|_| "must be a whole number of at least 1".to_owned())
}

pub fn count(text: &str) -> Result<usize, String> {
    let value = text.parse();
    value.map_err(|_| "must be a whole number of at least 0".to_owned())
}

pub fn seed(text: &str) -> Result<u64, String> {
    let value = text.parse();
    value.map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

pub fn token(text: &str) -> Result<u32, String> {
    let value = text.trim().parse();
    value.map_err(|_| format!("`{text}` is not a token id"))
}

/// A template variable: JSON if the value is valid JSON, otherwise text.
pub fn variable(text: &str) -> Result<(String, Value), String> {
    let split = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = split.ok_or("must be KEY=VALUE, such as enable_thinking=false")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

/// Unix time of a date and time, such as `2026-01-02T03:04:05`.
pub fn date(text: &str) -> Result<u64, String> {
    seconds(text).ok_or_else(|| {
        "must be a date and time of 1970 or later, such as 2026-01-02T03:04:05".to_owned()
    })
}

fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let date = Date::strptime("%F", date).ok()?;
    let time = Time::strptime("%T", time).ok()?;
    let timestamp = Offset::UTC.to_timestamp(date.to_datetime(time)).ok()?;
    u64::try_from(timestamp.as_second()).ok()
}

/// A size in bytes.
pub fn disk_size(text: &str) -> Result<u64, String> {
    units::size(text).ok_or_else(|| "must be a size such as 10GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn template_variables_are_json_or_text() {
        for (text, name, value) in [
            ("enable_thinking=false", "enable_thinking", json!(false)),
            ("date=26 Jul 2024", "date", json!("26 Jul 2024")),
            ("n=3", "n", json!(3)),
            ("list=[1, \"b\"]", "list", json!([1, "b"])),
            ("quoted=\"3\"", "quoted", json!("3")),
            ("empty=", "empty", json!("")),
            ("equation=a=b", "equation", json!("a=b")),
        ] {
            assert_eq!(variable(text), Ok((name.to_owned(), value)), "{text}");
        }
        for text in ["", "name", "=value"] {
            assert!(variable(text).unwrap_err().contains("KEY=VALUE"), "{text}");
        }
    }

    #[test]
    fn numbers_after_the_last_at_are_scales() {
        for (text, path, scale) in [
            ("style", "style", 1.0),
            ("style@0.5", "style", 0.5),
            ("style@-2", "style", -2.0),
            ("a@b/style@.25", "a@b/style", 0.25),
            ("owner/name@main", "owner/name@main", 1.0),
            ("owner/name@main@0.5", "owner/name@main", 0.5),
            ("owner/name@v1.0", "owner/name@v1.0", 1.0),
            // A revision that is a number needs a scale after it.
            ("owner/name@1.0@1", "owner/name@1.0", 1.0),
            ("owner/name@1.0", "owner/name", 1.0),
            // Commits of digits and an `e` are no numbers.
            ("owner/name@12e4567", "owner/name@12e4567", 1.0),
            ("owner/name@inf", "owner/name@inf", 1.0),
            ("owner/name:a.gguf@2", "owner/name:a.gguf", 2.0),
            ("@2", "@2", 1.0),
            ("style@1.2.3", "style@1.2.3", 1.0),
        ] {
            let path = path.into();
            assert_eq!(
                adapter_file(OsStr::new(text)),
                Ok(AdapterFile { path, scale }),
                "{text}"
            );
        }
        for text in ["style@0", "style@-0.0"] {
            assert!(
                adapter_file(OsStr::new(text))
                    .unwrap_err()
                    .contains("other than 0")
            );
        }
    }

    #[test]
    fn dates_count_from_1970() {
        // `date -ud TEXT +%s`
        for (text, seconds) in [
            ("1970-01-01T00:00:00", 0),
            ("2026-01-02T03:04:05", 1_767_323_045),
            ("2024-02-29 12:00:00", 1_709_208_000),
            ("2000-03-01", 951_868_800),
            ("1999-12-31T23:59:59", 946_684_799),
        ] {
            assert_eq!(date(text), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2026-13-01",
            "2026-02-29",
            "2026-00-10",
            "2026-01-00",
            "1969-12-31",
            "2026-01-02T24:00:00",
            "2026-01-02T03:04",
            "2026-01-+2",
            "99999-01-01",
        ] {
            assert!(date(text).unwrap_err().contains("such as"), "{text}");
        }
    }
}
