//! An answer printed while it is generated, and its transcript.

use loquat::{Answer, Error, Finish, Reply, ReplyEvent, TokenInfo};

use crate::error::CliError;
use crate::interrupts::{Doing, Interrupts};

/// Prints a reply.
pub trait ReplyPrinter {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError>;

    /// The tokens behind the events that follow.
    fn tokens(&mut self, _tokens: &[TokenInfo]) -> Result<(), CliError> {
        Ok(())
    }

    /// The answer ended or was interrupted.
    fn end(&mut self, transcript: &Transcript) -> Result<(), CliError>;

    /// The answer failed; the caller reports why.
    fn abort(&mut self) -> Result<(), CliError> {
        Ok(())
    }
}

/// Everything an answer produced.
#[derive(Debug, Default)]
pub struct Transcript {
    pub reply: Reply,
    /// For each of the reply's tool calls, whether it is complete.
    pub complete_calls: Vec<bool>,
    pub tokens: Vec<TokenInfo>,
    /// `None` if it was interrupted.
    pub finish: Option<Finish>,
}

impl Transcript {
    /// The reply without calls that are incomplete. An interrupted reply has no calls.
    pub fn into_reply(self) -> Reply {
        let mut complete = self.complete_calls.into_iter();
        let mut reply = self.reply;
        let is_finished = self.finish.is_some();
        let calls = &mut reply.tool_calls;
        calls.retain(|_| complete.next().unwrap_or(false) && is_finished);
        reply
    }
}

/// Prints an answer until it ends or Ctrl-C cancels it.
pub fn print_answer(
    answer: Answer,
    interrupts: &Interrupts,
    printer: &mut dyn ReplyPrinter,
) -> Result<Transcript, CliError> {
    interrupts.answering(answer.canceller());
    let printed = print_deltas(answer, printer);
    interrupts.now(Doing::Turning);
    printed
}

fn print_deltas(
    mut answer: Answer,
    printer: &mut dyn ReplyPrinter,
) -> Result<Transcript, CliError> {
    let mut complete = Vec::new();
    for delta in answer.deltas() {
        let delta = match delta {
            Ok(delta) => delta,
            Err(Error::Cancelled) => break,
            Err(error) => {
                printer.abort()?;
                return Err(error.into());
            }
        };
        if !delta.tokens.is_empty() {
            printer.tokens(&delta.tokens)?;
        }
        for event in &delta.events {
            printer.event(event)?;
            if let ReplyEvent::CallEnd { index } = event {
                complete.push(*index);
            }
        }
    }
    let reply = answer.reply().clone();
    let transcript = Transcript {
        complete_calls: (0..reply.tool_calls.len())
            .map(|index| complete.contains(&index))
            .collect(),
        reply,
        tokens: answer.tokens().to_vec(),
        finish: answer.finish().cloned(),
    };
    printer.end(&transcript)?;
    Ok(transcript)
}
