//! What an answer must be: OpenAI's `response_format`, and what others call it.

use loquat_chat::ChatContext;
use loquat_grammar::{Grammar, GrammarSource};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// The form of the answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    pub kind: ResponseFormatType,
    /// Of the type `json_schema`: the schema.
    pub json_schema: Option<JsonSchemaFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormatType {
    /// Anything.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema admits.
    JsonSchema,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonSchemaFormat {
    /// What the schema is called; changes nothing.
    #[expect(
        dead_code,
        reason = "clients must name a schema, and nothing here needs it"
    )]
    pub name: Option<String>,
    /// Changes nothing: the model does not see it. What it must know belongs into the messages.
    pub description: Option<String>,
    /// The JSON schema. A keyword that cannot be held to is refused by name.
    pub schema: Option<Value>,
    /// The answer is held to the schema either way.
    #[expect(dead_code, reason = "an answer is always held to its schema")]
    pub strict: Option<bool>,
}

/// vLLM's form of the same wish; one of the fields.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or as text.
    pub json: Option<Value>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// A regular expression for the whole answer.
    pub regex: Option<String>,
    /// The answer is one of these.
    pub choice: Option<Vec<String>>,
    /// A grammar, in Lark's or llama.cpp's notation.
    pub grammar: Option<String>,
}

/// All fields of a request that say what its answer must be. At most one may.
#[derive(Debug, Default)]
pub struct Guided {
    pub response_format: Option<ResponseFormat>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    pub guided_grammar: Option<String>,
    pub structured_outputs: Option<StructuredOutputs>,
}

/// What the answer must be, and which field says so.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerRule {
    pub field: &'static str,
    pub source: GrammarSource,
}

impl AnswerRule {
    /// For a text without a conversation around it. May take long.
    pub fn compile(&self, chat: &ChatContext) -> Result<Grammar, ApiError> {
        let Self { field, source } = self;
        let grammar = chat.grammars().compile(source);
        grammar.map_err(|error| {
            if error.is_request_fault() {
                ApiError::invalid(*field, format!("`{field}`: {error}"))
            } else {
                ApiError::internal(&error)
            }
        })
    }
}

impl Guided {
    pub fn lower(self, ignored: &mut Vec<&'static str>) -> Result<Option<AnswerRule>, ApiError> {
        let Self {
            response_format,
            guided_json,
            guided_regex,
            guided_choice,
            guided_grammar,
            structured_outputs,
        } = self;
        let format = match response_format {
            Some(format) => format.lower(ignored)?,
            None => None,
        };
        let guided = [
            format.map(|source| ("response_format", source)),
            json("guided_json", guided_json)?,
            guided_regex.map(|text| ("guided_regex", GrammarSource::Regex(text))),
            guided_choice.map(|texts| ("guided_choice", GrammarSource::Choice(texts))),
            guided_grammar.map(|text| ("guided_grammar", grammar(text))),
        ];
        let structured = match structured_outputs {
            Some(structured) => Some(structured.lower()?),
            None => None,
        };
        let mut rules = guided.into_iter().chain([structured]).flatten();
        match (rules.next(), rules.next()) {
            (Some((field, _)), Some((other, _))) => Err(ApiError::invalid(
                other,
                format!("`{field}` says already what the answer must be; leave out `{other}`"),
            )),
            (first, _) => Ok(first.map(|(field, source)| AnswerRule { field, source })),
        }
    }
}

impl ResponseFormat {
    /// `None` where anything will do. Names what it ignores.
    pub fn lower(self, ignored: &mut Vec<&'static str>) -> Result<Option<GrammarSource>, ApiError> {
        let Self { kind, json_schema } = self;
        match (kind, json_schema) {
            (ResponseFormatType::Text, None) => Ok(None),
            (ResponseFormatType::JsonObject, None) => Ok(Some(GrammarSource::JsonObject)),
            (ResponseFormatType::JsonSchema, Some(format)) => format.lower(ignored).map(Some),
            (ResponseFormatType::JsonSchema, None) => Err(ApiError::invalid(
                "response_format.json_schema",
                "`response_format.json_schema` is missing; its `schema` says what the answer \
                 must be",
            )),
            (_, Some(_)) => Err(ApiError::invalid(
                "response_format.json_schema",
                "`response_format.json_schema` belongs to the type `json_schema` only",
            )),
        }
    }
}

