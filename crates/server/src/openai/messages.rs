//! Messages of a conversation in OpenAI's format: the one reader of requests and files.

use loquat_chat::{
    ContentPart as Part, Detail, Image, Message, MessageContent, Role, ToolCall, Video,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::resolve_alias;
use super::tools::FunctionType;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::media_data;
use crate::union::TextOr;

/// A message of a conversation. Replies of this server can be sent back unchanged.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// The author.
    pub role: ChatRole,
    /// A text or text parts. Optional for an assistant's message.
    pub content: Option<TextOr<ContentPart>>,
    /// A participant's name.
    pub name: Option<String>,
    /// Tool calls of the assistant.
    pub tool_calls: Option<Vec<ChatToolCall>>,
    /// For a tool's result: the id of the call it answers.
    pub tool_call_id: Option<String>,
    /// The assistant's reasoning before the answer. The model's template decides whether the model
    /// sees it again.
    pub reasoning_content: Option<String>,
    /// Another name for `reasoning_content`.
    pub reasoning: Option<String>,
    /// The assistant's refusal; read as its text.
    pub refusal: Option<String>,
    /// Must be null: this server reads and writes text only.
    pub audio: Option<Value>,
    /// Must be empty, null or omitted, as in replies of this server.
    pub annotations: Option<Vec<Value>>,
    /// Must be null: use `tool_calls`.
    pub function_call: Option<Value>,
    /// For the last message, the assistant's: continue it instead of opening a new turn.
    pub prefix: Option<bool>,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    /// `text` (the default), `image_url`, `video_url`, or `refusal` in an assistant's message. Audio
    /// and files are refused.
    #[serde(rename = "type")]
    pub kind: Option<ContentPartType>,
    /// The text of a `text` part.
    pub text: Option<String>,
    /// The text of a `refusal` part.
    pub refusal: Option<String>,
    /// The image of an `image_url` part, for models that read images.
    pub image_url: Option<ImageUrlOrText>,
    /// The video of a `video_url` part, for models that read videos.
    pub video_url: Option<VideoUrlOrText>,
    /// Refused: this server does not read audio.
    pub input_audio: Option<Value>,
    /// Refused: this server does not read files.
    pub file: Option<Value>,
}

/// An image, or its URL alone.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "an object with a `url`, or a URL")]
pub enum ImageUrlOrText {
    Url(String),
    Image(ImageUrl),
}

/// An image.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageUrl {
    /// A `data:` URI with base64 of a PNG, JPEG, WebP, GIF or BMP file, or an address on a host that
    /// the configuration lists.
    pub url: String,
    pub detail: Option<ImageDetail>,
}

/// A video, or its URL alone.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "an object with a `url`, or a URL")]
pub enum VideoUrlOrText {
    Url(String),
    Video(VideoUrl),
}

/// A video.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VideoUrl {
    /// A `data:` URI with base64 of an animated GIF or WebP, or of any file that `ffmpeg` reads, if
    /// it is installed; or an address on a host that the configuration lists.
    pub url: String,
}

/// How closely the model looks at an image. `auto` and `high`: at the size that its processor
/// chooses. `low`: shrunk to at most 512 pixels a side, if that takes fewer tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageDetail {
    Auto,
    Low,
    High,
}

impl ImageDetail {
    pub fn lower(self) -> Detail {
        match self {
            Self::Auto | Self::High => Detail::Full,
            Self::Low => Detail::Low,
        }
    }
}

impl VideoUrlOrText {
    fn url_mut(&mut self) -> &mut String {
        match self {
            Self::Url(url) | Self::Video(VideoUrl { url }) => url,
        }
    }

    fn lower(mut self, path: FieldPath) -> Result<Video, ApiError> {
        media_data::video_from_url(path, self.url_mut())
    }
}

impl ImageUrlOrText {
    fn url_mut(&mut self) -> &mut String {
        match self {
            Self::Url(url) | Self::Image(ImageUrl { url, .. }) => url,
        }
    }

