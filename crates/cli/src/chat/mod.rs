//! The interactive chat of `loquat run`.

mod adapters;
mod commands;
mod complete;
mod editor;
mod history;
mod model;
mod settings;
mod stats;
mod suggest;
mod transcript;

use std::ops::ControlFlow;

use loquat::{AdapterFile, Error, Finish};
use loquat_chat::{ContentPart, Conversation, Message, Role, ToolCall};
use loquat_engine::EngineError;

pub use settings::Settings;

use crate::error::CliError;
use crate::files;
use crate::interrupts::{Doing, Interrupts};
use crate::run::{ChatModel, ModelOpener};
use crate::terminal::{is_dumb, print_error, remark, sanitize};
use commands::{ChatLine, Command, parse, split};
use complete::ModelNames;
use editor::{LineEditor, LineInput};
use settings::SettingRow;

const PROMPT: &str = ">>> ";

/// Reads and answers lines until the user leaves.
pub fn converse(
    opener: &ModelOpener<'_>,
    talk: ChatModel,
    conversation: Conversation,
) -> Result<(), CliError> {
    let history = opener.store.cache_dir().join("chat-history");
    let mut chat = Chat {
        opener,
        editor: LineEditor::new(history, ModelNames::from_store(opener.store))?,
        talk,
        conversation,
        media: Vec::new(),
        last: None,
    };
    remark("Chatting. /help for help, Ctrl-D to leave.");
    let mut interrupted = false;
    loop {
        match chat.read_line(PROMPT)? {
            LineInput::Line(line) => {
                interrupted = false;
                if chat.handle_line(&line)? == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            LineInput::Block(text) => {
                interrupted = false;
                chat.send_block(text)?;
            }
            LineInput::Interrupted { typed: true } => interrupted = false,
            LineInput::Interrupted { typed: false } => {
                // The first of two presses may have been meant for an answer.
                let twice = chat.interrupts().pressed_twice();
                if std::mem::replace(&mut interrupted, true) || twice {
                    return Err(CliError::Interrupted);
                }
                remark("Press Ctrl-C again, Ctrl-D or /exit to leave.");
            }
            LineInput::End => return Ok(()),
        }
    }
}

struct Chat<'a> {
    opener: &'a ModelOpener<'a>,
    editor: LineEditor,
    talk: ChatModel,
    conversation: Conversation,
    /// Images and videos for the next message.
    media: Vec<ContentPart>,
    /// The end of the last answer that was not stopped.
    last: Option<Finish>,
}

