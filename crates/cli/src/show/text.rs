//! A reply for people, and for programs that want its words.

use std::io::{IsTerminal, Write};

use loquat_chat::{ReplyEvent, ToolCall};

use super::json::call;
use crate::error::CliError;
use crate::stream::{Heard, Listener};
use crate::terminal::{print, stderr_is_fancy, tame};

/// Where thinking is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    Hidden,
    /// Dimmed, for whoever looks.
    Stderr,
    /// Between `<think>` and `</think>`, whatever the model's own marks are.
    Stdout,
}

impl Thinking {
    /// Stdout is for answers unless somebody asks for more.
    pub fn shown(on_stdout: bool) -> Self {
        match (on_stdout, std::io::stderr().is_terminal()) {
            (true, _) => Self::Stdout,
            (false, true) => Self::Stderr,
            (false, false) => Self::Hidden,
        }
    }
}

/// Prints a reply as it comes.
pub struct Spoken {
    thinking: Thinking,
    in_thinking: bool,
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
        match self.thinking {
            Thinking::Hidden => Ok(()),
            Thinking::Stderr => {
                murmur(text);
                self.fresh_line = text.ends_with('\n');
                Ok(())
            }
            Thinking::Stdout => {
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
            Thinking::Stderr => {
                if !std::mem::replace(&mut self.fresh_line, true) {
                    murmur("\n");
                }
                Ok(())
            }
            Thinking::Stdout => {
                self.finish_line()?;
                self.say("</think>\n")
            }
        }
    }

    fn finish_line(&mut self) -> Result<(), CliError> {
        match self.fresh_line {
            true => Ok(()),
            false => self.say("\n"),
        }
    }
}

impl Listener for Spoken {
    fn event(&mut self, event: &ReplyEvent) -> Result<(), CliError> {
        match event {
            ReplyEvent::Reasoning(text) => self.think(text),
            ReplyEvent::Text(text) => {
                self.stop_thinking()?;
                self.say(text)
            }
            // They are printed whole, after the text.
            ReplyEvent::CallStart { .. }
            | ReplyEvent::CallArguments { .. }
            | ReplyEvent::CallEnd { .. } => self.stop_thinking(),
        }
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
    match std::io::stdout().is_terminal() {
        true => speak(&format!("→ {name} {arguments}\n")),
        false => print(&format!("{}\n", call(called))),
    }
}

/// Untouched into a file or a pipe, tame on a terminal.
fn speak(text: &str) -> Result<(), CliError> {
    match std::io::stdout().is_terminal() {
        true => print(&tame(text)),
        false => print(text),
    }
}

/// To stderr, dimmed where that shows. What cannot be written there is not missed.
fn murmur(text: &str) {
    let text = tame(text);
    let mut stderr = std::io::stderr().lock();
    let _ = match stderr_is_fancy() {
        true => write!(stderr, "\x1b[2m{text}\x1b[0m"),
        false => write!(stderr, "{text}"),
    };
    let _ = stderr.flush();
}
