//! A chat completion as it comes.

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

use super::choice::{Choice, Delta};
use crate::chat_turn::{ChatTurn, Said};
use crate::dialect::Dialect;
use crate::frames;
use crate::openai::Head;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::options::Streaming;
use crate::openai::tool::FunctionType;
use crate::openai::usage::TokenUsage;

/// A piece of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletionChunk<'a> {
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    /// One; none in the chunk that tells the usage.
    pub choices: Vec<ChunkChoice>,
    /// Where it was asked for: null before the end, unless `continuous_usage_stats` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TokenUsage>)]
    pub usage: Option<Option<TokenUsage>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkChoice {
    pub index: usize,
    pub delta: ChunkDelta,
    /// Of the tokens of `delta.content`; null unless asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`, in the choice's last chunk.
    pub finish_reason: Option<&'static str>,
}

/// What is new.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChunkDelta {
    /// `assistant`, in the choice's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ChunkCall; 1]>,
}

/// A call's beginning, or more of its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkCall {
    /// Which of the choice's calls.
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<FunctionType>,
    pub function: ChunkFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

/// Answers with a stream of the turn's news. The client's leaving drops, and so cancels, it.
pub fn respond(
    turn: ChatTurn,
    head: Head,
    choices: usize,
    logprobs: bool,
    streaming: Streaming,
) -> Response {
    let chat = turn.turn().lease().chat_context();
    let choices = (0..choices).map(|_| Telling {
        choice: Choice::new(chat, logprobs),
        begun: false,
    });
    let telling = Stream {
        choices: choices.collect(),
        turn,
        head,
        logprobs,
        streaming,
        usage: Usage::default(),
    };
    let frames = stream::unfold(Some(telling), |telling| async move {
        let mut telling = telling?;
        let (frames, goes_on) = telling.next().await;
        Some((frames, goes_on.then_some(telling)))
    });
    frames::events(frames)
}

struct Stream {
    turn: ChatTurn,
    head: Head,
    choices: Vec<Telling>,
    logprobs: bool,
    streaming: Streaming,
    usage: Usage,
}

struct Telling {
    choice: Choice,
    begun: bool,
}

impl Stream {
    /// The next frames, and whether more may follow.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            match self.turn.next().await {
                Some(Ok(said)) => {
                    self.usage = self.turn.turn().usage();
                    let frames = self.tell(said);
                    if !frames.is_empty() {
                        return (frames.concat().into(), true);
                    }
                }
                Some(Err(error)) => return (Dialect::OpenAi.error_frame(&error), false),
                None => return (self.end(), false),
            }
        }
    }

    fn tell(&mut self, said: Said) -> Vec<Bytes> {
        let index = said.choice;
        let reason = said.end.as_ref().map(|end| end.reason);
        let telling = &mut self.choices[index];
        let deltas = telling.choice.take(said);
        let news = !deltas.is_empty() || reason.is_some();
        let begins = news && !std::mem::replace(&mut telling.begun, true);
        let mut frames = Vec::new();
        if begins {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..ChunkDelta::default()
            };
            frames.push(self.chunk(index, delta, None, None));
        }
        for delta in deltas {
            let (delta, logprobs) = self.delta(delta);
            frames.push(self.chunk(index, delta, logprobs, None));
        }
        if let Some(reason) = reason {
            let reason = self.choices[index].choice.finish_reason(reason);
            frames.push(self.chunk(index, ChunkDelta::default(), None, Some(reason)));
        }
        frames
    }

    fn delta(&self, delta: Delta) -> (ChunkDelta, Option<ChatLogprobs>) {
        let call = |index, id: Option<String>, name, arguments| ChunkDelta {
            tool_calls: Some([ChunkCall {
                index,
                kind: id.is_some().then_some(FunctionType::Function),
                id,
                function: ChunkFunction { name, arguments },
            }]),
            ..ChunkDelta::default()
        };
        match delta {
            Delta::Reasoning(text) => {
                let delta = ChunkDelta {
                    reasoning_content: Some(text),
                    ..ChunkDelta::default()
                };
                (delta, None)
            }
            Delta::Words { text, tokens } => {
                let delta = ChunkDelta {
                    content: Some(text),
                    ..ChunkDelta::default()
                };
                let tokenizer = self.turn.turn().lease().chat_context().tokenizer();
                let logprobs = self.logprobs.then(|| ChatLogprobs::new(&tokens, tokenizer));
                (delta, logprobs)
            }
            Delta::CallStart { index, id, name } => {
                (call(index, Some(id), Some(name), String::new()), None)
            }
            Delta::CallArguments { index, json } => (call(index, None, None, json), None),
        }
    }

    fn chunk(
        &self,
        index: usize,
        delta: ChunkDelta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
    ) -> Bytes {
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        let so_far = self.streaming.continuous_usage.then(|| self.usage());
        self.frame(vec![choice], self.streaming.usage.then_some(so_far))
    }

    fn end(&self) -> Bytes {
        if !self.streaming.usage {
            return frames::DONE;
        }
        let usage = self.frame(Vec::new(), Some(Some(self.usage())));
        [usage, frames::DONE].concat().into()
    }

    fn usage(&self) -> TokenUsage {
        let thought = self.choices.iter();
        let thought = thought.map(|each| each.choice.reasoning_tokens()).sum();
        TokenUsage::new(self.usage, thought)
    }

    fn frame(&self, choices: Vec<ChunkChoice>, usage: Option<Option<TokenUsage>>) -> Bytes {
        let Head {
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
        frames::event(None, &chunk)
    }
}
