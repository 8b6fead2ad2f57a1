//! From a chat request to a generate request.

use std::collections::HashSet;

use loquat_engine::GenerateRequest;
use loquat_text::format::{OutputFormat, Start, ToolSignature};
use loquat_text::{ChatInput, ChatTemplate, Tokenizer};
use serde_json::{Map, Value};

use crate::chat::Chat;
use crate::gate::Beginning;
use crate::prompt::{Quoters, Taste};
use crate::quote::Written;
use crate::rules::Rules;
use crate::{
    ChatError, ChatRequest, Effort, Message, ReplyParser, Role, Thinking, Tool, ToolChoice,
    plain_tools, prompt, thinking,
};

/// A chat request on its way: what to generate, and how to read it.
#[derive(Debug)]
pub struct Lowered {
    pub generate: GenerateRequest,
    pub reply: ReplyParser,
}

impl Chat {
    /// Writes the conversation out, opens the assistant's turn, and ends it at the model's own
    /// end tokens.
    pub fn lower(&self, request: ChatRequest) -> Result<Lowered, ChatError> {
        let written = self.write(&request, true)?;
        let rendered = written.text();
        let ChatRequest {
            messages: _,
            tools,
            tool_choice,
            parallel_tool_calls,
            thinking,
            answer,
            max_tokens,
            sampling,
            stop,
            logprobs,
            read_special: _,
            template_variables: _,
        } = request;
        let tokenizer = self.tokenizer();
        let format = self.format();
        let beginning = beginning(format, &rendered, thinking);
        let rules = Rules {
            tools: &tools,
            choice: &tool_choice,
            parallel: parallel_tool_calls,
            thinking,
            answer: answer.as_ref(),
            beginning,
        };
        let offers = rules.offers_calls();
        let generate = GenerateRequest {
            prompt: written.encode(tokenizer)?,
            max_tokens,
            sampling,
            stop_ids: tokenizer.eos_ids().to_vec(),
            stop,
            logprobs,
            prompt_logprobs: false,
            embed: None,
            skip_special: true,
            shown_special: self.shown_special().to_vec(),
            fresh_text: true,
            constraint: self.constraint(&rules)?,
            ..GenerateRequest::default()
        };
        let forced = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let start = Start {
            in_reasoning: beginning == Beginning::Thinking,
            calls: offers,
            calls_forced: offers && forced,
            tools: tools.into_iter().map(signature).collect(),
        };
        Ok(Lowered {
            generate,
            reply: ReplyParser::new(format, start),
        })
    }

    /// The conversation as the model is given it. `reply` opens the assistant's turn.
    pub fn render(&self, request: &ChatRequest, reply: bool) -> Result<String, ChatError> {
        Ok(self.write(request, reply)?.text().into_owned())
    }

    /// The same as tokens.
    pub fn tokens(&self, request: &ChatRequest, reply: bool) -> Result<Vec<u32>, ChatError> {
        Ok(self.write(request, reply)?.encode(self.tokenizer())?)
    }

    fn write(&self, request: &ChatRequest, reply: bool) -> Result<Written, ChatError> {
        let writer = Writer {
            template: self.template().ok_or(ChatError::NoTemplate)?,
            ends: &Ends::of(self.tokenizer()),
            taste: self.taste(),
            quoters: (!request.read_special).then(|| self.quoters()),
        };
        writer.write(request, reply)
    }
}

/// Whether the reply thinks first, as far as the prompt and the request tell.
fn beginning(format: OutputFormat, prompt: &str, thinking: Thinking) -> Beginning {
    match format.reasoning {
        Some(reasoning) if reasoning.is_open(prompt) => Beginning::Thinking,
        Some(reasoning) if reasoning.is_closed(prompt) => Beginning::Answer,
        Some(_) if thinking.effort != Some(Effort::None) => Beginning::Open,
        _ => Beginning::Answer,
    }
}

/// The tokens that begin and end a text, as templates name them; empty where there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    pub bos_token: String,
    pub eos_token: String,
}

impl Ends {
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
        Self {
            bos_token: text(tokenizer.bos()).unwrap_or_default(),
            eos_token: text(tokenizer.eos()).unwrap_or_default(),
        }
    }
}

