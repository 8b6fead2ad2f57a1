//! System and developer messages after the first message. Agents send them in the middle of a
//! conversation; some templates refuse them, and others leave them out.

use crate::{Message, MessageContent, Role};

/// The conversation with all system messages joined in its first message, in order, separated by a
/// blank line. `None` if there are none after the first message.
pub(crate) fn joined(messages: &[Message]) -> Option<Vec<Message>> {
    later(messages).next()?;
    let (system, mut turns): (Vec<_>, Vec<_>) = messages.iter().cloned().partition(is_system);
    let leads = messages.first().is_some_and(is_system);
    let role = if leads {
        messages[0].role
    } else {
        Role::System
    };
    let texts: Vec<_> = system
        .iter()
        .filter(|message| !message.content.is_empty())
        .map(|message| message.content.joined())
        .collect();
    turns.insert(0, Message::new(role, texts.join("\n\n")));
    Some(turns)
}

/// Whether a prompt has the texts of all system messages after the first message.
pub(crate) fn are_in(prompt: &str, messages: &[Message]) -> bool {
    later(messages).all(|message| match &message.content {
        MessageContent::Text(text) => prompt.contains(text.trim()),
        MessageContent::Parts(parts) => parts.iter().all(|part| prompt.contains(part.trim())),
    })
}

fn later(messages: &[Message]) -> impl Iterator<Item = &Message> {
    messages.iter().skip(1).filter(|message| is_system(message))
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_texts_join_the_first_message() {
        let developer = |text: &str| Message::new(Role::Developer, text);
        let parts = MessageContent::Parts(vec!["c".into(), "d".into()]);
        let messages = [
            Message::system("a"),
            developer("b"),
            Message::user("hi"),
            developer(""),
            Message::assistant("yes?"),
            Message::new(Role::System, parts),
            Message::user("why"),
        ];
        let expected = [
            Message::system("a\n\nb\n\nc\nd"),
            Message::user("hi"),
            Message::assistant("yes?"),
            Message::user("why"),
        ];
        assert_eq!(joined(&messages).as_deref(), Some(&expected[..]));
        assert_eq!(joined(&expected), None);
        assert_eq!(joined(&messages[2..3]), None);
        assert_eq!(joined(&[]), None);

        let unled = joined(&messages[2..]).expect("a later one");
        assert_eq!(unled[0], Message::system("c\nd"));
        let led = joined(&messages[1..]).expect("a later one");
        assert_eq!(led[0], developer("b\n\nc\nd"));
    }

    #[test]
    fn left_out_texts_are_noticed() {
        let messages = [
            Message::user("hi"),
            Message::system(" be kind\n"),
            Message::system(""),
        ];
        assert!(are_in("hi be kind", &messages));
        assert!(!are_in("hi", &messages));
    }
}
