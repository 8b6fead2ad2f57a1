//! Messages, tools and events survive serialization (feature `serde`).

use loquat_chat::{Conversation, Message, ReplyEvent, Tool, ToolCall};
use serde_json::json;

#[test]
fn conversation_round_trips_through_json() {
    let call = ToolCall {
        id: "call00001".into(),
        name: "add".into(),
        arguments: "{\"a\": 1}".into(),
    };
    let conversation = Conversation::from_messages(vec![
        Message::system("be brief"),
        Message::user("1+1?"),
        Message {
            reasoning: Some("hm".into()),
            tool_calls: vec![call],
            ..Message::assistant("")
        },
        Message::tool("call00001", "2"),
    ]);
    let stored = serde_json::to_string(&conversation).expect("JSON");
    let restored: Conversation = serde_json::from_str(&stored).expect("a conversation");
    assert_eq!(restored, conversation);
}

#[test]
fn unset_fields_are_left_out() {
    let message = serde_json::to_value(Message::user("hi")).expect("JSON");
    assert_eq!(message, json!({"role": "user", "content": "hi"}));
    let event = serde_json::to_value(ReplyEvent::Text("hi".into())).expect("JSON");
    assert_eq!(event, json!({"text": "hi"}));
    let tool: Tool =
        serde_json::from_value(json!({"name": "f", "parameters": {}})).expect("a tool");
    assert!(!tool.strict && tool.description.is_none());
}
