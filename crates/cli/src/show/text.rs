//! Replies as text.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use loquat::{ReplyEvent, TokenInfo, ToolCall};

use super::fold::Fold;
use super::json::call;
use super::transcript::{ReplyPrinter, Transcript};
use crate::args::ShowReasoning;
use crate::error::CliError;
use crate::terminal::{dimmed, print, sanitize};

/// Where and how reasoning is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningDisplay {
    Hidden,
    /// On stderr, dimmed.
    Dimmed,
    /// On stderr, as one line that counts tokens.
    Folded,
    /// On stdout, between `<think>` and `</think>`, whichever marks the model uses.
    Marked,
}

impl ReasoningDisplay {
    pub fn for_terminals(how: Option<ShowReasoning>) -> Self {
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        Self::choose(how, stdout.is_terminal(), stderr.is_terminal())
    }

    /// Stdout is for the answer, unless `full` is requested and stderr is not visible too.
    fn choose(how: Option<ShowReasoning>, stdout_visible: bool, stderr_visible: bool) -> Self {
        match (how, stdout_visible, stderr_visible) {
            (Some(ShowReasoning::Full), true, true) | (None, _, true) => Self::Dimmed,
            (Some(ShowReasoning::Full), _, _) => Self::Marked,
            (Some(ShowReasoning::Folded), _, true) => Self::Folded,
            (Some(ShowReasoning::Folded | ShowReasoning::Hidden) | None, _, _) => Self::Hidden,
        }
    }
}

/// Prints a reply while it is generated.
pub struct TextPrinter {
    display: ReasoningDisplay,
    in_reasoning: bool,
    fold: Option<Fold>,
    /// Tokens whose events follow.
    tokens: usize,
    /// The current line, of stdout or stderr, is empty.
    fresh_line: bool,
    /// Some text was printed to stdout.
    has_text: bool,
}

impl TextPrinter {
    pub fn new(display: ReasoningDisplay) -> Self {
        Self {
            display,
            in_reasoning: false,
            fold: None,
            tokens: 0,
            fresh_line: true,
            has_text: false,
        }
    }

    fn print_text(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        print_tamed(text)?;
        self.has_text = true;
        self.fresh_line = text.ends_with('\n');
        Ok(())
    }

    fn print_reasoning(&mut self, text: &str) -> Result<(), CliError> {
        let begins = !std::mem::replace(&mut self.in_reasoning, true);
        let tokens = std::mem::take(&mut self.tokens);
        match self.display {
            ReasoningDisplay::Hidden => Ok(()),
            ReasoningDisplay::Dimmed => {
                print_dimmed(text);
                self.fresh_line = text.ends_with('\n');
                Ok(())
            }
            ReasoningDisplay::Folded => {
                let now = Instant::now();
                let fold = self.fold.get_or_insert_with(|| Fold::begin(now));
                fold.add(tokens, now);
                Ok(())
            }
            ReasoningDisplay::Marked => {
                if begins {
                    self.print_text("<think>\n")?;
                }
                self.print_text(text)
            }
        }
    }

    fn end_reasoning(&mut self) -> Result<(), CliError> {
        if !std::mem::take(&mut self.in_reasoning) {
            return Ok(());
        }
        match self.display {
            ReasoningDisplay::Hidden => Ok(()),
            ReasoningDisplay::Dimmed => {
                if !std::mem::replace(&mut self.fresh_line, true) {
                    print_dimmed("\n");
                }
                Ok(())
            }
            ReasoningDisplay::Folded => {
                if let Some(fold) = self.fold.take() {
                    fold.end(Instant::now());
                }
                Ok(())
            }
            ReasoningDisplay::Marked => {
                self.finish_line()?;
                self.print_text("</think>\n")
            }
        }
    }

    fn finish_line(&mut self) -> Result<(), CliError> {
        if self.fresh_line {
            Ok(())
        } else {
            self.print_text("\n")
        }
    }
}

impl ReplyPrinter for TextPrinter {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError> {
        match event {
            ReplyEvent::Reasoning(text) => self.print_reasoning(text),
            ReplyEvent::Text(text) => {
                self.tokens = 0;
                self.end_reasoning()?;
                self.print_text(text)
            }
            // Calls are printed at the end.
            ReplyEvent::CallStart { .. }
            | ReplyEvent::CallArguments { .. }
            | ReplyEvent::CallEnd { .. } => self.end_reasoning(),
        }
    }

    fn tokens(&mut self, tokens: &[TokenInfo]) -> Result<(), CliError> {
        self.tokens += tokens.len();
        Ok(())
    }

    /// Ends the line, so that the shell's prompt starts on a new one.
    fn end(&mut self, transcript: &Transcript) -> Result<(), CliError> {
        self.end_reasoning()?;
        self.finish_line()?;
        let calls = &transcript.reply.tool_calls;
        if !self.has_text && calls.is_empty() {
            return self.print_text("\n");
        }
        calls.iter().try_for_each(print_call)
    }

    fn abort(&mut self) -> Result<(), CliError> {
        self.end_reasoning()?;
        self.finish_line()
    }
}

/// Readable on a terminal, a line of JSON elsewhere.
fn print_call(called: &ToolCall) -> Result<(), CliError> {
    let ToolCall {
        name, arguments, ..
    } = called;
    if std::io::stdout().is_terminal() {
        print_tamed(&format!("→ {name} {arguments}\n"))
    } else {
        print(&format!("{}\n", call(called)))
    }
}

/// Prints text verbatim to a file or pipe, and without control characters to a terminal.
fn print_tamed(text: &str) -> Result<(), CliError> {
    if std::io::stdout().is_terminal() {
        print(&sanitize(text))
    } else {
        print(text)
    }
}

/// Prints to stderr, ignoring errors.
fn print_dimmed(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{}", dimmed(&sanitize(text)));
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_goes_where_it_is_visible() {
        use ReasoningDisplay as T;
        use ShowReasoning::{Folded, Full, Hidden};
        // Stdout and stderr as terminals: both, stdout only, stderr only, neither.
        for (how, expected) in [
            (None, [T::Dimmed, T::Hidden, T::Dimmed, T::Hidden]),
            (Some(Full), [T::Dimmed, T::Marked, T::Marked, T::Marked]),
            (Some(Folded), [T::Folded, T::Hidden, T::Folded, T::Hidden]),
            (Some(Hidden), [T::Hidden; 4]),
        ] {
            let found = [(true, true), (true, false), (false, true), (false, false)]
                .map(|(stdout, stderr)| T::choose(how, stdout, stderr));
            assert_eq!(found, expected, "{how:?}");
        }
    }
}
