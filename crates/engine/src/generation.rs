//! The two ends of a request's events: the engine's [`EventSink`] and the reader's [`Generation`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_core::Stream;

use crate::shared::Shared;
use crate::worker::Command;
use crate::{EngineError, Event, FinishReason, Timings, TokenInfo, Usage};

/// Events of one step beyond the buffer: prompt log-probabilities, tokens, and the end.
const HEADROOM: usize = 3;

/// Closes the events of a request whose engine is abandoned.
#[derive(Debug)]
pub(crate) struct EventChannel(async_channel::WeakReceiver<SentEvent>);

impl EventChannel {
    pub fn close(&self) {
        if let Some(events) = self.0.upgrade() {
            events.close();
        }
    }
}

/// The event stream of a request. Dropping it cancels the request within one step.
#[derive(Debug)]
pub struct Generation {
    events: Pin<Box<async_channel::Receiver<SentEvent>>>,
    paused: Arc<AtomicBool>,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    usage: Usage,
    sent_at: Option<Instant>,
    /// Its number among the engine's channels.
    channel: u64,
    ended: bool,
}

/// An event and when it was sent.
#[derive(Debug)]
struct SentEvent {
    event: Event,
    at: Instant,
}

/// The engine's end. Sending never blocks, because a sequence runs only while its buffer has room.
#[derive(Debug)]
pub(crate) struct EventSink {
    events: async_channel::Sender<SentEvent>,
    paused: Arc<AtomicBool>,
    buffer: usize,
}

/// Both ends over a buffer of `buffer` events.
pub(crate) fn channel(
    buffer: usize,
    prompt_tokens: usize,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
) -> (EventSink, Generation) {
    let (sender, receiver) = async_channel::bounded(buffer.saturating_add(HEADROOM));
    let paused = Arc::new(AtomicBool::new(false));
    let channel = shared
        .thread
        .add_channel(EventChannel(receiver.downgrade()));
    let sink = EventSink {
        events: sender,
        paused: Arc::clone(&paused),
        buffer,
    };
    let generation = Generation {
        events: Box::pin(receiver),
        paused,
        commands,
        shared,
        usage: Usage {
            prompt_tokens,
            ..Usage::default()
        },
        sent_at: None,
        channel,
        ended: false,
    };
    (sink, generation)
}

impl EventSink {
    /// Whether a step's events fit. If not, the reader wakes the engine when it makes room.
    pub fn has_room(&self) -> bool {
        if self.events.len() < self.buffer {
            return true;
        }
        // Set the flag, then check again: a reader that takes an event in between either sees the
        // flag or is seen.
        self.paused.store(true, Ordering::SeqCst);
        if self.events.len() < self.buffer {
            self.paused.store(false, Ordering::SeqCst);
            return true;
        }
        false
    }

    /// Whether exactly the last step's event is unread. Readers that lag further are not waited
    /// for.
    pub fn has_one_event(&self) -> bool {
        self.events.len() == 1 && !self.events.is_closed()
    }

    /// Whether the reader dropped its end.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Does nothing if the reader dropped its end.
    pub fn send(&self, event: Event) {
        let at = Instant::now();
        if let Err(async_channel::TrySendError::Full(_)) =
            self.events.try_send(SentEvent { event, at })
        {
            tracing::error!("an event did not fit the buffer and its headroom; cancelling");
            self.events.close();
        }
    }
}

impl Generation {
    /// Waits for the next event; `None` after the last.
    pub fn recv_blocking(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let received = self.events.recv_blocking();
        Some(self.record_event(received))
    }

