//! A reply for people, and for programs that want its words.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use loquat_chat::{ReplyEvent, ToolCall};
use loquat_engine::TokenInfo;

use super::fold::Fold;
use super::json::call;
use crate::args::ShowReasoning;
use crate::error::CliError;
use crate::stream::{Heard, Listener};
use crate::terminal::{dimmed, print, tame};

/// Where and how thinking is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    Hidden,
    /// On stderr, dimmed, for whoever looks.
    Dimmed,
    /// There too, as a line that counts.
    Folded,
    /// On stdout, between `<think>` and `</think>`, whatever the model's own marks are.
    Marked,
}

impl Thinking {
    pub fn shown(how: Option<ShowReasoning>) -> Self {
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        Self::on(how, stdout.is_terminal(), stderr.is_terminal())
    }

    /// Stdout is for answers, unless somebody asks for more and has no other place to see it.
    fn on(how: Option<ShowReasoning>, stdout_is_seen: bool, stderr_is_seen: bool) -> Self {
        match (how, stdout_is_seen, stderr_is_seen) {
            (Some(ShowReasoning::Full), true, true) | (None, _, true) => Self::Dimmed,
            (Some(ShowReasoning::Full), _, _) => Self::Marked,
            (Some(ShowReasoning::Folded), _, true) => Self::Folded,
            (Some(ShowReasoning::Folded | ShowReasoning::Hidden) | None, _, _) => Self::Hidden,
        }
    }
}

/// Prints a reply as it comes.
pub struct Spoken {
    thinking: Thinking,
    in_thinking: bool,
    fold: Option<Fold>,
    /// Tokens whose events are still to come.
    tokens: usize,
    /// Nothing stands in the present line of whatever was written to last.
    fresh_line: bool,
    /// Any text at all was printed to stdout.
    spoken: bool,
}

impl Spoken {
    pub fn new(thinking: Thinking) -> Self {
        Self {
            thinking,
            in_thinking: false,
            fold: None,
            tokens: 0,
            fresh_line: true,
            spoken: false,
        }
    }

    fn say(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        speak(text)?;
        self.spoken = true;
        self.fresh_line = text.ends_with('\n');
        Ok(())
    }

    fn think(&mut self, text: &str) -> Result<(), CliError> {
        let begins = !self.in_thinking;
        self.in_thinking = true;
        let tokens = std::mem::take(&mut self.tokens);
        match self.thinking {
            Thinking::Hidden => Ok(()),
            Thinking::Dimmed => {
                murmur(text);
                self.fresh_line = text.ends_with('\n');
                Ok(())
            }
            Thinking::Folded => {
                let now = Instant::now();
                let fold = self.fold.get_or_insert_with(|| Fold::begin(now));
                fold.add(tokens, now);
                Ok(())
            }
            Thinking::Marked => {
                if begins {
                    self.say("<think>\n")?;
                }
                self.say(text)
            }
        }
    }

    fn stop_thinking(&mut self) -> Result<(), CliError> {
        if !std::mem::take(&mut self.in_thinking) {
            return Ok(());
        }
        match self.thinking {
            Thinking::Hidden => Ok(()),
            Thinking::Dimmed => {
                if !std::mem::replace(&mut self.fresh_line, true) {
                    murmur("\n");
                }
                Ok(())
            }
            Thinking::Folded => {
                if let Some(fold) = self.fold.take() {
                    fold.end(Instant::now());
                }
                Ok(())
            }
            Thinking::Marked => {
                self.finish_line()?;
                self.say("</think>\n")
            }
        }
    }

    fn finish_line(&mut self) -> Result<(), CliError> {
        if self.fresh_line {
            Ok(())
        } else {
            self.say("\n")
        }
    }
}

impl Listener for Spoken {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError> {
        match event {
            ReplyEvent::Reasoning(text) => self.think(text),
            ReplyEvent::Text(text) => {
                self.tokens = 0;
                self.stop_thinking()?;
                self.say(text)
            }
            // They are printed whole, after the text.
            ReplyEvent::CallStart { .. }
            | ReplyEvent::CallArguments { .. }
            | ReplyEvent::CallEnd { .. } => self.stop_thinking(),
        }
    }

    fn tokens(&mut self, tokens: &[TokenInfo]) -> Result<(), CliError> {
        self.tokens += tokens.len();
        Ok(())
    }

    /// The shell's prompt belongs on a line of its own.
    fn end(&mut self, heard: &Heard) -> Result<(), CliError> {
        self.stop_thinking()?;
        self.finish_line()?;
        let calls = &heard.reply.tool_calls;
        if !self.spoken && calls.is_empty() {
            return self.say("\n");
        }
        calls.iter().try_for_each(print_call)
    }

    fn broken(&mut self) -> Result<(), CliError> {
        self.stop_thinking()?;
        self.finish_line()
    }
}

/// Readable on a terminal, a line of JSON elsewhere.
fn print_call(called: &ToolCall) -> Result<(), CliError> {
    let ToolCall {
        name, arguments, ..
    } = called;
    if std::io::stdout().is_terminal() {
        speak(&format!("→ {name} {arguments}\n"))
    } else {
        print(&format!("{}\n", call(called)))
    }
}

/// Untouched into a file or a pipe, tame on a terminal.
fn speak(text: &str) -> Result<(), CliError> {
    if std::io::stdout().is_terminal() {
        print(&tame(text))
    } else {
        print(text)
    }
}

/// To stderr. What cannot be written there is not missed.
fn murmur(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{}", dimmed(&tame(text)));
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_is_shown_where_somebody_looks() {
        use ShowReasoning::{Folded, Full, Hidden};
        use Thinking as T;
        // Stdout and stderr as terminals: both, stdout only, stderr only, neither.
        for (how, expected) in [
            (None, [T::Dimmed, T::Hidden, T::Dimmed, T::Hidden]),
            (Some(Full), [T::Dimmed, T::Marked, T::Marked, T::Marked]),
            (Some(Folded), [T::Folded, T::Hidden, T::Folded, T::Hidden]),
            (Some(Hidden), [T::Hidden; 4]),
        ] {
            let found = [(true, true), (true, false), (false, true), (false, false)]
                .map(|(stdout, stderr)| T::on(how, stdout, stderr));
            assert_eq!(found, expected, "{how:?}");
        }
    }
}
