//! A conversation on a terminal.

mod commands;
mod complete;
mod editor;
mod history;
mod keep;
mod model;
mod near;
mod settings;
mod stats;

use loquat::Finish;
use loquat_chat::{Conversation, Message, Role, ToolCall};
use loquat_engine::EngineError;

pub use settings::Settings;

use crate::error::CliError;
use crate::interrupts::{Doing, Interrupts};
use crate::run::{ChatModel, ModelOpener};
use crate::terminal::{complain, is_dumb, remark, tame};
use commands::{Command, Line, read, split};
use complete::Models;
use editor::{Asked, LineEditor};
use settings::Shown;

const PROMPT: &str = ">>> ";

/// Asks for lines and answers them until the person leaves.
pub fn converse(
    opener: &ModelOpener<'_>,
    talk: ChatModel,
    conversation: Conversation,
) -> Result<(), CliError> {
    let history = opener.store.cache_dir().join("chat-history");
    let mut chat = Chat {
        opener,
        editor: LineEditor::new(history, Models::of(opener.store))?,
        talk,
        conversation,
        last: None,
    };
    remark("Chatting. /help for help, Ctrl-D to leave.");
    let mut asked_to_leave = false;
    loop {
        match chat.ask(PROMPT)? {
            Asked::Line(line) => {
                asked_to_leave = false;
                if chat.hear(&line)? == Then::Leave {
                    return Ok(());
                }
            }
            Asked::Block(text) => {
                asked_to_leave = false;
                chat.quote(text)?;
            }
            Asked::Interrupted { typed: true } => asked_to_leave = false,
            Asked::Interrupted { typed: false } => {
                // The first of two may have been meant for an answer.
                let twice = chat.interrupts().pressed_twice();
                if std::mem::replace(&mut asked_to_leave, true) || twice {
                    return Err(CliError::Interrupted);
                }
                remark("Ctrl-C again, Ctrl-D or /exit leaves.");
            }
            Asked::End => return Ok(()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    Leave,
}

struct Chat<'a> {
    opener: &'a ModelOpener<'a>,
    editor: LineEditor,
    talk: ChatModel,
    conversation: Conversation,
    /// What the last answer cost that was not stopped.
    last: Option<Finish>,
}

impl Chat<'_> {
    fn interrupts(&self) -> &Interrupts {
        self.opener.interrupts
    }

    /// A dumb terminal's line editor is the terminal's own, which leaves presses to us.
    fn ask(&mut self, prompt: &str) -> Result<Asked, CliError> {
        self.interrupts().now(if is_dumb() {
            Doing::Working
        } else {
            Doing::Reading
        });
        let asked = self.editor.ask(prompt);
        self.interrupts().now(Doing::Turning);
        asked
    }

    fn hear(&mut self, line: &str) -> Result<Then, CliError> {
        if line.trim().is_empty() {
            return Ok(Then::GoOn);
        }
        self.editor.remember(line);
        match read(line) {
            Line::Said(said) => {
                let question = Message::new(Role::User, said);
                self.answer(question)?;
            }
            Line::Wrong(why) => complain(&why),
            Line::Command { command, argument } => match self.obey(command, argument) {
                Ok(then) => return Ok(then),
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => complain(&error),
            },
        }
        Ok(Then::GoOn)
    }

    /// A block is said, whatever it holds.
    fn quote(&mut self, text: String) -> Result<(), CliError> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.editor.remember_block(&text);
        self.answer(Message::new(Role::User, text))
    }

    fn obey(&mut self, command: Command, argument: &str) -> Result<Then, CliError> {
        match command {
            Command::Set => self.set(argument)?,
            Command::Unset => self.change(|settings| settings.unset(argument))?,
            Command::System => self.system(argument),
            Command::Save => keep::save(&keep::path_of(argument), &self.conversation, false)?,
            Command::SaveOver => keep::save(&keep::path_of(argument), &self.conversation, true)?,
            Command::Load => {
                self.conversation = keep::load(&keep::path_of(argument))?;
                self.last = None;
                remark(&counted(self.conversation.turns().len()));
            }
            Command::Model => self.model(argument)?,
            Command::Stats => {
                let talk = &self.talk;
                let engine = talk.engine();
                remark(&stats::stats(engine, self.last.as_ref(), talk.room()));
            }
            Command::Reasoning => self.reasoning(argument)?,
            Command::Undo => match self.conversation.undo() {
                Some(question) => remark(&format!("Taken back: {}", brief(&question))),
                None => remark("There is nothing to take back."),
            },
            Command::Retry => {
                let before = self.conversation.clone();
                match self.conversation.undo() {
                    Some(question) => self.answer_or(question, before)?,
                    None => remark("There is nothing to ask again."),
                }
            }
            Command::Clear => {
                self.conversation.clear();
                self.last = None;
                remark("Forgotten.");
            }
            Command::Help => remark(&commands::help()),
            Command::Exit => return Ok(Then::Leave),
        }
        Ok(Then::GoOn)
    }

    fn set(&mut self, argument: &str) -> Result<(), CliError> {
        let (settings, params) = (self.talk.settings(), self.talk.sampling());
        match split(argument) {
            ("", _) => remark(&listed(&settings.all(params))),
            (name, "") => remark(&settings.explained(name, params)?),
            (name, value) => self.change(|settings| settings.set(name, value))?,
        }
        Ok(())
    }

    /// Settings that the model refuses are left as they were.
    fn change(
        &mut self,
        change: impl FnOnce(&mut Settings) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut settings = self.talk.settings().clone();
        change(&mut settings)?;
        self.talk.set(settings)
    }

    fn system(&mut self, argument: &str) {
        match (argument, self.conversation.system()) {
            ("", Some(system)) => remark(&tame(system)),
            ("", None) => remark("Nothing was said of how to behave; /system TEXT says it."),
            (text, _) => self.conversation.set_system(Some(text.to_owned())),
        }
    }

    /// The model that is there stays until the other one is.
    fn model(&mut self, argument: &str) -> Result<(), CliError> {
        if !argument.is_empty() {
            let chosen = model::chosen(argument)?;
            let settings = self.talk.settings().clone();
            self.interrupts().now(Doing::Switching);
            let talk = self.opener.open(&chosen, settings);
            self.interrupts().now(Doing::Turning);
            self.talk = talk?;
            self.last = None;
        }
        remark(&self.talk.described());
        Ok(())
    }

    fn reasoning(&mut self, argument: &str) -> Result<(), CliError> {
        if !argument.is_empty() {
            return self.change(|settings| settings.set("show-reasoning", argument));
        }
        let turns = self.conversation.turns().iter().rev();
        let last = turns.filter_map(|turn| turn.reasoning.as_deref()).next();
        match last {
            Some(reasoning) => remark(&tame(reasoning.trim())),
            None => remark("Nothing was thought yet."),
        }
        Ok(())
    }

    /// Asks a question; one that is refused or given up was not asked.
    fn answer(&mut self, question: Message) -> Result<(), CliError> {
        let before = self.conversation.clone();
        self.answer_or(question, before)
    }

    /// The same, with what the conversation is where it was not asked.
    fn answer_or(&mut self, question: Message, before: Conversation) -> Result<(), CliError> {
        self.conversation.push(question);
        match self.turn() {
            Ok(true) => Ok(()),
            Ok(false) => {
                remark("The question is taken back.");
                self.conversation = before;
                Ok(())
            }
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.conversation = before;
                let full = is_full(&error) && !self.conversation.is_empty();
                if full {
                    complain(&format!("{error}; /clear starts over"))
                } else {
                    complain(&error)
                }
                Ok(())
            }
        }
    }

    /// One question and all it takes to answer it. What the model said before Ctrl-C was said;
    /// where that is nothing, or nobody gives a tool's result, it was not answered, which is
    /// `false`.
    fn turn(&mut self) -> Result<bool, CliError> {
        let interrupts = self.opener.interrupts;
        let mut heard = self.talk.ask(&self.conversation, interrupts)?;
        loop {
            let stopped = heard.finish.is_none();
            self.last = heard.finish.clone().or(self.last.take());
            let reply = heard.into_reply();
            if stopped && reply.text.trim().is_empty() {
                return Ok(false);
            }
            let calls = reply.tool_calls.clone();
            self.conversation.push(reply.into_message());
            if calls.is_empty() {
                return Ok(true);
            }
            for call in calls {
                match self.result(&call)? {
                    Some(message) => self.conversation.push(message),
                    None => return Ok(false),
                }
            }
            heard = self.talk.go_on(&self.conversation, interrupts)?;
        }
    }

    /// What a tool has to say, from the person who plays it; `None` where that is nothing.
    fn result(&mut self, call: &ToolCall) -> Result<Option<Message>, CliError> {
        let ToolCall { id, name, .. } = call;
        let result = self.ask(&format!("{} = ", tame(name)))?;
        let (Asked::Line(result) | Asked::Block(result)) = result else {
            return Ok(None);
        };
        Ok(Some(Message {
            tool_call_id: Some(id.clone()),
            name: Some(name.clone()),
            ..Message::new(Role::Tool, result)
        }))
    }
}

