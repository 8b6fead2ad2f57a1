//! An answer, read as it comes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_channel::{Receiver, Sender};
use futures_core::Stream;
use loquat_chat::{Reply, ReplyEvent, ReplyParser};
use loquat_engine::{Event, FinishReason, Generation, Timings, Usage};

use crate::ask::Wish;
use crate::{Error, Model};

/// An answer under way: an iterator that waits for each event, or the same without blocking
/// through [`next_event`](Self::next_event) and [`into_stream`](Self::into_stream).
///
/// Dropping it cancels: the model stops within one step.
pub struct Answer {
    /// `None` once nothing more comes.
    generation: Option<Generation>,
    parser: Option<ReplyParser>,
    settled: VecDeque<ReplyEvent>,
    reply: Reply,
    ended: Option<Ended>,
    cancelled: Pin<Box<Receiver<Infallible>>>,
    canceller: Canceller,
    /// Whether a form was asked for, which an answer that is cut does not have.
    is_held: bool,
    /// Who answers must not end before the answer.
    _model: Model,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
    /// Gives the same answer again, as the question's seed.
    pub seed: u64,
}

/// Stops an answer from anywhere: another thread, a handler of Ctrl-C.
#[derive(Debug, Clone)]
pub struct Canceller(Sender<Infallible>);

impl Canceller {
    /// Whoever reads the answer gets [`Error::Cancelled`]. One that has ended stays as it is.
    pub fn cancel(&self) {
        self.0.close();
    }
}

impl Answer {
    pub(crate) fn new(generation: Generation, parser: Option<ReplyParser>, wish: Wish) -> Self {
        let (sender, receiver) = async_channel::bounded(1);
        Self {
            generation: Some(generation),
            parser,
            settled: VecDeque::new(),
            reply: Reply::default(),
            ended: None,
            cancelled: Box::pin(receiver),
            canceller: Canceller(sender),
            is_held: wish.form.is_some(),
            _model: wish.model,
        }
    }

    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// All that was said so far.
    pub fn said(&self) -> &Reply {
        &self.reply
    }

    /// How it ended; `None` until its last event was taken, and where it failed.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Waits for the next event without blocking the thread; `None` after the last. Nothing is
    /// lost when the future is dropped.
    pub async fn next_event(&mut self) -> Option<Result<ReplyEvent, Error>> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// As a stream of the `futures` crates.
    pub fn into_stream(self) -> AnswerStream {
        AnswerStream(self)
    }

    /// Waits for the end. An answer that was held to a form and cut before it had it is
    /// [`Error::Cut`].
    pub fn finish(mut self) -> Result<Reply, Error> {
        self.by_ref().try_for_each(|event| event.map(drop))?;
        self.whole()
    }

    /// The same without blocking the thread.
    pub async fn finish_async(mut self) -> Result<Reply, Error> {
        while let Some(event) = self.next_event().await {
            event?;
        }
        self.whole()
    }

    fn whole(self) -> Result<Reply, Error> {
        let is_cut = |ended: &Ended| ended.reason == FinishReason::Length;
        if self.is_held && self.ended.as_ref().is_some_and(is_cut) {
            Err(Error::Cut(Box::new(self.reply)))
        } else {
            Ok(self.reply)
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Error>>> {
        loop {
            if let Some(event) = self.settled.pop_front() {
                self.reply.add(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(generation) = &mut self.generation else {
                return Poll::Ready(None);
            };
            // Nothing is ever sent there: it closes.
            if self.cancelled.as_mut().poll_next(context).is_ready() {
                self.generation = None;
                return Poll::Ready(Some(Err(Error::Cancelled)));
            }
            let event = ready!(generation.poll_recv(context));
            if let Err(error) = self.take(event) {
                self.generation = None;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn take(&mut self, event: Option<Event>) -> Result<(), Error> {
        match event {
            None => self.generation = None,
            Some(Event::PromptLogprobs(_) | Event::Embedding(_)) => {}
            Some(Event::Tokens { text, .. }) => self.hear(text),
            Some(Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed,
            }) => {
                self.hear(text);
                if let Some(parser) = &mut self.parser {
                    self.settled.extend(parser.finish());
                }
                self.generation = None;
                self.ended = Some(Ended {
                    reason,
                    usage,
                    timings,
                    seed,
                });
            }
            Some(Event::Failed(error)) => return Err(error.into()),
        }
        Ok(())
    }

    fn hear(&mut self, text: String) {
        match &mut self.parser {
            Some(parser) => self.settled.extend(parser.push(&text)),
            None if text.is_empty() => {}
            None => self.settled.push_back(ReplyEvent::Text(text)),
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
    /// The answer itself, with what it knows besides its events.
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
