//! Lowers a response request to a chat request.

use std::collections::BTreeMap;

use loquat_chat::{ChatContext, ChatRequest, Thinking, ToolChoice};
use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::{GrammarSource, check_schema};
use serde_json::{Map, Value};

use super::conversation::messages;
use super::item::Item;
use super::object::{ResponseObject, ResponseStatus};
use super::request::{
    Format, FunctionTool, Include, Mode, NamedTool, Reasoning, ResponseRequest, StreamOptions,
    TextConfig, Tool, ToolSelection, Truncation,
};
use crate::error::ApiError;
use crate::field::Field;
use crate::openai::chat::lower::effort;
use crate::openai::tools::FunctionDefinition;
use crate::openai::{fresh_id, now, options};
use crate::reply::ReplyOptions;
use crate::sampling;

pub struct LoweredResponse {
    pub chat: ChatRequest,
    pub options: ReplyOptions,
    /// The response without its output.
    pub response: ResponseObject,
    pub stream: bool,
    pub ignored: Vec<&'static str>,
}

/// What a request is lowered with.
pub struct LoweringContext<'a> {
    /// The request's sampling parameters.
    pub overrides: &'a Map<String, Value>,
    /// The model's sampling parameters.
    pub defaults: &'a SamplingParams,
    pub chat: &'a ChatContext,
    pub model: &'a str,
    /// The conversation so far, the request's own input included.
    pub conversation: Vec<&'a Item>,
}

/// Lowers a request, except for its `input`, which is part of the context's conversation.
pub fn lower(
    request: ResponseRequest,
    context: LoweringContext<'_>,
) -> Result<LoweredResponse, ApiError> {
    let ResponseRequest {
        model: _,
        input: _,
        instructions,
        previous_response_id,
        store,
        stream,
        stream_options,
        max_output_tokens,
        text,
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning,
        include,
        top_logprobs,
        truncation,
        background,
        metadata,
        chat_template_kwargs,
        cache_salt,
        priority,
        draft_max,
    } = request;
    let mut ignored = Vec::new();
    if background == Some(true) {
        return Err(ApiError::unsupported(
            Field::Background,
            "responses are generated while the request is open",
        ));
    }
    if truncation == Some(Truncation::Auto) {
        return Err(ApiError::unsupported(
            Field::Truncation,
            "prompts that exceed the context are refused; omit it or use `disabled`",
        ));
    }
    if let Some(StreamOptions {
        include_obfuscation: Some(_),
    }) = stream_options
    {
        ignored.push("stream_options.include_obfuscation");
    }
    let metadata = metadata.unwrap_or_default();
    check_metadata(&metadata)?;
    let tokenizer = context.chat.tokenizer();
    let sampling = sampling::apply(context.overrides, context.defaults, tokenizer)?;
    let text = text.unwrap_or_default();
    let reasoning = reasoning.unwrap_or_default();
    let tools = tools.unwrap_or_default();
    let tool_choice = tool_choice.unwrap_or(super::request::ToolChoice::Mode(Mode::Auto));
    let parallel_tool_calls = parallel_tool_calls.unwrap_or(true);
    let (offered, choice) = offered_tools(&tools, &tool_choice)?;
    let response = ResponseObject {
        id: fresh_id("resp_"),
        object: "response",
        created_at: now(),
        completed_at: None,
        status: ResponseStatus::InProgress,
        error: None,
        incomplete_details: None,
        instructions: instructions.clone(),
        max_output_tokens,
        model: context.model.to_owned(),
        output: Vec::new(),
        parallel_tool_calls,
        previous_response_id,
        reasoning: reasoning.clone(),
        store: store.unwrap_or(true),
        temperature: sampling.temperature,
        text: TextConfig {
            format: Some(text.format.clone().unwrap_or(Format::Text {})),
            ..text
        },
        tool_choice,
        tools,
        top_logprobs: top_logprobs.unwrap_or(0),
        top_p: sampling.top_p,
        truncation: Truncation::Disabled,
        background: false,
        usage: None,
        metadata,
    };
    let chat = ChatRequest {
        messages: messages(instructions, context.conversation, &mut ignored)?,
        tools: offered,
        tool_choice: choice,
        parallel_tool_calls,
        thinking: thinking(reasoning, context.chat, &mut ignored),
        answer: answer(text, &mut ignored),
        sampling,
        logprobs: logprobs(&include.unwrap_or_default(), top_logprobs, &mut ignored)?,
        template_variables: chat_template_kwargs.unwrap_or_default(),
        ..ChatRequest::default()
    };
    Ok(LoweredResponse {
        chat,
        options: ReplyOptions {
            max_tokens: max_output_tokens,
            priority: priority.unwrap_or(0),
            draft_tokens: draft_max,
            cache_salt,
            ..ReplyOptions::default()
        },
        response,
        stream: stream.unwrap_or(false),
        ignored,
    })
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let long = |(name, value): (&String, &String)| {
        name.chars().count() > 64 || value.chars().count() > 512
    };
    if metadata.len() > 16 || metadata.iter().any(long) {
        Err(ApiError::invalid(
            Field::Metadata,
            "may have up to 16 entries, with keys of up to 64 and values of up to 512 characters",
        ))
    } else {
        Ok(())
    }
}

