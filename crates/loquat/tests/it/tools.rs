//! The loop that runs tools.

use loquat::{Error, Role, Tool, ToolChoice, Toolbox};
use serde_json::json;

use crate::model;

fn flip() -> Tool {
    Tool {
        name: "flip".to_owned(),
        description: None,
        parameters: json!({
            "type": "object",
            "properties": { "bit": { "enum": [0, 1] } },
            "required": ["bit"],
            "additionalProperties": false
        }),
        strict: true,
    }
}

#[test]
fn required_call_is_run_and_its_result_answered() {
    let model = model();
    let mut bits = Vec::new();
    let mut tools = Toolbox::new().with(flip(), |arguments| {
        let bit = arguments["bit"].as_u64().ok_or("no bit")?;
        bits.push(bit);
        Ok((1 - bit).to_string())
    });
    let chat = model.chat("hi").tool_choice(ToolChoice::Required);
    let chat = chat.temperature(0.0).max_tokens(64);
    let done = chat.run_tools(&mut tools, 4).unwrap();
    drop(tools);
    assert!(!bits.is_empty() && bits.iter().all(|bit| *bit < 2));
    let roles: Vec<_> = done.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles[..2], [Role::User, Role::Assistant]);
    assert_eq!(roles.last(), Some(&Role::Assistant));
    let results = done.messages.iter().filter(|m| m.role == Role::Tool);
    assert_eq!(results.count(), bits.len());
    assert!(done.reply.tool_calls.is_empty());
}

#[test]
fn rounds_are_bounded() {
    let model = model();
    let mut tools = Toolbox::new().with(flip(), |_| Ok("done".to_owned()));
    let chat = model.chat("hi").tool_choice(ToolChoice::Required);
    let chat = chat.temperature(0.0).max_tokens(64);
    let refused = chat.run_tools(&mut tools, 1);
    assert!(matches!(refused, Err(Error::ToolRounds { rounds: 1 })));
}
