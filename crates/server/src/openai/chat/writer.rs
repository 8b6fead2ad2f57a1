//! Renders a chat completion, as a stream of chunks or in one piece.

use bytes::Bytes;
use loquat_engine::{FinishReason, TokenInfo, Usage};
use loquat_text::Tokenizer;

use super::chunk::{ChatCompletionChunk, ChunkCall, ChunkChoice, ChunkDelta, ChunkFunction};
use super::reply::{ChatChoice, ChatCompletion, ChatReply, ReplyFunction, ReplyToolCall};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::frames;
use crate::models::Lease;
use crate::openai::CompletionHead;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::options::Streaming;
use crate::openai::tools::FunctionType;
use crate::openai::usage::TokenUsage;
use crate::reply::{
    ChoiceDelta, EventFrames, ReplySegments, ReplyWriter, Segment, SegmentEvent, SegmentKind,
};

pub struct ChatWriter {
    head: CompletionHead,
    choices: Vec<ChoiceProgress>,
    tokenizer: Tokenizer,
    logprobs: bool,
    streaming: Streaming,
    usage: Usage,
    frames: EventFrames,
}

/// What is known of a choice so far.
struct ChoiceProgress {
    segments: ReplySegments,
    ended: Vec<Segment>,
    /// Calls begun so far.
    calls: usize,
    begun: bool,
    reason: Option<FinishReason>,
}

impl ChatWriter {
    pub fn new(
        model: &Lease,
        choices: usize,
        logprobs: bool,
        streaming: Option<Streaming>,
    ) -> Self {
        let chat = model.chat_context();
        // Others need no tokens.
        let with_tokens = logprobs || chat.format().reasoning.is_some();
        let choices = (0..choices).map(|_| {
            let segments = ReplySegments::default().with_blank_text();
            ChoiceProgress {
                segments: if with_tokens {
                    segments.with_tokens(chat)
                } else {
                    segments
                },
                ended: Vec::new(),
                calls: 0,
                begun: false,
                reason: None,
            }
        });
        Self {
            head: CompletionHead::new("chatcmpl-", model),
            choices: choices.collect(),
            tokenizer: chat.tokenizer().clone(),
            logprobs,
            streaming: streaming.unwrap_or_default(),
            usage: Usage::default(),
            frames: EventFrames::new(streaming.is_some()),
        }
    }

    fn usage(&self) -> TokenUsage {
        let choices = self.choices.iter();
        let reasoning = choices.map(|choice| choice.segments.reasoning_tokens());
        TokenUsage::new(self.usage, reasoning.sum())
    }

    fn logprobs(&self, tokens: &[TokenInfo]) -> Option<ChatLogprobs> {
        self.logprobs
            .then(|| ChatLogprobs::new(tokens, &self.tokenizer))
    }

    fn write_event(&mut self, choice: usize, event: SegmentEvent) {
        let progress = &mut self.choices[choice];
        let calls = progress.calls;
        match event {
            SegmentEvent::Begin {
                kind: SegmentKind::ToolCall { id, name },
                ..
            } => {
                progress.calls += 1;
                let delta = ChunkDelta::call(calls, Some((id, name)), String::new());
                self.push_chunk(choice, delta, None, None);
            }
            SegmentEvent::Begin { .. } => {}
            SegmentEvent::Delta {
                kind, text, tokens, ..
            } => {
                let (delta, logprobs) = match kind {
                    SegmentKind::Reasoning => (ChunkDelta::reasoning(text), None),
                    SegmentKind::Text => (ChunkDelta::content(text), self.logprobs(&tokens)),
                    SegmentKind::ToolCall { .. } => (ChunkDelta::call(calls - 1, None, text), None),
                };
                self.push_chunk(choice, delta, logprobs, None);
            }
            SegmentEvent::End(segment) => progress.ended.push(segment),
        }
    }

    fn push_chunk(
        &mut self,
        index: usize,
        delta: ChunkDelta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
    ) {
        if !self.frames.is_enabled() {
            return;
        }
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        let so_far = self.streaming.continuous_usage.then(|| self.usage());
        self.push_frame(vec![choice], self.streaming.usage.then_some(so_far));
    }

    fn push_frame(&mut self, choices: Vec<ChunkChoice>, usage: Option<Option<TokenUsage>>) {
        let CompletionHead {
            id,
            created,
            model,
            fingerprint,
        } = &self.head;
        let chunk = ChatCompletionChunk {
            id,
            object: "chat.completion.chunk",
            created: *created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        };
        self.frames.push(None, &chunk);
    }

