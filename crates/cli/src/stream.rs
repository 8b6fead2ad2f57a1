//! A generation, heard as it comes.

use loquat_chat::{Reply, ReplyEvent, ReplyParser};
use loquat_engine::{Event, FinishReason, Generation, Timings, TokenInfo, Usage};

use crate::error::CliError;
use crate::wait::{Doing, Interrupts, Next};

/// Whoever prints what is heard.
pub trait Listener {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError>;

    /// The tokens behind the events that follow.
    fn tokens(&mut self, _tokens: &[TokenInfo]) -> Result<(), CliError> {
        Ok(())
    }

    /// That was all.
    fn end(&mut self, heard: &Heard) -> Result<(), CliError>;

    /// Something went wrong in the middle; what went wrong is told elsewhere.
    fn broken(&mut self) -> Result<(), CliError> {
        Ok(())
    }
}

/// All that came.
#[derive(Debug, Default)]
pub struct Heard {
    pub reply: Reply,
    /// Which of the reply's calls were written to their end.
    pub whole_calls: Vec<bool>,
    pub tokens: Vec<TokenInfo>,
    /// `None` where it was interrupted.
    pub end: Option<End>,
}

#[derive(Debug, Clone)]
pub struct End {
    pub reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
    pub seed: u64,
}

impl Heard {
    fn add(&mut self, event: &ReplyEvent) {
        self.reply.add(event);
        self.whole_calls.resize(self.reply.tool_calls.len(), false);
        if let ReplyEvent::CallEnd { index } = event
            && let Some(whole) = self.whole_calls.get_mut(*index)
        {
            *whole = true;
        }
    }

    /// The reply as a turn of its conversation: without calls that are cut short, or that nobody
    /// waited for.
    pub fn said(self) -> Reply {
        let mut whole = self.whole_calls.into_iter();
        let mut reply = self.reply;
        let waited = self.end.is_some();
        let calls = &mut reply.tool_calls;
        calls.retain(|_| whole.next().unwrap_or(false) && waited);
        reply
    }
}

/// Tells a listener everything until the generation ends or is interrupted. Without a parser all
/// is text.
pub fn hear(
    generation: Generation,
    parser: Option<ReplyParser>,
    interrupts: &Interrupts,
    listener: &mut dyn Listener,
) -> Result<Heard, CliError> {
    interrupts.now(Doing::Answering);
    let heard = hear_out(generation, parser, interrupts, listener);
    interrupts.now(Doing::Turning);
    heard
}

fn hear_out(
    mut generation: Generation,
    parser: Option<ReplyParser>,
    interrupts: &Interrupts,
    listener: &mut dyn Listener,
) -> Result<Heard, CliError> {
    let mut parts = Parts(parser);
    let mut heard = Heard::default();
    loop {
        let events = match interrupts.next(&mut generation) {
            Next::Event(Event::PromptLogprobs(_) | Event::Embedding(_)) => continue,
            Next::Event(Event::Tokens { tokens, text }) => {
                listener.tokens(&tokens)?;
                heard.tokens.extend(tokens);
                tell(parts.push(text), &mut heard, listener)?;
                continue;
            }
            Next::Event(Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed,
            }) => {
                heard.end = Some(End {
                    reason,
                    usage,
                    timings,
                    seed,
                });
                let mut events = parts.push(text);
                events.extend(parts.finish());
                events
            }
            Next::Event(Event::Failed(error)) => {
                listener.broken()?;
                return Err(error.into());
            }
            Next::Interrupted | Next::End => parts.finish(),
        };
        tell(events, &mut heard, listener)?;
        listener.end(&heard)?;
        return Ok(heard);
    }
}

fn tell(
    events: Vec<ReplyEvent>,
    heard: &mut Heard,
    listener: &mut dyn Listener,
) -> Result<(), CliError> {
    for event in events {
        listener.event(&event)?;
        heard.add(&event);
    }
    Ok(())
}

/// A reply's parts, where it has any.
struct Parts(Option<ReplyParser>);

impl Parts {
    fn push(&mut self, text: String) -> Vec<ReplyEvent> {
        match &mut self.0 {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![ReplyEvent::Text(text)],
        }
    }

    fn finish(&mut self) -> Vec<ReplyEvent> {
        match &mut self.0 {
            Some(parser) => parser.finish(),
            None => Vec::new(),
        }
    }
}
