//! Lines from a person: edited, completed, remembered.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{History, MemHistory};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ColorMode, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event,
    EventContext, EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::complete::{Models, Suggestion, complete, hint};
use super::history::LineHistory;
use crate::error::CliError;
use crate::terminal::{dim, stdout_is_fancy};

/// What opens and closes a block of lines.
const BLOCK: &str = "\"\"\"";

/// What Enter adds to a backslash. The mark, which takes no room, tells it from one that was
/// pasted and stays as it is.
const CONTINUED: &str = "\u{200b}\n";

/// What came of asking for a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Line(String),
    /// What stood between the marks of a block, which is never a command.
    Block(String),
    /// Ctrl-C, with or without something typed that is given up.
    Interrupted {
        typed: bool,
    },
    /// Ctrl-D.
    End,
}

pub struct LineEditor {
    editor: Editor<Assistant, MemHistory>,
    history: LineHistory,
    /// Whether there was anything in the line that Ctrl-C ended.
    typed: Arc<AtomicBool>,
}

impl LineEditor {
    /// With the lines of a file to go back to, and models' names to complete.
    pub fn new(history: PathBuf, models: Models) -> Result<Self, CliError> {
        let colour = stdout_is_fancy();
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .color_mode(if colour {
                ColorMode::Forced
            } else {
                ColorMode::Disabled
            })
            .build();
        let history = LineHistory::at(history);
        let typed = Arc::new(AtomicBool::new(false));
        let past = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, past).map_err(unreadable)?;
        editor.set_helper(Some(Assistant { models, colour }));
        bind(&mut editor, &typed);
        let mut this = Self {
            editor,
            history,
            typed,
        };
        match this.history.lines() {
            Ok(lines) => this.go_back_to(lines),
            Err(error) => tracing::warn!("the line history cannot be read: {error}"),
        }
        Ok(this)
    }

    pub fn ask(&mut self, prompt: &str) -> Result<Asked, CliError> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(meant(&line)),
            Err(ReadlineError::Interrupted) => Ok(Asked::Interrupted {
                typed: self.typed.load(Ordering::Relaxed),
            }),
            Err(ReadlineError::Eof) => Ok(Asked::End),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Keeps a line at once: who knows how the program ends.
    pub fn remember(&mut self, line: &str) {
        match self.history.add(line) {
            Ok(lines) => self.go_back_to(lines),
            Err(error) => {
                tracing::warn!("the line history was not saved: {error}");
                let _ = self.editor.add_history_entry(line);
            }
        }
    }

    /// The same for a block, as it would be typed.
    pub fn remember_block(&mut self, text: &str) {
        self.remember(&format!("{BLOCK}\n{text}\n{BLOCK}"));
    }

    fn go_back_to(&mut self, lines: Vec<String>) {
        let history = self.editor.history_mut();
        // In memory nothing fails.
        let _ = history.clear();
        for line in lines {
            let _ = history.add_owned(line);
        }
    }
}

fn unreadable(error: ReadlineError) -> CliError {
    CliError::Terminal(error.to_string())
}

fn bind(editor: &mut Editor<Assistant, MemHistory>, typed: &Arc<AtomicBool>) {
    let enter = |modifiers| KeyEvent(KeyCode::Enter, modifiers);
    editor.bind_sequence(enter(Modifiers::ALT), Cmd::Newline);
    let continued = EventHandler::Conditional(Box::new(Continued));
    editor.bind_sequence(enter(Modifiers::NONE), continued);
    let noticed = Box::new(Noticed(typed.clone()));
    editor.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(noticed));
}

/// Enter after a backslash goes on; in a block it does anyway, and the backslash stays.
struct Continued;

impl ConditionalEventHandler for Continued {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let (line, position) = (context.line(), context.pos());
        let continued = position == line.len() && line.ends_with('\\') && !is_open(line);
        continued.then(|| Cmd::Insert(1, CONTINUED.to_owned()))
    }
}

/// Ctrl-C does what it does; what it found is noted.
struct Noticed(Arc<AtomicBool>);

impl ConditionalEventHandler for Noticed {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        self.0.store(!context.line().is_empty(), Ordering::Relaxed);
        None
    }
}

/// Whether a block was opened and not closed.
fn is_open(line: &str) -> bool {
    let block = line.strip_prefix(BLOCK);
    block.is_some_and(|rest| !rest.trim_end().ends_with(BLOCK))
}

/// The line without what only helped to type it: what stands in a block, or the line as it is.
fn meant(line: &str) -> Asked {
    let line = line.replace(&format!("\\{CONTINUED}"), "\n");
    let block = line.strip_prefix(BLOCK);
    match block.and_then(|rest| rest.trim_end().strip_suffix(BLOCK)) {
        Some(inner) => {
            // The line breaks beside the marks are theirs.
            let inner = inner.strip_prefix('\n').unwrap_or(inner);
            let inner = inner.strip_suffix('\n').unwrap_or(inner);
            Asked::Block(inner.to_owned())
        }
        None => Asked::Line(line),
    }
}

/// What the line editor asks while a line is typed.
struct Assistant {
    models: Models,
    colour: bool,
}

impl Helper for Assistant {}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..position).unwrap_or(line);
        Ok(complete(before, &self.models))
    }
}

impl Hinter for Assistant {
    type Hint = Suggestion;

    /// None where it could not be told from what was typed.
    fn hint(&self, line: &str, position: usize, _: &Context<'_>) -> Option<Suggestion> {
        if self.colour && position == line.len() {
            hint(line)
        } else {
            None
        }
    }
}

impl Highlighter for Assistant {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        dim(hint).into()
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_when_they_are_closed() {
        let line = |text: &str| Asked::Line(text.to_owned());
        let block = |text: &str| Asked::Block(text.to_owned());
        for (typed, open, expected) in [
            ("hi", false, line("hi")),
            ("\"\"\"", true, line("\"\"\"")),
            ("\"\"\"a", true, line("\"\"\"a")),
            ("\"\"\"\"\"\"", false, block("")),
            ("\"\"\"one\"\"\"", false, block("one")),
            ("\"\"\"\n/clear\n\"\"\"", false, block("/clear")),
            (
                "\"\"\"\n  one\n\n two\n\n\"\"\" ",
                false,
                block("  one\n\n two\n"),
            ),
            ("\"\"\"\na \\\nb\n\"\"\"", false, block("a \\\nb")),
            // After a space a line is said as it stands.
            (" \"\"\"", false, line(" \"\"\"")),
            ("say \"\"\"", false, line("say \"\"\"")),
            ("typed \\\u{200b}\nso", false, line("typed \nso")),
            ("pasted \\\nso", false, line("pasted \\\nso")),
        ] {
            assert_eq!(is_open(typed), open, "{typed:?}");
            assert_eq!(meant(typed), expected, "{typed:?}");
        }
    }
}
