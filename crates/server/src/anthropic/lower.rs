//! From Anthropic's conversations to ours.

use std::collections::HashMap;

use loquat_chat::{
    ChatContext, ChatRequest, Effort, Message, MessageContent, Role, Thinking, Tool, ToolCall,
    ToolChoice,
};
use loquat_grammar::GrammarSource;
use serde_json::Value;

use super::request::{
    self as wire, Block, CustomTool, Display, OutputConfig, OutputFormat, ResultBlock, Speaker,
    SystemBlock, TextBlock, ThinkingBlock, ToolDefinition, ToolResultBlock, ToolUseBlock, Turn,
};
use crate::error::ApiError;
use crate::union::TextOr;

/// What both of Anthropic's endpoints have.
pub struct Conversation {
    pub messages: Vec<Turn>,
    pub system: Option<TextOr<SystemBlock>>,
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: Option<wire::ToolChoice>,
    pub thinking: Option<wire::Thinking>,
    pub output_config: Option<OutputConfig>,
}

/// A conversation as the model gets it.
pub struct Lowered {
    pub request: ChatRequest,
    pub hides_thinking: bool,
    /// What had no effect.
    pub ignored: Vec<&'static str>,
}

/// `chat` is the model's: how a wish to think is written is its own.
pub fn lower(conversation: Conversation, chat: &ChatContext) -> Result<Lowered, ApiError> {
    let Conversation {
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
    } = conversation;
    let mut lowering = Lowering::default();
    lowering.system(system);
    check_end(&messages)?;
    for (index, turn) in messages.into_iter().enumerate() {
        lowering.turn(index, turn)?;
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
    let thinking = lowering.thinking(thinking, effort, chat)?;
    let answer =
        format.map(|OutputFormat::JsonSchema { schema }| GrammarSource::JsonSchema(schema));
    Ok(Lowered {
        request: ChatRequest {
            messages: lowering.messages,
            tools,
            tool_choice,
            parallel_tool_calls,
            thinking,
            answer,
            ..ChatRequest::default()
        },
        hides_thinking,
        ignored: lowering.ignored,
    })
}

fn check_end(messages: &[Turn]) -> Result<(), ApiError> {
    let what = match messages.last().map(|turn| turn.role) {
        None => "`messages` is empty; at least one message is needed",
        Some(Speaker::Assistant) => {
            "`messages` ends with the assistant's turn, and beginning the reply for the model \
             (prefilling) is not supported; end with the user's turn, and say there how the reply \
             is to begin, or hold it to a schema by `output_config.format`"
        }
        Some(Speaker::User | Speaker::System) => return Ok(()),
    };
    Err(ApiError::invalid("messages", what))
}

#[derive(Default)]
struct Lowering {
    messages: Vec<Message>,
    /// The names of the tools that were called so far.
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
                    .map(|SystemBlock::Text(block)| self.text(block));
                parts(texts.collect())
            }
        };
        if !content.is_empty() {
            self.messages.push(Message::new(Role::System, content));
        }
    }

    fn turn(&mut self, index: usize, turn: Turn) -> Result<(), ApiError> {
        let Turn { role, content } = turn;
        let blocks = match content {
            TextOr::Text(text) => {
                self.say(role, vec![text]);
                return Ok(());
            }
            TextOr::Many(blocks) => blocks,
        };
        let mut texts = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            let place = || format!("messages[{index}].content[{at}]");
            match (role, block) {
                (_, Block::Text(block)) => texts.push(self.text(block)),
                (Speaker::Assistant, Block::Thinking(block)) => self.think(block),
                (Speaker::Assistant, Block::RedactedThinking(_)) => {
                    self.ignore("redacted_thinking");
                }
                (Speaker::Assistant, Block::ToolUse(block)) => {
                    self.say(role, std::mem::take(&mut texts));
                    self.call(block);
                }
                (Speaker::User, Block::ToolResult(block)) => {
                    self.say(role, std::mem::take(&mut texts));
                    self.result(block, &place)?;
                }
                (_, block) => return Err(misplaced(&place(), &block)),
            }
        }
        self.say(role, texts);
        Ok(())
    }

    /// Adds words to the speaker's turn, or begins it with them.
    fn say(&mut self, speaker: Speaker, texts: Vec<String>) {
        if texts.is_empty() {
            return;
        }
        let role = match speaker {
            Speaker::User => Role::User,
            Speaker::Assistant => Role::Assistant,
            Speaker::System => Role::System,
        };
        let last = self.messages.last_mut();
        match last.filter(|last| last.role == role && last.tool_calls.is_empty()) {
            Some(last) => {
                let so_far =
                    std::mem::replace(&mut last.content, MessageContent::Parts(Vec::new()));
                last.content = joined(so_far, texts);
            }
            None => self.messages.push(Message::new(role, parts(texts))),
        }
    }

    /// The assistant's turn that words, thinking and calls are added to.
    fn reply(&mut self) -> &mut Message {
        let is_reply = |message: &Message| message.role == Role::Assistant;
        if !self.messages.last().is_some_and(is_reply) {
            self.messages.push(Message::new(Role::Assistant, ""));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn think(&mut self, block: ThinkingBlock) {
        let ThinkingBlock {
            thinking,
            signature: _,
        } = block;
        let reasoning = self.reply().reasoning.get_or_insert_default();
        reasoning.push_str(&thinking);
    }

    fn call(&mut self, block: ToolUseBlock) {
        let ToolUseBlock {
            id,
            name,
            input,
            cache_control,
            caller,
        } = block;
        self.cached(cache_control.is_some());
        if caller.is_some() {
            self.ignore("caller");
        }
        self.calls.insert(id.clone(), name.clone());
        self.reply().tool_calls.push(ToolCall {
            id,
            name,
            arguments: Value::Object(input).to_string(),
        });
    }

    fn result(
        &mut self,
        block: ToolResultBlock,
        place: &dyn Fn() -> String,
    ) -> Result<(), ApiError> {
        let ToolResultBlock {
            tool_use_id,
            content,
            is_error,
            cache_control,
        } = block;
        self.cached(cache_control.is_some());
        let Some(name) = self.calls.get(&tool_use_id).cloned() else {
            let param = format!("{}.tool_use_id", place());
            let what = format!(
                "`{param}` is `{tool_use_id}`; no `tool_use` block before it has that `id`"
            );
            return Err(ApiError::invalid(param, what));
        };
        let mut texts = match content {
            None => Vec::new(),
            Some(TextOr::Text(text)) => vec![text],
            Some(TextOr::Many(blocks)) => {
                let texts = blocks
                    .into_iter()
                    .map(|ResultBlock::Text(block)| self.text(block));
                texts.collect()
            }
        };
        if is_error {
            match texts.first_mut() {
                Some(first) => first.insert_str(0, "Error: "),
                None => texts.push("Error".to_owned()),
            }
        }
        self.messages.push(Message {
            tool_call_id: Some(tool_use_id),
            name: Some(name),
            ..Message::new(Role::Tool, parts(texts))
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
        self.cached(cache_control.is_some());
        if eager_input_streaming.is_some() {
            self.ignore("eager_input_streaming");
        }
        Tool {
            name,
            description,
            parameters: input_schema,
            strict,
        }
    }

    fn text(&mut self, block: TextBlock) -> String {
        let TextBlock {
            text,
            cache_control,
            citations,
        } = block;
        self.cached(cache_control.is_some());
        if citations.is_some() {
            self.ignore("citations");
        }
        text
    }

    fn thinking(
        &mut self,
        thinking: Option<wire::Thinking>,
        effort: Option<wire::Effort>,
        chat: &ChatContext,
    ) -> Result<Thinking, ApiError> {
        let wished = effort.map(|effort| match effort {
            wire::Effort::Low => Effort::Low,
            wire::Effort::Medium => Effort::Medium,
            wire::Effort::High | wire::Effort::Xhigh | wire::Effort::Max => Effort::High,
        });
        let effort = wished.filter(|effort| chat.supports_effort(*effort));
        if wished != effort {
            self.ignore("output_config.effort");
        }
        let thinks = chat.format().reasoning.is_some();
        let (effort, budget) = match thinking {
            None | Some(wire::Thinking::Adaptive { display: _ }) => (effort, None),
            Some(wire::Thinking::Disabled {}) if wished.is_some() => {
                return Err(ApiError::invalid(
                    "output_config.effort",
                    "`output_config.effort` says how hard to think, and `thinking` is \
                     `disabled`; leave out one of them",
                ));
            }
            // A model that never thinks does as it is told already.
            Some(wire::Thinking::Disabled {}) => (thinks.then_some(Effort::Off), None),
            Some(wire::Thinking::Enabled { .. }) if !thinks => {
                return Err(ApiError::unsupported(
                    "thinking",
                    "the model does not think; leave it out, or let its `type` be `adaptive` or \
                     `disabled`",
                ));
            }
            Some(wire::Thinking::Enabled {
                budget_tokens,
                display: _,
            }) => {
                // Models without a switch think by themselves; the budget bounds it.
                let switched = chat.supports_effort(Effort::On).then_some(Effort::On);
                (effort.or(switched), Some(budget_tokens))
            }
        };
        Ok(Thinking { effort, budget })
    }

    fn cached(&mut self, asked: bool) {
        if asked {
            self.ignore("cache_control");
        }
    }

    fn ignore(&mut self, name: &'static str) {
        if !self.ignored.contains(&name) {
            self.ignored.push(name);
        }
    }
}

fn parts(mut texts: Vec<String>) -> MessageContent {
    match texts.len() {
        0 => MessageContent::Text(String::new()),
        1 => MessageContent::Text(texts.remove(0)),
        _ => MessageContent::Parts(texts),
    }
}

fn joined(content: MessageContent, more: Vec<String>) -> MessageContent {
    let mut texts = match content {
        MessageContent::Text(text) if text.is_empty() => Vec::new(),
        MessageContent::Text(text) => vec![text],
        MessageContent::Parts(texts) => texts,
    };
    texts.extend(more);
    parts(texts)
}

fn misplaced(place: &str, block: &Block) -> ApiError {
    let (kind, whose) = match block {
        Block::Text(_) => ("text", "anybody's"),
        Block::Thinking(_) => ("thinking", "the assistant's"),
        Block::RedactedThinking(_) => ("redacted_thinking", "the assistant's"),
        Block::ToolUse(_) => ("tool_use", "the assistant's"),
        Block::ToolResult(_) => ("tool_result", "the user's"),
    };
    let what = format!("`{place}` is a `{kind}` block, which belongs in {whose} turn");
    ApiError::invalid(place, what)
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
