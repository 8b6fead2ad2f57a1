//! The items that conversations are made of, as clients send them and are sent them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::openai::fresh_id;
use crate::openai::logprobs::TokenLogprob;
use crate::union::{Kinds, TextOr, or_default};

/// Something that was said, thought, asked for or found out. `type` may be left out of messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = ResponseItem)]
pub enum Item {
    Message(MessageItem),
    Reasoning(ReasoningItem),
    FunctionCall(FunctionCallItem),
    FunctionCallOutput(FunctionCallOutputItem),
    ItemReference(ItemReference),
}

const BUILT_IN: &str = "only function tools are to be had here, which the client calls";

const ITEMS: Kinds = Kinds {
    default: Some("message"),
    refused: &[
        (
            &[
                "file_search_call",
                "computer_call",
                "computer_call_output",
                "web_search_call",
                "image_generation_call",
                "code_interpreter_call",
                "local_shell_call",
                "local_shell_call_output",
                "shell_call",
                "shell_call_output",
                "apply_patch_call",
                "apply_patch_call_output",
                "mcp_list_tools",
                "mcp_approval_request",
                "mcp_approval_response",
                "mcp_call",
                "custom_tool_call",
                "custom_tool_call_output",
                "tool_search_call",
                "tool_search_output",
            ],
            BUILT_IN,
        ),
        (
            &["compaction"],
            "conversations are not shortened; send the items themselves",
        ),
    ],
};

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ITEMS.read(deserializer, Self::deserialize)
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseItemStatus)]
pub enum Status {
    InProgress,
    Completed,
    Incomplete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseRole)]
pub enum Speaker {
    User,
    Assistant,
    System,
    Developer,
}

/// Words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseMessageItem)]
pub struct MessageItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub role: Speaker,
    pub content: TextOr<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// A piece of a message or of a tool's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = ResponsePart)]
pub enum Part {
    InputText(InputText),
    OutputText(OutputText),
    Refusal(Refusal),
}

const PARTS: Kinds = Kinds {
    default: None,
    refused: &[(
        &[
            "input_image",
            "input_file",
            "input_audio",
            "computer_screenshot",
        ],
        "messages are text",
    )],
};

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PARTS.read(deserializer, Self::deserialize)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl Part {
    pub fn into_text(self) -> String {
        match self {
            Self::InputText(InputText { text }) => text,
            Self::OutputText(OutputText { text, .. }) => text,
            Self::Refusal(Refusal { refusal }) => refusal,
        }
    }
}

/// Words of anybody but the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseInputText)]
pub struct InputText {
    pub text: String,
}

/// Words of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseOutputText)]
pub struct OutputText {
    pub text: String,
    /// Always empty in replies, and of no effect in requests.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Vec<Object>)]
    pub annotations: Vec<Value>,
    /// How likely the words were, where the request asked. Of no effect in requests.
    #[serde(default, deserialize_with = "unread")]
    pub logprobs: Vec<TokenLogprob>,
}

fn unread<'de, T: Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| T::default())
}

/// Words in place of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseRefusal)]
pub struct Refusal {
    pub refusal: String,
}

/// What the model thought before it answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseReasoningItem)]
pub struct ReasoningItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always empty in replies: thinking is told as it was thought, in `content`. In requests it
    /// stands for `content` where that is left out.
    #[serde(default, deserialize_with = "or_default")]
    pub summary: Vec<Thought>,
    #[serde(default, deserialize_with = "or_default")]
    pub content: Vec<Thought>,
    /// Always left out of replies, and of no effect in requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseThought)]
pub enum Thought {
    SummaryText { text: String },
    ReasoningText { text: String },
}

impl Thought {
    pub fn text(&self) -> &str {
        match self {
            Self::SummaryText { text } | Self::ReasoningText { text } => text,
        }
    }
}

/// A call that the model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionCallItem)]
pub struct FunctionCallItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// By which the call's output is told to be its.
    pub call_id: String,
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionCallOutputItem)]
pub struct FunctionCallOutputItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Of a `function_call` before it.
    pub call_id: String,
    pub output: TextOr<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// An item of a stored response, by its `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseItemReference)]
pub struct ItemReference {
    pub id: String,
}

impl Item {
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Message(item) => item.id.as_deref(),
            Self::Reasoning(item) => item.id.as_deref(),
            Self::FunctionCall(item) => item.id.as_deref(),
            Self::FunctionCallOutput(item) => item.id.as_deref(),
            Self::ItemReference(item) => Some(&item.id),
        }
    }

    /// As it is kept: with an id, a status, and its words as parts.
    pub fn settled(mut self) -> Self {
        let (id, prefix) = match &mut self {
            Self::Message(item) => {
                let text = std::mem::replace(&mut item.content, TextOr::Many(Vec::new()));
                item.content = TextOr::Many(parts(item.role, text));
                item.status.get_or_insert(Status::Completed);
                (&mut item.id, "msg_")
            }
            Self::Reasoning(item) => (&mut item.id, "rs_"),
            Self::FunctionCall(item) => {
                item.status.get_or_insert(Status::Completed);
                (&mut item.id, "fc_")
            }
            Self::FunctionCallOutput(item) => {
                item.status.get_or_insert(Status::Completed);
                (&mut item.id, "fco_")
            }
            Self::ItemReference(_) => return self,
        };
        id.get_or_insert_with(|| fresh_id(prefix));
        self
    }
}

impl Item {
    /// Without what was sent along and changes nothing.
    pub fn without_idle_fields(mut self) -> Self {
        let content = match &mut self {
            Self::Message(item) => {
                item.phase = None;
                &mut item.content
            }
            Self::FunctionCallOutput(item) => &mut item.output,
            Self::Reasoning(item) => {
                item.encrypted_content = None;
                return self;
            }
            Self::FunctionCall(_) | Self::ItemReference(_) => return self,
        };
        if let TextOr::Many(parts) = content {
            for part in parts {
                if let Part::OutputText(text) = part {
                    text.annotations = Vec::new();
                }
            }
        }
        self
    }
}

fn parts(speaker: Speaker, content: TextOr<Part>) -> Vec<Part> {
    match (content, speaker) {
        (TextOr::Many(parts), _) => parts,
        (TextOr::Text(text), Speaker::Assistant) => vec![Part::OutputText(OutputText {
            text,
            ..OutputText::default()
        })],
        (TextOr::Text(text), _) => vec![Part::InputText(InputText { text })],
    }
}