impl JsonSchemaFormat {
    fn lower(self, ignored: &mut Vec<&'static str>) -> Result<GrammarSource, ApiError> {
        let Self {
            name: _,
            description,
            schema,
            strict: _,
        } = self;
        if description.is_some() {
            ignored.push("response_format.json_schema.description");
        }
        let schema = schema.ok_or_else(|| {
            ApiError::invalid(
                "response_format.json_schema.schema",
                "`response_format.json_schema.schema` is missing; it must be a JSON schema",
            )
        })?;
        Ok(GrammarSource::JsonSchema(schema))
    }
}

impl StructuredOutputs {
    fn lower(self) -> Result<(&'static str, GrammarSource), ApiError> {
        let Self {
            json: schema,
            json_object,
            regex,
            choice,
            grammar: text,
        } = self;
        let object = json_object.filter(|wanted| *wanted);
        let mut rules = [
            json("structured_outputs.json", schema)?,
            object.map(|_| ("structured_outputs.json_object", GrammarSource::JsonObject)),
            regex.map(|text| ("structured_outputs.regex", GrammarSource::Regex(text))),
            choice.map(|texts| ("structured_outputs.choice", GrammarSource::Choice(texts))),
            text.map(|text| ("structured_outputs.grammar", grammar(text))),
        ]
        .into_iter()
        .flatten();
        match (rules.next(), rules.next()) {
            (Some(one), None) => Ok(one),
            _ => Err(ApiError::invalid(
                "structured_outputs",
                "`structured_outputs` must have exactly one of `json`, `json_object`, `regex`, \
                 `choice` and `grammar`",
            )),
        }
    }
}

/// Clients send schemas as objects, or as text.
fn json(
    field: &'static str,
    value: Option<Value>,
) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
    let schema = match value {
        Some(Value::String(text)) => serde_json::from_str(&text).map_err(|error| {
            let what = format!("`{field}` is a string that is not valid JSON: {error}");
            ApiError::invalid(field, what)
        })?,
        Some(schema) => schema,
        None => return Ok(None),
    };
    Ok(Some((field, GrammarSource::JsonSchema(schema))))
}

/// Only llama.cpp's notation defines rules by `::=`.
fn grammar(text: String) -> GrammarSource {
    if text.contains("::=") {
        GrammarSource::Gbnf(text)
    } else {
        GrammarSource::Lark(text)
    }
}

#[cfg(test)]
mod tests {
    use loquat_grammar::Grammars;

    use super::*;
    use crate::error::ErrorKind;
    use crate::testing::tokenizer;

    #[test]
    fn a_rule_that_cannot_be_held_to_is_its_fields_fault_and_a_broken_vocabulary_ours() {
        let tokens = tokenizer().vocab_size();
        let wrong = GrammarSource::Regex("(".to_owned());
        let cases = [
            (wrong, tokens, ErrorKind::InvalidRequest, Some("format")),
            (GrammarSource::JsonObject, 0, ErrorKind::Internal, None),
        ];
        for (source, vocab_size, kind, param) in cases {
            let grammars = Grammars::new(tokenizer(), vocab_size);
            let chat = ChatContext::new(tokenizer(), None, grammars, Default::default());
            let field = "format";
            let error = AnswerRule { field, source }.compile(&chat).err();
            let error = error.expect("an error");
            assert_eq!(
                (error.kind, error.param.as_deref()),
                (kind, param),
                "{error:?}"
            );
        }
    }
}