    /// Waits for the next event; `None` after the last. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let received = self.events.recv().await;
        Some(self.record_event(received))
    }

    /// Polls for the next event, to wait for several generations at once.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let received = ready!(self.events.as_mut().poll_next(context));
        Poll::Ready(Some(
            self.record_event(received.ok_or(async_channel::RecvError)),
        ))
    }

    /// The next event if there is one; `None` also after the last.
    pub fn try_recv(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        match self.events.try_recv() {
            Ok(event) => Some(self.record_event(Ok(event))),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => {
                Some(self.record_event(Err(async_channel::RecvError)))
            }
        }
    }

    /// Whether the last event was received.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Usage so far. Cached tokens are known only at the end.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// When the engine sent the event received last.
    pub fn sent_at(&self) -> Option<Instant> {
        self.sent_at
    }

    /// Waits for the end and collects all events.
    pub fn collect_blocking(mut self) -> Result<Completion, EngineError> {
        let mut so_far = CompletionBuilder::default();
        while let Some(event) = self.recv_blocking() {
            if let Some(outcome) = so_far.add(event) {
                return outcome;
            }
        }
        Err(self.shared.end_reason())
    }

    /// Waits for the end and collects all events.
    pub async fn collect(mut self) -> Result<Completion, EngineError> {
        let mut so_far = CompletionBuilder::default();
        while let Some(event) = self.recv().await {
            if let Some(outcome) = so_far.add(event) {
                return outcome;
            }
        }
        Err(self.shared.end_reason())
    }

    /// A channel that closes without a last event means that the engine ended.
    fn record_event(&mut self, received: Result<SentEvent, async_channel::RecvError>) -> Event {
        if self.paused.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        let event = match received {
            Ok(SentEvent { event, at }) => {
                self.sent_at = Some(at);
                event
            }
            Err(_) => Event::Failed(self.shared.end_reason()),
        };
        match &event {
            Event::Tokens { tokens, .. } => self.usage.completion_tokens += tokens.len(),
            Event::Finished { usage, .. } => {
                self.usage.cached_tokens = usage.cached_tokens;
                self.ended = true;
            }
            Event::Failed(_) => self.ended = true,
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
        }
        event
    }

    /// Fails only if the engine has ended.
    fn wake(&self) {
        let _ = self.commands.send(Command::Wake);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.shared.thread.remove_channel(self.channel);
        self.events.close();
        if !self.ended {
            self.wake();
        }
    }
}

/// A complete generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Empty unless requested.
    pub prompt_logprobs: Vec<TokenInfo>,
    /// Present if requested.
    pub embedding: Option<Vec<f32>>,
    /// The generated tokens.
    pub tokens: Vec<TokenInfo>,
    /// Their text.
    pub text: String,
    /// Why generation stopped.
    pub reason: FinishReason,
    /// How many tokens the request used.
    pub usage: Usage,
    /// How long its phases took.
    pub timings: Timings,
    /// Reproduces the generation when used as the request's seed.
    pub seed: u64,
}

impl Completion {
    /// The tokens' ids.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Builds a [`Completion`] from events.
#[derive(Debug, Clone, Default)]
pub struct CompletionBuilder {
    prompt_logprobs: Vec<TokenInfo>,
    embedding: Option<Vec<f32>>,
    tokens: Vec<TokenInfo>,
    text: String,
}

impl CompletionBuilder {
    /// Adds an event; returns the outcome after the last one.
    pub fn add(&mut self, event: Event) -> Option<Result<Completion, EngineError>> {
        match event {
            Event::PromptLogprobs(infos) => self.prompt_logprobs = infos,
            Event::Embedding(embedding) => self.embedding = Some(embedding),
            Event::Tokens { tokens, text } => {
                self.tokens.extend(tokens);
                self.text.push_str(&text);
            }
            Event::Failed(error) => return Some(Err(error)),
            Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed,
            } => {
                let Self {
                    prompt_logprobs,
                    embedding,
                    tokens,
                    text: mut gathered,
                } = std::mem::take(self);
                gathered.push_str(&text);
                return Some(Ok(Completion {
                    prompt_logprobs,
                    embedding,
                    tokens,
                    text: gathered,
                    reason,
                    usage,
                    timings,
                    seed,
                }));
            }
        }
        None
    }
}
