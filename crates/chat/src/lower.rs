//! Lowers a chat request to a generate request.

use std::collections::HashSet;
use std::sync::Arc;

use loquat_engine::{GenerateRequest, PromptMedia, PromptSpan, join_spans};
use loquat_text::format::{CallFormat, HERMES, OutputFormat, ParseOptions, ToolSignature};
use loquat_text::{ChatInput, ChatTemplate, Special, Tokenizer};
use serde_json::{Map, Value};

use crate::context::ChatContext;
use crate::media_prompt::{MediaMarkers, MessageMedia, check_roles, message_media, raw_media};
use crate::prompt::Quoters;
use crate::quote::RenderedPrompt;
use crate::reasoning_gate::ReplyStart;
use crate::reply_rules::ReplyRules;
use crate::template_traits::TemplateTraits;
use crate::{
    ChatError, ChatRequest, ContentPart, Effort, MediaReader, Message, ReplyOpening, ReplyParser,
    Role, Tool, ToolChoice, continuation, later_system, plain_tools, prompt, thinking,
};

/// A chat request lowered for the engine, and the parser of its reply.
#[derive(Debug)]
pub struct LoweredChat {
    /// What to submit to the engine.
    pub generate: GenerateRequest,
    /// Parses the text of the reply.
    pub reply: ReplyParser,
    /// Whether later system messages were joined with the first, because the template refuses them
    /// or leaves them out.
    pub joins_system: bool,
}

impl ChatContext {
    /// Renders the conversation and opens the assistant's turn or continues its last message. The
    /// model's end tokens end it.
    pub fn lower(&self, request: ChatRequest) -> Result<LoweredChat, ChatError> {
        self.lower_with(request, self.tokenizer(), &|| false)
    }

