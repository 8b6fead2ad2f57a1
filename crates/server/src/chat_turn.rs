//! A conversation's turn at the engine: each choice's thinking, words and calls as they come.

use loquat_chat::{ChatRequest, LoweredChat, Message, MessageContent, ReplyEvent, ReplyParser};
use loquat_engine::{Event, FinishReason, GenerateRequest, Timings, TokenInfo, Usage};

use crate::error::ApiError;
use crate::turn::{Ask, Turn};

/// What a dialect asks for beside the conversation.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Longest reply; what the model's configuration says, or the context has room for, when left
    /// out.
    pub max_tokens: Option<usize>,
    /// Longest reply where it may end sooner for want of room, in place of `max_tokens`.
    pub up_to: Option<usize>,
    pub priority: i32,
    /// Keeps what was computed for this request to those with the same salt.
    pub cache_salt: Option<String>,
    /// Go on past the model's own end-of-turn tokens.
    pub ignore_eos: bool,
}

/// Dropping it cancels what has not ended.
pub struct ChatTurn {
    turn: Turn,
    parsers: Vec<ReplyParser>,
}

/// News of one choice.
#[derive(Debug)]
pub struct Said {
    pub choice: usize,
    /// May be empty: a token need not settle any text.
    pub events: Vec<ReplyEvent>,
    /// The tokens that came, with log-probabilities where they were asked for.
    pub tokens: Vec<TokenInfo>,
    /// Set in the choice's last news.
    pub end: Option<End>,
}

#[derive(Debug, Clone)]
pub struct End {
    pub reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
}

impl ChatTurn {
    /// Writes the conversation out, compiles its rules and queues it, or refuses it.
    pub async fn start(ask: Ask<'_>, request: ChatRequest, terms: Terms) -> Result<Self, ApiError> {
        ask.lease.check_text(words(&request.messages))?;
        let chat = ask.lease.chat_context().clone();
        // Templates, tokenizers and grammars may take long over a large request.
        let lowered = tokio::task::spawn_blocking(move || chat.lower(request))
            .await
            .map_err(|error| ApiError::internal(&error))?;
        let LoweredChat { generate, reply } = lowered?;
        let Terms {
            max_tokens,
            up_to,
            priority,
            cache_salt,
            ignore_eos,
        } = terms;
        let prompt_len = generate.prompt.len();
        ask.lease.check_prompt(prompt_len, 1)?;
        let generate = GenerateRequest {
            max_tokens: match up_to {
                Some(most) => ask.lease.model.fit_tokens(most, prompt_len),
                None => ask.lease.model.max_tokens(max_tokens, prompt_len),
            },
            priority,
            cache_scope: ask.caller.cache_scope(cache_salt.as_deref()),
            stop_ids: if ignore_eos {
                Vec::new()
            } else {
                generate.stop_ids
            },
            ..generate
        };
        let parsers = (0..ask.choices).map(|_| reply.restarted()).collect();
        let turn = Turn::start(ask, generate)?;
        Ok(Self { turn, parsers })
    }

    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// `None` after the last choice's end; after an error there is no more.
    pub async fn next(&mut self) -> Option<Result<Said, ApiError>> {
        loop {
            let (choice, event) = match self.turn.next().await? {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            if let Some(said) = self.read(choice, event) {
                return Some(Ok(said));
            }
        }
    }

    fn read(&mut self, choice: usize, event: Event) -> Option<Said> {
        let parser = &mut self.parsers[choice];
        match event {
            Event::Tokens { tokens, text } => Some(Said {
                choice,
                events: parser.push(&text),
                tokens,
                end: None,
            }),
            Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed: _,
            } => {
                let mut events = parser.push(&text);
                events.extend(parser.finish());
                Some(Said {
                    choice,
                    events,
                    tokens: Vec::new(),
                    end: Some(End {
                        reason,
                        usage,
                        timings,
                    }),
                })
            }
            // Conversations ask for none, and failures are errors by now.
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_) => None,
        }
    }
}

/// How many bytes the messages' own words are.
fn words(messages: &[Message]) -> usize {
    let content = |message: &Message| match &message.content {
        MessageContent::Text(text) => text.len(),
        MessageContent::Parts(parts) => parts.iter().map(String::len).sum(),
    };
    messages.iter().map(content).sum()
}
