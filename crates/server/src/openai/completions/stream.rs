//! Continuations as they come.

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use loquat_engine::{Event, Usage};

use super::choice::{Choice, CompletionChoice};
use super::reply::Completion;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::frames;
use crate::openai::Head;
use crate::openai::options::Streaming;
use crate::openai::usage::TokenUsage;
use crate::turn::Turn;

/// Answers with a stream of the news of all turns, `at_once` of them at a time; each is taken when
/// there is room. The client's leaving drops, and so cancels, them.
pub fn respond(
    turns: impl stream::Stream<Item = Result<Turn, ApiError>> + Send + 'static,
    at_once: usize,
    choices: Vec<Vec<Choice>>,
    head: Head,
    streaming: Streaming,
) -> Response {
    let turns = turns.enumerate().map(|(prompt, turn)| match turn {
        Ok(turn) => news(prompt, turn),
        Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
    });
    let telling = Stream {
        usages: vec![Usage::default(); choices.len()],
        choices,
        news: turns.flatten_unordered(at_once).boxed(),
        head,
        streaming,
    };
    let frames = stream::unfold(Some(telling), |telling| async move {
        let mut telling = telling?;
        let (frame, goes_on) = telling.next().await;
        Some((frame, goes_on.then_some(telling)))
    });
    frames::events(frames)
}

struct News {
    prompt: usize,
    choice: usize,
    event: Event,
    usage: Usage,
}

fn news(prompt: usize, turn: Turn) -> BoxStream<'static, Result<News, ApiError>> {
    let news = stream::unfold(turn, move |mut turn| async move {
        let next = turn.next().await?;
        let usage = turn.usage();
        let news = next.map(|(choice, event)| News {
            prompt,
            choice,
            event,
            usage,
        });
        Some((news, turn))
    });
    news.boxed()
}

struct Stream {
    news: BoxStream<'static, Result<News, ApiError>>,
    head: Head,
    /// Of each prompt.
    choices: Vec<Vec<Choice>>,
    usages: Vec<Usage>,
    streaming: Streaming,
}

impl Stream {
    /// The next frame, and whether more may follow.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            match self.news.next().await {
                Some(Ok(news)) => {
                    self.usages[news.prompt] = news.usage;
                    let piece = self.choices[news.prompt][news.choice].take(news.event);
                    if !piece.is_empty() {
                        return (self.chunk(piece), true);
                    }
                }
                Some(Err(error)) => return (Dialect::OpenAi.error_frame(&error), false),
                None => return (self.end(), false),
            }
        }
    }

    fn chunk(&self, piece: CompletionChoice) -> Bytes {
        let so_far = self.streaming.continuous_usage.then(|| self.usage());
        self.frame(vec![piece], self.streaming.usage.then_some(so_far))
    }

    fn end(&self) -> Bytes {
        if !self.streaming.usage {
            return frames::DONE;
        }
        let usage = self.frame(Vec::new(), Some(Some(self.usage())));
        [usage, frames::DONE].concat().into()
    }

    fn usage(&self) -> TokenUsage {
        TokenUsage::of_all(self.usages.iter().copied())
    }

    fn frame(&self, choices: Vec<CompletionChoice>, usage: Option<Option<TokenUsage>>) -> Bytes {
        let completion = Completion::new(self.head.clone(), choices, usage);
        frames::event(None, &completion)
    }
}
