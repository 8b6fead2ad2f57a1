//! From a chat completion's request to a chat request.

use loquat_chat::{ChatContext, ChatRequest, Effort, Thinking, ToolChoice};
use loquat_engine::{Logprobs, SamplingParams};
use serde_json::{Map, Value};

use super::wire::{ChatCompletionRequest, Modality, ReasoningEffort};
use crate::chat_turn::Terms;
use crate::error::ApiError;
use crate::openai::answer::Guided;
use crate::openai::options::{self, Streaming};
use crate::openai::{agree, message, tool};
use crate::sampling;

/// What is asked for, and how it is to be told.
#[derive(Debug)]
pub struct Lowered {
    pub chat: ChatRequest,
    pub terms: Terms,
    pub choices: usize,
    /// `None` for an answer in one piece.
    pub stream: Option<Streaming>,
    /// The field that says what the answer must be.
    pub answer_field: Option<&'static str>,
    pub ignored: Vec<&'static str>,
}

/// The request over what is in force without it.
pub fn lower(
    request: ChatCompletionRequest,
    given: &Map<String, Value>,
    chat: &ChatContext,
    in_force: &SamplingParams,
) -> Result<Lowered, ApiError> {
    let ChatCompletionRequest {
        model: _,
        messages,
        stream,
        stream_options,
        n,
        stop,
        logprobs,
        top_logprobs,
        max_completion_tokens,
        max_tokens,
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning_effort,
        thinking_budget,
        thinking_token_budget,
        response_format,
        guided_json,
        guided_regex,
        guided_choice,
        guided_grammar,
        structured_outputs,
        chat_template_kwargs,
        cache_salt,
        priority,
        ignore_eos,
        modalities,
    } = request;
    text_only(modalities)?;
    let mut ignored = Vec::new();
    let guided = Guided {
        response_format,
        guided_json,
        guided_regex,
        guided_choice,
        guided_grammar,
        structured_outputs,
    };
    let answer = guided.lower(&mut ignored)?;
    let budget = agree(
        ("thinking_budget", thinking_budget),
        ("thinking_token_budget", thinking_token_budget),
    )?;
    let mut sampling = in_force.clone();
    sampling::apply(given, &mut sampling, chat.tokenizer())?;
    let tool_choice = match tool_choice {
        Some(choice) => choice.lower()?,
        None => ToolChoice::default(),
    };
    let answer_field = answer.as_ref().map(|rule| rule.field);
    let chat = ChatRequest {
        messages: message::lower(messages)?,
        tools: tool::lower(tools.unwrap_or_default(), &tool_choice),
        tool_choice,
        parallel_tool_calls: parallel_tool_calls.unwrap_or(true),
        thinking: Thinking {
            effort: reasoning_effort.and_then(|effort| self::effort(effort, chat)),
            budget,
        },
        answer: answer.map(|rule| rule.source),
        sampling,
        stop: options::stops(stop)?,
        logprobs: self::logprobs(logprobs, top_logprobs)?,
        template_variables: chat_template_kwargs.unwrap_or_default(),
        ..ChatRequest::default()
    };
    Ok(Lowered {
        chat,
        terms: Terms {
            max_tokens: longest(max_completion_tokens, max_tokens)?,
            up_to: None,
            priority: priority.unwrap_or(0),
            cache_salt,
            ignore_eos: ignore_eos.unwrap_or(false),
        },
        choices: options::choices("n", n)?,
        stream: options::streaming(stream, stream_options, &mut ignored)?,
        answer_field,
        ignored,
    })
}

fn text_only(modalities: Option<Vec<Modality>>) -> Result<(), ApiError> {
    match modalities.as_deref() {
        None | Some([Modality::Text]) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "modalities",
            "`modalities` must be [\"text\"], which is all that this server writes",
        )),
    }
}

/// Not to think is no wish where a model never does.
pub fn effort(effort: ReasoningEffort, chat: &ChatContext) -> Option<Effort> {
    match effort {
        ReasoningEffort::None if chat.format().reasoning.is_none() => None,
        ReasoningEffort::None => Some(Effort::Off),
        ReasoningEffort::Minimal | ReasoningEffort::Low => Some(Effort::Low),
        ReasoningEffort::Medium => Some(Effort::Medium),
        ReasoningEffort::High | ReasoningEffort::Xhigh | ReasoningEffort::Max => Some(Effort::High),
    }
}

fn logprobs(wanted: Option<bool>, top: Option<usize>) -> Result<Option<Logprobs>, ApiError> {
    let top = options::alternatives("top_logprobs", top)?;
    match (wanted.unwrap_or(false), top) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` needs `logprobs` to be true",
        )),
        (true, top) => Ok(Some(Logprobs::for_model(top.unwrap_or(0)))),
    }
}

fn longest(long: Option<usize>, short: Option<usize>) -> Result<Option<usize>, ApiError> {
    let given = [("max_completion_tokens", long), ("max_tokens", short)];
    if let Some((name, _)) = given.iter().find(|(_, value)| *value == Some(0)) {
        let what = format!("`{name}` is 0; it must be at least 1");
        return Err(ApiError::invalid(*name, what));
    }
    agree(given[0], given[1])
}
