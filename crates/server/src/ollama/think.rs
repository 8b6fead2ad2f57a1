//! The fields `think` and `format`.

use std::fmt;

use loquat_chat::{Effort, Thinking};
use loquat_grammar::GrammarSource;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::Field;
use crate::models::Loaded;

/// Whether to think before answering, or how much: `low`, `medium` or `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "true, false, \"low\", \"medium\" or \"high\"")]
pub enum OllamaThink {
    Enabled(bool),
    Effort(OllamaEffort),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OllamaEffort {
    Low,
    Medium,
    High,
}

impl OllamaThink {
    pub fn lower(self, model: &Loaded) -> Result<Thinking, ApiError> {
        let effort = match self {
            Self::Enabled(false) => model.info.thinking.then_some(Effort::Off),
            _ if !model.info.thinking => {
                let reason = format!("the model `{}` does not think", model.id);
                return Err(ApiError::unsupported(Field::Think, reason));
            }
            // A model that always thinks needs no switch.
            Self::Enabled(true) => {
                (model.chat_context().supports_effort(Effort::On)).then_some(Effort::On)
            }
            Self::Effort(OllamaEffort::Low) => Some(Effort::Low),
            Self::Effort(OllamaEffort::Medium) => Some(Effort::Medium),
            Self::Effort(OllamaEffort::High) => Some(Effort::High),
        };
        Ok(Thinking {
            effort,
            budget: None,
        })
    }
}

/// The format of the answer: `json` for any JSON object, or a JSON schema.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum OllamaFormat {
    /// `json`; an empty string means any text.
    Word(String),
    #[schema(value_type = Object)]
    Schema(Map<String, Value>),
}

impl OllamaFormat {
    pub fn lower(self) -> Option<GrammarSource> {
        match self {
            Self::Word(word) if word.is_empty() => None,
            Self::Word(_) => Some(GrammarSource::JsonObject),
            Self::Schema(schema) => Some(GrammarSource::JsonSchema(Value::Object(schema))),
        }
    }
}

impl<'de> Deserialize<'de> for OllamaFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FormatVisitor;

        impl<'de> Visitor<'de> for FormatVisitor {
            type Value = OllamaFormat;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"json\" or a JSON schema")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Self::Value, E> {
                match word {
                    "" | "json" => Ok(OllamaFormat::Word(word.to_owned())),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Map::deserialize(MapAccessDeserializer::new(map)).map(OllamaFormat::Schema)
            }
        }

        deserializer.deserialize_any(FormatVisitor)
    }
}
