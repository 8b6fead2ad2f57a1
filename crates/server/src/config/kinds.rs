//! What options hold: how each kind of value is read, written and described.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use loquat_session::{MemoryBudget, Precision};

use super::given::{Given, Wrong};
use super::units::{budget, budget_text, duration, duration_text, size, size_text};
use super::{FileKind, KeyHash, KvChoice, LogFormat, Pooling, Scope};

/// What values of a kind an option takes.
#[derive(Clone, Copy)]
pub enum Bounds {
    Any,
    /// Both ends included.
    Whole(u64, u64),
    /// Sizes in bytes, both ends included.
    Bytes(u64, u64),
    /// Both ends included.
    Real(f64, f64),
    /// Texts that pass, and what they are.
    Text(fn(&str) -> bool, &'static str),
}

/// A kind of value.
pub trait Kind: Sized {
    fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>>;

    /// As TOML; `None` where there is no value.
    fn written(&self, bounds: &Bounds) -> Option<String>;

    /// What a value must be, such as `a whole number from 1 to 9`.
    fn what(bounds: &Bounds) -> String;
}

/// The place of an option's value.
pub trait Slot {
    fn set(&mut self, given: Given<'_>, bounds: &Bounds) -> Result<(), Vec<Wrong>>;
    fn written(&self, bounds: &Bounds) -> Option<String>;
    fn what(&self, bounds: &Bounds) -> String;
}

impl<T: Kind> Slot for T {
    fn set(&mut self, given: Given<'_>, bounds: &Bounds) -> Result<(), Vec<Wrong>> {
        *self = T::parse(given, bounds)?;
        Ok(())
    }

    fn written(&self, bounds: &Bounds) -> Option<String> {
        Kind::written(self, bounds)
    }

    fn what(&self, bounds: &Bounds) -> String {
        T::what(bounds)
    }
}

impl<T: Kind> Kind for Option<T> {
    fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>> {
        T::parse(given, bounds).map(Some)
    }

    fn written(&self, bounds: &Bounds) -> Option<String> {
        self.as_ref().and_then(|value| value.written(bounds))
    }

    fn what(bounds: &Bounds) -> String {
        T::what(bounds)
    }
}

impl<T: Kind> Kind for Vec<T> {
    fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>> {
        let items = given.list().ok_or_else(|| given.wrong())?.into_iter();
        let (mut values, mut wrong) = (Vec::new(), Vec::new());
        for item in items {
            match T::parse(item, bounds) {
                Ok(value) => values.push(value),
                Err(more) => wrong.extend(more),
            }
        }
        if wrong.is_empty() {
            Ok(values)
        } else {
            Err(wrong)
        }
    }

    fn written(&self, bounds: &Bounds) -> Option<String> {
        let items: Vec<_> = self
            .iter()
            .filter_map(|item| item.written(bounds))
            .collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn what(bounds: &Bounds) -> String {
        format!("a list, each {}", T::what(bounds))
    }
}

impl Kind for bool {
    fn parse(given: Given<'_>, _: &Bounds) -> Result<Self, Vec<Wrong>> {
        given.bool().ok_or_else(|| given.wrong())
    }

    fn written(&self, _: &Bounds) -> Option<String> {
        Some(self.to_string())
    }