impl Chat<'_> {
    fn interrupts(&self) -> &Interrupts {
        self.opener.interrupts
    }

    /// On a dumb terminal the line editor does not handle Ctrl-C; our signal handler does.
    fn read_line(&mut self, prompt: &str) -> Result<LineInput, CliError> {
        self.interrupts().now(if is_dumb() {
            Doing::Working
        } else {
            Doing::Reading
        });
        let input = self.editor.read_line(prompt);
        self.interrupts().now(Doing::Turning);
        input
    }

    fn handle_line(&mut self, line: &str) -> Result<ControlFlow<()>, CliError> {
        if line.trim().is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        self.editor.remember(line);
        match parse(line) {
            ChatLine::Message(text) => self.ask(text.to_owned())?,
            ChatLine::Invalid(reason) => print_error(&reason),
            ChatLine::Command { command, argument } => match self.execute(command, argument) {
                Ok(flow) => return Ok(flow),
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => print_error(&error),
            },
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A block is sent verbatim, even if it looks like a command.
    fn send_block(&mut self, text: String) -> Result<(), CliError> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.editor.remember_block(&text);
        self.ask(text)
    }

    fn execute(&mut self, command: Command, argument: &str) -> Result<ControlFlow<()>, CliError> {
        let path = || transcript::expand_path(argument);
        match command {
            Command::Set => self.set(argument)?,
            Command::Unset => self.change(|settings| settings.unset(argument))?,
            Command::System => self.system(argument),
            Command::Image => self.add_media(files::image("/image", &path())?.into())?,
            Command::Video => self.add_media(files::video("/video", &path())?.into())?,
            Command::Save => self.save(argument, false)?,
            Command::SaveOver => self.save(argument, true)?,
            Command::Load => {
                self.conversation = transcript::load(&path())?;
                self.last = None;
                remark(&message_count(self.conversation.turns().len()));
            }
            Command::Model => self.model(argument)?,
            Command::Adapter => self.adapter(argument)?,
            Command::Stats => {
                let talk = &self.talk;
                let engine = talk.engine();
                remark(&stats::stats(engine, self.last.as_ref(), talk.room()));
            }
            Command::Reasoning => self.reasoning(argument)?,
            Command::Undo => match self.conversation.undo() {
                Some(question) => remark(&format!("Removed: {}", summary(&question))),
                None => remark("Nothing to undo."),
            },
            Command::Retry => {
                let before = self.conversation.clone();
                match self.conversation.undo() {
                    Some(question) => self.answer_or_restore(question, before)?,
                    None => remark("Nothing to retry."),
                }
            }
            Command::Clear => {
                self.conversation.clear();
                self.media.clear();
                self.last = None;
                remark("Conversation cleared.");
            }
            Command::Help => remark(&commands::help()),
            Command::Exit => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Refuses an image or a video that the model cannot read before it is sent.
    fn add_media(&mut self, media: ContentPart) -> Result<(), CliError> {
        self.talk.check_media(&media)?;
        self.media.push(media);
        remark(&format!(
            "The next message has {}.",
            media_count(&self.media)
        ));
        Ok(())
    }

    /// Asks a question about the media that were added. They are kept if it is not answered.
    fn ask(&mut self, text: String) -> Result<(), CliError> {
        let mut parts = self.media.clone();
        parts.push(text.into());
        let turns = self.conversation.turns().len();
        self.answer(Message::user(parts))?;
        if self.conversation.turns().len() > turns {
            self.media.clear();
        }
        Ok(())
    }

    fn save(&self, argument: &str, overwrite: bool) -> Result<(), CliError> {
        let path = transcript::expand_path(argument);
        transcript::save(&path, &self.conversation, overwrite)
    }

    fn set(&mut self, argument: &str) -> Result<(), CliError> {
        let (settings, params) = (self.talk.settings(), self.talk.sampling());
        match split(argument) {
            ("", _) => remark(&settings_list(&settings.all(params))),
            (name, "") => remark(&settings.describe(name, params)?),
            (name, value) => self.change(|settings| settings.set(name, value))?,
        }
        Ok(())
    }

    /// Settings that the model does not support stay unchanged.
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
            ("", Some(system)) => remark(&sanitize(system)),
            ("", None) => remark("No system prompt. Set one with /system TEXT."),
            (text, _) => self.conversation.set_system(Some(text.to_owned())),
        }
    }

    /// The current model stays loaded until the new one is.
    fn model(&mut self, argument: &str) -> Result<(), CliError> {
        if !argument.is_empty() {
            let choice = model::parse_choice(argument)?;
            let settings = self.talk.settings().clone();
            self.interrupts().now(Doing::Switching);
            let talk = self.opener.open(&choice, settings, &[]);
            self.interrupts().now(Doing::Turning);
            self.talk = talk?;
            self.last = None;
        }
        remark(&self.talk.described());
        Ok(())
    }

    /// Adapters add up. One that is not loaded opens the model again, with room for it.
    fn adapter(&mut self, argument: &str) -> Result<(), CliError> {
        match argument {
            "" => {}
            "off" => self.talk.scale_adapters(|_| 0.0),
            named => self.apply_adapter(adapters::parse(named)?)?,
        }
        remark(&adapters::list(self.talk.adapters()));
        Ok(())
    }

    fn apply_adapter(&mut self, wanted: AdapterFile) -> Result<(), CliError> {
        let loaded = self.talk.adapters();
        if loaded.iter().any(|own| own.path == wanted.path) {
            self.talk.scale_adapters(|own| {
                if own.path == wanted.path {
                    wanted.scale
                } else {
                    own.scale
                }
            });
            return Ok(());
        }
        let on = loaded.iter().filter(|own| own.scale != 0.0).cloned();
        let adapters: Vec<_> = on.chain([wanted]).collect();
        let (chosen, settings) = (self.talk.chosen().clone(), self.talk.settings().clone());
        self.interrupts().now(Doing::Switching);
        let talk = self.opener.open(&chosen, settings, &adapters);
        self.interrupts().now(Doing::Turning);
        self.talk = talk?;
        Ok(())
    }

    fn reasoning(&mut self, argument: &str) -> Result<(), CliError> {
        if !argument.is_empty() {
            return self.change(|settings| settings.set("show-reasoning", argument));
        }
        let turns = self.conversation.turns().iter().rev();
        let last = turns.filter_map(|turn| turn.reasoning.as_deref()).next();
        match last {
            Some(reasoning) => remark(&sanitize(reasoning.trim())),
            None => remark("No thinking yet."),
        }
        Ok(())
    }

    /// Asks a question. One that is refused or cancelled is removed.
    fn answer(&mut self, question: Message) -> Result<(), CliError> {
        let before = self.conversation.clone();
        self.answer_or_restore(question, before)
    }

    /// Restores `before` if the question is refused or cancelled.
    fn answer_or_restore(
        &mut self,
        question: Message,
        before: Conversation,
    ) -> Result<(), CliError> {
        self.conversation.push(question);
        match self.turn() {
            Ok(true) => Ok(()),
            Ok(false) => {
                remark("Question removed.");
                self.conversation = before;
                Ok(())
            }
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.conversation = before;
                let full = is_full(&error) && !self.conversation.is_empty();
                if full {
                    print_error(&format!("{error}. /clear starts over"))
                } else {
                    print_error(&error)
                }
                Ok(())
            }
        }
    }

    /// Runs one question to its answer, including tool calls. Text before Ctrl-C counts as the
    /// answer; `false` if there is none, or if a tool result is missing.
    fn turn(&mut self) -> Result<bool, CliError> {
        let interrupts = self.opener.interrupts;
        let mut output = self.talk.ask(&self.conversation, interrupts)?;
        loop {
            let stopped = output.finish.is_none();
            self.last = output.finish.clone().or(self.last.take());
            let reply = output.into_reply();
            if stopped && reply.text.trim().is_empty() {
                return Ok(false);
            }
            let calls = reply.tool_calls.clone();
            self.conversation.push(reply.into_message());
            if calls.is_empty() {
                return Ok(true);
            }
            for call in calls {
                match self.tool_result(&call)? {
                    Some(message) => self.conversation.push(message),
                    None => return Ok(false),
                }
            }
            output = self.talk.go_on(&self.conversation, interrupts)?;
        }
    }

    /// Asks the user for the result of a tool call; `None` if they cancel.
    fn tool_result(&mut self, call: &ToolCall) -> Result<Option<Message>, CliError> {
        let ToolCall { id, name, .. } = call;
        let result = self.read_line(&format!("{} = ", sanitize(name)))?;
        let (LineInput::Line(result) | LineInput::Block(result)) = result else {
            return Ok(None);
        };
        Ok(Some(Message {
            tool_call_id: Some(id.clone()),
            name: Some(name.clone()),
            ..Message::new(Role::Tool, result)
        }))
    }
}

