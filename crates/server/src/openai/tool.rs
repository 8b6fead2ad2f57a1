//! Tools, as OpenAI writes them.

use loquat_chat::{Tool, ToolChoice};
use loquat_grammar::check_schema;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatTool {
    #[serde(rename = "type")]
    pub kind: FunctionType,
    pub function: FunctionDefinition,
}

/// The only type of tool there is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionType {
    Function,
}

/// What a function does and takes.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDefinition {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; each tool its own.
    pub name: String,
    /// When and how to use it, for the model to read.
    pub description: Option<String>,
    /// A JSON schema of an object: the arguments. None when left out.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Hold the arguments to the schema while they are generated. Where left out, those of calls
    /// that `tool_choice` asks for are, if the schema can be held to.
    pub strict: Option<bool>,
}

/// Whether tools are called: a word, or the one to call.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(untagged)]
pub enum ChatToolChoice {
    Mode(ToolMode),
    One(NamedTool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// None is called.
    None,
    /// As the model likes.
    Auto,
    /// At least one is called.
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
    /// Refused: offer those tools only that are allowed.
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
        struct Either;

        impl<'de> Visitor<'de> for Either {
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

        deserializer.deserialize_any(Either)
    }
}

/// Tools, of which some may have to be called.
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
        let Self {
            kind: FunctionType::Function,
            function,
        } = self;
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
                "tool_choice.allowed_tools",
                "offer those tools only that may be called",
            )),
            (NamedToolType::Function, Some(FunctionName { name })) => Ok(ToolChoice::Named(name)),
            (NamedToolType::Function, None) => Err(ApiError::invalid(
                "tool_choice.function",
                "`tool_choice.function` is missing; it names the tool to call",
            )),
        }
    }
}
