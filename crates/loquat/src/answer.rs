//! An answer, read while it is generated.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_channel::{Receiver, Sender};
use futures_core::Stream;
use loquat_chat::{Finish, Reply, ReplyDecoder, ReplyDelta, ReplyEvent};
use loquat_engine::{Event, FinishReason, Generation, TokenInfo};

use crate::{Error, Model};

/// A reply being generated.
///
/// It is a blocking iterator over [`ReplyEvent`]s. [`next_event`](Self::next_event) and
/// [`into_stream`](Self::into_stream) do the same without blocking, and
/// [`next_delta`](Self::next_delta) adds the tokens behind the events.
///
/// Dropping an answer cancels it: the model stops within one step.
pub struct Answer {
    /// `None` after the last event.
    generation: Option<Generation>,
    decoder: ReplyDecoder,
    /// Decoded, not yet returned.
    pending: VecDeque<ReplyEvent>,
    reply: Reply,
    tokens: Vec<TokenInfo>,
    prompt_logprobs: Vec<TokenInfo>,
    finish: Option<Finish>,
    /// Returned after the last delta.
    failure: Option<Error>,
    cancelled: Pin<Box<Receiver<Infallible>>>,
    canceller: Canceller,
    /// Set if the reply must satisfy a constraint, which a truncated reply may not.
    is_constrained: bool,
    max_tokens: usize,
    /// Keeps the engine running until the answer ends.
    _model: Model,
}

/// Cancels an [`Answer`] from another thread or a signal handler.
#[derive(Debug, Clone)]
pub struct Canceller(Sender<Infallible>);

impl Canceller {
    /// The answer returns the text decoded so far, then [`Error::Cancelled`]. Does nothing if the
    /// answer has ended.
    pub fn cancel(&self) {
        self.0.close();
    }
}

impl Answer {
    pub(crate) fn new(
        generation: Generation,
        decoder: ReplyDecoder,
        max_tokens: usize,
        model: Model,
    ) -> Self {
        let (sender, receiver) = async_channel::bounded(1);
        Self {
            generation: Some(generation),
            decoder,
            pending: VecDeque::new(),
            reply: Reply::default(),
            tokens: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: None,
            failure: None,
            cancelled: Box::pin(receiver),
            canceller: Canceller(sender),
            is_constrained: false,
            max_tokens,
            _model: model,
        }
    }

    pub(crate) fn constrained(self, is_constrained: bool) -> Self {
        Self {
            is_constrained,
            ..self
        }
    }

    /// A handle that cancels this answer.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The length limit in tokens: the request's `max_tokens` or the default, reduced to the room
    /// that the prompt leaves in the context.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The reply so far: everything that was returned as an event.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// The tokens so far, with log-probabilities if the request asked for them.
    pub fn tokens(&self) -> &[TokenInfo] {
        &self.tokens
    }

    /// Log-probabilities of the prompt's tokens, if the request asked for them.
    pub fn prompt_logprobs(&self) -> &[TokenInfo] {
        &self.prompt_logprobs
    }

    /// How the answer ended. `None` before its end and after an error.
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// Waits for the next event without blocking the thread; `None` after the last. Dropping the
    /// future loses no event.
    pub async fn next_event(&mut self) -> Option<Result<ReplyEvent, Error>> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// Waits for what the next token adds: its events and the token itself. `None` after the last.
    pub async fn next_delta(&mut self) -> Option<Result<ReplyDelta, Error>> {
        poll_fn(|context| self.poll_delta(context)).await
    }

    /// [`next_delta`](Self::next_delta) as a blocking iterator.
    pub fn deltas(&mut self) -> impl Iterator<Item = Result<ReplyDelta, Error>> {
        std::iter::from_fn(|| pollster::block_on(self.next_delta()))
    }

    /// A [`Stream`] of the `futures` crates.
    pub fn into_stream(self) -> AnswerStream {
        AnswerStream(self)
    }

    /// Blocks until the end and returns the reply. A constrained reply that ended at `max_tokens`
    /// is [`Error::Truncated`].
    pub fn into_reply(mut self) -> Result<Reply, Error> {
        self.by_ref().try_for_each(|event| event.map(drop))?;
        self.check_complete()
    }

    /// [`into_reply`](Self::into_reply) without blocking the thread.
    pub async fn into_reply_async(mut self) -> Result<Reply, Error> {
        while let Some(event) = self.next_event().await {
            event?;
        }
        self.check_complete()
    }

    fn check_complete(self) -> Result<Reply, Error> {
        let is_truncated = |finish: &Finish| finish.reason == FinishReason::Length;
        if self.is_constrained && self.finish.as_ref().is_some_and(is_truncated) {
            Err(Error::Truncated(Box::new(self.reply)))
        } else {
            Ok(self.reply)
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Error>>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.reply.add(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(self.poll_generation(context)) {
                Some(Ok(delta)) => self.pending.extend(delta.events),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ReplyDelta, Error>>> {
        let delta = if self.pending.is_empty() {
            match ready!(self.poll_generation(context)) {
                Some(Ok(delta)) => delta,
                other => return Poll::Ready(other),
            }
        } else {
            ReplyDelta {
                events: self.pending.drain(..).collect(),
                ..ReplyDelta::default()
            }
        };
        for event in &delta.events {
            self.reply.add(event);
        }
        Poll::Ready(Some(Ok(delta)))
    }

    fn poll_generation(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ReplyDelta, Error>>> {
        if let Some(error) = self.failure.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            let Some(generation) = &mut self.generation else {
                return Poll::Ready(None);
            };
            // The channel carries no values: cancelling closes it.
            if self.cancelled.as_mut().poll_next(context).is_ready() {
                return Poll::Ready(Some(self.cancel()));
            }
            match ready!(generation.poll_recv(context)) {
                None => self.generation = None,
                Some(Event::PromptLogprobs(infos)) => self.prompt_logprobs = infos,
                Some(event) => match self.decoder.consume(event) {
                    Ok(None) => {}
                    Ok(Some(delta)) => {
                        self.note(&delta);
                        return Poll::Ready(Some(Ok(delta)));
                    }
                    Err(error) => {
                        self.generation = None;
                        return Poll::Ready(Some(Err(error.into())));
                    }
                },
            }
        }
    }

    /// The text held back first, then the error.
    fn cancel(&mut self) -> Result<ReplyDelta, Error> {
        self.generation = None;
        let events = self.decoder.flush();
        if events.is_empty() {
            return Err(Error::Cancelled);
        }
        self.failure = Some(Error::Cancelled);
        Ok(ReplyDelta {
            events,
            ..ReplyDelta::default()
        })
    }

    fn note(&mut self, delta: &ReplyDelta) {
        self.tokens.extend_from_slice(&delta.tokens);
        if let Some(finish) = &delta.finish {
            self.generation = None;
            self.finish = Some(finish.clone());
        }
    }
}

impl Iterator for Answer {
    type Item = Result<ReplyEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        pollster::block_on(self.next_event())
    }
}

/// An [`Answer`] as a stream of the `futures` crates.
pub struct AnswerStream(Answer);

impl AnswerStream {
    /// The answer, for its reply, tokens and finish.
    pub fn answer(&self) -> &Answer {
        &self.0
    }
}

impl Stream for AnswerStream {
    type Item = Result<ReplyEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_event(context)
    }
}
