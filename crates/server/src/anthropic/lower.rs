//! Lowers a conversation to a chat request.

use std::collections::HashMap;

use loquat_chat::{
    ChatContext, ChatRequest, ContentPart, Effort, Image, Message, MessageContent, ReplyOpening,
    Role, Thinking, Tool, ToolCall, ToolChoice,
};
use loquat_grammar::GrammarSource;
use serde_json::Value;

use super::request::{
    self as wire, Base64Source, CountRequest, CustomTool, Display, ImageBlock, ImageSource,
    InputBlock, InputMessage, MessageRole, OutputConfig, OutputFormat, ResultBlock, SystemBlock,
    TextBlock, ThinkingBlock, ToolDefinition, ToolResultBlock, ToolUseBlock, UrlSource,
};
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::media_data;
use crate::union::TextOr;

pub struct LoweredConversation {
    pub request: ChatRequest,
    pub hides_thinking: bool,
    /// Fields without effect.
    pub ignored: Vec<&'static str>,
}

/// Lowers what both endpoints share. `chat` decides how thinking is requested.
pub fn lower(request: CountRequest, chat: &ChatContext) -> Result<LoweredConversation, ApiError> {
    let CountRequest {
        model: _,
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    } = request;
    let mut lowering = Lowering::default();
    lowering.system(system);
    if messages.is_empty() {
        let problem = "is empty; at least one message is needed";
        return Err(ApiError::invalid(Field::Messages, problem));
    }
    let continues_last =
        messages.last().map(|message| message.role) == Some(MessageRole::Assistant);
    for (index, message) in messages.into_iter().enumerate() {
        lowering.message(index, message)?;
    }
    let hides_thinking = matches!(
        thinking,
        Some(wire::Thinking::Enabled {
            display: Some(Display::Omitted),
            ..
        }) | Some(wire::Thinking::Adaptive {
            display: Some(Display::Omitted)
        })
    );
    let tools = tools.into_iter().map(|tool| lowering.tool(tool)).collect();
    let (tool_choice, parallel_tool_calls) = choice(tool_choice);
    let OutputConfig { effort, format } = output_config.unwrap_or(OutputConfig {
        effort: None,
        format: None,
    });
    let thinking = lowering.thinking(thinking, effort, chat);
    let answer =
        format.map(|OutputFormat::JsonSchema { schema }| GrammarSource::JsonSchema(schema));
    Ok(LoweredConversation {
        request: ChatRequest {
            messages: lowering.messages,
            tools,
            tool_choice,
            parallel_tool_calls,
            thinking,
            answer,
            opening: if continues_last {
                ReplyOpening::ContinueLast
            } else {
                ReplyOpening::NewTurn
            },
            ..ChatRequest::default()
        },
        hides_thinking,
        ignored: lowering.ignored,
    })
}

#[derive(Default)]
struct Lowering {
    messages: Vec<Message>,
    /// The tool of each call so far, by its id.
    calls: HashMap<String, String>,
    ignored: Vec<&'static str>,
}

impl Lowering {
    fn system(&mut self, system: Option<TextOr<SystemBlock>>) {
        let content = match system {
            None => return,
            Some(TextOr::Text(text)) => MessageContent::Text(text),
            Some(TextOr::Many(blocks)) => {
                let texts = blocks
                    .into_iter()
                    .map(|SystemBlock::Text(block)| self.text(block).into());
                MessageContent::from_parts(texts.collect())
            }
        };
        if !content.is_empty() {
            self.messages.push(Message::new(Role::System, content));
        }
    }

