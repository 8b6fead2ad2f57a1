//! Tool definitions in OpenAI's format.

use loquat_chat::{Tool, ToolChoice};
use loquat_grammar::check_schema;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::Field;

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatTool {
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "the only type is `function`")]
    pub kind: Option<FunctionType>,
    pub function: FunctionDefinition,
}

/// The only type of tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionType {
    Function,
}

/// A function's description and parameters.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDefinition {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; unique.
    pub name: String,
    /// When and how to use it; the model reads it.
    pub description: Option<String>,
    /// The JSON schema of the arguments, which is an object. No arguments if omitted.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Constrain the arguments to the schema. If omitted, the arguments of calls that `tool_choice`
    /// forces are constrained if the schema is supported.
    pub strict: Option<bool>,
}

/// Whether tools are called: a mode, or the tool to call.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(untagged)]
pub enum ChatToolChoice {
    Mode(ToolMode),
    One(NamedTool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// No tool is called.
    None,
    /// The model decides.
    Auto,
    /// At least one tool is called.
    Required,
}

/// `{"type": "function", "function": {"name": "…"}}`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
    #[serde(rename = "type")]
    pub kind: NamedToolType,
    /// The tool to call.
    pub function: Option<FunctionName>,
    /// Refused: list only the allowed tools in `tools`.
    pub allowed_tools: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NamedToolType {
    Function,
    AllowedTools,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionName {
    pub name: String,
}

impl<'de> Deserialize<'de> for ChatToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoiceVisitor;

        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = ChatToolChoice;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`none`, `auto`, `required`, or an object that names a tool")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Self::Value, E> {
                ToolMode::deserialize(StrDeserializer::new(word)).map(ChatToolChoice::Mode)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                NamedTool::deserialize(MapAccessDeserializer::new(map)).map(ChatToolChoice::One)
            }
        }

        deserializer.deserialize_any(ChoiceVisitor)
    }
}

/// Lowers tools. Forced calls are constrained where `strict` leaves it open.
pub fn lower(tools: Vec<ChatTool>, choice: &ToolChoice) -> Vec<Tool> {
    let forced = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
    let tools = tools.into_iter().map(|tool| {
        let undecided = tool.function.strict.is_none();
        let tool = tool.lower();
        let strict = forced && undecided && check_schema(&tool.parameters).is_ok();
        Tool {
            strict: tool.strict || strict,
            ..tool
        }
    });
    tools.collect()
}

impl ChatTool {
    pub fn lower(self) -> Tool {
        let Self { kind: _, function } = self;
        function.lower()
    }
}

impl FunctionDefinition {
    pub fn lower(self) -> Tool {
        let Self {
            name,
            description,
            parameters,
            strict,
        } = self;
        Tool {
            name,
            description,
            parameters: match parameters {
                Some(schema) => Value::Object(schema),
                None => json!({ "type": "object", "properties": {} }),
            },
            strict: strict.unwrap_or(false),
        }
    }
}

impl ChatToolChoice {
    pub fn lower(self) -> Result<ToolChoice, ApiError> {
        let NamedTool {
            kind,
            function,
            allowed_tools: _,
        } = match self {
            Self::Mode(ToolMode::None) => return Ok(ToolChoice::None),
            Self::Mode(ToolMode::Auto) => return Ok(ToolChoice::Auto),
            Self::Mode(ToolMode::Required) => return Ok(ToolChoice::Required),
            Self::One(named) => named,
        };
        match (kind, function) {
            (NamedToolType::AllowedTools, _) => Err(ApiError::unsupported(
                Field::ToolChoice.field(Field::AllowedTools),
                "list only the allowed tools in `tools`",
            )),
            (NamedToolType::Function, Some(FunctionName { name })) => Ok(ToolChoice::Named(name)),
            (NamedToolType::Function, None) => Err(ApiError::invalid(
                Field::ToolChoice.field(Field::Function),
                "is missing; it names the tool to call",
            )),
        }
    }
}