    fn lower(self, path: FieldPath) -> Result<Image, ApiError> {
        let (url, detail) = match self {
            Self::Url(url) => (url, None),
            Self::Image(ImageUrl { url, detail }) => (url, detail),
        };
        let image = media_data::image_from_url(path, &url)?;
        Ok(image.with_detail(detail.map_or_else(Detail::default, ImageDetail::lower)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContentPartType {
    Text,
    Refusal,
    ImageUrl,
    VideoUrl,
    InputAudio,
    File,
}

/// A tool call of the assistant.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatToolCall {
    /// The id by which a result refers to the call; generated if omitted.
    pub id: Option<String>,
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "the only type is `function`")]
    pub kind: Option<FunctionType>,
    pub function: CalledFunction,
    /// The number that streams give a call; has no effect.
    #[expect(dead_code, reason = "calls may be sent back as they came")]
    pub index: Option<usize>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    pub name: String,
    /// A JSON object as text, as OpenAI writes it, or as an object; `{}` if omitted.
    pub arguments: Option<CallArguments>,
}

/// A call's arguments.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a JSON object, or one as text")]
pub enum CallArguments {
    Text(String),
    #[schema(value_type = Object)]
    Object(Map<String, Value>),
}

/// Whether the last message asks to be continued. Others must not.
pub fn continues_last(messages: &[ChatMessage]) -> Result<bool, ApiError> {
    let has_prefix = |message: &ChatMessage| message.prefix == Some(true);
    let Some(index) = messages.iter().position(has_prefix) else {
        return Ok(false);
    };
    if index + 1 == messages.len() && messages[index].role == ChatRole::Assistant {
        return Ok(true);
    }
    let field = Field::Messages.index(index).field(Field::Prefix);
    Err(ApiError::invalid(
        field,
        "is true; only the last message, if it is the assistant's, can be continued",
    ))
}

/// Lowers a conversation of at least one message.
pub fn lower(messages: Vec<ChatMessage>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        let problem = "is empty; a chat needs at least one message";
        return Err(ApiError::invalid(Field::Messages, problem));
    }
    lower_all(messages)
}

/// Lowers any number of messages.
pub fn lower_all(messages: Vec<ChatMessage>) -> Result<Vec<Message>, ApiError> {
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, message)| lower_message(&Field::Messages.index(index), message))
        .collect()
}

fn lower_message(path: &FieldPath, message: ChatMessage) -> Result<Message, ApiError> {
    check_fields(path, &message)?;
    let ChatMessage {
        role,
        content,
        name,
        tool_calls,
        tool_call_id,
        reasoning_content,
        reasoning,
        refusal,
        audio: _,
        annotations: _,
        function_call: _,
        prefix: _,
    } = message;
    let field = |field| path.clone().field(field);
    let reasoning = resolve_alias(
        (field(Field::ReasoningContent), reasoning_content),
        (field(Field::Reasoning), reasoning),
    )?;
    let tool_calls = tool_calls.unwrap_or_default().into_iter().enumerate();
    let tool_calls: Vec<_> = tool_calls.map(|(index, call)| call.lower(index)).collect();
    let content = match content {
        Some(content) => Some(lower_content(&field(Field::Content), role, content)?),
        None => None,
    };
    let may_omit_content = role == ChatRole::Assistant;
    let content = with_refusal(content, refusal)
        .or_else(|| may_omit_content.then(|| MessageContent::from("")))
        .ok_or_else(|| {
            let problem = "is missing; it must be a string or a list of parts";
            ApiError::invalid(field(Field::Content), problem)
        })?;
    Ok(Message {
        role: match role {
            ChatRole::System => Role::System,
            ChatRole::Developer => Role::Developer,
            ChatRole::User => Role::User,
            ChatRole::Assistant => Role::Assistant,
            ChatRole::Tool => Role::Tool,
        },
        content,
        reasoning,
        tool_calls,
        tool_call_id,
        name,
    })
}

/// Refuses fields that messages of this role do not have.
fn check_fields(path: &FieldPath, message: &ChatMessage) -> Result<(), ApiError> {
    let field = |field| path.clone().field(field);
    let nulls = [
        (Field::Audio, &message.audio),
        (Field::FunctionCall, &message.function_call),
    ];
    if let Some((name, _)) = nulls.iter().find(|(_, value)| value.is_some()) {
        let reason = "it must be null or omitted";
        return Err(ApiError::unsupported(field(*name), reason));
    }
    let annotations = message.annotations.as_ref();
    if annotations.is_some_and(|annotations| !annotations.is_empty()) {
        let reason = "it must be empty, null or omitted";
        return Err(ApiError::unsupported(field(Field::Annotations), reason));
    }
    let calls = message.tool_calls.as_ref();
    let assistant_only = [
        (
            Field::ToolCalls,
            calls.is_some_and(|calls| !calls.is_empty()),
        ),
        (Field::ReasoningContent, message.reasoning_content.is_some()),
        (Field::Reasoning, message.reasoning.is_some()),
        (Field::Refusal, message.refusal.is_some()),
    ];
    if let Some((name, _)) = assistant_only.iter().find(|(_, present)| *present)
        && message.role != ChatRole::Assistant
    {
        return Err(wrong_role(field(*name), "assistant"));
    }
    match (message.role, &message.tool_call_id) {
        (ChatRole::Tool, None) => Err(ApiError::invalid(
            field(Field::ToolCallId),
            "is missing; it must be the id of the call that the result answers",
        )),
        (ChatRole::Tool, Some(_)) | (_, None) => Ok(()),
        (_, Some(_)) => Err(wrong_role(field(Field::ToolCallId), "tool")),
    }
}

