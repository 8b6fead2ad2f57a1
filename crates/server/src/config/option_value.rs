//! How each type of option value is parsed, printed and described.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loquat::FileKind;
use loquat_engine::{Pooling, SpeculationMode};
use loquat_session::{MemoryBudget, Precision};

use super::raw_value::{InvalidValue, RawValue};
use super::units::{budget, budget_text, duration, duration_text, size, size_text};
use super::{KeyHash, KvChoice, LogFormat, Scope};

/// Restricts an option's values.
#[derive(Clone, Copy)]
pub enum Bounds {
    Any,
    /// Both ends included.
    Whole(u64, u64),
    /// Sizes in bytes, both ends included.
    Bytes(u64, u64),
    /// Both ends included.
    Real(f64, f64),
    /// A predicate, and a description of the texts that satisfy it.
    Text(fn(&str) -> bool, &'static str),
}

/// The type of an option's value.
pub trait OptionValue: Sized {
    fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>>;

    /// As TOML; `None` if there is no value.
    fn to_toml(&self, bounds: &Bounds) -> Option<String>;

    /// Describes valid values, such as `a whole number from 1 to 9`.
    fn expected(bounds: &Bounds) -> String;
}

/// The field that holds an option's value.
pub trait Slot {
    fn set(&mut self, raw: RawValue<'_>, bounds: &Bounds) -> Result<(), Vec<InvalidValue>>;
    fn to_toml(&self, bounds: &Bounds) -> Option<String>;
    fn expected(&self, bounds: &Bounds) -> String;
}

impl<T: OptionValue> Slot for T {
    fn set(&mut self, raw: RawValue<'_>, bounds: &Bounds) -> Result<(), Vec<InvalidValue>> {
        *self = T::parse(raw, bounds)?;
        Ok(())
    }

    fn to_toml(&self, bounds: &Bounds) -> Option<String> {
        OptionValue::to_toml(self, bounds)
    }

    fn expected(&self, bounds: &Bounds) -> String {
        T::expected(bounds)
    }
}

impl<T: OptionValue> OptionValue for Option<T> {
    fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        T::parse(raw, bounds).map(Some)
    }

    fn to_toml(&self, bounds: &Bounds) -> Option<String> {
        self.as_ref().and_then(|value| value.to_toml(bounds))
    }

    fn expected(bounds: &Bounds) -> String {
        T::expected(bounds)
    }
}

impl<T: OptionValue> OptionValue for Vec<T> {
    fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        let items = raw.list().ok_or_else(|| raw.invalid())?.into_iter();
        let (mut values, mut invalid) = (Vec::new(), Vec::new());
        for item in items {
            match T::parse(item, bounds) {
                Ok(value) => values.push(value),
                Err(more) => invalid.extend(more),
            }
        }
        if invalid.is_empty() {
            Ok(values)
        } else {
            Err(invalid)
        }
    }

    fn to_toml(&self, bounds: &Bounds) -> Option<String> {
        let items: Vec<_> = self
            .iter()
            .filter_map(|item| item.to_toml(bounds))
            .collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn expected(bounds: &Bounds) -> String {
        format!("a list, each {}", T::expected(bounds))
    }
}

impl OptionValue for bool {
    fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        raw.bool().ok_or_else(|| raw.invalid())
    }

    fn to_toml(&self, _: &Bounds) -> Option<String> {
        Some(self.to_string())
    }

    fn expected(_: &Bounds) -> String {
        "true or false".to_owned()
    }
}

/// Whole numbers, or sizes if the bounds are in bytes.
macro_rules! whole {
    ($($kind:ty),*) => {$(
        impl OptionValue for $kind {
            fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>> {
                let found = match bounds {
                    Bounds::Bytes(min, max) => raw
                        .text()
                        .and_then(size)
                        .filter(|bytes| (*min..=*max).contains(bytes)),
                    Bounds::Whole(min, max) => within(raw, *min, *max),
                    _ => within(raw, 0, u64::MAX),
                };
                let found = found.and_then(|found| found.try_into().ok());
                found.ok_or_else(|| raw.invalid())
            }

            fn to_toml(&self, bounds: &Bounds) -> Option<String> {
                Some(match bounds {
                    Bounds::Bytes(..) => quoted(&size_text(*self as u64)),
                    _ => self.to_string(),
                })
            }

            fn expected(bounds: &Bounds) -> String {
                match bounds {
                    Bounds::Bytes(min, max) => sizes(*min, *max),
                    Bounds::Whole(min, max) if *max < u64::MAX => {
                        format!("a whole number from {min} to {max}")
                    }
                    Bounds::Whole(min, _) => format!("a whole number of at least {min}"),
                    _ => "a whole number".to_owned(),
                }
            }
        }
    )*};
}

whole!(u16, u32, u64, usize);

fn within(raw: RawValue<'_>, min: u64, max: u64) -> Option<u64> {
    let found = u64::try_from(raw.whole()?).ok()?;
    (min..=max).contains(&found).then_some(found)
}

fn sizes(min: u64, max: u64) -> String {
    let mut what = "a size such as \"32MiB\"".to_owned();
    if min > 1 {
        what += &format!(", at least {}", size_text(min));
    }
    if max < u64::MAX {
        what += &format!(", at most {}", size_text(max));
    }
    what
}

