//! Prompts that end within the assistant's last message, which the reply continues.

use crate::{ChatError, ContentPart, Message, MessageContent, Role};

/// A Unicode noncharacter at the end of the message. Templates write whatever ends a turn behind
/// it, and do not trim the text before it.
const END: char = '\u{fdd1}';

/// The conversation with the end of its last message marked.
pub(crate) fn mark_end(messages: &[Message]) -> Result<Vec<Message>, ChatError> {
    let mut marked = messages.to_vec();
    let last = marked
        .last_mut()
        .filter(|last| last.role == Role::Assistant && last.tool_calls.is_empty())
        .ok_or(ChatError::NothingToContinue)?;
    match &mut last.content {
        MessageContent::Text(text) => text.push(END),
        MessageContent::Parts(parts) => match parts.last_mut() {
            Some(ContentPart::Text(part)) => part.push(END),
            _ => parts.push(ContentPart::Text(END.to_string())),
        },
    }
    Ok(marked)
}

/// The rendered conversation up to the mark.
pub(crate) fn cut(mut rendered: String) -> Result<String, ChatError> {
    let Some(end) = rendered.rfind(END) else {
        return Err(ChatError::Unsupported {
            field: "continue_final_message",
            why: "its chat template does not write the last message".into(),
        });
    };
    rendered.truncate(end);
    Ok(rendered)
}
