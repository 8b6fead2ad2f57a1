//! A value before it is parsed: from a file, or the text of a variable or flag.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[derive(Clone, Copy)]
pub enum RawValue<'a> {
    Toml(&'a Spanned<DeValue<'a>>),
    Text(&'a OsStr),
}

/// An invalid value, or an invalid part of one.
#[derive(Debug, PartialEq)]
pub struct InvalidValue {
    /// `None` outside a file.
    pub span: Option<Range<usize>>,
    /// Replaces the option's own message.
    pub message: Option<String>,
}

impl<'a> RawValue<'a> {
    pub fn span(self) -> Option<Range<usize>> {
        match self {
            Self::Toml(value) => Some(value.span()),
            Self::Text(_) => None,
        }
    }

    /// This value as invalid.
    pub fn invalid(self) -> Vec<InvalidValue> {
        let (span, message) = (self.span(), None);
        vec![InvalidValue { span, message }]
    }

    pub fn bool(self) -> Option<bool> {
        match self {
            Self::Toml(value) => value.get_ref().as_bool(),
            Self::Text(text) => text.to_str()?.trim().parse().ok(),
        }
    }

    pub fn whole(self) -> Option<i128> {
        match self {
            Self::Toml(value) => {
                let integer = value.get_ref().as_integer()?;
                i128::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
            Self::Text(text) => text.to_str()?.trim().parse().ok(),
        }
    }

    /// Also accepts a whole number.
    pub fn real(self) -> Option<f64> {
        match self {
            Self::Toml(value) => match value.get_ref() {
                DeValue::Float(float) => float.as_str().parse().ok(),
                _ => self.whole().map(|whole| whole as f64),
            },
            Self::Text(text) => text.to_str()?.trim().parse().ok(),
        }
    }

    pub fn text(self) -> Option<&'a str> {
        match self {
            Self::Toml(value) => value.get_ref().as_str(),
            Self::Text(text) => text.to_str(),
        }
    }

    /// A variable's or flag's path may be any bytes.
    pub fn path(self) -> Option<PathBuf> {
        match self {
            Self::Toml(value) => value.get_ref().as_str().map(PathBuf::from),
            Self::Text(text) => Some(text.into()),
        }
    }

    /// Text is split at commas.
    pub fn list(self) -> Option<Vec<Self>> {
        match self {
            Self::Toml(value) => {
                let items = value.get_ref().as_array()?.iter();
                Some(items.map(Self::Toml).collect())
            }
            Self::Text(text) => {
                let items = text.to_str()?.split(',').map(str::trim);
                let items = items.filter(|item| !item.is_empty());
                Some(items.map(|item| Self::Text(OsStr::new(item))).collect())
            }
        }
    }

    pub fn table(self) -> Option<&'a DeTable<'a>> {
        match self {
            Self::Toml(value) => value.get_ref().as_table(),
            Self::Text(_) => None,
        }
    }
}
