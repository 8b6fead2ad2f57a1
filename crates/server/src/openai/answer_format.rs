//! Constraints on an answer: OpenAI's `response_format`, and the names other servers have for it.

use loquat_chat::ChatContext;
use loquat_grammar::{Grammar, GrammarSource};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::{Field, FieldPath};

/// The form of the answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    pub kind: ResponseFormatType,
    /// The schema, for the type `json_schema`.
    pub json_schema: Option<JsonSchemaFormat>,
    /// llama.cpp's form of the schema, for the types `json_object` and `json_schema`.
    pub schema: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormatType {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonSchemaFormat {
    /// The schema's name; has no effect.
    #[expect(dead_code, reason = "clients must name a schema; the name is not used")]
    pub name: Option<String>,
    /// Has no effect: the model does not see it. Describe the answer in the messages.
    pub description: Option<String>,
    /// The JSON schema. Unsupported keywords are refused by name.
    pub schema: Option<Value>,
    /// The answer always follows the schema.
    #[expect(dead_code, reason = "an answer always follows its schema")]
    pub strict: Option<bool>,
}

/// vLLM's form of the same constraints; exactly one field.
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
    /// A grammar in Lark's or llama.cpp's notation.
    pub grammar: Option<String>,
}

/// The fields that constrain an answer. A request may have at most one of them.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerFormatFields {
    /// The format of the answer. At most one of this, `json_schema`, `grammar`, `guided_*` and
    /// `structured_outputs`.
    pub response_format: Option<ResponseFormat>,
    /// llama.cpp's name for `guided_json`.
    pub json_schema: Option<Value>,
    /// llama.cpp's name for `guided_grammar`; an empty text means none.
    pub grammar: Option<String>,
    /// The answer is JSON that matches this schema, given as an object or as text.
    pub guided_json: Option<Value>,
    /// The whole answer matches this regular expression.
    pub guided_regex: Option<String>,
    /// The answer is one of these.
    pub guided_choice: Option<Vec<String>>,
    /// The answer follows this grammar, in Lark's or llama.cpp's notation.
    pub guided_grammar: Option<String>,
    /// The same constraints in vLLM's form.
    pub structured_outputs: Option<StructuredOutputs>,
}

/// The constraint on an answer, and the field that sets it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerConstraint {
    pub field: FieldPath,
    pub source: GrammarSource,
}

impl AnswerConstraint {
    pub fn new(field: impl Into<FieldPath>, source: GrammarSource) -> Self {
        Self {
            field: field.into(),
            source,
        }
    }

    /// Compiles the constraint of a plain text. Belongs off the async threads.
    pub fn compile(&self, chat: &ChatContext) -> Result<Grammar, ApiError> {
        let Self { field, source } = self;
        let grammar = chat.grammars().compile(source);
        grammar.map_err(|error| {
            if error.is_request_fault() {
                ApiError::bad_request(format!("`{field}`: {error}")).param(field.clone())
            } else {
                ApiError::internal(&error)
            }
        })
    }
}

impl AnswerFormatFields {
    pub const NAMES: &[&str] = &[
        "response_format",
        "json_schema",
        "grammar",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
    ];