fn thinking(reasoning: Reasoning, chat: &ChatContext, ignored: &mut Vec<&'static str>) -> Thinking {
    let Reasoning {
        effort,
        summary,
        generate_summary,
    } = reasoning;
    if summary.or(generate_summary).is_some() {
        ignored.push("reasoning.summary");
    }
    Thinking {
        effort: effort.and_then(|effort| self::effort(effort, "reasoning.effort", chat, ignored)),
        budget: None,
    }
}

fn answer(text: TextConfig, ignored: &mut Vec<&'static str>) -> Option<GrammarSource> {
    let TextConfig { format, verbosity } = text;
    if verbosity.is_some() {
        ignored.push("text.verbosity");
    }
    match format? {
        Format::Text {} => None,
        Format::JsonObject {} => Some(GrammarSource::JsonObject),
        Format::JsonSchema {
            name: _,
            schema,
            description,
            strict: _,
        } => {
            if description.is_some() {
                ignored.push("text.format.description");
            }
            Some(GrammarSource::JsonSchema(schema))
        }
    }
}

fn logprobs(
    include: &[Include],
    top: Option<usize>,
    ignored: &mut Vec<&'static str>,
) -> Result<Option<Logprobs>, ApiError> {
    ignored.extend(include.iter().filter_map(|each| each.ignored_name()));
    let top = options::alternatives(Field::TopLogprobs, top)?.unwrap_or(0);
    let wanted = top > 0 || include.contains(&Include::Logprobs);
    Ok(wanted.then(|| Logprobs::for_model(top)))
}

/// The tools that the model sees, and whether it calls them.
fn offered_tools(
    tools: &[Tool],
    choice: &super::request::ToolChoice,
) -> Result<(Vec<loquat_chat::Tool>, ToolChoice), ApiError> {
    let offered: Vec<_> = tools.iter().cloned().map(tool).collect();
    let mode = |mode: &Mode| match mode {
        Mode::None => ToolChoice::None,
        Mode::Auto => ToolChoice::Auto,
        Mode::Required => ToolChoice::Required,
    };
    match choice {
        super::request::ToolChoice::Mode(word) => Ok((offered, mode(word))),
        super::request::ToolChoice::Tools(ToolSelection::Function { name }) => {
            Ok((offered, ToolChoice::Named(name.clone())))
        }
        super::request::ToolChoice::Tools(ToolSelection::AllowedTools { mode: word, tools }) => {
            let names: Vec<_> = tools
                .iter()
                .map(|NamedTool::Function { name }| name)
                .collect();
            let unknown = names
                .iter()
                .find(|name| offered.iter().all(|tool| tool.name != ***name));
            if let Some(name) = unknown {
                let field = Field::ToolChoice.field(Field::Tools);
                let problem = format!("has `{name}`, which is not in `tools`");
                return Err(ApiError::invalid(field, problem));
            }
            let allowed = offered.into_iter();
            let allowed = allowed.filter(|tool| names.contains(&&tool.name));
            Ok((allowed.collect(), mode(word)))
        }
    }
}

fn tool(tool: Tool) -> loquat_chat::Tool {
    let Tool::Function(FunctionTool {
        name,
        description,
        parameters,
        strict,
    }) = tool;
    let function = FunctionDefinition {
        name,
        description,
        parameters,
        strict: None,
    };
    let tool = function.lower();
    loquat_chat::Tool {
        strict: strict.unwrap_or_else(|| check_schema(&tool.parameters).is_ok()),
        ..tool
    }
}
