//! JSON values of several types: a text or a list, objects with a `type` tag.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A text, or a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TextOr<T> {
    Text(String),
    Many(Vec<T>),
}

// Serde's derive reports neither which element is wrong nor why.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut many = Vec::new();
        while let Some(each) = list.next_element()? {
            many.push(each);
        }
        Ok(TextOr::Many(many))
    }
}

/// The values of an object's `type` tag.
pub struct TypeTags {
    /// The type of an object without a tag.
    pub default: Option<&'static str>,
    /// Types of the dialect that are not implemented, with the reason.
    pub refused: &'static [(&'static [&'static str], &'static str)],
}

impl TypeTags {
    /// Parses an object by `read`, which handles the implemented types.
    pub fn read<'de, T, D: Deserializer<'de>>(
        &self,
        deserializer: D,
        read: impl FnOnce(Value) -> serde_json::Result<T>,
    ) -> Result<T, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let untagged = fields.get("type").is_none_or(Value::is_null);
        if let Some(default) = self.default.filter(|_| untagged) {
            fields.insert("type".to_owned(), default.into());
        }
        let kind = fields.get("type").and_then(Value::as_str);
        let refused = self.refused.iter();
        let refused = kind.and_then(|kind| {
            let mut refused = refused.filter(|(kinds, _)| kinds.contains(&kind));
            refused.next().map(|(_, reason)| (kind, reason))
        });
        if let Some((kind, reason)) = refused {
            return Err(D::Error::custom(format!(
                "`{kind}` is not supported: {reason}"
            )));
        }
        read(Value::Object(fields)).map_err(D::Error::custom)
    }
}

/// Parses null as the default value.
pub fn null_as_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
