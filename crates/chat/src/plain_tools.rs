//! Tools for templates without tool support: the system message describes them, and calls and
//! results are text.
//!
//! Calls use the Hermes format, the most common one in training data.

use serde_json::json;

use crate::{ChatError, ContentPart, Message, MessageContent, Role, Tool, prompt};

/// Writes tools, calls and results into the messages. If the template drops system messages, the
/// first user message describes the tools.
pub(crate) fn describe(
    messages: &[Message],
    tools: &[Tool],
    has_system: bool,
) -> Result<Vec<Message>, ChatError> {
    let plain = messages.iter().enumerate();
    let plain = plain.map(|(index, message)| self::plain(index, message));
    let mut written = plain.collect::<Result<Vec<_>, _>>()?;
    if tools.is_empty() {
        return Ok(written);
    }
    let instructions = instructions(tools);
    let is_system = |message: &Message| matches!(message.role, Role::System | Role::Developer);
    let first_user = written
        .iter_mut()
        .find(|message| message.role == Role::User);
    match (has_system, first_user) {
        (false, Some(user)) => {
            user.content = if user.content.has_media() {
                let mut parts = user.content.clone().into_parts();
                parts.insert(0, ContentPart::Text(instructions));
                MessageContent::Parts(parts)
            } else {
                let text = user.content.joined();
                MessageContent::Text(format!("{instructions}\n\n{text}"))
            };
        }
        _ => match written.first_mut().filter(|first| is_system(first)) {
            Some(first) => {
                let text = first.content.joined();
                first.content = MessageContent::Text(format!("{text}\n\n{instructions}"));
            }
            None => written.insert(0, Message::system(instructions)),
        },
    }
    Ok(written)
}

fn instructions(tools: &[Tool]) -> String {
    let definitions = tools.iter().map(|tool| tool.definition().to_string());
    let definitions: Vec<String> = definitions.collect();
    format!(
        "You may call functions to help with the user's request. You are given their signatures \
         within <tools></tools>:\n<tools>\n{}\n</tools>\n\nFor each function call, write a JSON \
         object with the function's name and arguments within <tool_call></tool_call>:\n\
         <tool_call>\n{{\"name\": <function name>, \"arguments\": <arguments as a JSON object>}}\n\
         </tool_call>",
        definitions.join("\n")
    )
}

/// Calls and results as text.
fn plain(index: usize, message: &Message) -> Result<Message, ChatError> {
    let mut text = message.content.joined();
    for (at, call) in message.tool_calls.iter().enumerate() {
        let arguments = prompt::arguments(index, at, call)?;
        let call = json!({ "name": call.name, "arguments": arguments });
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
    }
    let media = message.content.media();
    let media: Vec<_> = media.map(|(_, part)| part.clone()).collect();
    let with_text = |role, text: String| Message {
        reasoning: message.reasoning.clone(),
        ..Message::new(role, {
            let mut parts = vec![ContentPart::Text(text)];
            parts.extend(media);
            MessageContent::from_parts(parts)
        })
    };
    Ok(match message.role {
        Role::Tool => with_text(
            Role::User,
            format!("<tool_response>\n{text}\n</tool_response>"),
        ),
        role if !message.tool_calls.is_empty() => with_text(role, text),
        _ => message.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    fn tool() -> Tool {
        Tool {
            name: "add".into(),
            description: Some("Adds".into()),
            parameters: json!({"type": "object"}),
            strict: false,
        }
    }

    #[test]
    fn calls_and_results_become_text() {
        let call = Message {
            tool_calls: vec![ToolCall {
                id: "1".into(),
                name: "add".into(),
                arguments: r#"{"a":1}"#.into(),
            }],
            ..Message::new(Role::Assistant, "Let me see.")
        };
        let messages = [
            Message::new(Role::User, "1+1?"),
            call,
            Message::new(Role::Tool, "2"),
        ];
        let written = describe(&messages, &[tool()], true).unwrap();
        let roles: Vec<Role> = written.iter().map(|message| message.role).collect();
        assert_eq!(
            roles,
            [Role::System, Role::User, Role::Assistant, Role::User]
        );
        let texts: Vec<String> = written.iter().map(|m| m.content.joined()).collect();
        assert!(
            texts[0].contains(r#""name":"add","description":"Adds""#),
            "{}",
            texts[0]
        );
        let call =
            "Let me see.\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>";
        assert_eq!(texts[2], call);
        assert_eq!(texts[3], "<tool_response>\n2\n</tool_response>");
    }

    #[test]
    fn system_message_keeps_its_text() {
        let messages = [
            Message::new(Role::System, "Be kind."),
            Message::new(Role::User, "hi"),
        ];
        let written = describe(&messages, &[tool()], true).unwrap();
        assert_eq!(written.len(), 2);
        assert!(
            written[0]
                .content
                .joined()
                .starts_with("Be kind.\n\nYou may call")
        );
        assert_eq!(written[1], messages[1]);

        let written = describe(&messages, &[tool()], false).unwrap();
        assert_eq!(written[0], messages[0]);
        let text = written[1].content.joined();
        assert!(
            text.starts_with("You may call") && text.ends_with("\n\nhi"),
            "{text}"
        );
    }
}
