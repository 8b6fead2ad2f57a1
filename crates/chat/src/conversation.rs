use crate::{Message, Role};

/// A conversation that grows turn by turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<Message>,
}

impl Conversation {
    /// `system` says how the model is to behave, and outlives [`clear`](Self::clear).
    pub fn new(system: Option<String>) -> Self {
        Self {
            system,
            turns: Vec::new(),
        }
    }

    /// What was said elsewhere. A system message at its beginning says how to behave.
    pub fn from_messages(messages: Vec<Message>) -> Self {
        let mut turns = messages;
        let leads = turns
            .first()
            .is_some_and(|first| first.role == Role::System);
        let system = leads.then(|| turns.remove(0).content.joined());
        Self { system, turns }
    }

    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// From the next question on, with every turn kept.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    pub fn turns(&self) -> &[Message] {
        &self.turns
    }

    pub fn push_user(&mut self, content: impl Into<String>) {
        self.push(Message::new(Role::User, content.into()));
    }

    /// Any other turn: what the assistant said, or a tool's result.
    pub fn push(&mut self, message: Message) {
        self.turns.push(message);
    }

    /// Takes the last turn back: a question whose answer was refused or cancelled.
    pub fn pop(&mut self) -> Option<Message> {
        self.turns.pop()
    }

    /// Takes the last question back with all that came of it, and gives the question.
    pub fn take_back(&mut self) -> Option<Message> {
        let asked = |message: &Message| message.role == Role::User;
        let last = self.turns.iter().rposition(asked)?;
        self.turns.drain(last..).next()
    }

    /// Forgets every turn.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Whether nothing has been said yet.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// What to ask the model with.
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
    fn the_system_message_outlives_the_turns() {
        let mut conversation = Conversation::new(Some("be kind".into()));
        conversation.push_user("hi");
        conversation.push(Message::new(Role::Assistant, "hello"));
        conversation.push_user("what?");
        assert_eq!(conversation.pop(), Some(Message::new(Role::User, "what?")));
        let said = [
            Message::new(Role::System, "be kind"),
            Message::new(Role::User, "hi"),
            Message::new(Role::Assistant, "hello"),
        ];
        assert_eq!(conversation.messages(), said);
        conversation.clear();
        assert!(conversation.is_empty());
        assert_eq!(conversation.messages(), said[..1]);
        assert!(Conversation::default().messages().is_empty());
    }

    #[test]
    fn an_exchange_is_taken_back_whole() {
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
            let taken = conversation.take_back();
            assert_eq!(taken, Some(Message::new(Role::User, question)));
            assert_eq!(conversation.turns(), &turns[..left]);
        }
        assert_eq!(conversation.take_back(), None);
    }

    #[test]
    fn a_system_message_at_the_beginning_is_the_conversation_s() {
        let said = vec![
            Message::new(Role::System, "be kind"),
            Message::new(Role::User, "hi"),
        ];
        let mut conversation = Conversation::from_messages(said.clone());
        assert_eq!(conversation.system(), Some("be kind"));
        assert_eq!(conversation.messages(), said);
        conversation.set_system(Some("be brief".into()));
        assert_eq!(conversation.turns(), &said[1..]);
        assert_eq!(
            conversation.messages()[0],
            Message::new(Role::System, "be brief")
        );
        conversation.set_system(None);
        assert_eq!(conversation.messages(), said[1..]);
    }
}
