//! Conversations in files, in the format of `--messages`.

use std::io;
use std::path::{Path, PathBuf};

use loquat_chat::Conversation;
use loquat_server::messages_to_json;

use crate::error::CliError;
use crate::files;

const LOAD: &str = "/load";
const SAVE: &str = "/save";

/// Expands `~/`.
pub fn expand_path(name: &str) -> PathBuf {
    let home = || Some(std::env::home_dir()?.join(name.strip_prefix("~/")?));
    match name {
        // A file of that name; stdin belongs to the chat.
        "-" => PathBuf::from("./-"),
        _ => home().unwrap_or_else(|| PathBuf::from(name)),
    }
}

/// Writes a conversation atomically. An existing file is kept unless `replace`.
pub fn save(path: &Path, conversation: &Conversation, replace: bool) -> Result<(), CliError> {
    let messages = messages_to_json(&conversation.messages());
    let written = files::write_whole(path, &format!("{messages:#}\n"), replace);
    written.map_err(|error| CliError::Field {
        flag: SAVE,
        what: match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!(
                    "{0} already exists. Overwrite it with /save! {0}",
                    path.display()
                )
            }
            _ => format!("cannot write {}: {error}", path.display()),
        },
    })
}

pub fn load(path: &Path) -> Result<Conversation, CliError> {
    let messages = files::messages(LOAD, path)?;
    Ok(Conversation::from_messages(messages))
}

#[cfg(test)]
mod tests {
    use loquat_chat::{Message, Role};

    use super::*;

    #[test]
    fn conversation_round_trips() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a talk.json");
        let mut conversation = Conversation::new(Some("be kind".into()));
        conversation.push_user("one\ntwo");
        conversation.push(Message {
            reasoning: Some("hm".into()),
            ..Message::new(Role::Assistant, "three")
        });
        save(&path, &conversation, false).unwrap();
        assert_eq!(load(&path).unwrap(), conversation);

        conversation.clear();
        let refused = save(&path, &conversation, false).unwrap_err().to_string();
        assert!(
            refused.contains("already exists. Overwrite it with /save!"),
            "{refused}"
        );
        assert_ne!(load(&path).unwrap(), conversation);
        save(&path, &conversation, true).unwrap();
        assert_eq!(load(&path).unwrap(), conversation);
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn unreadable_and_unwritable_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing/file");
        let conversation = Conversation::default();
        let error = save(&missing, &conversation, true).unwrap_err();
        assert!(
            error.to_string().starts_with("/save: cannot write"),
            "{error}"
        );
        let error = load(&missing).unwrap_err();
        assert!(
            error.to_string().starts_with("/load: cannot read"),
            "{error}"
        );
    }
}
