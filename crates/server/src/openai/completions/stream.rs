//! Streams the choices of a completion.

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use loquat_engine::{Event, Usage};

use super::choice::{ChoiceWriter, CompletionChoice};
use super::reply::Completion;
use crate::active_request::ActiveRequest;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::frames;
use crate::openai::CompletionHead;
use crate::openai::options::Streaming;
use crate::openai::usage::TokenUsage;

/// Streams the events of all requests, `at_once` of them at a time. Dropping the stream cancels
/// them.
pub fn respond(
    requests: impl stream::Stream<Item = Result<ActiveRequest, ApiError>> + Send + 'static,
    at_once: usize,
    choices: Vec<Vec<ChoiceWriter>>,
    head: CompletionHead,
    streaming: Streaming,
) -> Response {
    let events = requests.enumerate().map(|(prompt, request)| match request {
        Ok(request) => prompt_events(prompt, request),
        Err(error) => stream::once(std::future::ready(PromptEvent {
            prompt,
            usage: Usage::default(),
            event: Err(error.in_stream()),
        }))
        .boxed(),
    });
    let stream = CompletionStream {
        usages: vec![Usage::default(); choices.len()],
        choices,
        events: events.flatten_unordered(at_once).boxed(),
        head,
        streaming,
    };
    let frames = stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        let (frame, ended) = stream.next().await;
        Some((frame, (!ended).then_some(stream)))
    });
    frames::events(frames)
}

/// An event of a prompt's choice.
struct PromptEvent {
    prompt: usize,
    /// Of all choices so far.
    usage: Usage,
    /// With the choice's number.
    event: Result<(usize, Event), ApiError>,
}

fn prompt_events(prompt: usize, request: ActiveRequest) -> BoxStream<'static, PromptEvent> {
    let events = stream::unfold(request, move |mut request| async move {
        let event = request.next().await?.map_err(ApiError::in_stream);
        let usage = request.usage();
        let event = PromptEvent {
            prompt,
            usage,
            event,
        };
        Some((event, request))
    });
    events.boxed()
}

struct CompletionStream {
    events: BoxStream<'static, PromptEvent>,
    head: CompletionHead,
    /// By prompt.
    choices: Vec<Vec<ChoiceWriter>>,
    usages: Vec<Usage>,
    streaming: Streaming,
}

impl CompletionStream {
    /// The next frame, and whether it is the last.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let Some(PromptEvent {
                prompt,
                usage,
                event,
            }) = self.events.next().await
            else {
                return ([self.last_usage(), frames::DONE].concat().into(), true);
            };
            self.usages[prompt] = usage;
            match event {
                Ok((choice, event)) => {
                    let chunk = self.choices[prompt][choice].consume(event);
                    if !chunk.is_empty() {
                        return (self.chunk(chunk), false);
                    }
                }
                Err(error) => {
                    let error = Dialect::OpenAi.error_frame(&error);
                    let end = [self.last_usage(), error, frames::DONE].concat();
                    return (end.into(), true);
                }
            }
        }
    }

    fn chunk(&self, choice: CompletionChoice) -> Bytes {
        let so_far = self.streaming.continuous_usage.then(|| self.usage());
        self.frame(vec![choice], self.streaming.usage.then_some(so_far))
    }

    /// The usage's own chunk, if the client asked for it.
    fn last_usage(&self) -> Bytes {
        if self.streaming.usage {
            self.frame(Vec::new(), Some(Some(self.usage())))
        } else {
            Bytes::new()
        }
    }

    fn usage(&self) -> TokenUsage {
        TokenUsage::sum(self.usages.iter().copied())
    }

    fn frame(&self, choices: Vec<CompletionChoice>, usage: Option<Option<TokenUsage>>) -> Bytes {
        let completion = Completion::new(self.head.clone(), choices, usage);
        frames::event(None, &completion)
    }
}
