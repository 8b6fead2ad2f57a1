//! JSON that may be one of several things: a text or a list, objects told apart by `type`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A text, or a list of what the dialect has beside texts.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TextOr<T> {
    Text(String),
    Many(Vec<T>),
}

// By hand, since what serde derives says neither which element is wrong nor why.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either(PhantomData))
    }
}

struct Either<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
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

/// Objects that are told apart by their `type`.
pub struct Kinds {
    /// What an object without `type` is.
    pub default: Option<&'static str>,
    /// Kinds of the dialect that are not implemented, with the reason.
    pub refused: &'static [(&'static [&'static str], &'static str)],
}

impl Kinds {
    /// Reads an object by `read`, which knows those that are implemented.
    pub fn read<'de, T, D: Deserializer<'de>>(
        &self,
        deserializer: D,
        read: impl FnOnce(Value) -> serde_json::Result<T>,
    ) -> Result<T, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let untold = fields.get("type").is_none_or(Value::is_null);
        if let Some(default) = self.default.filter(|_| untold) {
            fields.insert("type".to_owned(), default.into());
        }
        let kind = fields.get("type").and_then(Value::as_str);
        let refused = self.refused.iter();
        let refused = kind.and_then(|kind| {
            let mut refused = refused.filter(|(kinds, _)| kinds.contains(&kind));
            refused.next().map(|(_, why)| (kind, why))
        });
        if let Some((kind, why)) = refused {
            return Err(D::Error::custom(format!(
                "`{kind}` is not supported: {why}"
            )));
        }
        read(Value::Object(fields)).map_err(D::Error::custom)
    }
}

/// What a client writes as null is left out.
pub fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