    /// The same, unless the result becomes unwanted while the prompt is encoded; see
    /// [`Tokenizer::interruptible`].
    pub fn lower_unless(
        &self,
        request: ChatRequest,
        is_unwanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<LoweredChat, ChatError> {
        let is_unwanted = Arc::new(is_unwanted);
        let of_encoder = Arc::clone(&is_unwanted);
        let encoder = self.tokenizer().interruptible(move || of_encoder());
        self.lower_with(request, &encoder, &*is_unwanted)
    }

    /// `encoder` encodes the prompt. Nothing keeps it.
    fn lower_with(
        &self,
        request: ChatRequest,
        encoder: &Tokenizer,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<LoweredChat, ChatError> {
        let WrittenPrompt {
            prompt,
            joins_system,
        } = self.write_prompt(&request, true)?;
        let text = prompt.text();
        let start = reply_start(self.format(), &text, &request);
        let (tokens, media) = self.encode_prompt(&prompt, &request, encoder, is_unwanted)?;
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
            opening: _,
        } = request;
        let tokenizer = self.tokenizer();
        let format = self.format();
        let rules = ReplyRules {
            tools: &tools,
            choice: &tool_choice,
            parallel: parallel_tool_calls,
            thinking,
            answer: answer.as_ref(),
            start,
        };
        let offers_calls = rules.offers_calls();
        let generate = GenerateRequest {
            prompt: tokens,
            media,
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
        let options = ParseOptions {
            in_reasoning: start == ReplyStart::Thinking,
            calls: offers_calls,
            calls_forced: offers_calls && forced,
            tools: tools.into_iter().map(signature).collect(),
        };
        Ok(LoweredChat {
            generate,
            reply: ReplyParser::new(format, options),
            joins_system,
        })
    }

    /// The prompt as text. `reply` opens the assistant's turn.
    pub fn render(&self, request: &ChatRequest, reply: bool) -> Result<String, ChatError> {
        let written = self.write_prompt(request, reply)?;
        Ok(written.prompt.text().into_owned())
    }

    /// The prompt as tokens. Positions of media have the model's placeholder tokens.
    pub fn tokens(&self, request: &ChatRequest, reply: bool) -> Result<Vec<u32>, ChatError> {
        self.count_with(request, reply, self.tokenizer())
    }

    /// The same, unless they become unwanted meanwhile; see [`Tokenizer::interruptible`].
    pub fn tokens_unless(
        &self,
        request: &ChatRequest,
        reply: bool,
        is_unwanted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Vec<u32>, ChatError> {
        let encoder = self.tokenizer().interruptible(is_unwanted);
        self.count_with(request, reply, &encoder)
    }

    fn count_with(
        &self,
        request: &ChatRequest,
        reply: bool,
        encoder: &Tokenizer,
    ) -> Result<Vec<u32>, ChatError> {
        let prompt = self.write_prompt(request, reply)?.prompt;
        let media = message_media(&request.messages);
        match self.reader_for(&media) {
            Some(reader) => reader.tokens(&prompt, &media, encoder),
            None => Ok(prompt.encode(encoder)?),
        }
    }

    /// The reader, unless the prompt needs none.
    fn reader_for(&self, media: &[MessageMedia<'_>]) -> Option<&MediaReader> {
        let is_needed = |reader: &&MediaReader| !media.is_empty() || reader.frames_text();
        self.media_reader().filter(is_needed)
    }

    fn encode_prompt(
        &self,
        prompt: &RenderedPrompt,
        request: &ChatRequest,
        encoder: &Tokenizer,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<(Vec<u32>, Vec<PromptMedia>), ChatError> {
        let media = message_media(&request.messages);
        match self.reader_for(&media) {
            Some(reader) => {
                let spans = reader.spans(prompt, &media, encoder, is_unwanted)?;
                Ok(join_spans(spans))
            }
            None => Ok((prompt.encode(encoder)?, Vec::new())),
        }
    }

    /// The prompt of a text without a template. Its media stand at [`MEDIA_MARKER`](crate::MEDIA_MARKER)s,
    /// as many as there are `parts`. Special tokens in the text are recognised, and bounds are added.
    pub fn encode_raw(
        &self,
        text: &str,
        parts: &[ContentPart],
        encoder: &Tokenizer,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<(Vec<u32>, Vec<PromptMedia>), ChatError> {
        let media = raw_media(parts);
        if let (Some(first), Some(why)) = (media.first(), self.media_refusal()) {
            return Err(first.unsupported(why));
        }
        let Some(reader) = self.media_reader().filter(|_| !media.is_empty()) else {
            return Ok((encoder.encode(text, Special::PROMPT)?, Vec::new()));
        };
        let mut spans = reader.raw_spans(text, &media, encoder, is_unwanted)?;
        // Some processors add the bounds themselves, after the media.
        let start = encoder.encode("", Special::PROMPT)?;
        let starts_so = match spans.first() {
            Some(PromptSpan::Tokens(tokens)) => tokens.starts_with(&start),
            _ => false,
        };
        if !starts_so && !reader.frames_text() {
            spans.insert(0, PromptSpan::Tokens(start));
        }
        Ok(join_spans(spans))
    }

    fn write_prompt(&self, request: &ChatRequest, reply: bool) -> Result<WrittenPrompt, ChatError> {
        let media = message_media(&request.messages);
        if let (Some(first), Some(why)) = (media.first(), self.media_refusal()) {
            return Err(first.unsupported(why));
        }
        check_roles(&request.messages)?;
        let writer = PromptWriter {
            template: self.template().ok_or(ChatError::NoTemplate)?,
            boundaries: &BoundaryTokens::from_tokenizer(self.tokenizer()),
            traits: self.template_traits(),
            markers: self.media_reader().map(MediaReader::markers),
            calls: self.format().calls,
            quoters: (!request.read_special).then(|| self.quoters()),
        };
        writer.write(request, reply)
    }
}

/// How the reply starts, judged by the prompt and the request.
fn reply_start(format: OutputFormat, prompt: &str, request: &ChatRequest) -> ReplyStart {
    match format.reasoning {
        Some(reasoning) if reasoning.is_open(prompt) => ReplyStart::Thinking,
        Some(reasoning) if reasoning.is_closed(prompt) => ReplyStart::Answer,
        _ if request.opening == ReplyOpening::ContinueLast => ReplyStart::Answer,
        Some(_) if request.thinking.effort != Some(Effort::Off) => ReplyStart::Undecided,
        _ => ReplyStart::Answer,
    }
}

/// The texts of the BOS and EOS tokens, under the names templates use; empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoundaryTokens {
    /// Text of the beginning-of-sequence token.
    pub bos_token: String,
    /// Text of the end-of-sequence token.
    pub eos_token: String,
}

impl BoundaryTokens {
    /// Reads both from a tokenizer.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
        Self {
            bos_token: text(tokenizer.bos()).unwrap_or_default(),
            eos_token: text(tokenizer.eos()).unwrap_or_default(),
        }
    }
}

/// Renders a conversation with a template alone. Without a vocabulary, special tokens in messages
/// are not escaped.
pub fn render(
    template: &ChatTemplate,
    request: &ChatRequest,
    boundaries: &BoundaryTokens,
    reply: bool,
) -> Result<String, ChatError> {
    let writer = PromptWriter {
        template,
        boundaries,
        traits: TemplateTraits::probe(template, None),
        markers: None,
        calls: None,
        quoters: None,
    };
    let written = writer.write(request, reply)?;
    Ok(written.prompt.text().into_owned())
}

/// Template variables that the request itself sets.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

struct PromptWriter<'a> {
    template: &'a ChatTemplate,
    boundaries: &'a BoundaryTokens,
    traits: TemplateTraits,
    markers: Option<MediaMarkers<'a>>,
    /// The format the reply is parsed in, if it is parsed.
    calls: Option<&'static CallFormat>,
    quoters: Option<Quoters<'a>>,
}

/// A prompt, and how its conversation was changed for it.
struct WrittenPrompt {
    prompt: RenderedPrompt,
    joins_system: bool,
}

impl PromptWriter<'_> {
    /// Writes the conversation as it is. If the template does not take its later system messages,
    /// they are joined with the first.
    fn write(&self, request: &ChatRequest, reply: bool) -> Result<WrittenPrompt, ChatError> {
        validate(request)?;
        let messages = &request.messages;
        let unchanged = |prompt| WrittenPrompt {
            prompt,
            joins_system: false,
        };
        let written = self.write_messages(request, messages, reply);
        let Some(joined) = later_system::joined(messages) else {
            return written.map(unchanged);
        };
        let is_complete = |prompt: &RenderedPrompt| later_system::are_in(&prompt.text(), messages);
        if written.as_ref().is_ok_and(is_complete) {
            return written.map(unchanged);
        }
        match self.write_messages(request, &joined, reply) {
            Ok(prompt) if is_complete(&prompt) => Ok(WrittenPrompt {
                prompt,
                joins_system: true,
            }),
            _ => written.map(unchanged),
        }
    }

    fn write_messages(
        &self,
        request: &ChatRequest,
        messages: &[Message],
        reply: bool,
    ) -> Result<RenderedPrompt, ChatError> {
        let rendered = match request.opening {
            ReplyOpening::NewTurn => self.write_turns(request, messages, reply)?,
            ReplyOpening::Unopened => self.write_turns(request, messages, false)?,
            ReplyOpening::ContinueLast => {
                let marked = continuation::mark_end(messages)?;
                continuation::cut(self.write_turns(request, &marked, false)?)?
            }
        };
        Ok(RenderedPrompt::new(rendered))
    }

    fn write_turns(
        &self,
        request: &ChatRequest,
        turns: &[Message],
        reply: bool,
    ) -> Result<String, ChatError> {
        let offered: &[Tool] = match request.tool_choice {
            ToolChoice::None => &[],
            _ => &request.tools,
        };
        let mut variables = thinking::variables(self.template, request.thinking)?;
        variables.extend(request.template_variables.clone());
        if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
            return Err(ChatError::ReservedVariable { name });
        }
        let native = !offered.is_empty() && self.template.supports_tools();
        let tools = native.then(|| prompt::tools(offered, self.quoters));
        if native || offered.is_empty() && !self.needs_words(turns) {
            let rendered = self.render(turns, tools.clone(), &variables, reply)?;
            if mentions_all(&rendered, offered) {
                return Ok(rendered);
            }
            // Some templates list tools only in a system message, and there is none.
            let mut messages = vec![Message::new(Role::System, "")];
            messages.extend_from_slice(turns);
            let rendered = self.render(&messages, tools.clone(), &variables, reply);
            if let Some(rendered) = rendered
                .ok()
                .filter(|rendered| mentions_all(rendered, offered))
            {
                return Ok(rendered);
            }
        }
        let unlike = |calls: &&CallFormat| calls.name != HERMES.name;
        if let Some(calls) = self.calls.filter(unlike).filter(|_| !offered.is_empty()) {
            let name = calls.name;
            return Err(ChatError::Unsupported {
                field: "tools",
                why: format!(
                    "its chat template leaves them out, and words cannot describe `{name}` calls; \
                     use a template that supports tools, or the tool format `{}`",
                    HERMES.name
                ),
            });
        }
        let has_system = self.template.supports_system();
        let messages = plain_tools::describe(turns, offered, has_system)?;
        self.render(&messages, tools, &variables, reply)
    }

    /// Whether messages have calls or results that the template would leave out.
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
            messages: prompt::messages(messages, (self.traits, self.markers), self.quoters)?,
            tools,
            add_generation_prompt: reply,
            bos_token: self.boundaries.bos_token.clone(),
            eos_token: self.boundaries.eos_token.clone(),
            kwargs: variables.clone(),
        })?)
    }
}

fn mentions_all(rendered: &str, tools: &[Tool]) -> bool {
    tools.iter().all(|tool| rendered.contains(&tool.name))
}

fn signature(tool: Tool) -> ToolSignature {
    ToolSignature {
        name: tool.name,
        parameters: tool.parameters,
    }
}

/// Checks that need no template.
fn validate(request: &ChatRequest) -> Result<(), ChatError> {
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
            "which another tool already has"
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

/// Whether the schema admits objects, the only arguments tools have.
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
