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
}
