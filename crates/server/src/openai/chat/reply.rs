//! A chat completion in one piece.

use loquat_chat::ChatContext;
use loquat_engine::{TokenInfo, Usage};
use serde::Serialize;
use utoipa::ToSchema;

use super::choice::{Choice, Delta};
use crate::chat_turn::ChatTurn;
use crate::error::ApiError;
use crate::openai::Head;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::tool::FunctionType;
use crate::openai::usage::TokenUsage;

/// The answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    pub model: String,
    /// By which version and backend. A seed repeats an answer as long as this stays the same.
    pub system_fingerprint: String,
    pub choices: Vec<ChatChoice>,
    pub usage: TokenUsage,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: ChatReply,
    /// Null unless asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// What the assistant said.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChatReply {
    /// `assistant`
    pub role: &'static str,
    /// Its words; null where it called tools and said nothing.
    pub content: Option<String>,
    /// Always null: a model's refusal is in its words.
    pub refusal: Option<String>,
    /// What it thought first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What it wants called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<WantedCall>,
}

/// A tool that the assistant wants called.
#[derive(Debug, Serialize, ToSchema)]
pub struct WantedCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: FunctionType,
    pub function: WantedFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct WantedFunction {
    pub name: String,
    /// A JSON object as text, exactly as the model wrote it; not whole where it was cut short.
    pub arguments: String,
}

/// Waits for all of it.
pub async fn gather(
    mut turn: ChatTurn,
    head: Head,
    choices: usize,
    logprobs: bool,
) -> Result<ChatCompletion, ApiError> {
    let chat = turn.turn().lease().chat_context().clone();
    let mut gathering: Vec<Gathering> = (0..choices)
        .map(|_| Gathering::new(&chat, logprobs))
        .collect();
    let mut usage = Usage::default();
    while let Some(said) = turn.next().await {
        let said = said?;
        let choice = &mut gathering[said.choice];
        if let Some(end) = &said.end {
            choice.reason = Some(end.reason);
        }
        let deltas = choice.choice.take(said);
        deltas.into_iter().for_each(|delta| choice.add(delta));
        usage = turn.turn().usage();
    }
    let thought = gathering.iter().map(|each| each.choice.reasoning_tokens());
    let usage = TokenUsage::new(usage, thought.sum());
    let Head {
        id,
        created,
        model,
        fingerprint,
    } = head;
    let choices = gathering.into_iter().enumerate();
    let choices = choices.map(|(index, each)| each.whole(index, &chat, logprobs));
    Ok(ChatCompletion {
        id,
        object: "chat.completion",
        created,
        model,
        system_fingerprint: fingerprint,
        choices: choices.collect::<Result<_, _>>()?,
        usage,
    })
}

struct Gathering {
    choice: Choice,
    words: String,
    reasoning: String,
    calls: Vec<WantedCall>,
    tokens: Vec<TokenInfo>,
    reason: Option<loquat_engine::FinishReason>,
}

impl Gathering {
    fn new(chat: &ChatContext, logprobs: bool) -> Self {
        Self {
            choice: Choice::new(chat, logprobs),
            words: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
            reason: None,
        }
    }

    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Words { text, tokens } => {
                self.words.push_str(&text);
                self.tokens.extend(tokens);
            }
            Delta::CallStart { index: _, id, name } => self.calls.push(WantedCall {
                id,
                kind: FunctionType::Function,
                function: WantedFunction {
                    name,
                    arguments: String::new(),
                },
            }),
            Delta::CallArguments { index, json } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.function.arguments.push_str(&json);
                }
            }
        }
    }

    fn whole(
        self,
        index: usize,
        chat: &ChatContext,
        logprobs: bool,
    ) -> Result<ChatChoice, ApiError> {
        let Self {
            choice,
            words,
            reasoning,
            calls,
            tokens,
            reason,
        } = self;
        let reason = reason.ok_or_else(|| ApiError::internal(&"a choice has no end"))?;
        let silent = words.is_empty() && !calls.is_empty();
        Ok(ChatChoice {
            index,
            message: ChatReply {
                role: "assistant",
                content: (!silent).then_some(words),
                refusal: None,
                reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
                tool_calls: calls,
            },
            logprobs: logprobs.then(|| ChatLogprobs::new(&tokens, chat.tokenizer())),
            finish_reason: choice.finish_reason(reason),
        })
    }
}