/// Errors after which the chat cannot continue.
fn is_fatal(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Output(_)
            | CliError::Terminal(_)
            | CliError::Library(Error::Engine(EngineError::Dead(_) | EngineError::ShutDown))
    )
}

fn is_full(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Library(Error::Engine(
            EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. }
        ))
    )
}

fn settings_list(all: &[SettingRow]) -> String {
    let widest = all.iter().map(|row| row.name.len()).max();
    let widest = widest.unwrap_or_default();
    let line = |row: &SettingRow| {
        let mark = if row.is_set { '*' } else { ' ' };
        let line = format!("{mark} {:widest$}  {}", row.name, sanitize(&row.value));
        line.trim_end().to_owned() + "\n"
    };
    let lines: String = all.iter().map(line).collect();
    format!("{lines}* set here; /set NAME describes a setting, /unset NAME restores its default")
}

fn message_count(turns: usize) -> String {
    match turns {
        1 => "1 message.".to_owned(),
        count => format!("{count} messages."),
    }
}

/// For example `an image and 2 videos`.
fn media_count(media: &[ContentPart]) -> String {
    let videos = media
        .iter()
        .filter(|part| matches!(part, ContentPart::Video(_)));
    let videos = videos.count();
    let counted = [
        (media.len() - videos, "an image", "images"),
        (videos, "a video", "videos"),
    ];
    let kinds = counted
        .into_iter()
        .filter_map(|(count, one, many)| match count {
            0 => None,
            1 => Some(one.to_owned()),
            count => Some(format!("{count} {many}")),
        });
    kinds.collect::<Vec<_>>().join(" and ")
}

/// The first line of a message, shortened.
fn summary(message: &Message) -> String {
    const MAX_LEN: usize = 60;
    let text = sanitize(&message.content.joined());
    let line = text.lines().next().unwrap_or_default();
    let media: Vec<ContentPart> = message
        .content
        .media()
        .map(|(_, part)| part.clone())
        .collect();
    let line = match media.as_slice() {
        [] => line.to_owned(),
        media => format!("[{}] {line}", media_count(media)),
    };
    match line.char_indices().nth(MAX_LEN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_listed_in_columns() {
        let row = |name: &str, value: &str, is_set| SettingRow {
            name: name.to_owned(),
            value: value.to_owned(),
            is_set,
        };
        let all = [row("top-p", "0.5", true), row("seed", "", false)];
        let lines = settings_list(&all);
        let lines: Vec<&str> = lines.lines().take(2).collect();
        assert_eq!(lines, ["* top-p  0.5", "  seed"]);
    }

    #[test]
    fn media_are_counted_by_kind() {
        let image = || ContentPart::from(loquat_chat::Image::from_bytes([1]));
        let video = || ContentPart::from(loquat_chat::Video::from_bytes([1]));
        for (media, expected) in [
            (vec![image()], "an image"),
            (vec![video(), video()], "2 videos"),
            (vec![image(), video(), image()], "2 images and a video"),
        ] {
            assert_eq!(media_count(&media), expected);
        }
        let message = Message::user(vec![image(), "What is this?".into()]);
        assert_eq!(summary(&message), "[an image] What is this?");
    }

    #[test]
    fn long_messages_are_shortened() {
        let long = "é".repeat(80);
        for (text, expected) in [
            ("short", "short".to_owned()),
            ("two\nlines", "two".to_owned()),
            ("", String::new()),
            (long.as_str(), "é".repeat(60) + "…"),
        ] {
            assert_eq!(summary(&Message::new(Role::User, text)), expected);
        }
    }
}
