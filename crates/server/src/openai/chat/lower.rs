//! Lowers a chat completion request to a chat request.

use loquat_chat::{ChatContext, ChatRequest, Effort, ReplyOpening, Thinking, ToolChoice};
use loquat_engine::{Logprobs, SamplingParams};
use serde_json::{Map, Value};

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
        removed: _,
    } = body;
    let ChatCompletionRequest {
        model: _,
        lora: _,
        messages,
        stream,
        stream_options,
        n,
        stop,
        stop_token_ids,
        skip_special_tokens,
        logprobs,
        top_logprobs,
        max_completion_tokens,
        max_tokens,
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning_effort,
        enable_thinking,
        thinking_budget,
        thinking_token_budget,
        continue_final_message,
        add_generation_prompt,
        chat_template_kwargs,
        cache_salt,
        priority,
        ignore_eos,
        draft_max,
        modalities,
    } = value;
    check_modalities(modalities)?;
    let answer = answer_format.lower(&mut ignored)?;
    let budget = resolve_alias(
        (Field::ThinkingBudget, thinking_budget),
        (Field::ThinkingTokenBudget, thinking_token_budget),
    )?;
    let mut template_variables = chat_template_kwargs.unwrap_or_default();
    let switch = ThinkingSwitch::new(enable_thinking, &mut template_variables)?;
    let thinking = Thinking {
        effort: reasoning_effort
            .and_then(|effort| self::effort(effort, "reasoning_effort", chat, &mut ignored)),
        budget: self::budget(budget, chat, &mut ignored),
    };
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
        thinking: switch.apply(thinking, chat, &mut ignored),
        answer: answer.map(|answer| answer.source),
        sampling,
        stop: options::stops(stop)?,
        logprobs: self::logprobs(logprobs, top_logprobs)?,
        template_variables,
        opening: opening(continues_last, add_generation_prompt)?,
        ..ChatRequest::default()
    };
    Ok(LoweredChatCompletion {
        chat,
        options: ReplyOptions {
            max_tokens: self::max_tokens(max_completion_tokens, max_tokens)?,
            max_tokens_that_fit: None,
            priority: priority.unwrap_or(0),
            draft_tokens: draft_max,
            cache_salt,
            ignore_eos: ignore_eos.unwrap_or(false),
            stop_token_ids: stop_token_ids.unwrap_or_default(),
            show_special: !skip_special_tokens.unwrap_or(true),
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

/// The effort that the template is given. One that has no effect is `None`, and `ignored` lists its
/// `field`.
pub fn effort(
    effort: ReasoningEffort,
    field: &'static str,
    chat: &ChatContext,
    ignored: &mut Vec<&'static str>,
) -> Option<Effort> {
    let effort = match effort {
        // A model that never reasons needs no switch.
        ReasoningEffort::None if chat.format().reasoning.is_none() => return None,
        // Refused if the template cannot do it.
        ReasoningEffort::None => return Some(Effort::Off),
        ReasoningEffort::Minimal | ReasoningEffort::Low => Effort::Low,
        ReasoningEffort::Medium => Effort::Medium,
        ReasoningEffort::High | ReasoningEffort::Xhigh | ReasoningEffort::Max => Effort::High,
    };
    let supported = chat.supports_effort(effort);
    if !supported {
        ignored.push(field);
    }
    supported.then_some(effort)
}

/// A model that never reasons has no budget.
fn budget(
    budget: Option<usize>,
    chat: &ChatContext,
    ignored: &mut Vec<&'static str>,
) -> Option<usize> {
    let reasons = chat.format().reasoning.is_some();
    if budget.is_some() && !reasons {
        ignored.push("thinking_budget");
    }
    budget.filter(|_| reasons)
}

/// `enable_thinking`, which clients send as a field or as a variable of the template.
struct ThinkingSwitch {
    enabled: Option<bool>,
    field: &'static str,
}

impl ThinkingSwitch {
    fn new(field: Option<bool>, variables: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let name = Field::EnableThinking;
        let variable = variables.get(name.name()).and_then(Value::as_bool);
        if variable.is_some() {
            variables.shift_remove(name.name());
        }
        let variable_path = Field::ChatTemplateKwargs.field(name);
        Ok(Self {
            enabled: resolve_alias((name, field), (variable_path, variable))?,
            field: if field.is_some() {
                "enable_thinking"
            } else {
                "chat_template_kwargs.enable_thinking"
            },
        })
    }

    /// A more detailed effort takes precedence over `true`.
    fn apply(
        self,
        thinking: Thinking,
        chat: &ChatContext,
        ignored: &mut Vec<&'static str>,
    ) -> Thinking {
        let effort = match self.enabled {
            None => return thinking,
            Some(true) if thinking.effort.is_some() => return thinking,
            Some(true) => Effort::On,
            Some(false) => Effort::Off,
        };
        let supported = chat.supports_effort(effort);
        let never_thinks = effort == Effort::Off && chat.format().reasoning.is_none();
        if !supported && !never_thinks {
            ignored.push(self.field);
        }
        Thinking {
            effort: if supported {
                Some(effort)
            } else {
                thinking.effort
            },
            ..thinking
        }
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
