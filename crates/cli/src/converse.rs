//! A conversation on a terminal.

use std::path::Path;

use loquat_chat::{Conversation, Message, Role, ToolCall};
use loquat_engine::EngineError;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::error::CliError;
use crate::run::Talk;
use crate::terminal::{remark, tame};

const HELP: &str = "\
/clear  forget the conversation
/help   show this
/exit   leave (Ctrl-D too)
Ctrl-C stops an answer.";

/// Asks for lines and answers them until the person leaves.
pub fn converse(
    talk: &Talk,
    mut conversation: Conversation,
    history: &Path,
) -> Result<(), CliError> {
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    // No history yet is no reason not to talk.
    let _ = editor.load_history(history);
    remark("Chatting. /help for help, Ctrl-D to leave.");
    loop {
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                remark("Ctrl-D or /exit leaves.");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(error)),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        match line {
            "/exit" | "/quit" | "/bye" => break,
            "/help" | "/?" => remark(HELP),
            "/clear" => {
                conversation.clear();
                remark("Forgotten.");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                remark(&format!("There is no {command}. There are:\n{HELP}"));
            }
            said => {
                let before = conversation.clone();
                conversation.push_user(said);
                if !turn(talk, &mut conversation, &mut editor)? {
                    conversation = before;
                }
            }
        }
    }
    if let Err(error) = save(&mut editor, history) {
        tracing::warn!("the line history was not saved: {error}");
    }
    Ok(())
}

fn terminal(error: ReadlineError) -> CliError {
    CliError::Terminal(error.to_string())
}

/// One question and all it takes to answer it. What the model said before Ctrl-C was said; a
/// question that was refused or given up was not asked, which is `false`.
fn turn(
    talk: &Talk,
    conversation: &mut Conversation,
    editor: &mut DefaultEditor,
) -> Result<bool, CliError> {
    // A press from before is not about this answer.
    talk.interrupts.clear();
    let mut heard = talk.ask(conversation);
    loop {
        let reply = match heard {
            Ok(heard) => heard.said(),
            Err(
                error @ (CliError::Output(_)
                | CliError::Engine(EngineError::Dead { .. } | EngineError::ShutDown)),
            ) => return Err(error),
            Err(error) => {
                refuse(&error, conversation);
                return Ok(false);
            }
        };
        let calls = reply.tool_calls.clone();
        conversation.push(reply.into_message());
        if calls.is_empty() {
            return Ok(true);
        }
        for call in calls {
            match result(&call, editor)? {
                Some(message) => conversation.push(message),
                None => {
                    remark("The question is taken back.");
                    return Ok(false);
                }
            }
        }
        talk.interrupts.clear();
        heard = talk.go_on(conversation);
    }
}

fn refuse(error: &CliError, conversation: &mut Conversation) {
    let full = matches!(
        error,
        CliError::Engine(EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. })
    );
    conversation.pop();
    let hint = match full && !conversation.is_empty() {
        true => "; /clear starts over",
        false => "",
    };
    remark(&format!("error: {error}{hint}"));
}

/// What a tool has to say, from the person who plays it; `None` where that is nothing.
fn result(call: &ToolCall, editor: &mut DefaultEditor) -> Result<Option<Message>, CliError> {
    let ToolCall { id, name, .. } = call;
    match editor.readline(&format!("{} = ", tame(name))) {
        Ok(result) => Ok(Some(Message {
            tool_call_id: Some(id.clone()),
            name: Some(name.clone()),
            ..Message::new(Role::Tool, result)
        })),
        Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
        Err(error) => Err(terminal(error)),
    }
}

/// The cache directory is not there yet when no model was ever downloaded.
fn save(editor: &mut DefaultEditor, history: &Path) -> Result<(), ReadlineError> {
    if let Some(directory) = history.parent() {
        std::fs::create_dir_all(directory)?;
    }
    editor.save_history(history)
}