    pub fn lower(
        self,
        ignored: &mut Vec<&'static str>,
    ) -> Result<Option<AnswerConstraint>, ApiError> {
        let Self {
            response_format,
            json_schema,
            grammar: llama_grammar,
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
        let constraint = AnswerConstraint::new;
        let schema = json(Field::GuidedJson.into(), guided_json)?;
        let llama_schema = json(Field::JsonSchema.into(), json_schema)?;
        let llama_grammar = llama_grammar.filter(|text| !text.trim().is_empty());
        let llama_grammar = llama_grammar.map(self::grammar);
        let regex = guided_regex.map(GrammarSource::Regex);
        let choice = guided_choice.map(GrammarSource::Choice);
        let grammar = guided_grammar.map(self::grammar);
        let guided = [
            format.map(|source| constraint(Field::ResponseFormat, source)),
            llama_schema,
            llama_grammar.map(|source| constraint(Field::Grammar, source)),
            schema,
            regex.map(|source| constraint(Field::GuidedRegex, source)),
            choice.map(|source| constraint(Field::GuidedChoice, source)),
            grammar.map(|source| constraint(Field::GuidedGrammar, source)),
        ];
        let structured = match structured_outputs {
            Some(structured) => Some(structured.lower()?),
            None => None,
        };
        let mut constraints = guided.into_iter().chain([structured]).flatten();
        match (constraints.next(), constraints.next()) {
            (Some(first), Some(second)) => {
                let problem = format!("conflicts with `{}`; send only one of them", first.field);
                Err(ApiError::invalid(second.field, problem))
            }
            (first, _) => Ok(first),
        }
    }
}

impl ResponseFormat {
    /// `None` for any text. Adds the fields it ignores to `ignored`.
    pub fn lower(self, ignored: &mut Vec<&'static str>) -> Result<Option<GrammarSource>, ApiError> {
        let Self {
            kind,
            json_schema,
            schema,
        } = self;
        if let Some(schema) = schema {
            return match (kind, json_schema) {
                (ResponseFormatType::JsonObject | ResponseFormatType::JsonSchema, None) => {
                    Ok(Some(GrammarSource::JsonSchema(schema)))
                }
                (ResponseFormatType::Text, _) => Err(ApiError::invalid(
                    Field::ResponseFormat.field(Field::Schema),
                    "is for the types `json_object` and `json_schema` only",
                )),
                (_, Some(_)) => Err(ApiError::invalid(
                    Field::ResponseFormat.field(Field::Schema),
                    "conflicts with `response_format.json_schema`; send only one of them",
                )),
            };
        }
        match (kind, json_schema) {
            (ResponseFormatType::Text, None) => Ok(None),
            (ResponseFormatType::JsonObject, None) => Ok(Some(GrammarSource::JsonObject)),
            (ResponseFormatType::JsonSchema, Some(format)) => format.lower(ignored).map(Some),
            (ResponseFormatType::JsonSchema, None) => Err(ApiError::invalid(
                Field::ResponseFormat.field(Field::JsonSchema),
                "is missing; its `schema` is the answer's JSON schema",
            )),
            (_, Some(_)) => Err(ApiError::invalid(
                Field::ResponseFormat.field(Field::JsonSchema),
                "is for the type `json_schema` only",
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
            let format = Field::ResponseFormat.field(Field::JsonSchema);
            ApiError::invalid(
                format.field(Field::Schema),
                "is missing; it must be a JSON schema",
            )
        })?;
        Ok(GrammarSource::JsonSchema(schema))
    }
}

impl StructuredOutputs {
    fn lower(self) -> Result<AnswerConstraint, ApiError> {
        let Self {
            json: schema,
            json_object,
            regex,
            choice,
            grammar: text,
        } = self;
        let path = |field| Field::StructuredOutputs.field(field);
        let constraint = |field, source| AnswerConstraint::new(path(field), source);
        let object = json_object.filter(|wanted| *wanted);
        let regex = regex.map(GrammarSource::Regex);
        let choice = choice.map(GrammarSource::Choice);
        let grammar = text.map(grammar);
        let constraints = [
            json(path(Field::Json), schema)?,
            object.map(|_| constraint(Field::JsonObject, GrammarSource::JsonObject)),
            regex.map(|source| constraint(Field::Regex, source)),
            choice.map(|source| constraint(Field::Choice, source)),
            grammar.map(|source| constraint(Field::Grammar, source)),
        ];
        let mut constraints = constraints.into_iter().flatten();
        match (constraints.next(), constraints.next()) {
            (Some(one), None) => Ok(one),
            _ => Err(ApiError::invalid(
                Field::StructuredOutputs,
                "must have exactly one of `json`, `json_object`, `regex`, `choice` and `grammar`",
            )),
        }
    }
}

/// Clients send schemas as objects or as text.
fn json(field: FieldPath, value: Option<Value>) -> Result<Option<AnswerConstraint>, ApiError> {
    let schema = match value {
        Some(Value::String(text)) => serde_json::from_str(&text).map_err(|error| {
            let problem = format!("is a string that is not valid JSON: {error}");
            ApiError::invalid(field.clone(), problem)
        })?,
        Some(schema) => schema,
        None => return Ok(None),
    };
    let source = GrammarSource::JsonSchema(schema);
    Ok(Some(AnswerConstraint::new(field, source)))
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
    fn invalid_constraint_names_its_field() {
        let tokens = tokenizer().vocab_size();
        let wrong = GrammarSource::Regex("(".to_owned());
        let cases = [
            (
                wrong,
                tokens,
                ErrorKind::InvalidRequest,
                Some(Field::Format.into()),
            ),
            // A broken vocabulary is not the request's fault.
            (GrammarSource::JsonObject, 0, ErrorKind::Internal, None),
        ];
        for (source, vocab_size, kind, param) in cases {
            let grammars = Grammars::new(tokenizer(), vocab_size);
            let chat = ChatContext::new(tokenizer(), None, grammars, Default::default());
            let constraint = AnswerConstraint::new(Field::Format, source);
            let Err(error) = constraint.compile(&chat) else {
                panic!("{constraint:?} compiled");
            };
            assert_eq!((error.kind, &error.param), (kind, &param), "{error:?}");
        }
    }
}
