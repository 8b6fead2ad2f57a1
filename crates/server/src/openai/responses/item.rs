//! Items of a conversation, in requests and responses.

use loquat_chat::{ContentPart, Detail, Image};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::media_data;
use crate::openai::fresh_id;
use crate::openai::logprobs::TokenLogprob;
use crate::openai::messages::ImageDetail;
use crate::union::{TextOr, TypeTags, null_as_default};

/// A message, reasoning, a call or its output. `type` may be omitted in messages.
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

const BUILT_IN: &str = "only function tools, which the client calls, are supported";

const ITEMS: TypeTags = TypeTags {
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
            "conversations are not compacted; send the items themselves",
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
pub enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseRole)]
pub enum ItemRole {
    User,
    Assistant,
    System,
    Developer,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseMessageItem)]
pub struct MessageItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub role: ItemRole,
    pub content: TextOr<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// Has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// A part of a message or of a call's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = ResponsePart)]
pub enum Part {
    InputText(InputText),
    InputImage(InputImage),
    OutputText(OutputText),
    Refusal(Refusal),
}

const PARTS: TypeTags = TypeTags {
    default: None,
    refused: &[(
        &["input_file", "input_audio", "computer_screenshot"],
        "messages are text and images only",
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
    /// The part as the model sees it.
    pub fn lower(&self) -> Result<ContentPart, ApiError> {
        let text = match self {
            Self::InputText(InputText { text }) | Self::OutputText(OutputText { text, .. }) => text,
            Self::Refusal(Refusal { refusal }) => refusal,
            Self::InputImage(image) => return image.lower().map(ContentPart::Image),
        };
        Ok(ContentPart::Text(text.clone()))
    }
}

/// Text that the model did not write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseInputText)]
pub struct InputText {
    pub text: String,
}

/// An image, for models that read images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseInputImage)]
pub struct InputImage {
    /// A `data:` URI with base64 of a PNG, JPEG, WebP, GIF or BMP file, or an address on a host that
    /// the configuration lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<ImageDetail>,
    /// Must be null or omitted: this server stores no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
}

impl Item {
    /// The addresses of media.
    pub fn media_urls(&mut self) -> impl Iterator<Item = (FieldPath, &mut String)> {
        let parts = match self {
            Self::Message(MessageItem { content, .. }) => Some(content),
            Self::FunctionCallOutput(FunctionCallOutputItem { output, .. }) => Some(output),
            Self::Reasoning(_) | Self::FunctionCall(_) | Self::ItemReference(_) => None,
        };
        let parts = parts.and_then(|parts| match parts {
            TextOr::Text(_) => None,
            TextOr::Many(parts) => Some(parts),
        });
        let images = parts.into_iter().flatten().filter_map(|part| match part {
            Part::InputImage(image) => image.image_url.as_mut(),
            Part::InputText(_) | Part::OutputText(_) | Part::Refusal(_) => None,
        });
        images.map(|url| (InputImage::field(Field::ImageUrl), url))
    }
}

impl InputImage {
    /// Items of earlier responses may come before those of the request, so no index is known.
    fn field(name: Field) -> FieldPath {
        FieldPath::verbatim("input_image").field(name)
    }

    fn lower(&self) -> Result<Image, ApiError> {
        let Self {
            image_url,
            detail,
            file_id,
        } = self;
        if file_id.is_some() {
            let reason = "this server stores no files; send the image as a `data:` URI";
            return Err(ApiError::unsupported(Self::field(Field::FileId), reason));
        }
        let field = Self::field(Field::ImageUrl);
        let missing = || ApiError::invalid(field.clone(), "is missing");
        let url = image_url.as_deref().ok_or_else(missing)?;
        let image = media_data::image_from_url(field.clone(), url)?;
        Ok(image.with_detail(detail.map_or_else(Detail::default, ImageDetail::lower)))
    }
}

/// Text of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseOutputText)]
pub struct OutputText {
    pub text: String,
    /// Always empty in responses; has no effect in requests.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(value_type = Vec<Object>)]
    pub annotations: Vec<Value>,
    /// The log-probabilities of the text, if requested. Has no effect in requests.
    #[serde(default, deserialize_with = "ignore")]
    pub logprobs: Vec<TokenLogprob>,
}

fn ignore<'de, T: Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| T::default())
}

/// A refusal in place of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseRefusal)]
pub struct Refusal {
    pub refusal: String,
}

/// The model's reasoning before the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseReasoningItem)]
pub struct ReasoningItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always empty in responses: `content` has the full reasoning. In requests it is used if
    /// `content` is omitted.
    #[serde(default, deserialize_with = "null_as_default")]
    pub summary: Vec<ReasoningPart>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub content: Vec<ReasoningPart>,
    /// Never in responses; has no effect in requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseReasoningPart)]
pub enum ReasoningPart {
    SummaryText { text: String },
    ReasoningText { text: String },
}

impl ReasoningPart {
    pub fn text(&self) -> &str {
        match self {
            Self::SummaryText { text } | Self::ReasoningText { text } => text,
        }
    }
}

/// A call of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionCallItem)]
pub struct FunctionCallItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id by which an output refers to the call.
    pub call_id: String,
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// The output of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionCallOutputItem)]
pub struct FunctionCallOutputItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The `call_id` of an earlier `function_call`.
    pub call_id: String,
    pub output: TextOr<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
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

    /// The item as it is stored: with an id, a status, and its text as parts.
    pub fn normalized(mut self) -> Self {
        let (id, prefix) = match &mut self {
            Self::Message(item) => {
                let text = std::mem::replace(&mut item.content, TextOr::Many(Vec::new()));
                item.content = TextOr::Many(parts(item.role, text));
                item.status.get_or_insert(ItemStatus::Completed);
                (&mut item.id, "msg_")
            }
            Self::Reasoning(item) => (&mut item.id, "rs_"),
            Self::FunctionCall(item) => {
                item.status.get_or_insert(ItemStatus::Completed);
                (&mut item.id, "fc_")
            }
            Self::FunctionCallOutput(item) => {
                item.status.get_or_insert(ItemStatus::Completed);
                (&mut item.id, "fco_")
            }
            Self::ItemReference(_) => return self,
        };
        id.get_or_insert_with(|| fresh_id(prefix));
        self
    }

    /// The item without fields that have no effect.
    pub fn without_ignored_fields(mut self) -> Self {
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

fn parts(role: ItemRole, content: TextOr<Part>) -> Vec<Part> {
    match (content, role) {
        (TextOr::Many(parts), _) => parts,
        (TextOr::Text(text), ItemRole::Assistant) => vec![Part::OutputText(OutputText {
            text,
            ..OutputText::default()
        })],
        (TextOr::Text(text), _) => vec![Part::InputText(InputText { text })],
    }
}
