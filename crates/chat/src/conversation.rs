//! A conversation's turns.

use crate::{Message, Role};

/// A conversation that grows turn by turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<Message>,
}

impl Conversation {
    /// `system` is the system message. [`clear`](Self::clear) keeps it.
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            turns: Vec::new(),
        }
    }

    /// Continues from messages. A leading system message becomes the conversation's.
    pub fn from_messages(messages: Vec<Message>) -> Self {
        let mut turns = messages;
        let leads = turns
            .first()
            .is_some_and(|first| first.role == Role::System);
        let system = leads.then(|| turns.remove(0).content.joined());
        Self { system, turns }
    }

    /// The system message, if there is one.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system message and keeps the turns.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// The messages after the system message, oldest first.
    pub fn turns(&self) -> &[Message] {
        &self.turns
    }

    /// Adds a user message.
    pub fn push_user(&mut self, content: impl Into<String>) {
        self.push(Message::new(Role::User, content.into()));
    }

    /// Adds any other turn, such as a reply or a tool's result.
    pub fn push(&mut self, message: Message) {
        self.turns.push(message);
    }

    /// Removes the last turn, such as a question whose answer was refused or cancelled.
    pub fn pop(&mut self) -> Option<Message> {
        self.turns.pop()
    }

    /// Removes the last question and all turns after it. Returns the question.
    pub fn undo(&mut self) -> Option<Message> {
        let is_question = |message: &Message| message.role == Role::User;
        let last = self.turns.iter().rposition(is_question)?;
        self.turns.drain(last..).next()
    }

    /// Removes every turn.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Whether there are no turns. A system message alone does not count.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The system message and the turns.
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter();
        let system = system.map(|content| Message::new(Role::System, content.as_str()));
        system.chain(self.turns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_keeps_the_system_message() {
        let mut conversation = Conversation::new(Some("be kind".into()));
        conversation.push_user("hi");
        conversation.push(Message::new(Role::Assistant, "hello"));
        conversation.push_user("what?");
        assert_eq!(conversation.pop(), Some(Message::new(Role::User, "what?")));
        let expected = [
            Message::new(Role::System, "be kind"),
            Message::new(Role::User, "hi"),
            Message::new(Role::Assistant, "hello"),
        ];
        assert_eq!(conversation.messages(), expected);
        conversation.clear();
        assert!(conversation.is_empty());
        assert_eq!(conversation.messages(), expected[..1]);
        assert!(Conversation::default().messages().is_empty());
    }

    #[test]
    fn undo_removes_a_whole_exchange() {
        let turns = vec![
            Message::new(Role::User, "one"),
            Message::new(Role::Assistant, "1"),
            Message::new(Role::User, "two"),
            Message::new(Role::Assistant, ""),
            Message::new(Role::Tool, "2"),
            Message::new(Role::Assistant, "2"),
        ];
        let mut conversation = Conversation::from_messages(turns.clone());
        for (question, left) in [("two", 2), ("one", 0)] {
            let taken = conversation.undo();
            assert_eq!(taken, Some(Message::new(Role::User, question)));
            assert_eq!(conversation.turns(), &turns[..left]);
        }
        assert_eq!(conversation.undo(), None);
    }

    #[test]
    fn leading_system_message_becomes_the_conversations() {
        let expected = vec![
            Message::new(Role::System, "be kind"),
            Message::new(Role::User, "hi"),
        ];
        let mut conversation = Conversation::from_messages(expected.clone());
        assert_eq!(conversation.system(), Some("be kind"));
        assert_eq!(conversation.messages(), expected);
        conversation.set_system(Some("be brief".into()));
        assert_eq!(conversation.turns(), &expected[1..]);
        assert_eq!(
            conversation.messages()[0],
            Message::new(Role::System, "be brief")
        );
        conversation.set_system(None);
        assert_eq!(conversation.messages(), expected[1..]);
    }
}
