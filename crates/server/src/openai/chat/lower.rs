//! Lowers a chat completion request to a chat request.

use loquat_chat::{ChatContext, ChatRequest, Effort, ReplyOpening, Thinking, ToolChoice};
use loquat_engine::{Logprobs, SamplingParams};

use super::wire::{ChatCompletionRequest, Modality, ReasoningEffort};
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::openai::options::{self, Streaming};
use crate::openai::{messages, resolve_alias, tools};
use crate::reply::ReplyOptions;
use crate::sampling;
use crate::wire::JsonBody;

#[derive(Debug)]
pub struct LoweredChatCompletion {
    pub chat: ChatRequest,
    pub options: ReplyOptions,
    pub choices: usize,
    /// `None` for an answer in one piece.
    pub streaming: Option<Streaming>,
    /// The field that constrains the answer.
    pub answer_field: Option<FieldPath>,
    pub ignored: Vec<&'static str>,
}

/// Lowers a request. `defaults` are the sampling parameters that it may override.
pub fn lower(
    body: JsonBody<ChatCompletionRequest>,
    chat: &ChatContext,
    defaults: &SamplingParams,
) -> Result<LoweredChatCompletion, ApiError> {
    let JsonBody {
        value,
        sampling: overrides,
        answer_format,
        mut ignored,
    } = body;
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
        continue_final_message,
        add_generation_prompt,
        chat_template_kwargs,
        cache_salt,
        priority,
        ignore_eos,
        modalities,
    } = value;
    check_modalities(modalities)?;
    let answer = answer_format.lower(&mut ignored)?;
    let budget = resolve_alias(
        (Field::ThinkingBudget, thinking_budget),
        (Field::ThinkingTokenBudget, thinking_token_budget),
    )?;
    let sampling = sampling::apply(&overrides, defaults, chat.tokenizer())?;
    let tool_choice = match tool_choice {
        Some(choice) => choice.lower()?,
        None => ToolChoice::default(),
    };
    let continues_last =
        messages::continues_last(&messages)? || continue_final_message == Some(true);
    let answer_field = answer.as_ref().map(|answer| answer.field.clone());
    let chat = ChatRequest {
        messages: messages::lower(messages)?,
        tools: tools::lower(tools.unwrap_or_default(), &tool_choice),
        tool_choice,
        parallel_tool_calls: parallel_tool_calls.unwrap_or(true),
        thinking: Thinking {
            effort: reasoning_effort.and_then(|effort| self::effort(effort, chat)),
            budget,
        },
        answer: answer.map(|answer| answer.source),
        sampling,
        stop: options::stops(stop)?,
        logprobs: self::logprobs(logprobs, top_logprobs)?,
        template_variables: chat_template_kwargs.unwrap_or_default(),
        opening: opening(continues_last, add_generation_prompt)?,
        ..ChatRequest::default()
    };
    Ok(LoweredChatCompletion {
        chat,
        options: ReplyOptions {
            max_tokens: self::max_tokens(max_completion_tokens, max_tokens)?,
            max_tokens_that_fit: None,
            priority: priority.unwrap_or(0),
            cache_salt,
            ignore_eos: ignore_eos.unwrap_or(false),
        },
        choices: options::choices(Field::N, n)?,
        streaming: options::streaming(stream, stream_options, &mut ignored)?,
        answer_field,
        ignored,
    })
}

/// Where the reply begins.
pub fn opening(
    continues_last: bool,
    add_generation_prompt: Option<bool>,
) -> Result<ReplyOpening, ApiError> {
    match (continues_last, add_generation_prompt) {
        (true, Some(true)) => Err(ApiError::invalid(
            Field::AddGenerationPrompt,
            "is true, but the last message is continued; omit it",
        )),
        (true, _) => Ok(ReplyOpening::ContinueLast),
        (false, Some(false)) => Ok(ReplyOpening::Unopened),
        (false, _) => Ok(ReplyOpening::NewTurn),
    }
}

fn check_modalities(modalities: Option<Vec<Modality>>) -> Result<(), ApiError> {
    match modalities.as_deref() {
        None | Some([Modality::Text]) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            Field::Modalities,
            "must be [\"text\"]: this server writes text only",
        )),
    }
}

/// `None` for a model that never reasons and is asked not to.
pub fn effort(effort: ReasoningEffort, chat: &ChatContext) -> Option<Effort> {
    match effort {
        ReasoningEffort::None if chat.format().reasoning.is_none() => None,
        ReasoningEffort::None => Some(Effort::Off),
        ReasoningEffort::Minimal | ReasoningEffort::Low => Some(Effort::Low),
        ReasoningEffort::Medium => Some(Effort::Medium),
        ReasoningEffort::High | ReasoningEffort::Xhigh | ReasoningEffort::Max => Some(Effort::High),
    }
}

fn logprobs(enabled: Option<bool>, top: Option<usize>) -> Result<Option<Logprobs>, ApiError> {
    let top = options::alternatives(Field::TopLogprobs, top)?;
    match (enabled.unwrap_or(false), top) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            Field::TopLogprobs,
            "needs `logprobs` to be true",
        )),
        (true, top) => Ok(Some(Logprobs::for_model(top.unwrap_or(0)))),
    }
}

fn max_tokens(
    max_completion_tokens: Option<usize>,
    max_tokens: Option<usize>,
) -> Result<Option<usize>, ApiError> {
    let fields = [
        (Field::MaxCompletionTokens, max_completion_tokens),
        (Field::MaxTokens, max_tokens),
    ];
    if let Some((field, _)) = fields.iter().find(|(_, value)| *value == Some(0)) {
        return Err(ApiError::invalid(*field, "is 0; it must be at least 1"));
    }
    let [field, alias] = fields;
    resolve_alias(field, alias)
}
