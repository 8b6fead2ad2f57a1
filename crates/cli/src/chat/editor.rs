//! The line editor: editing, completion, history.

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

use super::complete::{ModelNames, Suggestion, complete, hint};
use super::history::LineHistory;
use crate::error::CliError;
use crate::terminal::{dim, stdout_is_fancy};

/// Opens and closes a block of lines.
const BLOCK: &str = "\"\"\"";

/// Inserted by Enter after a backslash. The zero-width mark distinguishes it from a pasted line
/// break, which is kept.
const CONTINUED: &str = "\u{200b}\n";

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum LineInput {
    Line(String),
    /// The content of a block, which is never a command.
    Block(String),
    /// Ctrl-C, with or without discarded input.
    Interrupted {
        typed: bool,
    },
    /// Ctrl-D.
    End,
}

pub struct LineEditor {
    editor: Editor<EditorHelper, MemHistory>,
    history: LineHistory,
    /// Whether the line that Ctrl-C ended had input.
    typed: Arc<AtomicBool>,
}

impl LineEditor {
    /// An editor with a history file and model names for completion.
    pub fn new(history: PathBuf, models: ModelNames) -> Result<Self, CliError> {
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
        let mut editor = Editor::with_history(config, past).map_err(terminal_error)?;
        editor.set_helper(Some(EditorHelper { models, colour }));
        bind(&mut editor, &typed);
        let mut this = Self {
            editor,
            history,
            typed,
        };
        match this.history.lines() {
            Ok(lines) => this.set_history(lines),
            Err(error) => tracing::warn!("cannot read the line history: {error}"),
        }
        Ok(this)
    }

    pub fn read_line(&mut self, prompt: &str) -> Result<LineInput, CliError> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(parse_input(&line)),
            Err(ReadlineError::Interrupted) => Ok(LineInput::Interrupted {
                typed: self.typed.load(Ordering::Relaxed),
            }),
            Err(ReadlineError::Eof) => Ok(LineInput::End),
            Err(error) => Err(terminal_error(error)),
        }
    }

    /// Saves a line at once, in case the process is killed.
    pub fn remember(&mut self, line: &str) {
        match self.history.add(line) {
            Ok(lines) => self.set_history(lines),
            Err(error) => {
                tracing::warn!("cannot save the line history: {error}");
                let _ = self.editor.add_history_entry(line);
            }
        }
    }

    /// Saves a block as it is typed.
    pub fn remember_block(&mut self, text: &str) {
        self.remember(&format!("{BLOCK}\n{text}\n{BLOCK}"));
    }

    fn set_history(&mut self, lines: Vec<String>) {
        let history = self.editor.history_mut();
        // An in-memory history does not fail.
        let _ = history.clear();
        for line in lines {
            let _ = history.add_owned(line);
        }
    }
}

fn terminal_error(error: ReadlineError) -> CliError {
    CliError::Terminal(error.to_string())
}

fn bind(editor: &mut Editor<EditorHelper, MemHistory>, typed: &Arc<AtomicBool>) {
    let enter = |modifiers| KeyEvent(KeyCode::Enter, modifiers);
    editor.bind_sequence(enter(Modifiers::ALT), Cmd::Newline);
    let continued = EventHandler::Conditional(Box::new(ContinueLine));
    editor.bind_sequence(enter(Modifiers::NONE), continued);
    let ctrl_c = Box::new(CtrlC(typed.clone()));
    editor.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(ctrl_c));
}

/// Enter after a backslash continues the line, except in a block, which keeps the backslash.
struct ContinueLine;

impl ConditionalEventHandler for ContinueLine {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let (line, position) = (context.line(), context.pos());
        let continued = position == line.len() && line.ends_with('\\') && !is_open(line);
        continued.then(|| Cmd::Insert(1, CONTINUED.to_owned()))
    }
}

/// Records whether the line had input; Ctrl-C keeps its default action.
struct CtrlC(Arc<AtomicBool>);

impl ConditionalEventHandler for CtrlC {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        self.0.store(!context.line().is_empty(), Ordering::Relaxed);
        None
    }
}

/// Whether a block is open.
fn is_open(line: &str) -> bool {
    let block = line.strip_prefix(BLOCK);
    block.is_some_and(|rest| !rest.trim_end().ends_with(BLOCK))
}

/// Removes block marks and continuation marks.
fn parse_input(line: &str) -> LineInput {
    let line = line.replace(&format!("\\{CONTINUED}"), "\n");
    let block = line.strip_prefix(BLOCK);
    match block.and_then(|rest| rest.trim_end().strip_suffix(BLOCK)) {
        Some(inner) => {
            // The line breaks next to the marks belong to them.
            let inner = inner.strip_prefix('\n').unwrap_or(inner);
            let inner = inner.strip_suffix('\n').unwrap_or(inner);
            LineInput::Block(inner.to_owned())
        }
        None => LineInput::Line(line),
    }
}

/// Callbacks of rustyline.
struct EditorHelper {
    models: ModelNames,
    colour: bool,
}

impl Helper for EditorHelper {}

impl Completer for EditorHelper {
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

impl Hinter for EditorHelper {
    type Hint = Suggestion;

    /// No hints without colours, where they would look like input.
    fn hint(&self, line: &str, position: usize, _: &Context<'_>) -> Option<Suggestion> {
        if self.colour && position == line.len() {
            hint(line)
        } else {
            None
        }
    }
}

impl Highlighter for EditorHelper {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        dim(hint).into()
    }
}

impl Validator for EditorHelper {
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
    fn blocks_end_at_closing_mark() {
        let line = |text: &str| LineInput::Line(text.to_owned());
        let block = |text: &str| LineInput::Block(text.to_owned());
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
            // A leading space sends the line verbatim.
            (" \"\"\"", false, line(" \"\"\"")),
            ("say \"\"\"", false, line("say \"\"\"")),
            ("typed \\\u{200b}\nso", false, line("typed \nso")),
            ("pasted \\\nso", false, line("pasted \\\nso")),
        ] {
            assert_eq!(is_open(typed), open, "{typed:?}");
            assert_eq!(parse_input(typed), expected, "{typed:?}");
        }
    }
}