fn with_refusal(
    content: Option<MessageContent>,
    refusal: Option<String>,
) -> Option<MessageContent> {
    match (content, refusal) {
        (Some(content), Some(refusal)) if !content.is_empty() => {
            let texts = vec![content.joined().into(), refusal.into()];
            Some(MessageContent::Parts(texts))
        }
        (_, Some(refusal)) => Some(MessageContent::Text(refusal)),
        (content, None) => content,
    }
}

/// The addresses of media in messages.
pub fn media_urls(messages: &mut [ChatMessage]) -> Vec<(FieldPath, &mut String)> {
    let mut urls = Vec::new();
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(TextOr::Many(parts)) = &mut message.content else {
            continue;
        };
        for (at, part) in parts.iter_mut().enumerate() {
            let path = |field| {
                let content = Field::Messages.index(index).field(Field::Content);
                content.index(at).field(field)
            };
            let image = part.image_url.as_mut();
            let image = image.map(|image| (path(Field::ImageUrl), image.url_mut()));
            let video = part.video_url.as_mut();
            let video = video.map(|video| (path(Field::VideoUrl), video.url_mut()));
            urls.extend(image.into_iter().chain(video));
        }
    }
    urls
}

fn wrong_role(field: FieldPath, role: &str) -> ApiError {
    let problem = format!("is for messages of the role `{role}` only");
    ApiError::invalid(field, problem)
}

fn lower_content(
    path: &FieldPath,
    role: ChatRole,
    content: TextOr<ContentPart>,
) -> Result<MessageContent, ApiError> {
    match content {
        TextOr::Text(text) => Ok(MessageContent::Text(text)),
        TextOr::Many(parts) => {
            let parts = parts.into_iter().enumerate();
            let parts = parts.map(|(index, part)| part.lower(&path.clone().index(index), role));
            parts.collect::<Result<_, _>>().map(MessageContent::Parts)
        }
    }
}

impl ContentPart {
    fn lower(self, path: &FieldPath, role: ChatRole) -> Result<Part, ApiError> {
        let Self {
            kind,
            text,
            refusal,
            image_url,
            video_url,
            input_audio,
            file,
        } = self;
        let kind = kind.unwrap_or(ContentPartType::Text);
        let present = [
            (ContentPartType::Text, text.is_some()),
            (ContentPartType::Refusal, refusal.is_some()),
            (ContentPartType::ImageUrl, image_url.is_some()),
            (ContentPartType::VideoUrl, video_url.is_some()),
            (ContentPartType::InputAudio, input_audio.is_some()),
            (ContentPartType::File, file.is_some()),
        ];
        let foreign = present.iter().find(|(of, present)| *present && *of != kind);
        if let Some((of, _)) = foreign {
            let field = path.clone().field(of.field());
            let problem = "does not belong to a part of this `type`";
            return Err(ApiError::invalid(field, problem));
        }
        let field = path.clone().field(kind.field());
        let text = match kind {
            ContentPartType::Text => text,
            ContentPartType::Refusal if role == ChatRole::Assistant => refusal,
            ContentPartType::Refusal => return Err(wrong_role(field, "assistant")),
            ContentPartType::ImageUrl => {
                let missing = || ApiError::invalid(field.clone(), "is missing");
                let image = image_url.ok_or_else(missing)?;
                return image.lower(field).map(Part::Image);
            }
            ContentPartType::VideoUrl => {
                let missing = || ApiError::invalid(field.clone(), "is missing");
                let video = video_url.ok_or_else(missing)?;
                return video.lower(field).map(Part::Video);
            }
            ContentPartType::InputAudio => {
                return Err(ApiError::unsupported(
                    field,
                    "this server does not read audio",
                ));
            }
            ContentPartType::File => {
                let reason = "this server does not read files; send their text";
                return Err(ApiError::unsupported(field, reason));
            }
        };
        let text = text.ok_or_else(|| ApiError::invalid(field, "is missing"))?;
        Ok(Part::Text(text))
    }
}

impl ContentPartType {
    /// The field of a part of this type.
    fn field(self) -> Field {
        match self {
            Self::Text => Field::Text,
            Self::Refusal => Field::Refusal,
            Self::ImageUrl => Field::ImageUrl,
            Self::VideoUrl => Field::VideoUrl,
            Self::InputAudio => Field::InputAudio,
            Self::File => Field::File,
        }
    }
}

impl ChatToolCall {
    fn lower(self, index: usize) -> ToolCall {
        let Self {
            id,
            kind: _,
            function: CalledFunction { name, arguments },
            index: _,
        } = self;
        ToolCall {
            // Nine characters, which Mistral's templates require.
            id: id.unwrap_or_else(|| format!("call{index:05}")),
            name,
            arguments: match arguments {
                Some(CallArguments::Object(object)) => Value::Object(object).to_string(),
                // Some clients write an empty string for no arguments.
                Some(CallArguments::Text(text)) if !text.trim().is_empty() => text,
                Some(CallArguments::Text(_)) | None => "{}".to_owned(),
            },
        }
    }
}