    fn message(&mut self, index: usize, message: InputMessage) -> Result<(), ApiError> {
        let InputMessage { role, content } = message;
        let blocks = match content {
            TextOr::Text(text) => {
                self.add_parts(role, vec![text.into()]);
                return Ok(());
            }
            TextOr::Many(blocks) => blocks,
        };
        let mut parts = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            let path = || {
                let content = Field::Messages.index(index).field(Field::Content);
                content.index(at)
            };
            match (role, block) {
                (_, InputBlock::Text(block)) => parts.push(self.text(block).into()),
                (MessageRole::User, InputBlock::Image(block)) => {
                    parts.push(self.image(block, path())?.into());
                }
                (MessageRole::Assistant, InputBlock::Thinking(block)) => self.add_thinking(block),
                (MessageRole::Assistant, InputBlock::RedactedThinking(_)) => {
                    self.ignore_if("redacted_thinking", true);
                }
                (MessageRole::Assistant, InputBlock::ToolUse(block)) => {
                    self.add_parts(role, std::mem::take(&mut parts));
                    self.add_call(block);
                }
                (MessageRole::User, InputBlock::ToolResult(block)) => {
                    self.add_parts(role, std::mem::take(&mut parts));
                    self.add_result(block, path())?;
                }
                (_, block) => return Err(wrong_role(path(), &block)),
            }
        }
        self.add_parts(role, parts);
        Ok(())
    }

    /// Adds parts to the last message of this role, or to a new one.
    fn add_parts(&mut self, role: MessageRole, parts: Vec<ContentPart>) {
        if parts.is_empty() {
            return;
        }
        let role = match role {
            MessageRole::User => Role::User,
            MessageRole::Assistant => Role::Assistant,
            MessageRole::System => Role::System,
        };
        let last = self.messages.last_mut();
        match last.filter(|last| last.role == role && last.tool_calls.is_empty()) {
            Some(last) => {
                let so_far =
                    std::mem::replace(&mut last.content, MessageContent::Parts(Vec::new()));
                let mut joined = so_far.into_parts();
                joined.extend(parts);
                last.content = MessageContent::from_parts(joined);
            }
            None => {
                let content = MessageContent::from_parts(parts);
                self.messages.push(Message::new(role, content));
            }
        }
    }

    /// The assistant's message that thinking and calls are added to.
    fn reply(&mut self) -> &mut Message {
        let is_reply = |message: &Message| message.role == Role::Assistant;
        if !self.messages.last().is_some_and(is_reply) {
            self.messages.push(Message::new(Role::Assistant, ""));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn add_thinking(&mut self, block: ThinkingBlock) {
        let ThinkingBlock {
            thinking,
            signature: _,
        } = block;
        let reasoning = self.reply().reasoning.get_or_insert_default();
        reasoning.push_str(&thinking);
    }

    fn add_call(&mut self, block: ToolUseBlock) {
        let ToolUseBlock {
            id,
            name,
            input,
            cache_control,
            caller,
        } = block;
        self.ignore_if("cache_control", cache_control.is_some());
        self.ignore_if("caller", caller.is_some());
        self.calls.insert(id.clone(), name.clone());
        self.reply().tool_calls.push(ToolCall {
            id,
            name,
            arguments: Value::Object(input).to_string(),
        });
    }

    fn add_result(&mut self, block: ToolResultBlock, path: FieldPath) -> Result<(), ApiError> {
        let ToolResultBlock {
            tool_use_id,
            content,
            is_error,
            cache_control,
        } = block;
        self.ignore_if("cache_control", cache_control.is_some());
        let Some(name) = self.calls.get(&tool_use_id).cloned() else {
            let problem = format!("is `{tool_use_id}`; no earlier `tool_use` block has that `id`");
            return Err(ApiError::invalid(path.field(Field::ToolUseId), problem));
        };
        let mut parts: Vec<ContentPart> = match content {
            None => Vec::new(),
            Some(TextOr::Text(text)) => vec![text.into()],
            Some(TextOr::Many(blocks)) => {
                let blocks = blocks.into_iter().enumerate();
                let parts = blocks.map(|(at, block)| match block {
                    ResultBlock::Text(block) => Ok(self.text(block).into()),
                    ResultBlock::Image(block) => {
                        let path = path.clone().field(Field::Content).index(at);
                        Ok(self.image(block, path)?.into())
                    }
                });
                parts.collect::<Result<_, ApiError>>()?
            }
        };
        if is_error {
            match parts.first_mut() {
                Some(ContentPart::Text(first)) => first.insert_str(0, "Error: "),
                Some(_) => parts.insert(0, "Error: ".into()),
                None => parts.push("Error".into()),
            }
        }
        self.messages.push(Message {
            tool_call_id: Some(tool_use_id),
            name: Some(name),
            ..Message::new(Role::Tool, MessageContent::from_parts(parts))
        });
        Ok(())
    }

    fn tool(&mut self, tool: ToolDefinition) -> Tool {
        let ToolDefinition::Custom(CustomTool {
            name,
            description,
            input_schema,
            strict,
            cache_control,
            eager_input_streaming,
        }) = tool;
        self.ignore_if("cache_control", cache_control.is_some());
        self.ignore_if("eager_input_streaming", eager_input_streaming.is_some());
        Tool {
            name,
            description,
            parameters: input_schema,
            strict,
        }
    }

    fn image(&mut self, block: ImageBlock, path: FieldPath) -> Result<Image, ApiError> {
        let ImageBlock {
            source,
            cache_control,
        } = block;
        self.ignore_if("cache_control", cache_control.is_some());
        let field = path.field(Field::Source);
        match source {
            ImageSource::Base64(Base64Source { media_type, data }) => {
                media_data::image_from_base64(field.field(Field::Data), &data, Some(&media_type))
            }
            ImageSource::Url(UrlSource { url }) => {
                media_data::image_from_url(field.field(Field::Url), &url)
            }
        }
    }

    fn text(&mut self, block: TextBlock) -> String {
        let TextBlock {
            text,
            cache_control,
            citations,
        } = block;
        self.ignore_if("cache_control", cache_control.is_some());
        self.ignore_if("citations", citations.is_some());
        text
    }

    fn thinking(
        &mut self,
        thinking: Option<wire::Thinking>,
        effort: Option<wire::Effort>,
        chat: &ChatContext,
    ) -> Thinking {
        let requested = effort.map(|effort| match effort {
            wire::Effort::Low => Effort::Low,
            wire::Effort::Medium => Effort::Medium,
            wire::Effort::High | wire::Effort::Xhigh | wire::Effort::Max => Effort::High,
        });
        let effort = requested.filter(|effort| chat.supports_effort(*effort));
        let disabled = matches!(thinking, Some(wire::Thinking::Disabled {}));
        let unused = requested.is_some() && disabled || requested != effort;
        self.ignore_if("output_config.effort", unused);
        let thinks = chat.format().reasoning.is_some();
        let switched_on = matches!(
            thinking,
            Some(wire::Thinking::Enabled { .. } | wire::Thinking::Adaptive { .. })
        );
        self.ignore_if("thinking", switched_on && !thinks);
        let (effort, budget) = match thinking {
            None | Some(wire::Thinking::Adaptive { display: _ }) => (effort, None),
            // A model that never thinks needs no switch.
            Some(wire::Thinking::Disabled {}) => (thinks.then_some(Effort::Off), None),
            Some(wire::Thinking::Enabled { .. }) if !thinks => (effort, None),
            Some(wire::Thinking::Enabled {
                budget_tokens,
                display: _,
            }) => {
                // Models without a switch always think; the budget limits it.
                let switched = chat.supports_effort(Effort::On).then_some(Effort::On);
                (effort.or(switched), Some(budget_tokens))
            }
        };
        Thinking { effort, budget }
    }

    /// Lists a field once.
    fn ignore_if(&mut self, name: &'static str, ignored: bool) {
        if ignored && !self.ignored.contains(&name) {
            self.ignored.push(name);
        }
    }
}

fn wrong_role(path: FieldPath, block: &InputBlock) -> ApiError {
    let (kind, role) = match block {
        InputBlock::Text(_) => ("text", "any"),
        InputBlock::Image(_) => ("image", "user"),
        InputBlock::Thinking(_) => ("thinking", "assistant"),
        InputBlock::RedactedThinking(_) => ("redacted_thinking", "assistant"),
        InputBlock::ToolUse(_) => ("tool_use", "assistant"),
        InputBlock::ToolResult(_) => ("tool_result", "user"),
    };
    let problem = format!("is a `{kind}` block, which is for messages of the role `{role}` only");
    ApiError::invalid(path, problem)
}

fn choice(choice: Option<wire::ToolChoice>) -> (ToolChoice, bool) {
    match choice {
        None => (ToolChoice::Auto, true),
        Some(wire::ToolChoice::Auto {
            disable_parallel_tool_use,
        }) => (ToolChoice::Auto, !disable_parallel_tool_use),
        Some(wire::ToolChoice::Any {
            disable_parallel_tool_use,
        }) => (ToolChoice::Required, !disable_parallel_tool_use),
        Some(wire::ToolChoice::Tool {
            name,
            disable_parallel_tool_use,
        }) => (ToolChoice::Named(name), !disable_parallel_tool_use),
        Some(wire::ToolChoice::None {}) => (ToolChoice::None, true),
    }
}
