//! From a response's request to a chat request.

use std::collections::BTreeMap;

use loquat_chat::{ChatContext, ChatRequest, Thinking, ToolChoice};
use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::{GrammarSource, check_schema};
use serde_json::{Map, Value};

use super::conversation::messages;
use super::item::Item;
use super::object::{ResponseObject, ResponseStatus};
use super::request::{
    Format, FunctionTool, Include, Mode, NamedTool, Reasoning, ResponseRequest, SomeTools,
    StreamOptions, TextConfig, Tool, Truncation,
};
use crate::chat_turn::Terms;
use crate::error::ApiError;
use crate::openai::chat::lower::effort;
use crate::openai::tool::FunctionDefinition;
use crate::openai::{fresh_id, now, options};
use crate::sampling;

/// What is asked for, and how it is to be told.
pub struct Lowered {
    pub chat: ChatRequest,
    pub terms: Terms,
    /// The response that is to be filled.
    pub response: ResponseObject,
    pub stream: bool,
    pub ignored: Vec<&'static str>,
}

/// What a request is lowered with.
pub struct Given<'a> {
    pub sampling: &'a Map<String, Value>,
    pub chat: &'a ChatContext,
    /// How to sample where the request does not say.
    pub in_force: &'a SamplingParams,
    pub model: &'a str,
    /// The conversation so far, the request's own input included.
    pub conversation: Vec<&'a Item>,
}

/// The request over what is in force without it. Its `input` is part of what is given.
pub fn lower(request: ResponseRequest, given: Given<'_>) -> Result<Lowered, ApiError> {
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
    } = request;
    let mut ignored = Vec::new();
    if background == Some(true) {
        return Err(ApiError::unsupported(
            "background",
            "a response is made while the request lasts",
        ));
    }
    if truncation == Some(Truncation::Auto) {
        return Err(ApiError::unsupported(
            "truncation",
            "what does not fit the context is refused, never cut; leave it out or say `disabled`",
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
    let mut sampling = given.in_force.clone();
    sampling::apply(given.sampling, &mut sampling, given.chat.tokenizer())?;
    let text = text.unwrap_or_default();
    let reasoning = reasoning.unwrap_or_default();
    let tools = tools.unwrap_or_default();
    let tool_choice = tool_choice.unwrap_or(super::request::ToolChoice::Mode(Mode::Auto));
    let parallel_tool_calls = parallel_tool_calls.unwrap_or(true);
    let (offered, choice) = offer(&tools, &tool_choice)?;
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
        model: given.model.to_owned(),
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
        messages: messages(instructions, given.conversation, &mut ignored)?,
        tools: offered,
        tool_choice: choice,
        parallel_tool_calls,
        thinking: thinking(reasoning, given.chat, &mut ignored),
        answer: answer(text, &mut ignored),
        sampling,
        logprobs: logprobs(&include.unwrap_or_default(), top_logprobs, &mut ignored)?,
        template_variables: chat_template_kwargs.unwrap_or_default(),
        ..ChatRequest::default()
    };
    Ok(Lowered {
        chat,
        terms: Terms {
            max_tokens: max_output_tokens,
            priority: priority.unwrap_or(0),
            cache_salt,
            ..Terms::default()
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
            "metadata",
            "`metadata` may have up to 16 texts of up to 512 characters, by names of up to 64",
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
        effort: effort.and_then(|effort| self::effort(effort, chat)),
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
    if include.contains(&Include::EncryptedReasoning) {
        ignored.push("include[reasoning.encrypted_content]");
    }
    let top = options::alternatives("top_logprobs", top)?.unwrap_or(0);
    let wanted = top > 0 || include.contains(&Include::Logprobs);
    Ok(wanted.then(|| Logprobs::for_model(top)))
}

/// The tools that the model is told of, and whether it calls them.
fn offer(
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
        super::request::ToolChoice::Some(SomeTools::Function { name }) => {
            Ok((offered, ToolChoice::Named(name.clone())))
        }
        super::request::ToolChoice::Some(SomeTools::AllowedTools { mode: word, tools }) => {
            let names: Vec<_> = tools
                .iter()
                .map(|NamedTool::Function { name }| name)
                .collect();
            let unknown = names
                .iter()
                .find(|name| offered.iter().all(|tool| tool.name != ***name));
            if let Some(name) = unknown {
                let what = format!("`tool_choice.tools` has `{name}`, which `tools` does not");
                return Err(ApiError::invalid("tool_choice.tools", what));
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
