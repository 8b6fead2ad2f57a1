//! System and developer messages after the first message. Agents send them in the middle of a
//! conversation; some templates refuse them, and others leave them out.

use crate::{Message, MessageContent, Role};

/// The conversation with all system messages joined in its first message, in order, separated by a
/// blank line. Messages of the user that a removed one separated are joined alike, because templates
/// may require that roles alternate. `None` if there are no system messages after the first message.
pub(crate) fn joined(messages: &[Message]) -> Option<Vec<Message>> {
    later(messages).next()?;
    let mut system = Vec::new();
    let mut turns: Vec<Message> = Vec::new();
    let mut follows_removed = false;
    for message in messages {
        if is_system(message) {
            system.push(message);
            follows_removed = true;
            continue;
        }
        match turns.last_mut() {
            Some(last) if follows_removed && are_one_users(last, message) => {
                last.content = join_users(&last.content, &message.content);
            }
            _ => turns.push(message.clone()),
        }
        follows_removed = false;
    }
    let leads = messages.first().filter(|first| is_system(first));
    let role = leads.map_or(Role::System, |first| first.role);
    let text = join(system.iter().map(|message| &message.content));
    turns.insert(0, Message::new(role, text));
    Some(turns)
}

fn are_one_users(one: &Message, other: &Message) -> bool {
    [one, other]
        .iter()
        .all(|message| message.role == Role::User)
        && one.name == other.name
}

/// Texts that are not empty, separated by a blank line.
fn join<'a>(contents: impl IntoIterator<Item = &'a MessageContent>) -> String {
    let contents = contents.into_iter().filter(|content| !content.is_empty());
    let texts: Vec<_> = contents.map(MessageContent::joined).collect();
    texts.join("\n\n")
}

/// Messages of the user, of which either may have media.
fn join_users(one: &MessageContent, other: &MessageContent) -> MessageContent {
    if !one.has_media() && !other.has_media() {
        return join([one, other]).into();
    }
    let mut parts = one.clone().into_parts();
    parts.extend(other.clone().into_parts());
    MessageContent::from_parts(parts)
}

/// Whether a prompt has the texts of all system messages after the first message.
pub(crate) fn are_in(prompt: &str, messages: &[Message]) -> bool {
    let is_in = |text: &str| prompt.contains(text.trim());
    later(messages).all(|message| message.content.texts().all(is_in))
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
    fn separated_messages_of_the_user_are_joined() {
        let messages = [
            Message::user("a"),
            Message::user("b"),
            Message::system("be brief"),
            Message::user("c"),
            Message::assistant("d"),
            Message::system("be kind"),
            Message::user("e"),
        ];
        let expected = [
            Message::system("be brief\n\nbe kind"),
            Message::user("a"),
            Message::user("b\n\nc"),
            Message::assistant("d"),
            Message::user("e"),
        ];
        assert_eq!(joined(&messages).as_deref(), Some(&expected[..]));
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