/// The conversation as a template alone writes it, where there is no model to tell which of its
/// words are special tokens.
pub fn render(
    template: &ChatTemplate,
    request: &ChatRequest,
    ends: &Ends,
    reply: bool,
) -> Result<String, ChatError> {
    let writer = Writer {
        template,
        ends,
        taste: Taste::of(template),
        quoters: None,
    };
    Ok(writer.write(request, reply)?.text().into_owned())
}

/// Variables of a template that are a request's own.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

struct Writer<'a> {
    template: &'a ChatTemplate,
    ends: &'a Ends,
    taste: Taste,
    quoters: Option<Quoters<'a>>,
}

impl Writer<'_> {
    fn write(&self, request: &ChatRequest, reply: bool) -> Result<Written, ChatError> {
        check(request)?;
        let offered: &[Tool] = match request.tool_choice {
            ToolChoice::None => &[],
            _ => &request.tools,
        };
        let mut variables = thinking::variables(self.template, request.thinking)?;
        variables.extend(request.template_variables.clone());
        if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
            return Err(ChatError::ReservedVariable { name });
        }
        let given = !offered.is_empty() && self.template.supports_tools();
        let tools = given.then(|| prompt::tools(offered, self.quoters));
        let has_words = given || offered.is_empty() && !self.needs_words(&request.messages);
        if has_words {
            let rendered = self.render(&request.messages, tools.clone(), &variables, reply)?;
            if tells(&rendered, offered) {
                return Ok(Written::new(rendered));
            }
            // Some templates tell of tools in the system message only, and there is none.
            let mut messages = vec![Message::new(Role::System, "")];
            messages.extend_from_slice(&request.messages);
            let rendered = self.render(&messages, tools.clone(), &variables, reply);
            if let Some(rendered) = rendered.ok().filter(|rendered| tells(rendered, offered)) {
                return Ok(Written::new(rendered));
            }
        }
        let has_system = self.template.supports_system();
        let messages = plain_tools::write_in(&request.messages, offered, has_system)?;
        let rendered = self.render(&messages, tools, &variables, reply)?;
        Ok(Written::new(rendered))
    }

    /// Whether messages hold calls or results that the template would leave out.
    fn needs_words(&self, messages: &[Message]) -> bool {
        let is_call =
            |message: &Message| !message.tool_calls.is_empty() || message.role == Role::Tool;
        !self.template.supports_tools() && messages.iter().any(is_call)
    }

    fn render(
        &self,
        messages: &[Message],
        tools: Option<Value>,
        variables: &Map<String, Value>,
        reply: bool,
    ) -> Result<String, ChatError> {
        Ok(self.template.render(&ChatInput {
            messages: prompt::messages(messages, self.taste, self.quoters)?,
            tools,
            add_generation_prompt: reply,
            bos_token: self.ends.bos_token.clone(),
            eos_token: self.ends.eos_token.clone(),
            kwargs: variables.clone(),
        })?)
    }
}

fn tells(rendered: &str, tools: &[Tool]) -> bool {
    tools.iter().all(|tool| rendered.contains(&tool.name))
}

fn signature(tool: Tool) -> ToolSignature {
    ToolSignature {
        name: tool.name,
        parameters: tool.parameters,
    }
}

/// Refuses what no template is needed to refuse.
fn check(request: &ChatRequest) -> Result<(), ChatError> {
    let ChatRequest {
        messages,
        tools,
        tool_choice,
        ..
    } = request;
    if messages.is_empty() {
        return Err(ChatError::NoMessages);
    }
    let mut names = HashSet::new();
    for (index, tool) in tools.iter().enumerate() {
        let why = if !is_name(&tool.name) {
            "which must be 1 to 64 letters, digits, `_`, `-` or `.`"
        } else if !names.insert(tool.name.as_str()) {
            "which another tool has already"
        } else if !describes_object(&tool.parameters) {
            return Err(ChatError::ToolParameters { index });
        } else {
            continue;
        };
        return Err(ChatError::ToolName {
            index,
            name: tool.name.clone(),
            why,
        });
    }
    match tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => Err(ChatError::NoTools),
        ToolChoice::Named(name) if !names.contains(name.as_str()) => Err(ChatError::UnknownTool {
            name: name.clone(),
            known: tools
                .iter()
                .map(|tool| tool.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        }),
        _ => Ok(()),
    }
}

/// Arguments are an object, whatever else a schema says of them.
fn describes_object(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
        None => {
            schema.is_object()
                && ["enum", "const"]
                    .iter()
                    .all(|key| schema.get(key).is_none())
        }
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(legal)
}
