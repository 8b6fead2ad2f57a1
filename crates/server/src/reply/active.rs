//! A chat request at the engine, decoded choice by choice.

use loquat_chat::{ChatRequest, LoweredChat, ReplyDecoder, ReplyDelta};
use loquat_engine::{GenerateRequest, Usage};

use crate::active_request::{ActiveRequest, Submission};
use crate::error::ApiError;
use crate::lowering;
use crate::models::Lease;

/// What a dialect asks for beside the conversation.
#[derive(Debug, Clone, Default)]
pub struct ReplyOptions {
    /// The longest reply; see [`Submission::limit_tokens`]. The model's default if unset.
    pub max_tokens: Option<usize>,
    /// The longest reply, always shortened to what fits. Takes precedence over `max_tokens`.
    pub max_tokens_that_fit: Option<usize>,
    pub priority: i32,
    /// As in [`GenerateRequest::draft_tokens`].
    pub draft_tokens: Option<usize>,
    /// Shares cached prompts only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Continue past the model's end-of-turn tokens.
    pub ignore_eos: bool,
    /// Tokens that end the reply, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Show special tokens in the reply's text.
    pub show_special: bool,
}

impl ReplyOptions {
    /// The limit for a prompt of this length.
    pub fn limit(&self, submission: &Submission<'_>, prompt_len: usize) -> usize {
        match (self.max_tokens_that_fit, self.max_tokens) {
            (Some(most), _) => submission.fit_tokens(most, prompt_len),
            (None, Some(most)) => submission.limit_tokens(most, prompt_len),
            (None, None) => submission.lease.model.max_tokens(None, prompt_len),
        }
    }

    fn stop_ids(&self, end_of_turn: Vec<u32>) -> Vec<u32> {
        let mut stop_ids = self.stop_token_ids.clone();
        if !self.ignore_eos {
            stop_ids.extend(end_of_turn);
        }
        stop_ids
    }
}

/// A reply under way. Dropping it cancels the choices that have not ended.
pub struct ActiveReply {
    request: ActiveRequest,
    decoders: Vec<ReplyDecoder>,
}

/// What is new in one choice.
#[derive(Debug)]
pub struct ChoiceDelta {
    pub choice: usize,
    pub reply: ReplyDelta,
    /// Of all choices so far.
    pub usage: Usage,
}

impl ActiveReply {
    /// Renders the conversation, compiles its constraints and queues it, or refuses it.
    pub async fn start(
        submission: Submission<'_>,
        request: ChatRequest,
        options: ReplyOptions,
    ) -> Result<Self, ApiError> {
        let lease = &submission.lease;
        let lowered = lowering::run_chat(lease, request, |chat, request, stop| {
            chat.lower_unless(request, stop.signal())
        });
        let LoweredChat {
            generate,
            reply,
            joins_system,
        } = lowered.await?;
        if joins_system {
            submission.caller.notes.join_system();
        }
        let prompt_len = generate.prompt.len();
        lease.check_prompt(prompt_len, 1)?;
        let generate = GenerateRequest {
            max_tokens: options.limit(&submission, prompt_len),
            priority: options.priority,
            draft_tokens: options.draft_tokens,
            cache_scope: submission.caller.cache_scope(options.cache_salt.as_deref()),
            stop_ids: options.stop_ids(generate.stop_ids),
            skip_special: generate.skip_special && !options.show_special,
            ..generate
        };
        let decoders = (0..submission.choices).map(|_| ReplyDecoder::chat(reply.restarted()));
        Ok(Self {
            decoders: decoders.collect(),
            request: ActiveRequest::submit(submission, generate)?,
        })
    }

    /// A continuation of a text, without a chat format.
    pub fn plain_text(request: ActiveRequest) -> Self {
        Self {
            request,
            decoders: vec![ReplyDecoder::plain_text()],
        }
    }

    pub fn lease(&self) -> &Lease {
        self.request.lease()
    }

    pub fn usage(&self) -> Usage {
        self.request.usage()
    }

    /// `None` after the last choice's end. Nothing follows an error.
    pub async fn next(&mut self) -> Option<Result<ChoiceDelta, ApiError>> {
        loop {
            let (choice, event) = match self.request.next().await? {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            return Some(match self.decoders[choice].consume(event) {
                Ok(Some(reply)) => Ok(ChoiceDelta {
                    choice,
                    reply,
                    usage: self.request.usage(),
                }),
                Ok(None) => continue,
                Err(error) => Err(error.into()),
            });
        }
    }
}