    /// The usage's own chunk, if the client asked for it.
    fn last_usage(&mut self) -> Bytes {
        if self.streaming.usage {
            self.push_frame(Vec::new(), Some(Some(self.usage())));
        }
        self.frames.take()
    }

    fn choice(&self, index: usize) -> Result<ChatChoice, ApiError> {
        let progress = &self.choices[index];
        let reason = progress.reason;
        let reason = reason.ok_or_else(|| ApiError::internal(&"a choice has no end"))?;
        let mut content = String::new();
        let mut reasoning = String::new();
        let mut tool_calls = Vec::new();
        let mut tokens = Vec::new();
        for segment in &progress.ended {
            match &segment.kind {
                SegmentKind::Reasoning => reasoning.push_str(&segment.text),
                SegmentKind::Text => {
                    content.push_str(&segment.text);
                    tokens.extend_from_slice(&segment.tokens);
                }
                SegmentKind::ToolCall { id, name } => tool_calls.push(ReplyToolCall {
                    id: id.clone(),
                    kind: FunctionType::Function,
                    function: ReplyFunction {
                        name: name.clone(),
                        arguments: segment.text.clone(),
                    },
                }),
            }
        }
        let only_calls = content.is_empty() && !tool_calls.is_empty();
        Ok(ChatChoice {
            index,
            message: ChatReply {
                role: "assistant",
                content: (!only_calls).then_some(content),
                refusal: None,
                reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
                tool_calls,
            },
            logprobs: self.logprobs(&tokens),
            finish_reason: progress.finish_reason(reason),
        })
    }
}

impl ChoiceProgress {
    fn finish_reason(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::Length => "length",
            FinishReason::Stop | FinishReason::StopString(_) if self.calls > 0 => "tool_calls",
            FinishReason::Stop | FinishReason::StopString(_) => "stop",
        }
    }
}

impl ReplyWriter for ChatWriter {
    type Answer = ChatCompletion;

    fn write(&mut self, delta: ChoiceDelta) -> Bytes {
        let ChoiceDelta {
            choice,
            reply,
            usage,
        } = delta;
        self.usage = usage;
        let progress = &mut self.choices[choice];
        progress.reason = reply.finish.as_ref().map(|finish| finish.reason);
        let reason = progress.reason;
        let events = progress.segments.consume(reply);
        let has_output = !events.is_empty() || reason.is_some();
        if has_output && !std::mem::replace(&mut progress.begun, true) {
            self.push_chunk(choice, ChunkDelta::role(), None, None);
        }
        for event in events {
            self.write_event(choice, event);
        }
        if let Some(reason) = reason {
            let reason = self.choices[choice].finish_reason(reason);
            self.push_chunk(choice, ChunkDelta::default(), None, Some(reason));
        }
        self.frames.take()
    }

    fn finish(&mut self) -> Bytes {
        [self.last_usage(), frames::DONE].concat().into()
    }

    fn fail(&mut self, error: &ApiError, usage: Usage) -> Bytes {
        self.usage = usage;
        let error = Dialect::OpenAi.error_frame(error);
        [self.last_usage(), error, frames::DONE].concat().into()
    }

    fn into_answer(self) -> Result<ChatCompletion, ApiError> {
        let choices = (0..self.choices.len()).map(|index| self.choice(index));
        let choices = choices.collect::<Result<_, _>>()?;
        let usage = self.usage();
        let CompletionHead {
            id,
            created,
            model,
            fingerprint,
        } = self.head;
        Ok(ChatCompletion {
            id,
            object: "chat.completion",
            created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        })
    }
}

impl ChunkDelta {
    fn role() -> Self {
        Self {
            role: Some("assistant"),
            ..Self::content(String::new())
        }
    }

    fn content(text: String) -> Self {
        Self {
            content: Some(text),
            ..Self::default()
        }
    }

    fn reasoning(text: String) -> Self {
        Self {
            reasoning_content: Some(text),
            ..Self::default()
        }
    }

    /// A call's start, with its id and name, or more of its arguments.
    fn call(index: usize, start: Option<(String, String)>, arguments: String) -> Self {
        let kind = start.is_some().then_some(FunctionType::Function);
        let (id, name) = start.unzip();
        Self {
            tool_calls: Some([ChunkCall {
                index,
                id,
                kind,
                function: ChunkFunction { name, arguments },
            }]),
            ..Self::default()
        }
    }
}