/// What leaves nothing to go on with.
fn is_fatal(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Output(_)
            | CliError::Terminal(_)
            | CliError::Engine(EngineError::Dead { .. } | EngineError::ShutDown)
    )
}

fn is_full(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Engine(EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. })
    )
}

fn listed(all: &[Shown]) -> String {
    let widest = all.iter().map(|shown| shown.name.len()).max();
    let widest = widest.unwrap_or_default();
    let line = |shown: &Shown| {
        let mark = if shown.given { '*' } else { ' ' };
        let line = format!("{mark} {:widest$}  {}", shown.name, tame(&shown.value));
        line.trim_end().to_owned() + "\n"
    };
    let lines: String = all.iter().map(line).collect();
    format!("{lines}* was set; /set NAME explains one, /unset NAME leaves it to the model")
}

fn counted(turns: usize) -> String {
    match turns {
        1 => "1 message.".to_owned(),
        count => format!("{count} messages."),
    }
}

/// A message in a line.
fn brief(message: &Message) -> String {
    const LONGEST: usize = 60;
    let text = tame(&message.content.joined());
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_listed_in_columns() {
        let shown = |name: &str, value: &str, given| Shown {
            name: name.to_owned(),
            value: value.to_owned(),
            given,
        };
        let all = [shown("top-p", "0.5", true), shown("seed", "", false)];
        let lines = listed(&all);
        let lines: Vec<&str> = lines.lines().take(2).collect();
        assert_eq!(lines, ["* top-p  0.5", "  seed"]);
    }

    #[test]
    fn long_questions_are_told_in_brief() {
        let long = "é".repeat(80);
        for (text, expected) in [
            ("short", "short".to_owned()),
            ("two\nlines", "two".to_owned()),
            ("", String::new()),
            (long.as_str(), "é".repeat(60) + "…"),
        ] {
            assert_eq!(brief(&Message::new(Role::User, text)), expected);
        }
    }
}
