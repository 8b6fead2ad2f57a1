//! Conversations in files, in the form that `--messages` reads.

use std::io;
use std::path::{Path, PathBuf};

use loquat_chat::Conversation;
use loquat_server::messages_to_json;

use crate::error::CliError;
use crate::files;

const LOAD: &str = "/load";
const SAVE: &str = "/save";

/// The file that a person named.
pub fn path_of(name: &str) -> PathBuf {
    let home = || Some(std::env::home_dir()?.join(name.strip_prefix("~/")?));
    match name {
        // A file of that name, not stdin, which is the person's.
        "-" => PathBuf::from("./-"),
        _ => home().unwrap_or_else(|| PathBuf::from(name)),
    }
}

/// Writes a conversation at once or not at all. A file that is there stays unless it is to be
/// replaced.
pub fn save(path: &Path, conversation: &Conversation, replace: bool) -> Result<(), CliError> {
    let messages = messages_to_json(&conversation.messages());
    let written = files::write_whole(path, &format!("{messages:#}\n"), replace);
    written.map_err(|error| CliError::Field {
        flag: SAVE,
        what: match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!(
                    "{0} is there already; /save! {0} replaces it",
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
    fn a_conversation_comes_back_as_it_was() {
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
        assert!(refused.contains("is there already; /save!"), "{refused}");
        assert_ne!(load(&path).unwrap(), conversation);
        save(&path, &conversation, true).unwrap();
        assert_eq!(load(&path).unwrap(), conversation);
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn what_cannot_be_read_or_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let nowhere = directory.path().join("nowhere/file");
        let conversation = Conversation::default();
        let error = save(&nowhere, &conversation, true).unwrap_err();
        assert!(
            error.to_string().starts_with("/save: cannot write"),
            "{error}"
        );
        let error = load(&nowhere).unwrap_err();
        assert!(
            error.to_string().starts_with("/load: cannot read"),
            "{error}"
        );
    }
}
