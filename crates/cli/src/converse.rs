//! `loquat run`: one answer, or a conversation.

use std::path::Path;

use loquat_chat::{Chat, ChatError, ChatRequest, Conversation};
use loquat_engine::EngineError;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::RunArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, Speaker, locate, open_store};
use crate::prompt;
use crate::stream::{Printed, show};
use crate::terminal::remark;
use crate::wait::Interrupts;

const HELP: &str = "\
/clear  forget the conversation
/help   show this
/exit   leave (Ctrl-D too)
Ctrl-C stops an answer.";

pub fn run(args: &RunArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store()?;
    let words = prompt::sort(&store, args.model.as_deref(), args.prompt.as_deref())?;
    // Before a download, which a misspelt backend would make vain.
    let backend = backends::select(&args.session.backend)?;
    let prompt = match words.prompt {
        Some(prompt) => Some(prompt),
        None => prompt::from_stdin()?,
    };
    if prompt
        .as_deref()
        .is_some_and(|prompt| prompt.trim().is_empty())
    {
        return Err(CliError::NoPrompt);
    }
    let model = Model::open(&locate(&store, words.model.as_deref())?)?;
    let template = model.template()?.ok_or(ChatError::NoTemplate)?;
    let speaker = Speaker::load(&model, backend, &args.session)?;
    let talk = Talk {
        args,
        chat: Chat::new(speaker.tokenizer.clone(), Some(template)),
        speaker,
        interrupts: Interrupts::listen()?,
        verbose,
    };
    let mut conversation = Conversation::new(args.system.clone());
    match prompt {
        Some(prompt) => {
            conversation.push_user(prompt);
            match talk.answer(&conversation)?.interrupted {
                true => Err(CliError::Interrupted),
                false => Ok(()),
            }
        }
        None => talk.converse(conversation, &store.cache_dir().join("chat-history")),
    }
}

struct Talk<'a> {
    args: &'a RunArgs,
    chat: Chat,
    speaker: Speaker,
    interrupts: Interrupts,
    verbose: bool,
}

impl Talk<'_> {
    fn answer(&self, conversation: &Conversation) -> Result<Printed, CliError> {
        let mut request = self.chat.lower(ChatRequest {
            messages: conversation.messages(),
            max_tokens: 0,
            sampling: self.args.output.sampling(),
            stop: self.args.output.stop.clone(),
            ..ChatRequest::default()
        })?;
        let asked = self.args.output.max_tokens;
        request.max_tokens = self.speaker.max_tokens(asked, request.prompt.len());
        let generation = self.speaker.engine.submit(request)?;
        show(
            generation,
            &self.interrupts,
            self.speaker.room(),
            self.verbose,
        )
    }

    fn converse(&self, mut conversation: Conversation, history: &Path) -> Result<(), CliError> {
        let terminal = |error: ReadlineError| CliError::Terminal(error.to_string());
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
                said => self.turn(&mut conversation, said)?,
            }
        }
        if let Err(error) = save(&mut editor, history) {
            tracing::warn!("the line history was not saved: {error}");
        }
        Ok(())
    }

    /// One exchange. What the model said before Ctrl-C was said; a refused question was not
    /// asked.
    fn turn(&self, conversation: &mut Conversation, said: &str) -> Result<(), CliError> {
        conversation.push_user(said);
        // A press from before this question is not about its answer.
        self.interrupts.clear();
        match self.answer(conversation) {
            Ok(printed) => conversation.push_assistant(printed.text),
            Err(
                error @ (CliError::Output(_)
                | CliError::Engine(EngineError::Dead { .. } | EngineError::ShutDown)),
            ) => return Err(error),
            Err(error) => {
                conversation.pop();
                let full = matches!(
                    error,
                    CliError::Engine(
                        EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. }
                    )
                );
                let hint = match full && !conversation.is_empty() {
                    true => "; /clear starts over",
                    false => "",
                };
                remark(&format!("error: {error}{hint}"));
            }
        }
        Ok(())
    }
}

/// The cache directory is not there yet when no model was ever downloaded.
fn save(editor: &mut DefaultEditor, history: &Path) -> Result<(), ReadlineError> {
    if let Some(directory) = history.parent() {
        std::fs::create_dir_all(directory)?;
    }
    editor.save_history(history)
}