macro_rules! real {
    ($($kind:ty),*) => {$(
        impl OptionValue for $kind {
            fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>> {
                let fits = |found: &f64| match bounds {
                    Bounds::Real(min, max) => (*min..=*max).contains(found),
                    _ => true,
                };
                let found = raw.real().filter(fits);
                Ok(found.ok_or_else(|| raw.invalid())? as $kind)
            }

            fn to_toml(&self, _: &Bounds) -> Option<String> {
                Some(format!("{self:?}"))
            }

            fn expected(bounds: &Bounds) -> String {
                match bounds {
                    Bounds::Real(min, max) if max.is_finite() => {
                        format!("a number from {min} to {max}")
                    }
                    Bounds::Real(min, _) => format!("a number of at least {min}"),
                    _ => "a number".to_owned(),
                }
            }
        }
    )*};
}

real!(f32, f64);

impl OptionValue for String {
    fn parse(raw: RawValue<'_>, bounds: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        let fits = |text: &&str| match bounds {
            Bounds::Text(passes, _) => passes(text),
            _ => !text.is_empty(),
        };
        let text = raw.text().filter(fits);
        Ok(text.ok_or_else(|| raw.invalid())?.to_owned())
    }

    fn to_toml(&self, _: &Bounds) -> Option<String> {
        Some(quoted(self))
    }

    fn expected(bounds: &Bounds) -> String {
        match bounds {
            Bounds::Text(_, what) => (*what).to_owned(),
            _ => "text".to_owned(),
        }
    }
}

/// Types written as a string.
macro_rules! textual {
    ($($kind:ty, $what:expr, $parse:expr, $write:expr;)*) => {$(
        impl OptionValue for $kind {
            fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
                let found = raw.text().and_then($parse);
                found.ok_or_else(|| raw.invalid())
            }

            fn to_toml(&self, _: &Bounds) -> Option<String> {
                let write: fn(&Self) -> String = $write;
                Some(quoted(&write(self)))
            }

            fn expected(_: &Bounds) -> String {
                $what.to_owned()
            }
        }
    )*};
}

textual! {
    IpAddr, "an IP address such as \"127.0.0.1\"", address, IpAddr::to_string;
    Duration, "a time such as \"30s\", \"5m\" or \"250ms\"", duration, |time| duration_text(*time);
    MemoryBudget, "a size such as \"6GiB\" or a share of this machine such as \"60%\"",
        |text| budget(text).ok(), |found| budget_text(*found);
    KvChoice, "\"auto\", a format such as \"f16\", \"q8\", \"turbo4\", or \"KEYS:VALUES\"",
        KvChoice::named, KvChoice::name;
    KeyHash, "\"sha256:\" and 64 hexadecimal digits, as `loquat config key` prints it",
        KeyHash::parse, KeyHash::to_string;
}

impl OptionValue for PathBuf {
    fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
        let path = raw.path().filter(|path| !path.as_os_str().is_empty());
        path.ok_or_else(|| raw.invalid())
    }

    /// An empty path is not set.
    fn to_toml(&self, _: &Bounds) -> Option<String> {
        let is_set = !self.as_os_str().is_empty();
        is_set.then(|| quoted(&self.to_string_lossy()))
    }

    fn expected(_: &Bounds) -> String {
        "a path".to_owned()
    }
}

fn address(text: &str) -> Option<IpAddr> {
    match text {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        _ => text.parse().ok(),
    }
}

/// A type with few values, each with a keyword.
pub trait Keyword {
    fn keyword(&self) -> &'static str;
}

macro_rules! words {
    ($($kind:ty { $($word:literal => $value:path),+ })*) => {$(
        impl Keyword for $kind {
            fn keyword(&self) -> &'static str {
                match self { $($value => $word),+ }
            }
        }

        impl OptionValue for $kind {
            fn parse(raw: RawValue<'_>, _: &Bounds) -> Result<Self, Vec<InvalidValue>> {
                match raw.text() {
                    $(Some($word) => Ok($value),)+
                    _ => Err(raw.invalid()),
                }
            }

            fn to_toml(&self, _: &Bounds) -> Option<String> {
                Some(quoted(self.keyword()))
            }

            fn expected(_: &Bounds) -> String {
                ["one of", $(concat!("\"", $word, "\"")),+]
                    .join(", ")
                    .replacen(',', "", 1)
            }
        }
    )*};
}

words! {
    FileKind {
        "gguf" => FileKind::Gguf,
        "mlx" => FileKind::Mlx,
        "safetensors" => FileKind::Safetensors
    }
    LogFormat { "text" => LogFormat::Text, "json" => LogFormat::Json }
    Pooling { "mean" => Pooling::Mean, "last" => Pooling::Last }
    Precision { "fast" => Precision::Fast, "reference" => Precision::Reference }
    SpeculationMode {
        "auto" => SpeculationMode::Auto,
        "off" => SpeculationMode::Off,
        "lookup" => SpeculationMode::Lookup
    }
    Scope {
        "inference" => Scope::Inference,
        "metrics" => Scope::Metrics,
        "manage" => Scope::Manage,
        "admin" => Scope::Admin
    }
}

/// As a TOML string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            _ if letter.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(letter)));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