    fn what(_: &Bounds) -> String {
        "true or false".to_owned()
    }
}

/// Whole numbers, which are sizes where their bounds are.
macro_rules! whole {
    ($($kind:ty),*) => {$(
        impl Kind for $kind {
            fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>> {
                let found = match bounds {
                    Bounds::Bytes(min, max) => given
                        .text()
                        .and_then(size)
                        .filter(|bytes| (*min..=*max).contains(bytes)),
                    Bounds::Whole(min, max) => within(given, *min, *max),
                    _ => within(given, 0, u64::MAX),
                };
                let found = found.and_then(|found| found.try_into().ok());
                found.ok_or_else(|| given.wrong())
            }

            fn written(&self, bounds: &Bounds) -> Option<String> {
                Some(match bounds {
                    Bounds::Bytes(..) => quoted(&size_text(*self as u64)),
                    _ => self.to_string(),
                })
            }

            fn what(bounds: &Bounds) -> String {
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

fn within(given: Given<'_>, min: u64, max: u64) -> Option<u64> {
    let found = u64::try_from(given.whole()?).ok()?;
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
        impl Kind for $kind {
            fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>> {
                let fits = |found: &f64| match bounds {
                    Bounds::Real(min, max) => (*min..=*max).contains(found),
                    _ => true,
                };
                let found = given.real().filter(fits);
                Ok(found.ok_or_else(|| given.wrong())? as $kind)
            }

            fn written(&self, _: &Bounds) -> Option<String> {
                Some(format!("{self:?}"))
            }

            fn what(bounds: &Bounds) -> String {
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

impl Kind for String {
    fn parse(given: Given<'_>, bounds: &Bounds) -> Result<Self, Vec<Wrong>> {
        let fits = |text: &&str| match bounds {
            Bounds::Text(passes, _) => passes(text),
            _ => !text.is_empty(),
        };
        let text = given.text().filter(fits);
        Ok(text.ok_or_else(|| given.wrong())?.to_owned())
    }

    fn written(&self, _: &Bounds) -> Option<String> {
        Some(quoted(self))
    }

    fn what(bounds: &Bounds) -> String {
        match bounds {
            Bounds::Text(_, what) => (*what).to_owned(),
            _ => "a text".to_owned(),
        }
    }
}

/// Kinds that are written as some text.
macro_rules! textual {
    ($($kind:ty, $what:expr, $parse:expr, $write:expr;)*) => {$(
        impl Kind for $kind {
            fn parse(given: Given<'_>, _: &Bounds) -> Result<Self, Vec<Wrong>> {
                let found = given.text().and_then($parse);
                found.ok_or_else(|| given.wrong())
            }

            fn written(&self, _: &Bounds) -> Option<String> {
                let write: fn(&Self) -> String = $write;
                Some(quoted(&write(self)))
            }

            fn what(_: &Bounds) -> String {
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
    KvChoice, "one of \"auto\", \"f32\", \"f16\", \"bf16\", \"q8\"",
        KvChoice::named, KvChoice::name;
    KeyHash, "\"sha256:\" and 64 hexadecimal digits, as `loquat config key` prints it",
        KeyHash::parse, KeyHash::to_string;
}

impl Kind for PathBuf {
    fn parse(given: Given<'_>, _: &Bounds) -> Result<Self, Vec<Wrong>> {
        let path = given.text().filter(|path| !path.is_empty());
        Ok(path.ok_or_else(|| given.wrong())?.into())
    }

    /// One that is empty was never set.
    fn written(&self, _: &Bounds) -> Option<String> {
        let is_set = !self.as_os_str().is_empty();
        is_set.then(|| quoted(&self.to_string_lossy()))
    }

    fn what(_: &Bounds) -> String {
        "a path".to_owned()
    }
}

fn address(text: &str) -> Option<IpAddr> {
    match text {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        _ => text.parse().ok(),
    }
}

/// A kind with few values, each with its word.
pub trait Word {
    fn word(&self) -> &'static str;
}

macro_rules! words {
    ($($kind:ty { $($word:literal => $value:path),+ })*) => {$(
        impl Word for $kind {
            fn word(&self) -> &'static str {
                match self { $($value => $word),+ }
            }
        }

        impl Kind for $kind {
            fn parse(given: Given<'_>, _: &Bounds) -> Result<Self, Vec<Wrong>> {
                match given.text() {
                    $(Some($word) => Ok($value),)+
                    _ => Err(given.wrong()),
                }
            }

            fn written(&self, _: &Bounds) -> Option<String> {
                Some(quoted(self.word()))
            }

            fn what(_: &Bounds) -> String {
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
    Scope {
        "inference" => Scope::Inference,
        "metrics" => Scope::Metrics,
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
